//! A volume can't harm its node.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use hostloop_driver::kernel::{FsType, Kernel, MkfsSpec, MountEntry};
use hostloop_driver::node::Error;
use hostloop_driver::storage::Source;
use rstest::rstest;

use super::Rig;
use crate::testkit::*;

fn entry(rig: &Rig, at: &Path) -> MountEntry {
    rig.kernel.mounts().unwrap().at(at).unwrap().clone()
}

/// Makes the node of /dev/null in a directory, and tries to open it.
fn opens_devices(at: &Path) -> bool {
    let node = at.join("null");
    if !node.exists() {
        let kind = rustix::fs::FileType::CharacterDevice;
        let device = rustix::fs::makedev(1, 3);
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(rustix::fs::CWD, &node, kind, mode, device).unwrap();
    }
    match std::fs::File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&node)
    {
        Ok(_) => true,
        Err(e) => {
            assert_eq!(e.raw_os_error(), Some(libc::EACCES));
            false
        }
    }
}

#[rstest]
#[case(FsType::Ext4)]
#[case(FsType::Xfs)]
#[case(FsType::Btrfs)]
fn no_devices_and_no_set_user_ids(#[case] fs: FsType) {
    for (flags, nosuid, nodev) in [
        (&[][..], true, true),
        (&["suid"], false, true),
        (&["dev", "suid"], false, false),
    ] {
        let rig = Rig::new();
        let id = rig.volume(on(fs), 24 * MI);
        let cap = with_flags(mount(fs), flags);
        rig.stage(id, "a", &cap).unwrap();
        rig.publish(id, "a", "pod", &cap, false).unwrap();
        rig.publish(id, "a", "reader", &cap, true).unwrap();
        let paths = [rig.staging("a"), rig.target("pod"), rig.target("reader")];
        for path in &paths {
            let entry = entry(&rig, path);
            let has = |word: &str| entry.options.iter().any(|o| o == word);
            assert_eq!(
                (has("nosuid"), has("nodev")),
                (nosuid, nodev),
                "{flags:?} {entry:?}"
            );
            assert_eq!(opens_devices(path), !nodev, "{flags:?} {}", path.display());
        }
        for target in ["pod", "reader"] {
            rig.unpublish(id, target).unwrap();
        }
        rig.unstage(id, "a").unwrap();
        rig.assert_clean(id);
    }
}

#[test]
fn a_raw_block_target_is_a_device_all_the_same() {
    let rig = Rig::new();
    let id = rig.volume(hostloop_driver::storage::Access::Block, 8 * MI);
    rig.stage(id, "a", &block()).unwrap();
    rig.publish(id, "a", "pod", &block(), false).unwrap();
    std::fs::File::open(rig.target("pod")).unwrap();
    rig.unpublish(id, "pod").unwrap();
    rig.unstage(id, "a").unwrap();
}

/// The author of a filesystem chooses the error policy in its superblock.
#[test]
fn a_superblock_can_not_have_the_node_panic() {
    let rig = Rig::new();
    let id = rig.volume(on(FsType::Ext4), 24 * MI);
    rig.stage(id, "a", &mount(FsType::Ext4)).unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
    let image = rig
        .root()
        .join("pool/volumes")
        .join(id.to_string())
        .join("image");
    let tuned = Command::new("tune2fs")
        .args(["-e", "panic"])
        .arg(&image)
        .status();
    assert!(tuned.unwrap().success());
    let remounts = |at: &Path| {
        let options = entry(&rig, at).super_options;
        let policy: Vec<_> = options
            .iter()
            .filter(|o| o.starts_with("errors="))
            .collect();
        assert_eq!(policy, ["errors=remount-ro"], "{}", at.display());
    };
    rig.stage(id, "a", &mount(FsType::Ext4)).unwrap();
    remounts(&rig.staging("a"));
    let copy = rig.create(copy_of(Source::Volume(id), on(FsType::Ext4), 24 * MI));
    rig.stage(copy, "b", &mount(FsType::Ext4)).unwrap();
    remounts(&rig.staging("b"));
    for (id, at) in [(id, "a"), (copy, "b")] {
        rig.unstage(id, at).unwrap();
    }
}

#[test]
fn mkfs_options_of_older_records_are_not_obeyed() {
    let rig = Rig::new();
    let mut new = new_volume(on(FsType::Ext4), 24 * MI);
    new.mkfs_options = ["-d", "etc"].map(str::to_owned).to_vec();
    let id = rig.create(new);
    let refused = rig.stage(id, "a", &mount(FsType::Ext4));
    assert!(
        matches!(&refused, Err(Error::FailedPrecondition(why)) if why.contains("mkfsOptions")),
        "{refused:?}"
    );
    rig.assert_clean(id);
}

/// Also for callers that bypass the checks of requests.
#[test]
fn mkfs_itself_takes_no_option_that_reads_a_file() {
    let rig = Rig::new();
    let device = rig.root().join("device");
    std::fs::File::create(&device)
        .unwrap()
        .set_len(400 * MI)
        .unwrap();
    for (fs, options) in [
        (FsType::Ext4, &["-d", "etc"][..]),
        (FsType::Ext4, &["-e", "panic"]),
        (FsType::Xfs, &["-p", "etc/passwd"]),
        (FsType::Btrfs, &["--rootdir", "etc"]),
    ] {
        let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
        let refused = rig.kernel.mkfs(&MkfsSpec {
            device: &device,
            fs,
            options: &options,
            discard: true,
            uuid: None,
            force: false,
        });
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("not allowed"), "{why}");
    }
    let data = std::fs::read(&device).unwrap();
    assert!(data.iter().all(|byte| *byte == 0), "nothing was written");
}
