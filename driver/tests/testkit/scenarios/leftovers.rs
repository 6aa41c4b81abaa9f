//! What a reboot, other programs, earlier versions and interrupted calls leave.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hostloop_driver::kernel::Freeze;
use hostloop_driver::kernel::file::allocated_bytes;
use hostloop_driver::node::Error;
use hostloop_driver::storage::{Access, Format, Provisioning, Reserve, VolumeId};
use hostloop_proto::csi::volume_capability::access_mode::Mode::SingleNodeWriter;
use hostloop_proto::csi::{self, VolumeHealthErrorType::Inaccessible};
use rustix::fs::{FallocateFlags, fallocate};
use tonic::Code;

use super::*;

pub(crate) fn after_a_reboot_a_volume_is_staged_at_any_path<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = mount_as("ext4", SingleNodeWriter);
    let id = rig.staged(ext4(), "a", &cap);
    rig.kernel.clean(rig.root());
    refused!(
        rig.publish(id, "a", "p", &cap, false),
        Error::FailedPrecondition(_)
    );
    rig.stage(id, "b", &mount("ext4")).unwrap();
    assert_eq!(rig.mounted(), [rig.staging("b")]);
    rig.unstage(id, "b").unwrap();
    rig.assert_clean(id);
}

pub(crate) fn an_attached_device_is_used_and_two_are_refused<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let id = rig.volume(ext4(), 16 * MI);
    let attach = || rig.attach_file(&rig.open_image(id));
    rig.kernel.loop_set_direct_io(&attach(), false).unwrap();
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert!(rig.device(id).direct_io, "as the volume's settings say");
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);

    attach();
    attach();
    refused!(
        rig.stage(id, "a", &mount("ext4")),
        Error::FailedPrecondition(_)
    );
}

/// Without an intent in the record, the driver must not end the freeze.
pub(crate) fn a_foreign_freeze_stays<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    let intent = rig.freeze(id, "a");
    for (freeze, expected) in [
        (None, Freeze::AlreadyFrozen),
        (Some(intent), Freeze::Frozen),
    ] {
        rig.update(id, |r| r.freeze = freeze);
        rig.stage(id, "a", &cap).unwrap();
        let root = File::open(rig.staging("a")).unwrap();
        assert_eq!(rig.kernel.freeze(&root).unwrap(), expected);
    }
}

pub(crate) fn nothing_is_formatted_that_was_not_known_to_be_blank<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let strange = rig.unformatted(new_volume(ext4(), 16 * MI));
    let image = rig.open_image(strange);
    // A swap area's signature.
    image.write_all_at(b"SWAPSPACE2", 4086).unwrap();
    image.write_all_at(&1u32.to_le_bytes(), 1024).unwrap();
    image.write_all_at(&4095u32.to_le_bytes(), 1028).unwrap();
    image.sync_all().unwrap();
    refused!(
        rig.stage(strange, "a", &mount("ext4")),
        Error::FailedPrecondition(_)
    );
    let mut there = [0; 10];
    image.read_exact_at(&mut there, 4086).unwrap();
    assert_eq!(&there, b"SWAPSPACE2");
    rig.assert_clean(strange);
}

/// The volume's directory was removed from the pool. Its pod must still be able to stop.
pub(crate) fn a_volume_without_record_or_image_is_undone_by_what_the_kernel_shows<K: TestKernel>() {
    for whole in [false, true] {
        let mut rig = Rig::<K>::new();
        let cap = mount("ext4");
        let id = rig.staged(ext4(), "a", &cap);
        rig.publish(id, "a", "p", &cap, false).unwrap();
        let entry = rig.root().join("pool/volumes").join(id.to_string());
        if whole {
            std::fs::remove_dir_all(&entry).unwrap();
            rig = rig.restarted();
        } else {
            std::fs::remove_file(entry.join("image")).unwrap();
        }
        rig.unpublish(id, "p").unwrap();
        rig.unstage(id, "a").unwrap();
        rig.assert_nothing_left("unstage");
    }
}

/// The records of volumes in use are damaged while the driver is down.
pub(crate) fn a_pod_leaves_a_volume_with_an_unreadable_record<K: TestKernel>() {
    let damages: [(&str, Damage, bool); 4] = [
        ("empty", |_| Some(String::new()), true),
        ("garbage", |_| Some("\0garbage".to_owned()), false),
        ("missing", |_| None, true),
        (
            "absurd",
            |text| Some(text.replace("\"capacity_bytes\": 16777216", ABSURD)),
            false,
        ),
    ];
    for (what, damage, keep_state) in damages {
        let mut rig = Rig::<K>::new();
        let ids = rig.both_in_use();
        rig.die();
        for id in ids {
            damage_record(
                &rig.root().join("pool/volumes").join(id.to_string()),
                damage,
                keep_state,
            );
        }
        rig = rig.restarted();
        let pool = rig.node.pools.named(None).unwrap();
        assert!(
            pool.capacity(Provisioning::Thin).unwrap().available > 0,
            "{what}"
        );
        for id in ids.map(|id| id.to_string()) {
            let unreadable = [(Inaccessible, "RecordUnreadable".to_owned())];
            assert_eq!(rig.node_health(&id).unwrap(), unreadable, "{what}");
            assert_eq!(rig.health(&id).unwrap(), unreadable, "{what}");
            assert_eq!(
                code(rig.delete(&id)),
                Err(Code::FailedPrecondition),
                "{what}: in use"
            );
            let detach = csi::ControllerUnpublishVolumeRequest {
                volume_id: id,
                node_id: "n1".to_owned(),
                ..Default::default()
            };
            rig.controller.controller_unpublish_volume(detach).unwrap();
        }
        rig.end_use(ids, what);
        for id in ids.map(|id| id.to_string()) {
            rig.delete(&id).unwrap();
            rig.delete(&id).unwrap();
            assert_eq!(code(rig.health(&id)), Err(Code::NotFound), "{what}");
        }
        assert_eq!(rig.entries(), [""; 0], "{what}");
        tend(&rig.node.pools);
        assert!(rig.node.pools.noted_problems().is_empty(), "{what}");
    }
}

const ABSURD: &str = "\"capacity_bytes\": 18446744073709551615";

/// The content of a record after the damage; `None` if it is missing.
type Damage = fn(String) -> Option<String>;

fn damage_record(entry: &Path, damage: Damage, keep_state: bool) {
    let record = entry.join("volume.json");
    let text = std::fs::read_to_string(&record).unwrap();
    match damage(text.clone()) {
        Some(damaged) => {
            assert_ne!(damaged, text);
            std::fs::write(record, damaged).unwrap();
        }
        None => std::fs::remove_file(record).unwrap(),
    }
    if !keep_state {
        std::fs::remove_file(entry.join("state.json")).unwrap();
    }
}

pub(crate) fn mkfs_options_of_older_records_are_not_obeyed<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let mut new = new_volume(ext4(), 24 * MI);
    new.mkfs_options = ["-d", "etc"].map(str::to_owned).to_vec();
    let id = rig.unformatted(new);
    let refused = rig.stage(id, "a", &mount("ext4"));
    let Err(Error::FailedPrecondition(why)) = &refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("mkfsOptions"), "{why}");
    assert_eq!(rig.record(id).format, Format::None, "mkfs has not begun");
    rig.assert_clean(id);
}

/// A thick volume that was used once and lost half of its space to a trim.
fn trimmed<K: TestKernel>(rig: &Rig<K>) -> (VolumeId, File) {
    let id = rig.volume(Access::Block, 16 * MI);
    let mut settings = rig.record(id).settings.clone();
    settings.provisioning = Provisioning::Thick;
    rig.node.pools.modify_volume(&id, settings).unwrap();
    rig.stage(id, "a", &block()).unwrap();
    rig.unstage_patiently(id, "a");
    let image = rig.open_image(id);
    assert!(allocated_bytes(&image).unwrap() >= 16 * MI);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&image, hole, 0, 8 * MI).unwrap();
    assert!(allocated_bytes(&image).unwrap() <= 8 * MI);
    (id, image)
}

pub(crate) fn staging_takes_what_was_trimmed_or_changes_nothing<K: TestKernel>() {
    let mut rig = Rig::<K>::new();
    let (id, image) = trimmed(&rig);
    // The reserve keeps all free space.
    rig.options.reserve = Reserve::Bytes(u64::MAX / 4);
    rig.restart();
    let before = (rig.record(id), rig.kernel.changes());
    let refused = rig.stage(id, "a", &block());
    assert_eq!(code(refused), Err(Code::ResourceExhausted));
    assert_eq!((rig.record(id), rig.kernel.changes()), before);
    assert!(allocated_bytes(&image).unwrap() <= 8 * MI);

    rig.options.reserve = Reserve::Bytes(0);
    rig.restart();
    rig.stage(id, "a", &block()).unwrap();
    assert!(allocated_bytes(&image).unwrap() >= 16 * MI);
}
