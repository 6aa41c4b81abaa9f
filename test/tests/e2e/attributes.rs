//! VolumeAttributesClasses.

use serde_json::json;

use crate::objects::text;
use crate::space::Space;
use crate::world::World;

/// A claim of another class has its device's read-ahead changed under the running pod.
pub(crate) fn attributes_change_under_a_running_pod(world: &World) {
    let space = Space::new(world, "attributes");
    let class = json!({"volumeAttributesClassName": "hostloop-direct"});
    space.claim("data", "hostloop-ext4", class);
    space.pod("pod", &["data"]);
    space.ready("pod");
    let kib = || {
        let device = "$(awk '$5 == \"/data\" { print $3 }' /proc/self/mountinfo)";
        space.sh(
            "pod",
            &format!("cat /sys/dev/block/{device}/queue/read_ahead_kb"),
        )
    };
    assert_eq!(kib(), "128");
    let now = |pointer: &str| text(&space.claim_now("data"), pointer).to_owned();
    assert_eq!(
        now("/status/currentVolumeAttributesClassName"),
        "hostloop-direct"
    );

    let other = json!({"spec": {"volumeAttributesClassName": "hostloop-streaming"}});
    world.patch("PersistentVolumeClaim", &space.name, "data", &other);
    world.until("the other class", || {
        let status = space.claim_now("data")["status"].clone();
        match text(&status, "/currentVolumeAttributesClassName") {
            "hostloop-streaming" => Ok(()),
            _ => Err(format!("{status}; {}", space.events())),
        }
    });
    assert_eq!(kib(), "4096");
    let volume = space.volume("data");
    assert_eq!(
        text(&volume, "/spec/volumeAttributesClassName"),
        "hostloop-streaming"
    );
    space.end();
}
