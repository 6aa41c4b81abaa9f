//! Volumes that are a block device in one life and a filesystem in another.

use hostloop_driver::kernel::FsType;
use hostloop_driver::node::Error;
use hostloop_driver::storage::{Access, Format};
use hostloop_proto::csi;
use hostloop_proto::csi::volume_content_source::Type;

use super::*;

/// The kernel trusts a filesystem that it mounts, and users of a block device can write any.
pub(crate) fn raw_bytes_are_mounted_by_an_administrators_word_alone<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = mount("ext4");
    let copy = |name: &str, source: Type, allowed: &str| {
        rig.try_create(csi::CreateVolumeRequest {
            volume_content_source: from(source),
            parameters: pairs(allowed),
            ..create_request_for(name, cap.clone())
        })
    };
    const ALLOWED: &str = "allowVolumeModeChange=true";

    // A user writes a filesystem.
    let raw = rig.created(create_request_for("raw", block()));
    rig.stage(&raw, "a", &block()).unwrap();
    let held = rig.kernel.loop_reopen(&rig.device(&raw)).unwrap();
    make_fs(&*rig.kernel, &held, FsType::Ext4);
    drop(held);
    rig.unstage_patiently(&raw, "a");
    assert_eq!(rig.record(&raw).format, Format::Raw);
    // Nor by a PersistentVolume of another mode over the same volume.
    refused!(rig.stage(&raw, "a", &cap), Error::FailedPrecondition(_));
    rig.assert_clean(&raw);

    let snapshot = rig.snapshot("s", &raw).unwrap().snapshot_id;
    let group = csi::CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids: vec![raw.clone()],
        ..Default::default()
    };
    let group = rig.controller.create_volume_group_snapshot(group).unwrap();
    let member = group
        .group_snapshot
        .unwrap()
        .snapshots
        .remove(0)
        .snapshot_id;
    let before = rig.kernel.changes();
    for gone in [false, true] {
        for (source, is_volume) in [
            (of_snapshot(&snapshot), false),
            (of_snapshot(&member), false),
            (of_volume(&raw), true),
        ] {
            for allowed in ["", "allowVolumeModeChange=false"] {
                match copy("refused", source.clone(), allowed) {
                    Err(Error::Invalid(refused)) => {
                        assert_eq!(refused.field, "volume_content_source");
                        assert!(refused.why.contains("allowVolumeModeChange"), "{refused}");
                    }
                    // The source is gone.
                    Err(Error::Pool(_)) if gone && is_volume => {}
                    other => panic!("{source:?} {allowed}: {other:?}"),
                }
            }
        }
        assert_eq!(rig.kernel.changes(), before);
        // As a block device it needs no word.
        let again = csi::CreateVolumeRequest {
            volume_content_source: from(of_snapshot(&snapshot)),
            ..create_request_for(&format!("again-{gone}"), block())
        };
        rig.created(again);
        if !gone {
            rig.delete(&raw).unwrap();
        }
    }

    let allowed = copy("allowed", of_snapshot(&snapshot), ALLOWED)
        .unwrap()
        .volume_id;
    assert_eq!(
        copy("allowed", of_snapshot(&snapshot), ALLOWED)
            .unwrap()
            .volume_id,
        allowed
    );
    assert_eq!(rig.record(&allowed).format, Format::Raw);
    // It is a filesystem by an administrator's word, also for its copies and after its mount.
    let early = rig.snapshot("early", &allowed).unwrap().snapshot_id;
    copy("early", of_snapshot(&early), "").unwrap();
    rig.stage(&allowed, "a", &cap).unwrap();
    keep(&rig, &rig.staging("a"), 1);
    assert_eq!(rig.record(&allowed).format, Format::Done(FsType::Ext4));
    let late = rig.snapshot("late", &allowed).unwrap().snapshot_id;
    copy("clone", of_volume(&allowed), "").unwrap();
    rig.unstage(&allowed, "a").unwrap();
    rig.delete(&allowed).unwrap();
    let restored = copy("late", of_snapshot(&late), "").unwrap().volume_id;
    rig.stage(&restored, "a", &cap).unwrap();
    assert_kept(&rig, &rig.staging("a"), 1);
    rig.unstage(&restored, "a").unwrap();
    rig.assert_clean(&restored);
}

/// Restored as a block device, a filesystem becomes raw bytes: users can change it at will.
pub(crate) fn a_filesystem_that_was_a_block_device_is_raw<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let first = rig.created(create_request("first"));
    let snapshot = rig.snapshot("s", &first).unwrap().snapshot_id;
    let device = rig.created(csi::CreateVolumeRequest {
        volume_content_source: from(of_snapshot(&snapshot)),
        ..create_request_for("device", block())
    });
    assert_eq!(rig.record(&device).capabilities[0].access, Access::Block);
    let back = rig.try_create(csi::CreateVolumeRequest {
        volume_content_source: from(of_volume(&device)),
        ..create_request("back")
    });
    refused!(back, Error::Invalid(_));
}
