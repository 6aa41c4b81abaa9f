use std::fs::File;
use std::path::PathBuf;

use hostloop_driver::kernel::{
    BindFlags, Filesystems, FsType, LoopDevice, LoopDevices, LoopSpec, MkfsSpec, MountSpec, Mounts,
    Probe,
};
use hostloop_fake_kernel::Stamps;
use tempfile::TempDir;

use super::*;

/// The image of a volume in a pool, on a loop device.
struct Bench {
    dir: TempDir,
    kernel: Arc<Model>,
    image: PathBuf,
    device: LoopDevice,
    at: PathBuf,
}

impl Bench {
    fn blank() -> Bench {
        let dir = tempfile::tempdir().expect("a directory");
        let (entry, at) = (dir.path().join("volumes/vol"), dir.path().join("at"));
        std::fs::create_dir_all(&entry).expect("an entry");
        std::fs::create_dir(&at).expect("a mount point");
        let image = entry.join("image");
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        let file = options.open(&image).expect("an image");
        file.set_len(16 << 20).expect("a length");
        let kernel = Arc::new(Model::new());
        let device = kernel.loop_attach(&LoopSpec {
            backing: &file,
            label: "vol",
            offset: 0,
            read_only: false,
            direct_io: false,
            autoclear: false,
            minor: None,
        });
        Bench {
            device: device.expect("a device"),
            dir,
            kernel,
            image,
            at,
        }
    }

    fn formatted() -> Bench {
        let bench = Bench::blank();
        bench.mkfs();
        bench
    }

    fn mkfs(&self) {
        let path = self.device.path();
        let spec = MkfsSpec {
            force: true,
            ..MkfsSpec::new(&path, FsType::Ext4)
        };
        self.kernel.mkfs(&spec).expect("a filesystem");
    }

    fn mount(&self, read_only: bool) {
        let spec = MountSpec {
            device: &self.device.path(),
            target: &self.at,
            fs: FsType::Ext4,
            read_only,
            options: &[],
        };
        self.kernel.mount(&spec).expect("a mount");
    }

    fn unmount(&self) {
        self.kernel.unmount(&self.at).expect("an unmount");
    }

    fn writes(&self, stamp: u64) -> bool {
        self.kernel.write_stamp(&self.at, stamp).is_ok()
    }

    #[track_caller]
    fn has(&self, written: u64, synced: u64) {
        let found = self.kernel.stamps_of(&self.image).expect("an image");
        assert_eq!(found, Stamps { written, synced });
    }
}

#[test]
fn the_fake_kernel_brings_to_an_image_what_was_synced() {
    let bench = Bench::formatted();
    bench.mount(false);
    let root = File::open(&bench.at).expect("a filesystem");
    assert!(bench.writes(1));
    bench.has(1, 0);
    let copy = bench.dir.path().join("copy");
    std::fs::copy(&bench.image, &copy).expect("a copy");
    let copied = bench.kernel.stamps_of(&copy).expect("a copy");
    assert_eq!(copied, Stamps::default());
    bench.kernel.freeze(&root).expect("a freeze");
    bench.has(1, 1);
    assert!(!bench.writes(2), "it is frozen");
    bench.kernel.thaw(&root).expect("a thaw");
    assert!(bench.writes(2));
    bench.has(2, 1);
    bench.kernel.sync_fs(&root).expect("a sync");
    bench.has(2, 2);
    assert!(bench.writes(3));
    bench.kernel.sync_stamp(&bench.at).expect("a sync");
    bench.has(3, 3);
    std::fs::copy(&bench.image, &copy).expect("a copy");
    let copied = bench.kernel.stamps_of(&copy).expect("a copy");
    assert_eq!((copied.written, copied.synced), (3, 3));
    assert!(bench.writes(4));
    bench.kernel.reboot();
    bench.has(3, 3);
}

#[test]
fn the_fake_kernel_writes_back_at_an_unmount_and_nothing_through_a_read_only_mount() {
    let bench = Bench::formatted();
    bench.mount(false);
    assert!(bench.writes(1));
    bench.unmount();
    bench.has(1, 1);
    assert!(!bench.writes(2), "it is not mounted");
    let path = bench.device.path();
    bench.kernel.check(&path, FsType::Ext4).expect("a check");
    bench.mount(true);
    assert!(!bench.writes(2), "it is mounted read-only");
    let (image, found) = bench.kernel.stamps_at(&bench.at).expect("a filesystem");
    assert_eq!((image, found.written), (bench.image.clone(), 1));
    bench.unmount();
    bench.has(1, 1);
    bench.mkfs();
    bench.has(0, 0);
}

#[test]
fn a_raw_block_device_of_the_fake_kernel_has_at_once_what_is_written() {
    let bench = Bench::blank();
    let (path, at) = (bench.device.path(), bench.dir.path().join("node"));
    File::create(&at).expect("a file");
    let bound = bench.kernel.bind(&path, &at, BindFlags::default());
    bound.expect("a bind");
    bench.kernel.write_stamp(&at, 1).expect("a write");
    bench.has(1, 1);
    let (image, found) = bench.kernel.stamps_at(&at).expect("a device");
    assert_eq!((image, found.written), (bench.image.clone(), 1));
    let probed = bench.kernel.probe(&path).expect("a probe");
    assert_eq!(probed, Probe::Unknown { offset: 0 });
    bench.kernel.reboot();
    bench.has(1, 1);
}

#[test]
fn what_pods_write_is_told() {
    let bench = Bench::formatted();
    bench.mount(false);
    let mut pods = Pods {
        kernels: BTreeMap::from([("n1", bench.kernel.clone())]),
        ..Pods::default()
    };
    pods.write("n1", "vol", &bench.dir.path().join("elsewhere"));
    assert!(pods.events.is_empty());
    for _ in 0..20 {
        pods.write("n1", "vol", &bench.at);
    }
    bench.kernel.reboot();
    pods.stopped("n1", bench.dir.path());
    assert!(pods.events.iter().all(|event| event.handle == "vol"));
    let (mut written, mut synced, mut syncs) = (0, 0, 0);
    for event in &pods.events {
        match event.what {
            What::Read(found) => assert_eq!(found, written),
            What::Written(stamp) => {
                assert!(stamp > written);
                written = stamp;
            }
            What::Synced => (synced, syncs) = (written, syncs + 1),
            What::Left(found) => assert_eq!(found, synced),
        }
    }
    assert!((1..20).contains(&syncs), "{syncs}");
    let left = pods.events.last().map(|event| event.what);
    assert_eq!(left, Some(What::Left(synced)));
}

#[test]
fn a_pod_has_the_image_of_its_own_volume() {
    for (handle, of, is_right) in [
        ("vol-1", "vol-1", true),
        ("csi-0123", "vol-1", true),
        ("vol-2", "vol-1", false),
    ] {
        assert_eq!(confused(handle, of).is_none(), is_right, "{handle}, {of}");
    }
}
