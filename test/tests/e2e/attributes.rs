//! VolumeAttributesClasses.

use serde_json::{Value, json};

use crate::objects::{assert_text, text};
use crate::space::Space;
use crate::world::World;

/// A claim of another class has its device's read-ahead changed under the running pod.
pub(crate) fn attributes_change_under_a_running_pod(world: &World) {
    let space = Space::new(world, "attributes");
    let class = json!({"volumeAttributesClassName": "hostloop-direct"});
    space.claim("data", "hostloop-ext4", class);
    space.run("pod", &["data"]);
    let kib = || {
        let device = "$(awk '$5 == \"/data\" { print $3 }' /proc/self/mountinfo)";
        let read = format!("cat /sys/dev/block/{device}/queue/read_ahead_kb");
        space.sh("pod", &read)
    };
    assert_eq!(kib(), "128");
    const CURRENT: &str = "/status/currentVolumeAttributesClassName";
    assert_text(&space.claim_now("data"), CURRENT, "hostloop-direct");

    let other = json!({"spec": {"volumeAttributesClassName": "hostloop-streaming"}});
    space.patch_claim("data", other);
    let changed = |claim: &Value| text(claim, CURRENT) == "hostloop-streaming";
    space.until_claim("of the other class", "data", changed);
    assert_eq!(kib(), "4096");
    let volume = space.volume("data");
    assert_text(&volume, "/spec/volumeAttributesClassName", "hostloop-streaming");
    space.end();
}
