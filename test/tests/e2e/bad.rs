//! What cannot be made: each ends in an event that says why.

use serde_json::{Value, json};

use crate::objects::text;
use crate::space::Space;
use crate::world::{TOPOLOGY, World};

/// Claims nobody can serve, and a word of what is said about each.
pub(crate) fn what_cannot_be_made_says_why(world: &World) {
    let space = Space::new(world, "bad");
    let parameters = |parameters: Value| json!({"parameters": parameters});
    let elsewhere = json!({"allowedTopologies": [{"matchLabelExpressions":
        [{"key": TOPOLOGY, "values": ["nowhere"]}]}]});
    let large = json!({"requests": {"storage": "900Gi"}});
    let huge = json!({"requests": {"storage": "9Ei"}});
    let missing = json!({
        "csi.storage.k8s.io/provisioner-secret-name": "hostloop-controller-expand",
        "csi.storage.k8s.io/provisioner-secret-namespace": "hostloop"});
    let selector = json!({"selector": {"matchLabels": {"a": "b"}}});
    let cases = [
        (
            "unknown",
            parameters(json!({"colour": "blue"})),
            json!({}),
            "colour",
        ),
        (
            "reserved",
            parameters(json!({"csi.storage.k8s.io/colour": "x"})),
            json!({}),
            "unknown parameters csi.storage.k8s.io/colour",
        ),
        (
            "fs",
            parameters(json!({"csi.storage.k8s.io/fstype": "ntfs"})),
            json!({}),
            "none of ext4, xfs, btrfs",
        ),
        // A pool that one node lacks may be another's.
        (
            "pool",
            parameters(json!({"pool": "nil"})),
            json!({}),
            "has none for volumes of this class",
        ),
        (
            "secret",
            parameters(missing),
            json!({}),
            "hostloop/hostloop-controller-expand",
        ),
        ("topology", elsewhere, json!({}), "allowedTopologies"),
        ("selector", json!({}), selector, "spec.selector"),
        (
            "large",
            json!({}),
            json!({"resources": large}),
            "no node has room for 900Gi",
        ),
        (
            "huge",
            json!({}),
            json!({"resources": huge}),
            "no node has room",
        ),
    ];
    for (named, class, claim, _) in &cases {
        let class = space.class(named, class.clone());
        space.claim(named, &class, claim.clone());
    }
    for (named, _, _, word) in &cases {
        space.event(named, "ProvisioningFailed", word);
        assert_eq!(
            text(&space.claim_now(named), "/status/phase"),
            "Pending",
            "{named}"
        );
    }
    space.end();
}
