use super::*;
use crate::storage::{SnapshotId, VolumeId};

#[test]
fn a_device_is_the_pools_by_its_file_and_not_by_its_path() {
    let (ours, theirs) = (PoolId::generate(), PoolId::generate());
    let pool = PoolFiles {
        id: ours,
        device: 9,
        root: Path::new("/pool"),
    };
    let own = format!("/pool/volumes/{}/image", VolumeId::generate(ours));
    let other = format!("/pool/volumes/{}/image", VolumeId::generate(theirs));
    let deleted = format!("{own} (deleted)");
    let begins_nowhere = own.replace("/pool", "");
    let snapshot = format!("/snapshots/{}/image", SnapshotId::generate(ours));
    let here = |ino: Option<u64>| move |_: &Path| ino.map(|ino| FileId { dev: 9, ino });
    // The path, the file's device, the inode that the path leads to from here (the device's is 3).
    let table: [(&str, u64, Option<u64>, bool); 10] = [
        (&own, 9, Some(3), true),
        (&own, 9, None, true),
        (&deleted, 9, None, true),
        (&begins_nowhere, 9, None, true),
        (&snapshot, 9, None, true),
        // A copy on another filesystem.
        (&own, 8, None, false),
        // A pool of another node with the same path there.
        (&other, 9, None, false),
        ("/pool/something", 9, Some(3), true),
        ("/pool/something", 9, Some(4), false),
        ("/elsewhere", 9, Some(3), false),
    ];
    for (path, dev, ino, expected) in table {
        let device = LoopInfo {
            backing: Some(FileId { dev, ino: 3 }),
            backing_path: path.to_owned(),
            ..LoopInfo::default()
        };
        assert_eq!(pool.holds(&device, here(ino)), expected, "{path} on {dev}");
    }
}
