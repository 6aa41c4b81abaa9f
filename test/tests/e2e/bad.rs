//! What cannot be made: each ends in an event that says why.

use hostloop_test::front::objects::sized;
use serde_json::{Value, json};

use crate::objects::assert_text;
use crate::space::{Space, on_node};
use crate::world::World;

/// Claims that cannot be served, and a part of the message about each.
pub(crate) fn what_cannot_be_made_says_why(world: &World) {
    let space = Space::new(world, "bad");
    let colour = json!({"colour": "blue"});
    let reserved = json!({"csi.storage.k8s.io/colour": "x"});
    let ntfs = json!({"csi.storage.k8s.io/fstype": "ntfs"});
    // A pool that one node lacks may be another's.
    let pool = json!({"pool": "nil"});
    let secret = json!({
        "csi.storage.k8s.io/provisioner-secret-name": "hostloop-controller-expand",
        "csi.storage.k8s.io/provisioner-secret-namespace": "hostloop"});
    let with = |parameters: Value| json!({"parameters": parameters});
    let selector = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}});
    let none = || json!({});
    // Name, change of the class, change of the claim.
    let claims = [
        ("unknown", with(colour), none()),
        ("reserved", with(reserved), none()),
        ("fs", with(ntfs), none()),
        ("pool", with(pool), none()),
        ("secret", with(secret), none()),
        ("topology", on_node("nowhere"), none()),
        ("selector", none(), selector),
        ("large", none(), sized("900Gi")),
        ("huge", none(), sized("9Ei")),
    ];
    for (named, class, claim) in claims {
        let class = space.class(named, class);
        space.claim(named, &class, claim);
    }
    for (named, message) in [
        ("unknown", "colour"),
        ("reserved", "unknown parameters csi.storage.k8s.io/colour"),
        ("fs", "none of ext4, xfs, btrfs"),
        ("pool", "has none for volumes of this class"),
        ("secret", "hostloop/hostloop-controller-expand"),
        ("topology", "allowedTopologies"),
        ("selector", "spec.selector"),
        ("large", "no node has room for 900Gi"),
        // The node that gets it says that it is too large, if it has not published its room yet.
        ("huge", ""),
    ] {
        space.event(named, "ProvisioningFailed", message);
        assert_text(&space.claim_now(named), "/status/phase", "Pending");
    }
    space.end();
}
