//! Two PersistentVolumes of one volume.

use serde_json::{Value, json};

use crate::objects::{handle_of, name, text};
use crate::space::{Space, staged_as};
use crate::world::{World, check};

/// It is staged once and published twice. Only the PersistentVolume with the policy Delete deletes
/// it.
pub(crate) fn two_volumes_share_one_handle(world: &World) {
    let space = Space::new(world, "shared");
    space.run_data("one", "hostloop-xfs");
    let first = space.volume("data");
    let handle = handle_of(&first);
    let second = second(&space, &first);
    let of_second = json!({"spec": {"volumeName": name(&second)}});
    space.claim("again", "hostloop-xfs", of_second);
    space.volume("again");
    space.run("two", &["again"]);

    space.sh("one", "echo one > /data/file");
    assert_eq!(space.sh("two", "cat /again/file"), "one");
    let staged = staged_as(handle);
    let site = world.home(&first);
    let mounts = |what: &str| {
        let of = site.mounts().into_iter();
        of.filter(|m| m.at.to_string_lossy().contains(what)).count()
    };
    let published = [name(&first), name(&second)].map(mounts);
    assert_eq!((mounts(&staged), published), (1, [1, 1]));

    // The end of the second takes neither the stage nor the volume from the first.
    space.delete_pod("two");
    world.until("the second's unmounting", || {
        let left = mounts(name(&second));
        check(left == 0, || left.to_string())
    });
    space.delete_claim("again");
    let released = |volume: &Value| text(volume, "/status/phase") == "Released";
    world.until_is(
        "released",
        ("PersistentVolume", "", name(&second)),
        released,
    );
    world.remove("PersistentVolume", "", name(&second));
    space.sh("one", "echo still > /data/file && sync && cat /data/file");
    assert_eq!(mounts(&staged), 1);
    let files = site.pool().join("volumes").join(handle);
    assert!(files.exists(), "only the first's deletion deletes it");

    space.delete_pod("one");
    space.delete_claim("data");
    world.gone("PersistentVolume", "", name(&first));
    assert!(!files.exists());
    space.end();
}

/// Another volume of the same handle, made by hand, that is to be retained.
fn second(space: &Space<'_>, first: &Value) -> Value {
    let mut spec = first["spec"].clone();
    spec["persistentVolumeReclaimPolicy"] = json!("Retain");
    spec["claimRef"] = json!({"namespace": space.name, "name": "again"});
    space.create_wide(json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": format!("{}-again", space.name)},
        "spec": spec}))
}
