//! Decides what to do for a claim, and builds its CreateVolume request. Makes no call, writes
//! nothing and emits no events.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi::{
    CapacityRange, CreateVolumeRequest, TopologyRequirement, VolumeCapability,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, SecretReference};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttributesClass};
use kube::ResourceExt;

use crate::api::constants::{FS_TYPE, FS_TYPE_OLD, RESERVED};
use crate::api::node_fitness::UnfitNode;
use crate::api::pvc::{self, ClaimContext, DataSource};
use crate::api::scope::Scope;
use crate::api::topology::{self, NodeTopology, RequirementInputs, TopologyRequest};
use crate::api::volume_mode;
use crate::csi::Pools;

use super::Options;
use super::access::{self, VolumeMode};
use super::capabilities::Capabilities;
use super::error::Error;
use super::secrets::{self, SecretPurpose, TemplateVars};
use super::source::{self, SourceObjects, Target, UsableSource};

/// The flags that decisions and volumes depend on.
#[derive(Clone, Debug)]
pub(crate) struct Flags {
    pub(crate) options: Options,
    /// `--default-fstype`.
    pub(crate) fs_type: String,
    /// `--extra-create-metadata`.
    pub(crate) extra_metadata: bool,
    /// True if the driver supports topology. Otherwise its accessible topology does not go into the
    /// node affinity.
    pub(crate) has_topology: bool,
}

/// What is the same for all claims.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings<'a> {
    /// The driver's name, and what it can do.
    pub(super) driver: &'a Capabilities,
    /// The volumes that this process serves.
    pub(super) scope: &'a Scope,
    /// The pools of this node's driver.
    pub(super) pools: &'a Pools,
    pub(super) flags: &'a Flags,
}

impl<'a> Settings<'a> {
    pub(super) fn claim_context(self, leads: bool) -> ClaimContext<'a> {
        ClaimContext {
            driver: &self.driver.name,
            scope: self.scope,
            leads,
        }
    }
}

/// A claim, and the facts that decide whether it gets a volume.
#[derive(Clone, Debug)]
pub(super) struct ClaimFacts {
    pub(super) claim: Arc<PersistentVolumeClaim>,
    pub(super) leads: bool,
    /// The claim's class, if it exists. Not looked up for a claim that another process serves.
    pub(super) class: Option<Arc<StorageClass>>,
    /// True if the claim's PersistentVolume exists.
    pub(super) has_volume: bool,
    /// The remaining time before a call with a final error may be repeated.
    pub(super) wait: Option<Duration>,
    /// The plan of a CreateVolume call that may still be running.
    pub(super) last: Option<Arc<Plan>>,
}

/// All that decides about a claim and its volume.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) claim: ClaimFacts,
    pub(super) volume: VolumeFacts,
}

/// The objects that a volume depends on besides its claim and class.
#[derive(Clone, Debug, Default)]
pub(super) struct VolumeFacts {
    pub(super) source: SourceObjects,
    pub(super) nodes: Vec<NodeTopology>,
    /// Why this node may not make the volume.
    pub(super) unfit: Option<UnfitNode>,
    /// The inputs of the topology requirement in an earlier call for the same node.
    pub(super) known_topology: Option<RequirementInputs>,
    pub(super) attributes: Option<Arc<VolumeAttributesClass>>,
}

const AWAIT_POD: &str = "no pending pod that uses the claim can run there. Leave the annotation \
     volume.kubernetes.io/selected-node to the scheduler";
const AWAIT_LEADER: &str = "the claim's class binds without a pod. Leave the annotation \
     volume.kubernetes.io/selected-node to the controller";

/// What to do for a claim.
#[derive(Debug)]
pub(super) enum Step {
    /// Forget the claim: this driver does not provision it, or no longer does.
    NotOurs,
    /// Do nothing, at least in this process.
    Nothing,
    /// Do nothing before this time has passed.
    Wait(Duration),
    /// Leave the claim to an external populator for sources of this kind.
    External(String),
    Create(Box<Plan>),
}

/// Decides what to do for a claim.
pub(super) fn decide(facts: &Facts, settings: Settings<'_>) -> Result<Step, Error> {
    match screen(&facts.claim, settings)? {
        ControlFlow::Break(step) => Ok(step),
        ControlFlow::Continue(draft) => {
            let last = facts.claim.last.as_deref();
            let plan = create(draft, last, &facts.volume, settings)?;
            Ok(Step::Create(Box::new(plan)))
        }
    }
}

/// The first part of the decision, which needs only the claim, its class and its volume. Continues
/// with a draft if the claim gets a volume.
pub(super) fn screen(
    facts: &ClaimFacts,
    settings: Settings<'_>,
) -> Result<ControlFlow<Step, Draft>, Error> {
    let (claim, context) = (&facts.claim, settings.claim_context(facts.leads));
    if !pvc::is_for(claim, context.driver) {
        return Ok(ControlFlow::Break(Step::NotOurs));
    }
    if !pvc::is_here(claim, context) {
        return Ok(ControlFlow::Break(Step::Nothing));
    }
    let Some(class) = &facts.class else {
        let name = pvc::class_name(claim).unwrap_or_default().to_owned();
        return Err(Error::NoClass { name });
    };
    if !pvc::is_due(claim, class, context) {
        return Ok(ControlFlow::Break(Step::Nothing));
    }
    // A call that may still be running is repeated in any case.
    if facts.last.is_none() {
        if facts.has_volume {
            return Ok(ControlFlow::Break(Step::Nothing));
        }
        if let Some(left) = facts.wait {
            return Ok(ControlFlow::Break(Step::Wait(left)));
        }
        if let DataSource::Other(kind) = pvc::data_source(claim)? {
            return Ok(ControlFlow::Break(Step::External(kind)));
        }
    }
    draft(claim, class, settings.driver, settings.flags).map(ControlFlow::Continue)
}

fn create(
    draft: Draft,
    last: Option<&Plan>,
    facts: &VolumeFacts,
    settings: Settings<'_>,
) -> Result<Plan, Error> {
    let flags = settings.flags;
    if let (Some(unfit), Some(node)) = (&facts.unfit, settings.scope.node()) {
        let (node, unfit) = (node.to_owned(), unfit.clone());
        let advice = if pvc::is_delayed(&draft.class) {
            AWAIT_POD
        } else {
            AWAIT_LEADER
        };
        return Err(Error::Unfit {
            node,
            unfit,
            advice,
        });
    }
    let target = Target {
        claim: &draft.claim,
        size: draft.size,
        driver: &settings.driver.name,
        scope: settings.scope,
        pools: settings.pools,
        prevent_mode_change: flags.options.prevent_volume_mode_conversion,
    };
    let found = source::content_source(target, &draft.source, &facts.source);
    let source = match (found, last) {
        // The running call reads the source, which stays protected even while it is being deleted.
        (Err(_), Some(last)) if last.draft.source == draft.source => (last.source.clone(), false),
        (found, _) => (found?, true),
    };
    let topology = topology_of(&draft, facts, settings)?;
    let attributes = facts.attributes.as_deref();
    finish(draft, source, topology, attributes, settings.driver, flags)
}

/// The topology that CreateVolume requires, and what it follows from.
fn topology_of(
    draft: &Draft,
    facts: &VolumeFacts,
    settings: Settings<'_>,
) -> Result<(Option<TopologyRequirement>, Option<RequirementInputs>), Error> {
    if !settings.driver.has_topology {
        return Ok((None, None));
    }
    let options = &settings.flags.options;
    let is_node = settings.scope.node().is_some();
    let allowed = draft.class.allowed_topologies.as_deref();
    let request = TopologyRequest {
        claim: &draft.claim.name_any(),
        allowed: allowed.unwrap_or_default(),
        selected: selected_node(draft, settings.scope),
        strict: options.strict_topology || is_node,
        immediate: options.immediate_topology,
        nodes: &facts.nodes,
    };
    let (topology, made_from) = topology::requirement(request, facts.known_topology.as_ref())?;
    Ok((topology, Some(made_from)))
}

/// The node that the volume is created for. On a node, the provisioner creates volumes only there.
pub(super) fn selected_node<'a>(draft: &'a Draft, scope: &'a Scope) -> Option<&'a str> {
    scope.node().or(pvc::selected_node(&draft.claim))
}

/// True if the claim can move to another node when the selected one is out of space. If volumes are
/// on one node, a volume with a source must be on the node of its source.
pub(super) fn is_movable(
    claim: &PersistentVolumeClaim,
    scope: &Scope,
    has_topology: bool,
    source: &DataSource,
) -> bool {
    let sourced = matches!(source, DataSource::Snapshot(_) | DataSource::Claim(_));
    let elsewhere = match scope {
        Scope::Cluster => has_topology,
        Scope::Node { .. } | Scope::Leader => !sourced,
    };
    elsewhere && pvc::selected_node(claim).is_some()
}

/// Checks that the claim still wants the volume that was created for it. `Err` says why not.
pub(super) fn still_wants(
    now: Option<&PersistentVolumeClaim>,
    then: &PersistentVolumeClaim,
    volume: &str,
    scope: &Scope,
) -> Result<(), &'static str> {
    let Some(now) = now.filter(|now| now.uid() == then.uid()) else {
        return Err("its claim is gone");
    };
    if pvc::volume_name(now).is_some_and(|name| name != volume) {
        return Err("its claim has got another volume");
    }
    // A pod that moved to another node cannot use a volume on the old node.
    let moved = pvc::selected_node(now) != pvc::selected_node(then);
    if scope.node().is_some() && moved {
        return Err("its claim was moved to another node");
    }
    Ok(())
}

/// References to the secrets of a volume.
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

/// A volume to create, as its claim and class describe it.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) claim: Arc<PersistentVolumeClaim>,
    pub(crate) class: Arc<StorageClass>,
    /// The name of the volume and of its PersistentVolume.
    pub(crate) name: String,
    /// The size in bytes.
    pub(crate) size: i64,
    pub(crate) volume_mode: VolumeMode,
    pub(crate) capabilities: Vec<VolumeCapability>,
    pub(crate) source: DataSource,
}

/// A complete plan for one CreateVolume call.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) draft: Draft,
    pub(crate) source: UsableSource,
    /// True if the source needs the finalizer that keeps it while the driver reads it.
    pub(crate) protects_source: bool,
    /// The inputs of the topology requirement: a repeated call must send the same one.
    pub(crate) topology: Option<RequirementInputs>,
    /// The request without secrets: they are read right before the call.
    pub(crate) request: CreateVolumeRequest,
    pub(crate) secrets: Secrets,
}

/// Derives a draft from a claim and its class. Fails if the driver cannot create such a volume.
pub(crate) fn draft(
    claim: &Arc<PersistentVolumeClaim>,
    class: &Arc<StorageClass>,
    driver: &Capabilities,
    flags: &Flags,
) -> Result<Draft, Error> {
    let source = pvc::data_source(claim)?;
    able(claim, &source, driver)?;
    if claim
        .spec
        .as_ref()
        .is_some_and(|spec| spec.selector.is_some())
    {
        return Err(Error::Selector);
    }
    let volume_mode = volume_mode(claim, class, &flags.fs_type)?;
    let modes = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.access_modes.as_deref());
    let capabilities =
        access::capabilities(modes.unwrap_or_default(), &volume_mode, driver.multi_writer)?;
    let size = pvc::requested(claim).map_err(Error::Size)?;
    Ok(Draft {
        claim: claim.clone(),
        class: class.clone(),
        name: flags.options.naming.volume_of(claim),
        size,
        volume_mode,
        capabilities,
        source,
    })
}

/// Checks that the driver has the capabilities that the claim needs.
fn able(
    claim: &PersistentVolumeClaim,
    source: &DataSource,
    driver: &Capabilities,
) -> Result<(), Error> {
    let another = "Name a StorageClass of another driver";
    let no_source = "Remove spec.dataSource from the claim";
    let no_attributes = "Remove spec.volumeAttributesClassName from the claim";
    let (lacks, advice) = if !driver.has_controller {
        ("CONTROLLER_SERVICE", another)
    } else if !driver.creates {
        ("CREATE_DELETE_VOLUME", another)
    } else if matches!(source, DataSource::Snapshot(_)) && !driver.restores {
        ("CREATE_DELETE_SNAPSHOT", no_source)
    } else if matches!(source, DataSource::Claim(_)) && !driver.clones {
        ("CLONE_VOLUME", no_source)
    } else if pvc::attributes_class(claim).is_some() && !driver.modifies {
        ("MODIFY_VOLUME", no_attributes)
    } else {
        return Ok(());
    };
    Err(Error::Unable {
        driver: driver.name.clone(),
        lacks,
        advice,
    })
}

/// True for the deprecated parameter with the filesystem type.
fn is_old_fs_type(key: &str) -> bool {
    key.eq_ignore_ascii_case(FS_TYPE_OLD)
}

/// The volume mode, with the filesystem type of the class or the default one.
fn volume_mode(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    default: &str,
) -> Result<VolumeMode, Error> {
    let parameters = class.parameters.iter().flatten();
    let types: Vec<_> = parameters
        .filter(|(key, _)| *key == FS_TYPE || is_old_fs_type(key))
        .collect();
    if types.len() > 1 {
        let old = types
            .iter()
            .map(|(key, _)| key)
            .find(|key| is_old_fs_type(key));
        let old = old.map_or(FS_TYPE_OLD, |key| key.as_str()).to_owned();
        return Err(Error::FsTypeTwice { old });
    }
    let fs_type = types.first().map(|(_, value)| value.as_str());
    match pvc::volume_mode(claim) {
        volume_mode::BLOCK => Ok(VolumeMode::Block),
        volume_mode::FILESYSTEM => Ok(VolumeMode::Filesystem {
            fs_type: fs_type
                .filter(|fs_type| !fs_type.is_empty())
                .unwrap_or(default)
                .to_owned(),
            flags: class.mount_options.clone().unwrap_or_default(),
        }),
        other => Err(Error::Mode(other.to_owned())),
    }
}

/// Completes a draft with what its references led to: the source and whether it needs protection,
/// and the topology that is required and what it follows from.
pub(crate) fn finish(
    draft: Draft,
    (source, protects_source): (UsableSource, bool),
    (required, topology): (Option<TopologyRequirement>, Option<RequirementInputs>),
    attributes: Option<&VolumeAttributesClass>,
    driver: &Capabilities,
    flags: &Flags,
) -> Result<Plan, Error> {
    let none = BTreeMap::new();
    let given = draft.class.parameters.as_ref().unwrap_or(&none);
    let secrets = all_secrets(&draft, given)?;
    let mut parameters = stripped(&draft.class.name_any(), given)?;
    if flags.extra_metadata {
        parameters.extend(pvc::names(&draft.claim, &draft.name));
    }
    if let (true, VolumeMode::Filesystem { .. }, Some(parameter)) = (
        source.may_change_mode,
        &draft.volume_mode,
        &driver.mode_change_parameter,
    ) {
        parameters.insert(parameter.clone(), "true".to_owned());
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
        volume_content_source: source.content.clone(),
        accessibility_requirements: required,
        mutable_parameters: mutable(&draft, attributes, &driver.name)?,
    };
    Ok(Plan {
        draft,
        source,
        protects_source,
        topology,
        request,
        secrets,
    })
}

fn all_secrets(draft: &Draft, parameters: &BTreeMap<String, String>) -> Result<Secrets, Error> {
    let (name, namespace) = (
        draft.claim.name_any(),
        draft.claim.namespace().unwrap_or_default(),
    );
    let about = TemplateVars {
        volume: &draft.name,
        claim: &name,
        namespace: &namespace,
        annotations: draft.claim.annotations(),
    };
    Ok(Secrets {
        provisioner: secrets::reference(SecretPurpose::Provisioner, parameters, about)?,
        controller_publish: secrets::reference(
            SecretPurpose::ControllerPublish,
            parameters,
            about,
        )?,
        node_stage: secrets::reference(SecretPurpose::NodeStage, parameters, about)?,
        node_publish: secrets::reference(SecretPurpose::NodePublish, parameters, about)?,
        controller_expand: secrets::reference(SecretPurpose::ControllerExpand, parameters, about)?,
        node_expand: secrets::reference(SecretPurpose::NodeExpand, parameters, about)?,
        controller_modify: secrets::reference(SecretPurpose::ControllerModify, parameters, about)?,
    })
}

/// The class parameters for the driver. Rejects unknown parameters with the reserved prefix.
fn stripped(
    class: &str,
    given: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Error> {
    let unknown: Vec<_> = given
        .keys()
        .filter(|key| key.starts_with(RESERVED) && *key != FS_TYPE && !secrets::is_key(key))
        .map(String::as_str)
        .collect();
    if !unknown.is_empty() {
        return Err(Error::Parameters {
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
) -> Result<BTreeMap<String, String>, Error> {
    let Some(name) = pvc::attributes_class(&draft.claim) else {
        return Ok(BTreeMap::new());
    };
    let name = name.to_owned();
    let Some(attributes) = attributes else {
        return Err(Error::NoAttributesClass { name });
    };
    if attributes.driver_name != driver {
        return Err(Error::AttributesDriver {
            name,
            has: attributes.driver_name.clone(),
            driver: driver.to_owned(),
        });
    }
    Ok(attributes.parameters.clone().unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod tests;
