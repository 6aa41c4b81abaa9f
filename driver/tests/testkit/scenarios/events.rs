//! The events of calls.

use hostloop_driver::kernel::FsType;
use hostloop_events::{Call, Fields, Kind, RING};

use super::*;

/// Steps that depend on the kernel: the fake has no superblocks, and detaches by itself.
const VARIES: [&str; 5] = ["probe", "check", "grow", "flush", "loop detach"];

/// Does the work of a call, and returns its steps. Equal steps in a row count once.
fn steps<T>(name: &'static str, work: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
    let trace = uuid::Uuid::new_v4().to_string();
    let call = Call::begin(name, &trace, None, Fields::default());
    let done = call.enter(work);
    let mut events = RING.since(0, usize::MAX).events;
    events.retain(|event| *event.trace == *trace && event.kind == Kind::Phase);
    for event in &events {
        assert_eq!(event.error, None, "{name}: {event:?}");
        assert!(
            event.us.is_some() && event.parent.is_some(),
            "{name}: {event:?}"
        );
    }
    let mut names: Vec<_> = events.iter().map(|event| event.name).collect();
    names.retain(|name| !VARIES.contains(name));
    names.dedup();
    (done, names)
}

pub(crate) fn the_steps_of_each_call_are_events<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = mount(FsType::Ext4);
    let (id, made) = steps("CreateVolume", || rig.volume(ext4(), 16 * MI));
    assert_eq!(made, ["image", "mkfs", "sync", "record"]);
    let (staged, made) = steps("NodeStageVolume", || rig.stage(id, "a", &cap));
    staged.unwrap();
    assert_eq!(made, ["record", "loop attach", "mount", "record"]);
    let (published, made) = steps("NodePublishVolume", || {
        rig.publish(id, "a", "p", &cap, false)
    });
    published.unwrap();
    assert_eq!(made, ["bind mount"]);

    let pools = &rig.node.pools;
    let (snapshot, made) = steps("CreateSnapshot", || {
        pools.create_snapshot(&id, "snapshot", &map(&[]))
    });
    let copied = if made.contains(&"clone") {
        "clone"
    } else {
        "copy"
    };
    let frozen = [
        "write back",
        "record",
        "freeze",
        copied,
        "thaw",
        "record",
        "sync",
        "record",
    ];
    assert_eq!(made, frozen);

    let (unpublished, made) = steps("NodeUnpublishVolume", || rig.unpublish(id, "p"));
    unpublished.unwrap();
    assert_eq!(made, ["unmount"]);
    let (unstaged, made) = steps("NodeUnstageVolume", || rig.unstage(id, "a"));
    unstaged.unwrap();
    assert_eq!(made, ["unmount", "record"]);
    let snapshot = snapshot.unwrap().id;
    let (deleted, made) = steps("DeleteSnapshot", || pools.delete_snapshot(&snapshot));
    deleted.unwrap();
    assert_eq!(made, ["trash", "free"]);
    let (deleted, made) = steps("DeleteVolume", || pools.delete_volume(&id));
    deleted.unwrap();
    assert_eq!(made, ["trash", "free"]);
}
