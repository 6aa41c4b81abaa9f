//! What the audit log of the whole run says of the driver's rights, and its log of secrets.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::objects::text;
use crate::secrets::VALUE;
use crate::world::World;

/// The driver's account.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:hostloop:hostloop";

/// Rights that a run of these tests need not use, each with its reason. The driver is to have them
/// nevertheless.
const SELDOM: &[(&str, &str, &str)] = &[
    ("get", "persistentvolumeclaims", DOUBTFUL),
    ("get", "storageclasses", MISSED),
    ("get", "volumeattributesclasses", MISSED),
    ("get", "csinodes", MISSED),
    ("get", "nodes", MISSED),
    ("get", "volumeattachments", MISSED),
    ("get", "volumesnapshotclasses", MISSED),
    ("get", "volumegroupsnapshotclasses", MISSED),
    ("get", "volumegroupsnapshots", MISSED),
    ("list", "pods", PODS),
    ("watch", "pods", PODS),
];

const MISSED: &str = "read by its name where a watch has not told of it yet";
const DOUBTFUL: &str = "read once it is in doubt whether a volume's object was written";
const PODS: &str = "of interest once the driver has refused to grow a volume in use";

/// No log line, no event and no object of the cluster's tells a secret's value.
pub(crate) fn no_secret_was_logged(world: &World) {
    let told = |what: &str, text: &str| assert!(!text.contains(VALUE), "{what} tells a secret");
    told("the driver's log", &world.driver_log());
    for kind in ["Event", "PersistentVolume", "VolumeSnapshotContent"] {
        for object in world.list(kind, "") {
            told(kind, &object.to_string());
        }
    }
}

/// Nothing was asked for that the driver may not do.
pub(crate) fn nothing_was_forbidden(world: &World) {
    let audit = world.audit();
    assert!(!audit.of(ACCOUNT).is_empty(), "it has asked for something");
    let refused: BTreeSet<String> = audit
        .forbidden(ACCOUNT)
        .iter()
        .map(|r| {
            format!(
                "{} {} in {:?} {:?}",
                r.verb, r.resource, r.namespace, r.name
            )
        })
        .collect();
    assert!(refused.is_empty(), "forbidden: {refused:#?}");
}

/// Each verb the driver is granted was used, and those that are seldom used are granted.
pub(crate) fn no_right_is_idle(world: &World) {
    let audit = world.audit();
    let used: BTreeSet<(&str, &str)> = audit.counts(ACCOUNT).into_keys().collect();
    let roles = world.cluster().kubectl(&[
        "get",
        "clusterroles,roles",
        "-A",
        "-l",
        "app.kubernetes.io/name=hostloop",
        "-o",
        "json",
    ]);
    let roles: Value = serde_json::from_str(&roles).expect("kubectl prints JSON");
    let (mut idle, mut granted) = (BTreeSet::new(), BTreeSet::new());
    let items = roles["items"].as_array().expect("a list has items");
    for (role, rule) in items.iter().flat_map(rules) {
        for (verb, resource) in pairs(rule) {
            granted.insert((verb, resource));
            // One of them may be used after all.
            let seldom = SELDOM.iter().any(|(v, r, _)| (*v, *r) == (verb, resource));
            if !used.contains(&(verb, resource)) && !seldom {
                idle.insert(format!("{role}: {verb} {resource}"));
            }
        }
    }
    assert!(idle.is_empty(), "granted and never used: {idle:#?}");
    for (verb, resource, why) in SELDOM {
        assert!(
            granted.contains(&(*verb, *resource)),
            "{verb} {resource} is not granted, and is {why}"
        );
    }
}

fn rules(role: &Value) -> Vec<(&str, &Value)> {
    let named = text(role, "/metadata/name");
    let rules = role["rules"].as_array().map(Vec::as_slice);
    rules
        .unwrap_or_default()
        .iter()
        .map(|r| (named, r))
        .collect()
}

fn pairs(rule: &Value) -> Vec<(&str, &str)> {
    let words = |field: &str| -> Vec<&str> {
        let all = rule[field].as_array().map(Vec::as_slice);
        all.unwrap_or_default()
            .iter()
            .filter_map(Value::as_str)
            .collect()
    };
    let resources = words("resources");
    let with = |verb| resources.iter().map(move |resource| (verb, *resource));
    words("verbs").into_iter().flat_map(with).collect()
}
