//! A start of formatting that is taken back while the disk is full, or fails.

use std::os::unix::fs::FileExt;

use hostloop_driver::node;
use hostloop_driver::storage::Format;
use hostloop_fake_kernel::Model;

use super::*;
use crate::testkit::{Rig, ext4, mount, new_volume, refused};
use crate::unsynced::{detach, directory, lose_answer, synced_by};

/// The disk still says that mkfs has begun, and the next process would believe it. So the record is
/// written again: soon, and before the next staging looks at the image.
#[test]
fn what_others_write_is_not_formatted_over_after_a_take_back_that_failed() {
    let _scenario = fail::FailScenario::setup();
    for tended in [false, true] {
        take_back(tended);
    }
}

fn take_back(tended: bool) {
    let (mut rig, capability) = (Rig::<Model>::new(), mount("ext4"));
    let id = rig.unformatted(new_volume(ext4(), 16 * MI));
    // The staging writes the record and its state; then nothing more fits.
    fail::cfg("file.create", "2*off->return(ENOSPC)").unwrap();
    rig.kernel.fail("loop.attach", 1, libc::EIO);
    rig.stage(id, "a", &capability).unwrap_err();
    fail::remove("file.create");
    rig.kernel.behave();
    let record = rig.path(format!("volumes/{id}/volume.json"));
    let on_disk = std::fs::read_to_string(record).unwrap();
    assert!(on_disk.contains("formatting"), "{on_disk}");
    assert_eq!(rig.record(id).format, Format::None);

    if tended {
        testkit::tend(&rig.node.pools);
        rig.restart();
        assert_eq!(rig.record(id).format, Format::None);
    }

    rig.open_image(id).write_all_at(b"theirs", 0).unwrap();
    for process in ["the same", "the next"] {
        rig.kernel.take_effects();
        let refused = rig.stage(id, "a", &capability);
        refused!(refused, node::Error::FailedPrecondition(_), "{process}");
        let effects = rig.kernel.take_effects();
        assert!(!effects.contains(&"mkfs"), "{process}: {effects:?}");
        assert_eq!(rig.record(id).format, Format::None, "{process}");
        rig.restart();
    }
    let mut found = [0; 6];
    rig.open_image(id).read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"theirs");
}

/// The record is renamed, and its name can't be synced. A power cut would bring the earlier one
/// back.
#[test]
fn a_take_back_that_is_not_synced_is_synced_later() {
    let _scenario = fail::FailScenario::setup();
    let rig = Rig::<Model>::new();
    let id = rig.unformatted(new_volume(ext4(), 16 * MI));
    // Twice the record and its name, but for the last one. The undoing then syncs nothing, either.
    fail::cfg("file.sync", "3*off->return(EIO)").unwrap();
    rig.kernel.fail("loop.attach", 1, libc::EIO);
    rig.stage(id, "a", &mount("ext4")).unwrap_err();
    fail::remove("file.sync");
    let on_disk = std::fs::read_to_string(rig.path(format!("volumes/{id}/volume.json"))).unwrap();
    assert!(!on_disk.contains("formatting"), "{on_disk}");

    let entry = directory(&rig, &format!("volumes/{id}"));
    let synced = synced_by(|| testkit::tend(&rig.node.pools));
    assert_eq!(synced, [entry]);
    assert!(synced_by(|| testkit::tend(&rig.node.pools)).is_empty());
}

/// The disk may say that mkfs has begun, which only the next process would believe.
#[test]
fn a_start_of_formatting_that_may_be_on_disk_is_written_over() {
    let _scenario = fail::FailScenario::setup();
    let (mut rig, capability) = (Rig::<Model>::new(), mount("ext4"));
    let id = rig.unformatted(new_volume(ext4(), 16 * MI));
    let [away, entry] = lose_answer(&rig, id);
    rig.stage(id, "a", &capability).unwrap_err();
    std::fs::rename(away, &entry).unwrap();
    let on_disk = std::fs::read_to_string(entry.join("volume.json")).unwrap();
    assert!(on_disk.contains("formatting"), "{on_disk}");
    assert_eq!(rig.record(id).format, Format::None);

    rig.open_image(id).write_all_at(b"theirs", 0).unwrap();
    testkit::tend(&rig.node.pools);
    rig.restart();
    assert_eq!(rig.record(id).format, Format::None);
    rig.kernel.take_effects();
    let refused = rig.stage(id, "a", &capability);
    refused!(refused, node::Error::FailedPrecondition(_));
    assert!(!rig.kernel.take_effects().contains(&"mkfs"));
}

/// A start takes the formatting back, and the disk is full. It has the publications that are
/// acknowledged, so the node can leave.
#[test]
fn a_take_back_that_cannot_be_written_keeps_no_volume_on_its_node() {
    let _scenario = fail::FailScenario::setup();
    let mut rig = Rig::<Model>::new();
    let id = rig.unformatted(new_volume(ext4(), 16 * MI));
    rig.update(id, |r| r.format = Format::Formatting(FsType::Ext4));
    // The temporary file of the record can't be created.
    let entry = directory(&rig, &format!("volumes/{id}"));
    let in_the_way = entry.join(".volume.json.new");
    std::fs::create_dir(&in_the_way).unwrap();
    rig.restart();
    assert_eq!(rig.record(id).format, Format::None);
    for _ in 0..2 {
        detach(&rig, &id.to_string()).unwrap();
    }
    let record = entry.join("volume.json");
    let on_disk = std::fs::read_to_string(&record).unwrap();
    assert!(on_disk.contains("formatting"), "{on_disk}");

    std::fs::remove_dir(&in_the_way).unwrap();
    testkit::tend(&rig.node.pools);
    let on_disk = std::fs::read_to_string(&record).unwrap();
    assert!(!on_disk.contains("formatting"), "{on_disk}");
}
