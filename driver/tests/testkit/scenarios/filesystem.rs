//! Mounted volumes.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use hostloop_driver::kernel::FsType;
use hostloop_driver::node::Error;
use hostloop_driver::storage::Format;
use hostloop_proto::csi::volume_usage::Unit;

use super::*;

pub(crate) fn a_filesystem_volume_lives<K: TestKernel>() {
    let rig = Rig::<K>::new();
    for fs in FsType::ALL {
        let id = rig.volume(on(fs), 32 * MI);
        let cap = mount(fs);
        assert!(rig.record(id).fresh);
        rig.stage(id, "a", &cap).unwrap();
        let before = rig.kernel.changes();
        rig.stage(id, "a", &cap).unwrap();
        assert_eq!(rig.kernel.changes(), before, "nothing is done twice");
        assert_eq!(rig.mounted(), [rig.staging("a")]);
        let record = rig.record(id);
        assert_eq!((record.format, record.fresh), (Format::Done(fs), false));
        assert_eq!(record.stage.as_ref().unwrap().path, rig.staging("a"));
        let device = rig.device(id);
        assert!(device.direct_io && device.autoclear && !device.read_only);
        assert_eq!(device.block_size, 4096);
        if K::SHARED {
            let path = format!("/sys/block/loop{}/queue/read_ahead_kb", device.minor);
            assert_eq!(std::fs::read_to_string(path).unwrap().trim(), "64");
        }
        let table = rig.kernel.mounts().unwrap();
        let entry = table.at(&rig.staging("a")).unwrap();
        assert_eq!(&*entry.fs_type, fs.as_str());
        let has = |word: &str| entry.super_options.iter().any(|o| o == word);
        assert!(has("discard") || has("discard=async"), "{entry:?}");
        // The kernel would punch holes for inode tables into a thick image.
        assert!(fs != FsType::Ext4 || has("noinit_itable"), "{entry:?}");

        rig.publish(id, "a", "rw", &cap, false).unwrap();
        rig.publish(id, "a", "ro", &cap, true).unwrap();
        let before = rig.kernel.changes();
        rig.publish(id, "a", "rw", &cap, false).unwrap();
        rig.publish(id, "a", "ro", &cap, true).unwrap();
        assert_eq!(rig.kernel.changes(), before, "nothing is done twice");
        let paths = [rig.staging("a"), rig.target("rw"), rig.target("ro")];
        assert_eq!(rig.mounted(), paths);
        assert!(!rig.mount_at("rw").read_only() && rig.mount_at("ro").read_only());
        keep(&rig, &paths[1], 1);
        assert_kept(&rig, &paths[2], 1);
        assert_read_only(&rig, &paths[2]);
        for (target, cap, readonly) in [
            ("rw", &cap, true),
            ("ro", &cap, false),
            ("rw", &block(), false),
        ] {
            let answer = rig.publish(id, "a", target, cap, readonly);
            refused!(answer, Error::AlreadyExists(_), "{target}");
        }

        for at in &paths {
            let usage = rig.stats(id, at).unwrap();
            assert_eq!(usage[0].unit(), Unit::Bytes);
            let size = rig.kernel.usage(at).unwrap().total_bytes;
            assert_eq!(u64::try_from(usage[0].total), Ok(size));
            assert!(usage[0].total > 0 && usage[0].available > 0);
            assert!(!K::SHARED || usage[0].used > 0);
            let counts = fs != FsType::Btrfs;
            assert_eq!(usage.len(), if counts { 2 } else { 1 }, "{usage:?}");
        }
        refused!(rig.stats(id, rig.root()), Error::NotFound(_));

        refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
        for _ in 0..2 {
            rig.unpublish(id, "rw").unwrap();
            rig.unpublish(id, "ro").unwrap();
        }
        for _ in 0..2 {
            rig.unstage(id, "a").unwrap();
            assert!(rig.root().join("stage/a").is_dir(), "it is kubelet's");
        }
        rig.assert_clean(id);
        rig.stage(id, "b", &cap).unwrap();
        assert_kept(&rig, &rig.staging("b"), 1);
        rig.unstage(id, "b").unwrap();
        rig.assert_clean(id);
    }
}

pub(crate) fn volumes_in_use_survive_a_restart<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let ids @ [id, raw] = rig.both_in_use();
    keep(&rig, &rig.target("p"), 2);
    let seen = |rig: &Rig<K>| (rig.device(id), rig.device(raw), rig.devices_over(raw));
    let before = seen(&rig);
    let rig = rig.restarted();
    assert_eq!(seen(&rig), before);
    let cap = mount("ext4");
    rig.stage(id, "a", &cap).unwrap();
    rig.publish(id, "a", "p", &cap, false).unwrap();
    rig.publish(raw, "b", "r", &block(), true).unwrap();
    rig.publish(raw, "b", "other", &block(), false).unwrap();
    assert_kept(&rig, &rig.target("p"), 2);
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    rig.unpublish(raw, "other").unwrap();
    rig.end_use(ids, "a restart");
    for id in ids {
        rig.assert_clean(id);
    }
}

pub(crate) fn a_freeze_that_a_copy_left_ends<K: TestKernel>() {
    let rig = Rig::<K>::new();
    for fs in FsType::ALL {
        let cap = mount(fs);
        let id = rig.volume(on(fs), 32 * MI);
        let thawed_and_clean = || {
            rig.unstage(id, "a").unwrap();
            rig.assert_clean(id);
            assert_eq!(rig.record(id).freeze, None, "{fs}");
        };
        rig.stage(id, "a", &cap).unwrap();
        keep(&rig, &rig.staging("a"), 1);
        rig.freeze(id, "a");
        thawed_and_clean();

        // The filesystem was unmounted while frozen: the kernel keeps the filesystem and its
        // device.
        for then_stage in [true, false] {
            rig.stage(id, "a", &cap).unwrap();
            rig.freeze(id, "a");
            rig.kernel.unmount(&rig.staging("a")).unwrap();
            assert_eq!(rig.loops(id).len(), 1, "{fs}: it stays attached");
            if then_stage {
                rig.stage(id, "a", &cap).unwrap();
                assert_kept(&rig, &rig.staging("a"), 1);
                keep(&rig, &rig.staging("a"), 2);
            }
            thawed_and_clean();
        }
        rig.stage(id, "a", &cap).unwrap();
        assert_kept(&rig, &rig.staging("a"), 2);
        rig.unstage(id, "a").unwrap();
    }
}

pub(crate) fn lost_data_is_not_formatted<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
    let image = rig.open_image(id);
    image.set_len(0).unwrap();
    image.set_len(16 * MI).unwrap();
    drop(image);
    refused!(rig.stage(id, "a", &cap), Error::DataLoss(_));
    rig.assert_clean(id);
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
    let mut options = std::fs::File::options();
    match options.read(true).custom_flags(libc::O_NONBLOCK).open(node) {
        Ok(_) => true,
        Err(e) => {
            assert_eq!(e.raw_os_error(), Some(libc::EACCES));
            false
        }
    }
}

/// Device nodes and set-user-ID bits have no effect in a volume unless its class allows them.
pub(crate) fn mounts_are_safe_unless_the_class_says_otherwise<K: TestKernel>() {
    let table: [(&[&str], &[&str]); 6] = [
        (&[], &["nosuid", "nodev"]),
        (&["noexec"], &["nosuid", "nodev", "noexec"]),
        (&["dev"], &["nosuid"]),
        (&["suid"], &["nodev"]),
        (&["suid,dev"], &[]),
        (&["suid", "nosuid"], &["nosuid", "nodev"]),
    ];
    let rig = Rig::<K>::new();
    for fs in FsType::ALL {
        let id = rig.volume(on(fs), 24 * MI);
        for (flags, shown) in table {
            let cap = with_flags(mount(fs), flags);
            rig.stage(id, "a", &cap).unwrap();
            rig.publish(id, "a", "pod", &cap, false).unwrap();
            rig.publish(id, "a", "reader", &cap, true).unwrap();
            let mounts = rig.kernel.mounts().unwrap();
            for (at, first) in [
                (rig.staging("a"), "rw"),
                (rig.target("pod"), "rw"),
                (rig.target("reader"), "ro"),
            ] {
                let entry = mounts.at(&at).unwrap();
                let expected = [&[first], shown, &["relatime"]].concat();
                assert_eq!(
                    entry.options.iter().collect::<Vec<_>>(),
                    expected,
                    "{fs} {flags:?} {entry:?}"
                );
                let policy = entry.super_options.has("errors=remount-ro");
                assert_eq!(policy, fs == FsType::Ext4, "{fs} {flags:?} {entry:?}");
                if K::SHARED {
                    let opens = opens_devices(&at);
                    assert_eq!(opens, !shown.contains(&"nodev"), "{fs} {flags:?} {entry:?}");
                }
            }
            rig.unpublish(id, "pod").unwrap();
            rig.unpublish(id, "reader").unwrap();
            rig.unstage(id, "a").unwrap();
        }
        rig.assert_clean(id);
    }
}

pub(crate) fn a_class_that_mounts_read_only_is_published_again<K: TestKernel>() {
    let rig = Rig::<K>::new();
    for (fs, group) in [
        (FsType::Ext4, ""),
        (FsType::Ext4, "1000"),
        (FsType::Xfs, ""),
        (FsType::Btrfs, ""),
    ] {
        let cap = with_flags(with_group(mount(fs), group), &["ro"]);
        let id = rig.volume(on(fs), 16 * MI);
        for readonly in [false, true] {
            for _ in 0..2 {
                rig.stage(id, "a", &cap).unwrap();
                assert_read_only(&rig, &rig.staging("a"));
            }
            for again in [readonly, readonly, !readonly] {
                rig.publish(id, "a", "p", &cap, again).unwrap();
                rig.publish(id, "a", "q", &cap, again).unwrap();
            }
            assert_read_only(&rig, &rig.target("p"));
            rig.unpublish(id, "p").unwrap();
            rig.unpublish(id, "q").unwrap();
            rig.unstage(id, "a").unwrap();
        }
        rig.assert_clean(id);
    }
}

/// A person changes the mountOptions of a PV in use: kubelet brings the new ones to the next pod,
/// and after its restart to the volume's own pod.
pub(crate) fn mount_options_change_while_a_volume_is_used<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let id = rig.volume(ext4(), 16 * MI);
    let with = |flags: &[&str]| with_flags(mount("ext4"), flags);
    let options =
        |at: &str| -> Vec<String> { rig.mount_at(at).options.iter().map(str::to_owned).collect() };
    let table: [(&[&str], &[&str], &[&str]); 7] = [
        // staged with, published with later, what the later mount has
        (&[], &["ro"], &["ro", "nosuid", "nodev"]),
        (&[], &["noexec"], &["rw", "nosuid", "nodev", "noexec"]),
        (&["suid", "dev"], &[], &["rw", "nosuid", "nodev"]),
        (&[], &["suid", "dev"], &["rw", "nosuid", "nodev"]),
        (&[], &["data=journal"], &["rw", "nosuid", "nodev"]),
        (&["noexec"], &[], &["rw", "nosuid", "nodev", "noexec"]),
        (&["ro"], &[], &["ro", "nosuid", "nodev"]),
    ];
    for (before, after, shown) in table {
        rig.stage(id, "a", &with(before)).unwrap();
        rig.publish(id, "a", "own", &with(before), false).unwrap();
        let own = options("own");
        for _ in 0..2 {
            rig.stage(id, "a", &with(after)).unwrap();
            rig.publish(id, "a", "own", &with(after), false).unwrap();
            rig.publish(id, "a", "next", &with(after), false).unwrap();
        }
        assert_eq!(
            rig.record(id)
                .stage
                .as_ref()
                .unwrap()
                .capability
                .access
                .flags(),
            before
        );
        assert_eq!(options("own"), own, "{before:?} {after:?}");
        for word in shown {
            assert!(
                options("next").contains(&(*word).to_owned()),
                "{:?} {after:?}",
                options("next")
            );
        }
        if !before.contains(&"ro") {
            refused!(
                rig.publish(id, "a", "own", &with(after), true),
                Error::AlreadyExists(_)
            );
        }
        rig.unpublish(id, "own").unwrap();
        rig.unpublish(id, "next").unwrap();
        rig.unstage(id, "a").unwrap();
        rig.stage(id, "a", &with(after)).unwrap();
        assert_eq!(
            rig.record(id)
                .stage
                .as_ref()
                .unwrap()
                .capability
                .access
                .flags(),
            after
        );
        rig.unstage(id, "a").unwrap();
    }
    // Each pod asks for its own group.
    let group = |group: &str| with_group(mount("ext4"), group);
    rig.stage(id, "a", &group("1000")).unwrap();
    rig.publish(id, "a", "own", &group("1000"), false).unwrap();
    rig.stage(id, "a", &group("2000")).unwrap();
    rig.publish(id, "a", "own", &group("2000"), false).unwrap();
    rig.unpublish(id, "own").unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

/// An older version mounted the volume without these flags at its staging path.
pub(crate) fn a_publication_has_flags_of_its_own<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    let staging = rig.staging("a");
    let held = rig.kernel.loop_reopen(&rig.device(id)).unwrap();
    rig.kernel.unmount(&staging).unwrap();
    mount_fs(&*rig.kernel, &held, &staging, FsType::Ext4);
    drop(held);
    for (target, readonly, first) in [("pod", false, "rw"), ("reader", true, "ro")] {
        rig.publish(id, "a", target, &cap, readonly).unwrap();
        let options = rig.mount_at(target).options;
        assert_eq!(
            options.iter().collect::<Vec<_>>(),
            [first, "nosuid", "nodev", "relatime"]
        );
    }
}
