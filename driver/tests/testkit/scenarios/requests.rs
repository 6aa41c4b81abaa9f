//! Checks of requests, and what publications of one volume have in common.

use std::fs::File;
use std::path::Path;

use hostloop_driver::kernel::{FsType, MkfsSpec, file};
use hostloop_driver::node::Error;
use hostloop_driver::storage::Access;
use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode::{
    MultiNodeMultiWriter, MultiNodeReaderOnly,
};

use super::*;

pub(crate) fn invalid_requests_name_their_field_and_have_no_effect<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let id = &rig.volume(ext4(), 16 * MI).to_string();
    let before = rig.kernel.changes();
    let good = mount("ext4");
    let group = with_group(mount("ext4"), "staff");
    let flags = "volume_capability.mount.mount_flags";
    // An error in the filesystem would panic the node.
    let [one, two, three] = ["errors=panic", "noatime,errors=panic", "fatal_errors=panic"]
        .map(|flag| with_flags(mount("ext4"), &[flag]));
    for (id, path, capability, field) in [
        ("", "/a", &good, "volume_id"),
        (id, "relative", &good, "staging_target_path"),
        (
            id,
            "/a",
            &group,
            "volume_capability.mount.volume_mount_group",
        ),
        (id, "/a", &one, flags),
        (id, "/a", &two, flags),
        (id, "/a", &three, flags),
    ] {
        match rig.stage_at(id, Path::new(path), capability) {
            Err(Error::Invalid(invalid)) => {
                assert_eq!(invalid.field, field);
                let names_class_field = invalid.why.contains("leave it out of mountOptions");
                assert_eq!(names_class_field, field == flags, "{}", invalid.why);
            }
            other => panic!("{field}: {other:?}"),
        }
        assert_eq!(rig.kernel.changes(), before, "{field}");
    }
    rig.assert_clean(id);
}

pub(crate) fn with_the_lifecycle_checked_the_controller_comes_first<K: TestKernel>() {
    let mut rig = Rig::<K>::new();
    rig.node.config.check_lifecycle = true;
    let id = rig.volume(ext4(), 16 * MI);
    refused!(
        rig.stage(id, "a", &mount("ext4")),
        Error::FailedPrecondition(_)
    );
    rig.publish_to_node(id, false);
    rig.stage(id, "a", &mount("ext4")).unwrap();
}

pub(crate) fn a_read_only_attachment_is_published_read_only<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    rig.publish_to_node(id, true);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    assert_read_only(&rig, &rig.target("p"));
}

pub(crate) fn several_pvs_share_one_staging<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let writers = mount_as("ext4", MultiNodeMultiWriter);
    let readers = mount_as("ext4", MultiNodeReaderOnly);
    let id = rig.staged(ext4(), "a", &writers);
    rig.publish(id, "a", "p", &writers, false).unwrap();
    rig.publish(id, "a", "q", &readers, false).unwrap();
    rig.publish(id, "a", "q", &readers, false).unwrap();
    assert_read_only(&rig, &rig.target("q"));
    // A block volume is staged under the name of one PV, and published under another as well.
    let blocks = block_as(MultiNodeMultiWriter);
    let raw = rig.staged(Access::Block, "pv1", &blocks);
    rig.publish(raw, "pv1", "r", &blocks, false).unwrap();
    rig.publish(raw, "pv2", "s", &blocks, false).unwrap();
    assert_eq!(rig.devices().len(), 2);
    for (id, target) in [(id, "p"), (id, "q"), (raw, "r"), (raw, "s")] {
        rig.unpublish(id, target).unwrap();
    }
    rig.unstage(id, "a").unwrap();
    rig.unstage_patiently(raw, "pv1");
    rig.assert_clean(id);
}

pub(crate) fn unpublish_needs_no_record_and_keeps_staging_directories<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let id = rig.staged(Access::Block, "a", &block());
    let other = rig.volume(ext4(), 16 * MI);
    let staging = rig.staging("a");
    rig.unpublish_at(other, &staging).unwrap();
    rig.node.pools.delete_volume(&other).unwrap();
    rig.unpublish_at(other, &staging).unwrap();
    refused!(rig.unpublish_at(id, &staging), Error::Path { .. });
    assert!(rig.root().join("stage/a").is_dir());

    rig.unpublish("unknown", "none").unwrap();
    std::fs::create_dir(rig.target("empty")).unwrap();
    rig.unpublish(id, "empty").unwrap();
    assert!(!rig.target("empty").exists());
}

pub(crate) fn health_reports_what_is_missing_at_the_paths<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let reasons = |target: &str, staging: &str| {
        let req = csi::NodeGetVolumeHealthRequest {
            volume_id: id.to_string(),
            volume_publish_path: text(&rig.target(target)),
            staging_target_path: text(&rig.staging(staging)),
        };
        let health = rig.node.node_get_volume_health(req).unwrap();
        let entries = health.volume_health.unwrap().health_statuses;
        entries.into_iter().map(|e| e.reason).collect::<Vec<_>>()
    };
    // On a busy machine, a pool may not answer in time.
    assert_soon(Vec::new(), || reasons("p", "a"));
    let missing = ["NotPublished", "NotStaged"].map(str::to_owned);
    assert_soon(missing.to_vec(), || reasons("q", "b"));
    assert_soon(Vec::new(), || {
        let request = csi::NodeGetStorageHealthRequest::default();
        let storage = rig.node.node_get_storage_health(request).unwrap();
        storage.backend_health
    });
}

/// Also for callers that bypass the checks of requests.
pub(crate) fn mkfs_itself_takes_no_option_that_reads_a_file<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let device = rig.root().join("device");
    let data = File::create(&device).unwrap();
    data.set_len(400 * MI).unwrap();
    for (fs, options) in [
        (FsType::Ext4, &["-d", "etc"][..]),
        (FsType::Ext4, &["-e", "panic"]),
        (FsType::Xfs, &["-p", "etc/passwd"]),
        (FsType::Btrfs, &["--rootdir", "etc"]),
    ] {
        let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
        let refused = rig.kernel.mkfs(&MkfsSpec {
            options: &options,
            ..MkfsSpec::new(&device, fs)
        });
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("not allowed"), "{why}");
    }
    assert_eq!(
        file::allocated_bytes(&data).unwrap(),
        0,
        "nothing was written"
    );
}
