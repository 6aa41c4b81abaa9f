//! Decides the next step for a snapshot of either kind.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};

use super::kind::{self, Facts, SnapshotFailure, SnapshotKind, Step};
use super::names::{self, BindState};
use super::status;
use crate::api::scope::{MANAGED_BY, node_label};
use crate::api::secret_template::{self, SnapshotVariables};
use crate::api::{pv, pvc};
use crate::client::Resource as _;
use crate::snapshots::content::{Content, SnapshotClass};

pub(super) fn decide<K: SnapshotKind>(facts: &Facts<K>) -> Step<K> {
    if facts.snapshot.is_deleting() {
        return K::decide_deletion(facts);
    }
    next(facts).unwrap_or_else(Step::Fail)
}

fn next<K: SnapshotKind>(facts: &Facts<K>) -> Result<Step<K>, SnapshotFailure> {
    let snapshot = &*facts.snapshot;
    let (view, reasons) = (K::view(snapshot), K::NAMES.reasons);
    let content_kind = <K::Content as Resource>::kind(&());
    let noun = K::NAMES.noun;
    if view.selects_volumes == view.given.is_some() {
        let message = format!("exactly one of {} must be given", K::NAMES.sources);
        return Err(SnapshotFailure::new(reasons.validation, message));
    }
    let ready = view.is_ready() && view.bound.is_some();
    let Some(content) = facts.content.as_deref() else {
        return match view.given {
            _ if ready => {
                let message = format!("its {content_kind} is missing");
                Err(SnapshotFailure::new(reasons.missing, message))
            }
            Some(name) => {
                let message = format!("there is no {content_kind} {name}");
                Err(SnapshotFailure::new(reasons.missing, message))
            }
            None if K::is_member(snapshot) => Ok(Step::Wait(
                "this member of a group has no content yet".to_owned(),
            )),
            None => make(facts),
        };
    };
    let ready = ready && status::is_of::<K>(snapshot, content);
    let its = content.view();
    let bind_state = names::bind_state(its.user, snapshot);
    if !ready {
        check::<K>(facts, content, bind_state)?;
    } else if bind_state != BindState::Bound {
        let message = format!("its {content_kind} is bound to another {noun}");
        return Err(SnapshotFailure::new(reasons.misbound, message));
    }
    if let Some(finalizers) = names::with(snapshot, &K::finalizers(its.policy)) {
        return Ok(Step::Finalizers(finalizers));
    }
    if ready {
        return K::when_ready(facts, content);
    }
    if view.given.is_none() {
        if let Some(step) = K::before_status(facts, content, bind_state)? {
            return Ok(step);
        }
    } else if bind_state == BindState::Free || (its.class.is_none() && view.class.is_some()) {
        if let Some(name) = view.class {
            class(facts, name)?;
        }
        return Ok(Step::Bind(view.class.map(str::to_owned)));
    }
    Ok(K::copy_status(facts, content))
}

/// Checks that the content can belong to this snapshot.
fn check<K: SnapshotKind>(
    facts: &Facts<K>,
    content: &K::Content,
    bind_state: BindState,
) -> Result<(), SnapshotFailure> {
    let its = content.view();
    let given = K::view(&facts.snapshot).given.is_some();
    let kind = <K::Content as Resource>::kind(&());
    let (name, noun) = (content.name_any(), K::NAMES.noun);
    let fits = if given {
        its.given.is_some()
    } else {
        !its.volumes.is_empty()
    };
    if !fits {
        let not = if given { "not " } else { "" };
        let message = format!("{kind} {name} is {not}of a {noun} made beforehand");
        return Err(SnapshotFailure::new(
            K::NAMES.reasons.content_mismatch,
            message,
        ));
    }
    match bind_state {
        BindState::Bound => Ok(()),
        // The group's controller binds the contents of members.
        BindState::Free if given || K::is_member(&facts.snapshot) => Ok(()),
        _ => {
            let message = format!("{kind} {name} is bound to another {noun}");
            Err(SnapshotFailure::new(
                K::NAMES.reasons.content_misbound,
                message,
            ))
        }
    }
}

/// Decides the next step for a snapshot without a content.
fn make<K: SnapshotKind>(facts: &Facts<K>) -> Result<Step<K>, SnapshotFailure> {
    if let Some(name) = K::view(&facts.snapshot).class {
        return K::make(facts, class(facts, name)?);
    }
    let default = K::driver(facts)
        .and_then(|driver| kind::only_default_class::<K>(&facts.classes, driver))
        .map_err(|message| SnapshotFailure::still_ready(K::NAMES.reasons.default_class, message))?;
    Ok(Step::SetClass(default))
}

fn class<'a, K: SnapshotKind>(
    facts: &'a Facts<K>,
    name: &str,
) -> Result<&'a K::Class, SnapshotFailure> {
    kind::class_by_name::<K>(&facts.classes, name).ok_or_else(|| {
        let kind = <K::Class as Resource>::kind(&());
        let message = format!("there is no {kind} {name}");
        SnapshotFailure::still_ready(K::NAMES.reasons.get_class, message)
    })
}

/// The PersistentVolume of a claim, if both are bound to each other.
pub(super) fn volume_of<'a>(
    claim: &PersistentVolumeClaim,
    volume: Option<&'a PersistentVolume>,
) -> Result<&'a PersistentVolume, String> {
    let name = claim.name_any();
    if !pvc::is_bound(claim) {
        return Err(format!("claim {name} is not bound to a volume yet"));
    }
    let volume = volume.ok_or_else(|| format!("the volume of claim {name} does not exist"))?;
    if pv::claim(volume).is_some_and(|it| names::bind_state(it, claim) != BindState::Other) {
        return Ok(volume);
    }
    let volume = volume.name_any();
    Err(format!("volume {volume} is not bound to claim {name}"))
}

/// The CSI source of a volume; fails for other volumes.
pub(super) fn csi_of(volume: &PersistentVolume) -> Result<&CSIPersistentVolumeSource, String> {
    pv::csi(volume).ok_or_else(|| format!("volume {} is not of a CSI driver", volume.name_any()))
}

/// The handle of a volume. Fails if the class is for another driver.
pub(super) fn handle_of<K: SnapshotKind>(
    class: &K::Class,
    volume: &PersistentVolume,
) -> Result<String, String> {
    let csi = csi_of(volume)?;
    check_driver::<K>(class, &volume.name_any(), &csi.driver)?;
    Ok(csi.volume_handle.clone())
}

/// Fails if the class is for another driver than that of the volume.
pub(super) fn check_driver<K: SnapshotKind>(
    class: &K::Class,
    volume: &str,
    driver: &str,
) -> Result<(), String> {
    let expected = class.driver();
    if driver == expected {
        return Ok(());
    }
    Err(format!(
        "{} {} is of driver {expected}, but volume {volume} is of {driver}",
        <K::Class as Resource>::kind(&()),
        class.name_any(),
    ))
}

/// The metadata of a snapshot's new content, and its reference to the snapshot.
pub(super) fn new_content<K: SnapshotKind>(
    facts: &Facts<K>,
    class: &K::Class,
    node: Option<String>,
) -> Result<(ObjectMeta, ObjectReference), String> {
    let snapshot = &*facts.snapshot;
    let name = (K::NAMES.content_name)(&snapshot.uid().unwrap_or_default());
    let keys = K::Content::KEYS;
    let variables = SnapshotVariables {
        kind: keys.word,
        content: &name,
        name: &snapshot.name_any(),
        namespace: &snapshot.namespace().unwrap_or_default(),
    };
    let parameters = class.parameters();
    let secret = secret_template::of_snapshot_class(parameters, keys.secret_key, variables);
    let secret = secret.map_err(|error| error.to_string())?;
    let annotations = secret.map(|secret| {
        let (name, namespace) = (secret.name, secret.namespace);
        BTreeMap::from([
            (keys.secret_name.to_owned(), name.unwrap_or_default()),
            (
                keys.secret_namespace.to_owned(),
                namespace.unwrap_or_default(),
            ),
        ])
    });
    let metadata = ObjectMeta {
        name: Some(name),
        annotations,
        labels: node.map(|node| BTreeMap::from([(MANAGED_BY.to_owned(), node_label(&node))])),
        finalizers: Some(vec![keys.finalizer.to_owned()]),
        ..ObjectMeta::default()
    };
    let reference = ObjectReference {
        resource_version: snapshot.resource_version(),
        ..snapshot.object_ref(&())
    };
    Ok((metadata, reference))
}

/// The content, if it is bound to the snapshot.
pub(super) fn bound_content<K: SnapshotKind>(facts: &Facts<K>) -> Option<&K::Content> {
    let content = facts.content.as_deref()?;
    let bound = names::bind_state(content.view().user, &*facts.snapshot) == BindState::Bound;
    bound.then_some(content)
}

#[cfg(test)]
pub(super) mod tests;
