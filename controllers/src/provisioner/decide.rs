//! The volume to be made for a claim: what its CreateVolume call says, and what its object needs.

use std::collections::BTreeMap;
use std::sync::Arc;

use hostloop_proto::csi::{
    CapacityRange, CreateVolumeRequest, TopologyRequirement, VolumeCapability, VolumeContentSource,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, SecretReference};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttributesClass};
use kube::ResourceExt;

use crate::runtime::Driver;
use crate::runtime::driver::{ControllerCapability, Service};

use super::access::{self, Shape};
use super::error::Problem;
use super::naming::Naming;
use super::secrets::{self, About, Use};
use super::source::{self, Asked};
use crate::api::names::{FS_TYPE, FS_TYPE_OLD, RESERVED};
use crate::api::pvc;

/// What the command line says of volumes.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// What volumes are called.
    pub(crate) naming: Naming,
    /// `--default-fstype`.
    pub(crate) fs_type: String,
    /// `--extra-create-metadata`.
    pub(crate) extra_metadata: bool,
    /// The driver supports topology. Otherwise its accessible topology does not go into the node
    /// affinity.
    pub(crate) has_topology: bool,
    /// `--controller-publish-readonly`.
    pub(crate) publish_read_only: bool,
}

/// The secrets of a volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Secrets {
    pub(crate) provisioner: Option<SecretReference>,
    pub(crate) controller_publish: Option<SecretReference>,
    pub(crate) node_stage: Option<SecretReference>,
    pub(crate) node_publish: Option<SecretReference>,
    pub(crate) controller_expand: Option<SecretReference>,
    pub(crate) node_expand: Option<SecretReference>,
    pub(crate) controller_modify: Option<SecretReference>,
}

/// A volume, as far as its claim and class alone tell.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) claim: Arc<PersistentVolumeClaim>,
    pub(crate) class: Arc<StorageClass>,
    /// The volume's name, for the driver and as an object.
    pub(crate) name: String,
    /// Bytes.
    pub(crate) size: i64,
    pub(crate) shape: Shape,
    pub(crate) capabilities: Vec<VolumeCapability>,
    pub(crate) asked: Asked,
}

/// A volume to be made.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) draft: Draft,
    /// The call, without its secrets: they are read when it is made.
    pub(crate) request: CreateVolumeRequest,
    pub(crate) secrets: Secrets,
}

/// What is looked up for a draft.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) source: Option<VolumeContentSource>,
    pub(crate) topology: Option<TopologyRequirement>,
    pub(crate) attributes: Option<Arc<VolumeAttributesClass>>,
}

/// What the claim and its class make of a volume, if the driver can make it.
pub(crate) fn draft(
    claim: &Arc<PersistentVolumeClaim>,
    class: &Arc<StorageClass>,
    driver: &Driver,
    settings: &Settings,
) -> Result<Draft, Problem> {
    let asked = source::asked(claim)?;
    able(claim, &asked, driver)?;
    if claim
        .spec
        .as_ref()
        .is_some_and(|spec| spec.selector.is_some())
    {
        return Err(Problem::Selector);
    }
    let shape = shape(claim, class, &settings.fs_type)?;
    let modes = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.access_modes.as_deref());
    let tells_writers = driver.can(ControllerCapability::SingleNodeMultiWriter);
    let capabilities = access::capabilities(modes.unwrap_or_default(), &shape, tells_writers)?;
    let size = pvc::requested(claim).map_err(Problem::Size)?;
    Ok(Draft {
        claim: claim.clone(),
        class: class.clone(),
        name: settings.naming.volume_of(claim),
        size,
        shape,
        capabilities,
        asked,
    })
}

/// Whether the driver can do all that is asked for.
fn able(claim: &PersistentVolumeClaim, asked: &Asked, driver: &Driver) -> Result<(), Problem> {
    let unable = |lacks, advice| {
        Err(Problem::Unable {
            driver: driver.name.clone(),
            lacks,
            advice,
        })
    };
    let another = "Name a StorageClass of another driver";
    if !driver.serves(Service::ControllerService) {
        return unable("CONTROLLER_SERVICE", another);
    }
    if !driver.can(ControllerCapability::CreateDeleteVolume) {
        return unable("CREATE_DELETE_VOLUME", another);
    }
    let no_source = "Remove spec.dataSource from the claim";
    if matches!(asked, Asked::Snapshot(_))
        && !driver.can(ControllerCapability::CreateDeleteSnapshot)
    {
        return unable("CREATE_DELETE_SNAPSHOT", no_source);
    }
    if matches!(asked, Asked::Claim(_)) && !driver.can(ControllerCapability::CloneVolume) {
        return unable("CLONE_VOLUME", no_source);
    }
    let attributes = pvc::attributes_class(claim).is_some();
    if attributes && !driver.can(ControllerCapability::ModifyVolume) {
        let advice = "Remove spec.volumeAttributesClassName from the claim";
        return unable("MODIFY_VOLUME", advice);
    }
    Ok(())
}

/// How the volume is seen in a pod.
fn shape(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    default: &str,
) -> Result<Shape, Problem> {
    let parameters = class.parameters.iter().flatten();
    let is_old = |key: &str| key.eq_ignore_ascii_case(FS_TYPE_OLD);
    let told: Vec<_> = parameters
        .filter(|(key, _)| *key == FS_TYPE || is_old(key))
        .collect();
    if told.len() > 1 {
        let old = told.iter().map(|(key, _)| key).find(|key| is_old(key));
        let old = old.map_or(FS_TYPE_OLD, |key| key.as_str()).to_owned();
        return Err(Problem::FsTypeTwice { old });
    }
    let told = told.first().map(|(_, value)| value.as_str());
    match pvc::volume_mode(claim) {
        pvc::BLOCK => Ok(Shape::Block),
        pvc::FILESYSTEM => Ok(Shape::Filesystem {
            fs_type: told
                .filter(|told| !told.is_empty())
                .unwrap_or(default)
                .to_owned(),
            flags: class.mount_options.clone().unwrap_or_default(),
        }),
        other => Err(Problem::Mode(other.to_owned())),
    }
}

/// What a draft becomes with what was looked up for it.
pub(crate) fn finish(
    draft: Draft,
    found: Found,
    driver: &Driver,
    settings: &Settings,
) -> Result<Plan, Problem> {
    let none = BTreeMap::new();
    let given = draft.class.parameters.as_ref().unwrap_or(&none);
    let secrets = all_secrets(&draft, given)?;
    let mut parameters = stripped(&draft.class.name_any(), given)?;
    if settings.extra_metadata {
        for (key, value) in [
            ("pvc/name", draft.claim.name_any()),
            ("pvc/namespace", draft.claim.namespace().unwrap_or_default()),
            ("pv/name", draft.name.clone()),
        ] {
            parameters.insert(format!("{RESERVED}{key}"), value);
        }
    }
    let request = CreateVolumeRequest {
        name: draft.name.clone(),
        capacity_range: Some(CapacityRange {
            required_bytes: draft.size,
            limit_bytes: 0,
        }),
        volume_capabilities: draft.capabilities.clone(),
        parameters,
        secrets: BTreeMap::new(),
        volume_content_source: found.source,
        accessibility_requirements: found.topology,
        mutable_parameters: mutable(&draft, found.attributes.as_deref(), &driver.name)?,
    };
    Ok(Plan {
        draft,
        request,
        secrets,
    })
}

fn all_secrets(draft: &Draft, parameters: &BTreeMap<String, String>) -> Result<Secrets, Problem> {
    let (name, namespace) = (
        draft.claim.name_any(),
        draft.claim.namespace().unwrap_or_default(),
    );
    let about = About {
        volume: &draft.name,
        claim: &name,
        namespace: &namespace,
        annotations: draft.claim.annotations(),
    };
    let of = |one| secrets::reference(one, parameters, about);
    Ok(Secrets {
        provisioner: of(Use::Provisioner)?,
        controller_publish: of(Use::ControllerPublish)?,
        node_stage: of(Use::NodeStage)?,
        node_publish: of(Use::NodePublish)?,
        controller_expand: of(Use::ControllerExpand)?,
        node_expand: of(Use::NodeExpand)?,
        controller_modify: of(Use::ControllerModify)?,
    })
}

/// The parameters the driver is told: without those that are for the provisioner, which must all
/// be known.
fn stripped(
    class: &str,
    given: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Problem> {
    let unknown: Vec<_> = given
        .keys()
        .filter(|key| key.starts_with(RESERVED) && *key != FS_TYPE && !secrets::is_key(key))
        .map(String::as_str)
        .collect();
    if !unknown.is_empty() {
        return Err(Problem::Parameters {
            class: class.to_owned(),
            keys: unknown.join(", "),
        });
    }
    let others = given.iter().filter(|(key, _)| !key.starts_with(RESERVED));
    Ok(others
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect())
}

fn mutable(
    draft: &Draft,
    attributes: Option<&VolumeAttributesClass>,
    driver: &str,
) -> Result<BTreeMap<String, String>, Problem> {
    let Some(name) = pvc::attributes_class(&draft.claim) else {
        return Ok(BTreeMap::new());
    };
    let name = name.to_owned();
    let Some(attributes) = attributes else {
        return Err(Problem::NoAttributesClass { name });
    };
    if attributes.driver_name != driver {
        return Err(Problem::AttributesDriver {
            name,
            has: attributes.driver_name.clone(),
            driver: driver.to_owned(),
        });
    }
    Ok(attributes.parameters.clone().unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod tests;
