use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;
use crate::kernel::{
    Detached, Freeze, Kernel, LoopDevice, LoopSpec, MkfsSpec, MountSpec, Probe, file_id,
};
use crate::testkit::{MI, mkfs_spec, mount_spec};

const UUID: &str = "11111111-2222-3333-4444-555555555555";

struct Bench {
    dir: tempfile::TempDir,
    model: Model,
}

impl Bench {
    fn new() -> Bench {
        Bench { dir: tempfile::tempdir().unwrap(), model: Model::new() }
    }

    fn image(&self, name: &str) -> File {
        let path = self.dir.path().join(name);
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false);
        let file = file.open(path).unwrap();
        file.set_len(16 * MI).unwrap();
        file
    }

    fn dir(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn attach(&self, backing: &File) -> Result<LoopDevice> {
        self.model.loop_attach(&LoopSpec {
            backing,
            label: "",
            read_only: false,
            direct_io: true,
            autoclear: true,
            minor: None,
        })
    }

    fn mkfs(&self, device: &LoopDevice) -> Result<()> {
        self.model.mkfs(&MkfsSpec { uuid: Some(UUID), ..mkfs_spec(&device.path(), FsType::Ext4) })
    }

    fn mount(&self, device: &LoopDevice, at: &Path) -> Result<()> {
        let device = device.path();
        self.model.mount(&mount_spec(&device, at, FsType::Ext4))
    }

    /// A new image, its device, and where its filesystem is mounted.
    fn mounted(&self) -> (File, LoopDevice, PathBuf) {
        let (image, at) = (self.image("image"), self.dir("at"));
        let device = self.attach(&image).unwrap();
        self.mkfs(&device).unwrap();
        self.mount(&device, &at).unwrap();
        (image, device, at)
    }
}

#[test]
fn a_copy_carries_its_filesystem() {
    let b = Bench::new();
    let image = b.image("image");
    b.mkfs(&b.attach(&image).unwrap()).unwrap();
    drop(image);
    std::fs::copy(b.dir.path().join("image"), b.dir.path().join("copy")).unwrap();
    let device = b.attach(&b.image("copy")).unwrap();
    let (fs, uuid) = (FsType::Ext4, UUID.to_owned());
    let probe = b.model.probe(&device.path()).unwrap();
    assert_eq!(probe, Probe::Filesystem { fs, uuid });
}

#[test]
fn fails_the_chosen_call() {
    let b = Bench::new();
    let image = b.image("image");
    b.model.fail("loop.attach", 2, libc::ENOSPC);
    let first = b.attach(&image).unwrap();
    refused!(b.attach(&image), Error::NoSpace { .. });
    let third = b.attach(&image).unwrap();
    assert_ne!(first.minor, third.minor);
    assert_eq!(b.model.take_effects(), ["loop.attach"; 3]);
    assert!(b.model.effects().is_empty());
}

#[test]
fn fails_after_the_deed() {
    let b = Bench::new();
    let image = b.image("image");
    let device = b.attach(&image).unwrap();
    b.model.fail_afterwards("mkfs", 1, libc::EIO);
    assert!(b.mkfs(&device).is_err());
    let at = b.dir("at");
    // A half-made filesystem is recognised but can't be mounted.
    let probe = b.model.probe(&device.path()).unwrap();
    assert!(matches!(probe, Probe::Filesystem { .. }));
    assert!(b.mount(&device, &at).is_err());
    b.mkfs(&device).unwrap();
    b.model.fail_afterwards("mount", 1, libc::EIO);
    assert!(b.mount(&device, &at).is_err());
    assert_eq!(b.model.mounts().unwrap().of_loop(device.minor).count(), 1);
}

#[test]
fn a_hook_may_block_and_look() {
    let b = std::sync::Arc::new(Bench::new());
    let (_image, device, at) = b.mounted();
    let (go, wait) = channel::<()>();
    b.model.hook("freeze", move |_| {
        let _ = wait.recv_timeout(Duration::from_secs(60));
        Ok(())
    });
    std::thread::scope(|scope| {
        let frozen = scope.spawn(|| b.model.freeze(&File::open(&at).unwrap()));
        // Other calls continue meanwhile.
        assert!(!b.model.is_frozen(device.minor));
        assert_eq!(b.model.loops().unwrap().len(), 1);
        go.send(()).unwrap();
        assert_eq!(frozen.join().unwrap().unwrap(), Freeze::Frozen);
    });
    assert!(b.model.is_frozen(device.minor));
    b.model.behave();
    b.model.thaw(&File::open(&at).unwrap()).unwrap();
    assert!(!b.model.is_frozen(device.minor));
}

#[test]
fn a_hook_that_panics_leaves_the_model_usable() {
    let b = Bench::new();
    let image = b.image("image");
    b.model.hook("loop.attach", |_| panic!("killed here"));
    let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| b.attach(&image)));
    assert!(killed.is_err());
    b.model.behave();
    b.attach(&image).unwrap();
}

#[test]
fn a_busy_mount_stays() {
    let b = Bench::new();
    let (_image, _device, at) = b.mounted();
    let path = std::fs::canonicalize(&at).unwrap();
    b.model.set_busy(&path, true);
    refused!(b.model.unmount(&at), Error::Busy { .. });
    b.model.set_busy(&path, false);
    b.model.unmount(&at).unwrap();
}

#[test]
fn trouble_on_request() {
    let b = Bench::new();
    let (image, device, at) = b.mounted();
    assert!(device.direct_io);
    b.model.set_direct_io(file_id(&image).unwrap(), false);
    assert!(!b.model.loop_info(device.minor).unwrap().unwrap().direct_io);
    assert!(!b.model.loop_set_direct_io(&device, true).unwrap());
    let errors = || b.model.fs_errors(&at, device.minor, FsType::Ext4).unwrap();
    assert_eq!(errors(), None);
    b.model.set_fs_errors(device.minor, Some("3 errors"));
    assert_eq!(errors().as_deref(), Some("3 errors"));
    assert!(!b.model.usage(&at).unwrap().read_only);
    b.model.turn_read_only(device.minor);
    assert!(b.model.usage(&at).unwrap().read_only);
    b.model.set_absent(FsType::Xfs);
    let offered = b.model.filesystems();
    let offered = offered.iter().map(|(_, answer)| answer.is_ok());
    assert!(offered.eq([true, false, true]));
    b.model.set_content(&image, &Content::Ambivalent).unwrap();
    assert_eq!(b.model.probe(&device.path()).unwrap(), Probe::Ambivalent);
}

#[test]
fn a_reboot_forgets_all_but_the_disk() {
    let b = Bench::new();
    let (image, device, _at) = b.mounted();
    b.model.reboot();
    assert!(b.model.loops().unwrap().is_empty());
    assert_eq!(b.model.mounts().unwrap().entries.len(), 2);
    let detached = b.model.loop_detach(device.minor, file_id(&image).unwrap());
    assert_eq!(detached.unwrap(), Detached::Gone);
    let device = b.attach(&image).unwrap();
    let probe = b.model.probe(&device.path()).unwrap();
    assert!(matches!(probe, Probe::Filesystem { .. }));
}

#[test]
fn a_regular_file_plays_a_disk() {
    let b = Bench::new();
    let disk = b.dir.path().join("disk");
    File::create(&disk).unwrap().set_len(64 * MI).unwrap();
    assert_eq!(b.model.probe(&disk).unwrap(), Probe::Blank);
    b.model.mkfs(&mkfs_spec(&disk, FsType::Ext4)).unwrap();
    let at = b.dir("at");
    let spec = MountSpec {
        options: &["noexec".to_owned(), "discard".to_owned()],
        ..mount_spec(&disk, &at, FsType::Ext4)
    };
    b.model.mount(&spec).unwrap();
    let table = b.model.mounts().unwrap();
    let entry = table.at(&std::fs::canonicalize(&at).unwrap()).unwrap();
    assert_eq!(entry.loop_minor(), None);
    assert_eq!(entry.options, ["rw", "noexec", "relatime"]);
    assert_eq!(entry.super_options, ["rw", "discard"]);
    assert_eq!(b.model.usage(&at).unwrap().total_bytes, 64 * MI);
}
