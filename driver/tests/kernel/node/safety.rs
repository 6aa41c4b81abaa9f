//! A volume can't harm its node.

use std::path::Path;
use std::process::Command;

use hostloop_driver::kernel::{FsType, Kernel, MkfsSpec};
use hostloop_driver::node::Error;
use hostloop_driver::storage::Source;

use super::Rig;
use crate::testkit::*;

/// The author of a filesystem chooses the error policy in its superblock.
#[test]
fn a_superblock_can_not_have_the_node_panic() {
    let rig = Rig::new();
    let id = rig.staged(ext4(), "a", &mount("ext4"));
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
    let image = rig.root().join(format!("pool/volumes/{id}/image"));
    let tuned = Command::new("tune2fs").args(["-e", "panic"]).arg(&image).status();
    assert!(tuned.unwrap().success());
    let remounts = |at: &Path| {
        let table = rig.kernel.mounts().unwrap();
        let options = &table.at(at).unwrap().super_options;
        let policy: Vec<_> = options.iter().filter(|o| o.starts_with("errors=")).collect();
        assert_eq!(policy, ["errors=remount-ro"], "{}", at.display());
    };
    rig.stage(id, "a", &mount("ext4")).unwrap();
    remounts(&rig.staging("a"));
    let copy = rig.create(copy_of(Source::Volume(id), ext4(), 24 * MI));
    rig.stage(copy, "b", &mount("ext4")).unwrap();
    remounts(&rig.staging("b"));
    for (id, at) in [(id, "a"), (copy, "b")] {
        rig.unstage(id, at).unwrap();
    }
}

#[test]
fn mkfs_options_of_older_records_are_not_obeyed() {
    let rig = Rig::new();
    let mut new = new_volume(ext4(), 24 * MI);
    new.mkfs_options = ["-d", "etc"].map(str::to_owned).to_vec();
    let id = rig.unformatted(new);
    let refused = rig.stage(id, "a", &mount("ext4"));
    let Err(Error::FailedPrecondition(why)) = &refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("mkfsOptions"), "{why}");
    rig.assert_clean(id);
}

/// Also for callers that bypass the checks of requests.
#[test]
fn mkfs_itself_takes_no_option_that_reads_a_file() {
    let rig = Rig::new();
    let device = rig.root().join("device");
    std::fs::File::create(&device).unwrap().set_len(400 * MI).unwrap();
    for (fs, options) in [
        (FsType::Ext4, &["-d", "etc"][..]),
        (FsType::Ext4, &["-e", "panic"]),
        (FsType::Xfs, &["-p", "etc/passwd"]),
        (FsType::Btrfs, &["--rootdir", "etc"]),
    ] {
        let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
        let refused = rig.kernel.mkfs(&MkfsSpec { options: &options, ..mkfs_spec(&device, fs) });
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("not allowed"), "{why}");
    }
    let data = std::fs::read(&device).unwrap();
    assert!(data.iter().all(|byte| *byte == 0), "nothing was written");
}
