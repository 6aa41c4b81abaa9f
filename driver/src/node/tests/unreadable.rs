//! Volumes with records that are damaged while the driver is down.

use std::path::{Path, PathBuf};

use super::Rig;
use crate::inspect::fsck::{ProblemKind, Repair, check};
use crate::inspect::inventory::Survey;
use crate::kernel::LoopDevices;
use crate::node::Error;
use crate::storage::VolumeId;
use crate::testkit::*;

fn entry(rig: &Rig, id: VolumeId) -> PathBuf {
    rig.root().join("pool/volumes").join(id.to_string())
}

/// Writes this into the record while the driver is down. Returns what was there.
fn damage(rig: &mut Rig, id: VolumeId, text: &str) -> String {
    rig.die();
    let record = entry(rig, id).join("volume.json");
    let sound = std::fs::read_to_string(&record).unwrap();
    std::fs::write(record, text).unwrap();
    rig.restart();
    sound
}

/// What fsck finds beside the running driver, and what it advises.
fn advice(rig: &Rig) -> Vec<(ProblemKind, String)> {
    let survey = Survey::take(&rig.specs, &rig.options.state_dir, &*rig.kernel).unwrap();
    let how = |repair| match repair {
        Repair::Person(how) | Repair::Itself(how) => how,
        Repair::Recovery => "recovery".to_owned(),
    };
    check(&survey)
        .into_iter()
        .map(|p| (p.kind, how(p.repair)))
        .collect()
}

/// A person does what fsck says, while the driver runs and a pod uses the volume.
#[test]
fn the_advice_of_fsck_works() {
    for advised in [
        "restore the record from a backup",
        "delete the object",
        "move its directory out of the pool",
    ] {
        let mut rig = Rig::new();
        let cap = mount("ext4");
        let id = rig.staged(ext4(), "a", &cap);
        rig.publish(id, "a", "p", &cap, false).unwrap();
        let sound = damage(&mut rig, id, "{");
        let found = advice(&rig);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].0 == ProblemKind::RecordUnreadable && found[0].1.contains(advised),
            "{found:?}"
        );
        refused!(rig.stage(id, "b", &cap), Error::Pool(_));
        let leave = |rig: &Rig| {
            rig.unpublish(id, "p").unwrap();
            rig.unstage(id, "a").unwrap();
            rig.assert_nothing_left(advised);
        };
        match advised {
            "delete the object" => {
                leave(&rig);
                rig.delete(&id.to_string()).unwrap();
            }
            "restore the record from a backup" => {
                std::fs::write(entry(&rig, id).join("volume.json"), sound).unwrap();
                tend(&rig.node.pools);
                rig.stage(id, "a", &cap).unwrap();
                leave(&rig);
                rig.assert_clean(id);
            }
            _ => {
                std::fs::rename(entry(&rig, id), rig.root().join(id.to_string())).unwrap();
                tend(&rig.node.pools);
                leave(&rig);
                refused!(rig.stage(id, "a", &cap), Error::NotFound(_));
            }
        }
        tend(&rig.node.pools);
        assert_eq!(rig.node.pools.noted_problems(), [], "{advised}");
        assert_eq!(advice(&rig), [], "{advised}");
    }
}

/// The entry could be another volume, or one of a newer version.
#[test]
fn a_record_of_another_volume_or_version_keeps_its_entry() {
    for what in ["find out who moved it", "run the driver that wrote it"] {
        let mut rig = Rig::new();
        let [id, other] = [0, 1].map(|_| rig.volume(ext4(), 16 * MI));
        let of_other = std::fs::read_to_string(entry(&rig, other).join("volume.json")).unwrap();
        let text = match what {
            "find out who moved it" => of_other,
            _ => "{\"schema\": 7}".to_owned(),
        };
        damage(&mut rig, id, &text);
        let refused = rig.delete(&id.to_string());
        let Err(Error::Pool(why)) = refused else {
            panic!("{refused:?}")
        };
        assert!(why.to_string().contains(what), "{why}");
        assert!(entry(&rig, id).join("image").exists());
        assert!(advice(&rig)[0].1.contains(what));
        rig.delete(&other.to_string()).unwrap();
    }
}

/// Nothing says which volume kubelet's handle means. The pod leaves, and the data stays.
#[test]
fn a_pod_leaves_an_inline_volume_with_an_unreadable_record() {
    let mut rig = Rig::new();
    rig.publish_inline(1, "p", &[("size", "16Mi")], false)
        .unwrap();
    let id = rig.node.pools.volumes()[0].id;
    damage(&mut rig, id, "{");
    for _ in 0..2 {
        rig.unpublish(inline(1), "p").unwrap();
        assert!(!rig.target("p").exists());
    }
    assert_eq!(rig.mounted(), [""; 0].map(PathBuf::from));
    assert!(entry(&rig, id).join("image").exists());
    rig.delete(&id.to_string()).unwrap();
}

/// The pod hangs in a write until the filesystem is thawed.
#[test]
fn a_frozen_volume_with_an_unreadable_record_is_thawed() {
    let mut rig = Rig::new();
    let id = rig.staged(ext4(), "a", &mount("ext4"));
    let minor = rig.device(id).minor;
    rig.freeze(id, "a");
    damage(&mut rig, id, "{");
    assert!(!rig.kernel.is_frozen(minor));
    rig.unstage(id, "a").unwrap();
    rig.assert_nothing_left("unstage");
}

/// It would stay frozen after its last unmount, and block sync(2) of the node.
#[test]
fn a_frozen_filesystem_without_its_image_is_thawed_before_its_unmount() {
    let rig = Rig::new();
    let id = rig.staged(ext4(), "a", &mount("ext4"));
    let minor = rig.device(id).minor;
    rig.freeze(id, "a");
    std::fs::remove_file(entry(&rig, id).join("image")).unwrap();
    rig.unstage(id, "a").unwrap();
    assert!(!rig.kernel.is_frozen(minor));
    assert_eq!(rig.record(id).freeze, None);
}

/// The image is removed by hand, and only the device still has the data.
#[test]
fn a_volume_in_use_without_its_image_is_not_deleted() {
    for text in [None, Some("{")] {
        let mut rig = Rig::new();
        let id = rig.staged(ext4(), "a", &mount("ext4"));
        std::fs::remove_file(entry(&rig, id).join("image")).unwrap();
        if let Some(text) = text {
            damage(&mut rig, id, text);
        }
        let refused = rig.delete(&id.to_string());
        assert_eq!(
            code(refused),
            Err(tonic::Code::FailedPrecondition),
            "{text:?}"
        );
        rig.unstage(id, "a").unwrap();
        rig.delete(&id.to_string()).unwrap();
        assert_eq!(rig.kernel.loops().unwrap(), []);
    }
}

/// `state.json` is lost while a raw block volume is staged.
#[test]
fn a_raw_volume_without_its_state_is_unstaged() {
    let mut rig = Rig::new();
    let id = rig.staged(crate::storage::Access::Block, "a", &block());
    rig.publish(id, "a", "p", &block(), false).unwrap();
    rig.die();
    std::fs::write(entry(&rig, id).join("state.json"), "").unwrap();
    rig.restart();
    let path: &Path = &rig.target("p");
    assert!(path.exists());
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}
