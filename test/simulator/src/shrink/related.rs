//! Steps that belong together: of one kind, or about one object.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::history::{Action, Step};

/// The places of steps that belong together, the largest groups first. A step is in several.
pub(super) fn groups(steps: &[Step]) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (place, step) in steps.iter().enumerate() {
        for key in keys(&step.action) {
            groups.entry(key).or_default().push(place);
        }
    }
    let mut groups: Vec<Vec<usize>> = groups.into_values().collect();
    groups.retain(|places| places.len() > 1);
    // Those of one size stay in their order.
    groups.sort_by_key(|places| std::cmp::Reverse(places.len()));
    groups
}

/// The kind of an action, and the names of the users' objects that it is about.
fn keys(action: &Action) -> BTreeSet<String> {
    let action = serde_json::to_value(action).unwrap_or_default();
    let mut keys = BTreeSet::from([kind(&action)]);
    add_names(&action, &mut keys);
    keys
}

fn kind(action: &Value) -> String {
    let inner = ["trouble", "unusual", "step"].map(|field| action[field]["kind"].as_str());
    let inner = inner.into_iter().flatten().next().unwrap_or_default();
    let kind = action["do"].as_str().unwrap_or_default();
    format!("{kind} {inner}")
}

fn add_names(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::String(text) if is_name(text) => {
            names.insert(text.clone());
        }
        Value::Array(items) => items.iter().for_each(|item| add_names(item, names)),
        Value::Object(fields) => fields.values().for_each(|field| add_names(field, names)),
        _ => {}
    }
}

/// True for the name of a claim, pod, snapshot or group of users: a letter and a number.
fn is_name(text: &str) -> bool {
    let number = text.strip_prefix(['c', 'g', 'p', 's']).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::pod(json!({"do": "pod", "name": "p1", "claims": ["c2", "c10"]}),
        &["c10", "c2", "p1", "pod "])]
    #[case::copy(json!({"do": "claim", "name": "c1", "class": "ext4", "size": "1",
        "mode": "ReadWriteOnce", "source": {"snapshot": "s3"}}), &["c1", "claim ", "s3"])]
    #[case::unusual(json!({"do": "unusual", "unusual": {"kind": "freeVolume", "claim": "c1"}}),
        &["c1", "unusual freeVolume"])]
    #[case::foreign(json!({"do": "foreign", "step": {"kind": "deleteVolume"}}),
        &["foreign deleteVolume"])]
    #[case::trouble(json!({"do": "world", "trouble": {"kind": "outage", "seconds": 1}}),
        &["world outage"])]
    fn keys_of_actions(#[case] action: Value, #[case] expected: &[&str]) {
        let action = serde_json::from_value(action).expect("an action");
        let expected: BTreeSet<String> = expected.iter().map(|&key| key.to_owned()).collect();
        assert_eq!(keys(&action), expected);
    }

    #[test]
    fn names_are_those_of_users_objects() {
        for (text, expected) in [
            ("c1", true),
            ("s11", true),
            ("c", false),
            ("n1", false),
            ("", false),
            ("c1-copy", false),
        ] {
            assert_eq!(is_name(text), expected, "{text}");
        }
    }

    #[test]
    fn steps_of_one_kind_or_about_one_object_belong_together() {
        let steps = json!([
            {"wait": 0, "do": "claim", "name": "c1", "class": "ext4", "size": "1",
                "mode": "ReadWriteOnce"},
            {"wait": 0, "do": "pod", "name": "p1", "claims": ["c1"]},
            {"wait": 0, "do": "deletePod", "name": "p1"},
            {"wait": 0, "do": "deletePod", "name": "p2"},
            {"wait": 0, "do": "deleteClaim", "name": "c1"},
        ]);
        let steps: Vec<Step> = serde_json::from_value(steps).expect("steps");
        assert_eq!(groups(&steps), [vec![0, 1, 4], vec![2, 3], vec![1, 2]]);
    }
}
