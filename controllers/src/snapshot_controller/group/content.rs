//! A content for a group that is to be taken.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{Selector, SelectorExt};
use kube::{Resource, ResourceExt};

use super::{Facts, Failure, Step};
use crate::api::secret_template::{self, SnapshotVariables};
use crate::runtime::scope::{MANAGED_BY, node_label};
use crate::snapshot_controller::snapshot::{csi_of, volume_of};
use crate::snapshot_controller::{classes, names};
use crate::snapshots::{
    GroupContentSource, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent,
    VolumeGroupSnapshotContentSpec,
};
use crate::volume::nodes::node_of;

/// The reason of whatever keeps a content from being made.
const UNMADE: &str = "GroupSnapshotContentCreationFailed";

/// The next thing to do for a group without a content: class, finalizer, content.
pub(super) fn made(facts: &Facts) -> Result<Step, Failure> {
    let group = &*facts.group;
    let Some(class_name) = &group.spec.volume_group_snapshot_class_name else {
        return Ok(Step::SetClass(default_class(facts)?));
    };
    let class = class(facts, class_name)?;
    let content = content(facts, class).map_err(|message| Failure::new(UNMADE, message))?;
    if let Some(finalizers) = names::with(group, &[names::GROUP_BOUND]) {
        return Ok(Step::Finalizers(finalizers));
    }
    Ok(Step::Create(Box::new(content)))
}

/// The class of this name.
pub(super) fn class<'a>(
    facts: &'a Facts,
    name: &str,
) -> Result<&'a VolumeGroupSnapshotClass, Failure> {
    let missing = |message| Failure::still_ready("GetGroupSnapshotClassFailed", message);
    classes::named(&facts.classes, name).map_err(missing)
}

/// The only default class of the first volume's driver.
fn default_class(facts: &Facts) -> Result<String, Failure> {
    let unset =
        |message: String| Failure::still_ready("SetDefaultGroupSnapshotClassFailed", message);
    let volumes = volumes(facts).map_err(unset)?;
    let driver = match volumes.first() {
        Some(volume) => &csi_of(volume).map_err(unset)?.driver,
        None => return Err(unset("its selector fits no claim".to_owned())),
    };
    let mark = names::DEFAULT_GROUP_CLASS;
    let what = "group snapshot class";
    classes::only_default(&facts.classes, |class| &class.driver, driver, mark, what).map_err(unset)
}

/// The volumes of the claims the selector fits.
fn volumes(facts: &Facts) -> Result<Vec<&PersistentVolume>, String> {
    let source = &facts.group.spec.source;
    let selector = source.selector.clone().unwrap_or_default();
    let selector = Selector::try_from(selector).map_err(|error| format!("selector: {error}"))?;
    let claims = facts.claims.iter();
    let selected: Vec<_> = claims
        .filter(|(claim, _)| selector.matches(claim.labels()))
        .collect();
    if selected.is_empty() {
        return Err("its selector fits no claim in this namespace".to_owned());
    }
    let volumes = selected.into_iter();
    volumes
        .map(|(claim, volume)| volume_of(claim, volume.as_deref()))
        .collect()
}

/// The handles of volumes, which must all be of the class's driver.
fn handles(
    class: &VolumeGroupSnapshotClass,
    volumes: &[&PersistentVolume],
) -> Result<Vec<String>, String> {
    let handle = |volume: &&PersistentVolume| {
        let csi = csi_of(volume)?;
        if csi.driver == class.driver {
            return Ok(csi.volume_handle.clone());
        }
        Err(format!(
            "VolumeGroupSnapshotClass {} is of driver {}, but volume {} is of {}",
            class.metadata.name.as_deref().unwrap_or_default(),
            class.driver,
            volume.name_any(),
            csi.driver
        ))
    };
    volumes.iter().map(handle).collect()
}

/// The node all volumes are on, if they are on any.
fn node(facts: &Facts, volumes: &[&PersistentVolume]) -> Result<Option<String>, String> {
    let Some(nodes) = &facts.nodes else {
        return Ok(None);
    };
    let places = volumes.iter().filter_map(|volume| node_of(volume, nodes));
    let places: BTreeSet<String> = places.collect();
    if places.len() > 1 {
        let places: Vec<String> = places.into_iter().collect();
        return Err(format!(
            "the volumes are on different nodes ({}), and can't be snapshotted at one moment",
            places.join(", ")
        ));
    }
    Ok(places.into_iter().next())
}

fn content(
    facts: &Facts,
    class: &VolumeGroupSnapshotClass,
) -> Result<VolumeGroupSnapshotContent, String> {
    let group = &*facts.group;
    let volumes = volumes(facts)?;
    let handles = handles(class, &volumes)?;
    let node = node(facts, &volumes)?;
    let name = names::group_content_name(&group.uid().unwrap_or_default());
    let variables = SnapshotVariables {
        kind: "volumegroupsnapshot",
        content: &name,
        name: &group.name_any(),
        namespace: &group.namespace().unwrap_or_default(),
    };
    let secret = secret_template::of_snapshot_class(
        class.parameters.as_ref(),
        "group-snapshotter-secret",
        variables,
    )
    .map_err(|problem| problem.to_string())?;
    let keys = (
        names::GROUP_DELETION_SECRET_NAME,
        names::GROUP_DELETION_SECRET_NAMESPACE,
    );
    let spec = VolumeGroupSnapshotContentSpec {
        volume_group_snapshot_ref: ObjectReference {
            resource_version: group.resource_version(),
            ..group.object_ref(&())
        },
        deletion_policy: class.deletion_policy,
        driver: class.driver.clone(),
        volume_group_snapshot_class_name: class.metadata.name.clone(),
        source: GroupContentSource {
            volume_handles: Some(handles),
            group_snapshot_handles: None,
        },
    };
    let metadata = ObjectMeta {
        name: Some(name),
        annotations: secret.map(|secret| names::annotations(secret, keys)),
        labels: node.map(|node| BTreeMap::from([(MANAGED_BY.to_owned(), node_label(&node))])),
        finalizers: Some(vec![names::GROUP_CONTENT_BOUND.to_owned()]),
        ..ObjectMeta::default()
    };
    Ok(VolumeGroupSnapshotContent {
        metadata,
        spec,
        status: None,
    })
}
