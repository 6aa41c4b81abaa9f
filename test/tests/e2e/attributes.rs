//! VolumeAttributesClasses.

use std::os::unix::fs::MetadataExt;

use hostloop_test::deployed::DRIVER;
use hostloop_test::front::objects;
use serde_json::{Value, json};

use crate::objects::{assert_text, handle_of};
use crate::space::Space;
use crate::world::World;

/// A volume is made as its class says. In other classes, the read-ahead of its device, the mount
/// option `discard` and the space that its image takes change under the running pod.
pub(crate) fn attributes_change_under_a_running_pod(world: &World) {
    let space = Space::new(world, "attributes");
    let [keeps, frees, thick] = [
        ("keeps", json!({"discard": "false", "readAheadKiB": "256"})),
        ("frees", json!({"discard": "true"})),
        ("thick", json!({"provisioning": "thick"})),
    ]
    .map(|(suffix, parameters)| class(&space, suffix, parameters));
    space.claim("data", "hostloop-ext4", objects::with_attributes(&keeps));
    space.run("pod", &["data"]);
    let volume = space.volume("data");
    let seen = || {
        (
            read_ahead(&space),
            discards(&space),
            allocated(&space, &volume),
        )
    };
    let sparse = |bytes: u64| bytes < 256 << 20;
    let current = "/status/currentVolumeAttributesClassName";
    assert_text(&space.claim_now("data"), current, &keeps);
    let (kib, discards, bytes) = seen();
    assert_eq!(
        (kib.as_str(), discards, sparse(bytes)),
        ("256", false, true),
        "{bytes} bytes"
    );

    for (class, expected) in [
        ("hostloop-streaming", ("4096", false, true)),
        (&frees, ("4096", true, true)),
        (&thick, ("4096", false, false)),
    ] {
        space.modify("data", class);
        let (kib, discards, bytes) = seen();
        assert_eq!(
            (kib.as_str(), discards, sparse(bytes)),
            expected,
            "{class}: {bytes} bytes"
        );
        assert_text(
            &space.volume("data"),
            "/spec/volumeAttributesClassName",
            class,
        );
    }
    space.end();
}

/// Creates a class with these parameters, and returns its name.
fn class(space: &Space<'_>, suffix: &str, parameters: Value) -> String {
    let named = format!("{}-{suffix}", space.name);
    space.create_wide(objects::attributes_class(&named, DRIVER, parameters));
    named
}

/// The read-ahead of the volume's device, in KiB.
fn read_ahead(space: &Space<'_>) -> String {
    let device = "$(awk '$5 == \"/data\" { print $3 }' /proc/self/mountinfo)";
    space.sh(
        "pod",
        &format!("cat /sys/dev/block/{device}/queue/read_ahead_kb"),
    )
}

/// True if the volume is mounted with the option `discard`.
fn discards(space: &Space<'_>) -> bool {
    let options = space.sh("pod", "awk '$2 == \"/data\" { print $4 }' /proc/mounts");
    options.split(',').any(|option| option == "discard")
}

/// The bytes that the volume's files take in the pool.
fn allocated(space: &Space<'_>, volume: &Value) -> u64 {
    let folder = space
        .world
        .home(volume)
        .pool()
        .join("volumes")
        .join(handle_of(volume));
    let files = std::fs::read_dir(&folder).expect("the volume has a folder");
    let bytes = files.map(|file| {
        let file = file.and_then(|file| file.metadata());
        file.expect("its status can be read").blocks() * 512
    });
    bytes.sum()
}
