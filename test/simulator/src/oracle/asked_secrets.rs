//! A call has the secret that its volume names for it. The driver needs none, so no call fails without
//! one: the process of the node must have asked for it before the effect of the call shows.

use std::time::Duration;

use hostloop_fake_api::{FakeApi, Write};
use serde_json::Value;

use crate::cluster::PROVISIONER_FINALIZER;
use crate::door::SecretReads;
use crate::machine::node_of;
use crate::model::view::{annotation, has_finalizer, name, text};
use crate::users::path_in;
use crate::{shim, trace};

/// How a volume names the secrets for its deletion and for changes of its attributes, without the end.
const TO_DELETE: &str = "volume.kubernetes.io/provisioner-deletion-secret";
const TO_MODIFY: &str = "volume.kubernetes.io/controller-modify-secret";

/// How long before its effect a call may have begun. Each repetition asks for the secret again.
const LONGEST: Duration = Duration::from_secs(900);

/// Watches from now on what calls have done to volumes.
pub(crate) fn watch(api: &FakeApi, reads: SecretReads) {
    api.on_write(move |write| {
        let Some((done, path)) = needed(write) else {
            return;
        };
        let asked = reads.last(write.who, &path);
        if !is_in_time(asked, shim::now()) {
            trace::violation(format!(
                "without its secret: {} has {done} volume {}, and did not ask for {path}",
                write.who,
                write.old.map(name).unwrap_or_default()
            ));
        }
    });
}

fn is_in_time(asked: Option<Duration>, now: Duration) -> bool {
    asked.is_some_and(|asked| now <= asked + LONGEST)
}

/// What a node's process says with this write that it has done to a volume, and the path of the secret
/// that the volume names for that.
fn needed(write: &Write) -> Option<(&'static str, String)> {
    node_of(write.who)?;
    let old = write.old.filter(|old| old["kind"] == "PersistentVolume")?;
    if is_deleted(old, write.new) {
        return Some(("deleted", secret(old, TO_DELETE)?));
    }
    let new = write.new?;
    let class = "/spec/volumeAttributesClassName";
    if text(new, class) == text(old, class) {
        return None;
    }
    Some(("modified", to_modify(old)?))
}

/// True if the process says that the data of a volume is gone.
fn is_deleted(old: &Value, new: Option<&Value>) -> bool {
    text(old, "/spec/persistentVolumeReclaimPolicy") == "Delete"
        && has_finalizer(old, PROVISIONER_FINALIZER)
        && !new.is_some_and(|new| has_finalizer(new, PROVISIONER_FINALIZER))
}

/// The path of the secret that a volume names.
fn secret(volume: &Value, of: &str) -> Option<String> {
    let name = annotation(volume, &format!("{of}-name"))?;
    let space = annotation(volume, &format!("{of}-namespace"))?;
    (!name.is_empty() && !space.is_empty()).then(|| path_in(space, "secrets", name))
}

/// The path of the secret that a volume names for changes of its attributes.
pub(super) fn to_modify(volume: &Value) -> Option<String> {
    secret(volume, TO_MODIFY)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn volume(policy: &str, finalizers: &[&str], class: &str) -> Value {
        json!({"kind": "PersistentVolume",
            "metadata": {"name": "v", "finalizers": finalizers, "annotations": {
                format!("{TO_DELETE}-name"): "c1", format!("{TO_DELETE}-namespace"): "u",
                format!("{TO_MODIFY}-name"): "c2", format!("{TO_MODIFY}-namespace"): "u"}},
            "spec": {"persistentVolumeReclaimPolicy": policy,
                "volumeAttributesClassName": class}})
    }

    #[rstest]
    #[case::deleted("node", "Delete", Some(volume("Delete", &[], "a")), Some("deleted c1"))]
    #[case::gone("node-2", "Delete", None, Some("deleted c1"))]
    #[case::kept("node", "Retain", Some(volume("Retain", &[], "a")), None)]
    #[case::by_the_leader("leader", "Delete", None, None)]
    #[case::modified(
        "node",
        "Delete",
        Some(volume("Delete", &[PROVISIONER_FINALIZER], "b")),
        Some("modified c2")
    )]
    #[case::otherwise(
        "node",
        "Delete",
        Some(volume("Retain", &[PROVISIONER_FINALIZER], "a")),
        None
    )]
    fn what_a_call_has_done(
        #[case] who: &str,
        #[case] policy: &str,
        #[case] new: Option<Value>,
        #[case] expected: Option<&str>,
    ) {
        let old = volume(policy, &[PROVISIONER_FINALIZER], "a");
        let write = Write {
            who,
            method: "PATCH",
            path: "/api/v1/persistentvolumes/v",
            old: Some(&old),
            new: new.as_ref(),
        };
        let found = needed(&write).map(|(done, path)| {
            let name = path.strip_prefix("/api/v1/namespaces/u/secrets/");
            format!("{done} {}", name.unwrap_or("another"))
        });
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn a_volume_may_need_no_secret() {
        let none = json!({"metadata": {"annotations": {
            format!("{TO_DELETE}-name"): "", format!("{TO_DELETE}-namespace"): ""}}});
        assert_eq!(secret(&none, TO_DELETE), None);
        assert_eq!(to_modify(&none), None);
        let now = LONGEST * 2;
        for (asked, expected) in [
            (None, false),
            (Some(LONGEST / 2), false),
            (Some(LONGEST), true),
        ] {
            assert_eq!(is_in_time(asked, now), expected, "{asked:?}");
        }
    }
}
