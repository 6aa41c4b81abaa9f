//! What the audit log of the whole run shows about the driver's rights.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::objects::text;
use crate::world::World;

/// The account of the node pods.
pub(crate) const NODES: &str = "system:serviceaccount:hostloop:hostloop";
/// The account of the pod with the cluster-wide tasks.
pub(crate) const CONTROLLER: &str = "system:serviceaccount:hostloop:hostloop-controller";
/// Both accounts.
pub(crate) const ACCOUNTS: [&str; 2] = [NODES, CONTROLLER];

/// Rights that may stay unused in a run: account, verb, resource, and the reason for the right.
const SELDOM: &[(&str, &str, &str, &str)] = &[
    (NODES, "get", "persistentvolumeclaims", DOUBTFUL),
    (NODES, "get", "storageclasses", MISSED),
    (NODES, "get", "volumeattributesclasses", MISSED),
    (NODES, "get", "volumegroupsnapshotcontents", CHANGED),
    (NODES, "list", "pods", PODS),
    (NODES, "watch", "pods", PODS),
    (CONTROLLER, "get", "persistentvolumeclaims", CHANGED),
    (CONTROLLER, "get", "volumeattachments", CHANGED),
    (CONTROLLER, "get", "volumesnapshots", CHANGED),
    (CONTROLLER, "get", "volumesnapshotcontents", CHANGED),
    (CONTROLLER, "get", "volumegroupsnapshots", CHANGED),
    (CONTROLLER, "get", "volumegroupsnapshotcontents", CHANGED),
    (CONTROLLER, "get", "volumesnapshotclasses", MISSED),
    (CONTROLLER, "get", "volumegroupsnapshotclasses", MISSED),
    (CONTROLLER, "patch", "volumeattachments", GONE),
    (CONTROLLER, "patch", "events", AGAIN),
    (CONTROLLER, "patch", GROUP_STATUS, NOWHERE),
];

/// The label of the manifest's bindings.
const APP: &str = "/metadata/labels/app.kubernetes.io~1name";

const GROUP_STATUS: &str = "volumegroupsnapshotcontents/status";

const MISSED: &str = "read by its name where a watch has not delivered it yet";
const DOUBTFUL: &str = "read once it is in doubt whether a volume's object was written";
const CHANGED: &str = "read again after a write conflict";
const PODS: &str = "of interest once the driver has refused to grow a volume in use";
const AGAIN: &str = "counts a repeated event in the existing one";
const NOWHERE: &str = "says why no node takes the snapshots of a group";
const GONE: &str = "released if the node was deleted before it was detached";

/// No account made a forbidden request.
pub(crate) fn nothing_was_forbidden(world: &World) {
    let audit = world.audit();
    for account in ACCOUNTS {
        assert!(!audit.of(account).is_empty(), "{account} asked for nothing");
        let refused: BTreeSet<String> = audit
            .forbidden(account)
            .iter()
            .map(|r| format!("{r:?}"))
            .collect();
        assert!(refused.is_empty(), "{account} was forbidden: {refused:#?}");
    }
}

/// Each account used every verb that it has, except the ones in [`SELDOM`], which it must have.
pub(crate) fn no_right_is_idle(world: &World) {
    let audit = world.audit();
    for account in ACCOUNTS {
        let used: BTreeSet<(&str, &str)> = audit.counts(account).into_keys().collect();
        let ours = |binding: &Value| text(binding, APP) == "hostloop";
        let rights = world
            .cluster()
            .rights(&account["system:serviceaccount:".len()..], ours);
        let seldom = || SELDOM.iter().filter(|(of, ..)| *of == account);
        let (mut idle, mut granted) = (BTreeSet::new(), BTreeSet::new());
        for [role, verb, resource] in &rights {
            granted.insert((verb.as_str(), resource.as_str()));
            // A verb in the list may be used after all.
            let seldom =
                seldom().any(|(_, v, r, _)| (v, r) == (&verb.as_str(), &resource.as_str()));
            if !used.contains(&(verb, resource)) && !seldom {
                idle.insert(format!("{role}: {verb} {resource}"));
            }
        }
        assert!(idle.is_empty(), "{account} never used: {idle:#?}");
        for (_, verb, resource, why) in seldom() {
            assert!(
                granted.contains(&(*verb, *resource)),
                "{account} is not granted {verb} {resource}, which is {why}"
            );
        }
    }
}

/// No node pod held the lease or wrote what only the leader writes.
pub(crate) fn nodes_did_no_leader_work(world: &World) {
    let audit = world.audit();
    let mut wrote = audit.of(NODES);
    wrote.retain(|r| !matches!(r.verb.as_str(), "get" | "list" | "watch"));
    for resource in ["leases", "configmaps", "volumesnapshots/status"] {
        let of = wrote.iter().filter(|r| r.resource == resource);
        assert_eq!(of.count(), 0, "a node wrote {resource}");
    }
    let controller = audit.counts(CONTROLLER);
    assert!(controller.contains_key(&("update", "leases")));
    // The controller has no driver, so it makes no volume and takes no snapshot.
    for made in [
        ("create", "persistentvolumes"),
        ("create", "csistoragecapacities"),
        ("patch", "persistentvolumeclaims/status"),
    ] {
        assert_eq!(controller.get(&made), None, "the controller: {made:?}");
    }
}
