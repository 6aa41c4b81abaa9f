//! What hostloop makes for a claim is what the claim asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::model::view::{items, name, text, uid};
use crate::oracle::ownership::is_named_after_claim;
use crate::trace;

/// Checks each volume object that hostloop has made for a claim which is still there. None of what is
/// compared can change after its claim was made.
pub(super) fn is_as_claimed(volumes: &[Arc<Value>], claims: &[Arc<Value>]) {
    let mut known: BTreeMap<&str, &Value> = BTreeMap::new();
    for claim in claims {
        known.insert(uid(claim), claim);
    }
    for volume in volumes {
        let claim = known.get(text(volume, "/spec/claimRef/uid"));
        let Some(claim) = claim.filter(|_| is_named_after_claim(volume)) else {
            continue;
        };
        if let Some(field) = difference(volume, claim) {
            trace::violation(format!(
                "not as claimed: volume {} has {}, and claim {} has {} in its {field}",
                name(volume),
                volume["spec"][field],
                name(claim),
                claim["spec"][field]
            ));
        }
    }
}

/// The field in which a volume differs from its claim.
fn difference(volume: &Value, claim: &Value) -> Option<&'static str> {
    if access_modes(volume) != access_modes(claim) {
        return Some("accessModes");
    }
    ["storageClassName", "volumeMode"]
        .into_iter()
        .find(|field| volume["spec"][*field] != claim["spec"][*field])
}

/// The access modes of a volume or claim. A claim may repeat some.
fn access_modes(object: &Value) -> BTreeSet<&str> {
    items(object, "/spec/accessModes")
        .filter_map(Value::as_str)
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::same(json!({}), None)]
    #[case::repeated(json!({"accessModes": ["ReadWriteOnce", "ReadWriteOnce"]}), None)]
    #[case::none(json!({"accessModes": [""]}), Some("accessModes"))]
    #[case::fewer(json!({"accessModes": []}), Some("accessModes"))]
    #[case::more(json!({"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}), Some("accessModes"))]
    #[case::other_class(json!({"storageClassName": "xfs"}), Some("storageClassName"))]
    #[case::raw(json!({"volumeMode": "Block"}), Some("volumeMode"))]
    fn a_volume_is_as_its_claim(#[case] change: Value, #[case] expected: Option<&str>) {
        let claim = json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "ext4",
            "volumeMode": "Filesystem"}});
        let mut volume = claim.clone();
        for (field, value) in change.as_object().into_iter().flatten() {
            volume["spec"][field] = value.clone();
        }
        assert_eq!(difference(&volume, &claim), expected);
    }
}
