//! The volumes of claims: one for each, and none for those for which hostloop makes none.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::model::view::{annotation, name, text};
use crate::trace;
use crate::users::FREED;

/// Checks that no claim has two PersistentVolumes.
pub(super) fn have_one_volume(volumes: &[Arc<Value>]) {
    let mut claims: BTreeMap<&str, &Value> = BTreeMap::new();
    for volume in volumes {
        let volume: &Value = volume;
        let claim = text(volume, "/spec/claimRef/uid");
        if let Some(other) = claims.insert(claim, volume)
            && !claim.is_empty()
            && ![other, volume].into_iter().any(is_freed)
        {
            trace::violation(format!(
                "two volumes for one claim: {} and {}",
                name(other),
                name(volume)
            ));
        }
    }
}

/// True if someone else has to make a claim's volume, so that the claim waits without an event of
/// its own: an administrator, or who fills volumes from sources of a foreign kind.
pub(super) fn waits_for_others(claim: &Value) -> bool {
    has_foreign_source(claim) || !text(claim, "/spec/volumeName").is_empty()
}

/// Checks that a bound claim has no volume of hostloop if its source is of a foreign kind: the
/// volume would be empty. A volume that users made free may be bound to each claim that it suits.
pub(super) fn has_its_source(claim: &Value, volume: &Value) {
    if has_foreign_source(claim) && !is_freed(volume) {
        trace::violation(format!(
            "not filled: claim {} has the source {}, and is bound to {}",
            name(claim),
            claim["spec"]["dataSourceRef"],
            name(volume)
        ));
    }
}

/// True if users made a volume free for other claims. While it is bound to a claim, another volume
/// may be made for the same one.
pub(super) fn is_freed(volume: &Value) -> bool {
    annotation(volume, FREED).is_some()
}

fn has_foreign_source(claim: &Value) -> bool {
    let kind = text(claim, "/spec/dataSourceRef/kind");
    !["", "PersistentVolumeClaim", "VolumeSnapshot"].contains(&kind)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sources_are_foreign_by_their_kind() {
        for (source, is_foreign) in [
            (Value::Null, false),
            (
                json!({"kind": "PersistentVolumeClaim", "name": "c1"}),
                false,
            ),
            (json!({"kind": "VolumeSnapshot", "name": "s1"}), false),
            (json!({"kind": "Populator", "name": "p1"}), true),
        ] {
            let claim = json!({"spec": {"dataSourceRef": source}});
            assert_eq!(has_foreign_source(&claim), is_foreign, "{claim}");
        }
        assert!(!is_freed(&json!({"metadata": {}})));
        assert!(is_freed(
            &json!({"metadata": {"annotations": {FREED: "c1"}}})
        ));
    }
}
