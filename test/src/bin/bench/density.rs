//! The calls of one further volume beside few and many attached ones. See `docs/density.md`.

mod report;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use hostloop_driver::kernel::linux::bare_attach;
use hostloop_driver::kernel::loop_path;
use hostloop_test::client::Csi;
use hostloop_test::driver::DriverSpec;
use hostloop_test::machine::{run, text};
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::attached::{BYTES, LoopDevices, attach, places};
use crate::calls::{create, delete, publish, stage, stats, unpublish, unstage};
use crate::measure::{Figure, timed, timed_async};
use crate::page::Docs;
use crate::runtime::Runtime;
use crate::withheld::Cpus;
use report::{Beside, Call, Density, Step};

/// Further volumes beside each number of attached ones. One more comes first and is not counted.
const ROUNDS: usize = 21;

/// How it is to be measured.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Numbers of attached volumes.
    pub(crate) volumes: Vec<usize>,
    /// How often: each run has a pool and a driver of its own.
    pub(crate) runs: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { volumes: vec![1, 50, 200, 500, 1_000, 2_000], runs: 1 }
    }
}

impl Settings {
    /// Enough to see that it works.
    pub(crate) fn quick(self) -> Settings {
        Settings { volumes: vec![1, 20], ..self }
    }
}

/// The figures.
pub(crate) fn figures(runtime: &Runtime, settings: &Settings, docs: &Docs) -> Vec<Figure> {
    docs.figures(|| {
        let runs = (0..settings.runs).flat_map(|_| measured(runtime, &settings.volumes));
        Density { numbers: runs.collect() }
    })
}

/// One run: attaches more and more volumes.
fn measured(runtime: &Runtime, numbers: &[usize]) -> Vec<Beside> {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    // Dropped last, once the scratch directory has detached them.
    let _devices = LoopDevices::now();
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 100 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    let by_hand = ByHand::new(pool.root(), &scratch);
    runtime.block_on(async {
        let csi = driver.csi().await;
        let (mut there, mut measured) = (0, Vec::new());
        for count in numbers {
            attach(&csi, &scratch, there..count).await;
            there = count;
            let before = Cpus::now();
            let mut beside = Beside::new(count);
            for round in 0..=ROUNDS {
                let calls = calls(&csi, &scratch, &format!("further-{count}-{round}")).await;
                let steps = by_hand.steps();
                if round > 0 {
                    add(&mut beside.calls, calls);
                    add(&mut beside.kernel, steps);
                }
            }
            beside.resident_mib = driver.resident_kib() as f64 / 1024.0;
            beside.withheld = Cpus::now().withheld_since(before);
            eprintln!("  {count} attached volumes: measured");
            measured.push(beside);
        }
        measured
    })
}

fn add<K: Ord, const N: usize>(runs: &mut BTreeMap<K, Vec<f64>>, run: [(K, f64); N]) {
    for (key, elapsed) in run {
        // A microsecond is precise enough, and short in the data.
        runs.entry(key).or_default().push((elapsed * 1e3).round() / 1e3);
    }
}

/// A volume's whole life.
async fn calls(csi: &Csi, scratch: &Scratch, name: &str) -> [(Call, f64); 8] {
    let (staging, target) = places(scratch, name);
    let mut id = String::new();
    let created = timed_async(async { id = create(csi, name, BYTES).await }).await;
    let staged = timed_async(stage(csi, &id, &staging)).await;
    let published = timed_async(publish(csi, &id, &staging, &target)).await;
    let asked = timed_async(stats(csi, &id, &target)).await;
    let unpublished = timed_async(unpublish(csi, &id, &target)).await;
    let restaged = timed_async(async {
        unstage(csi, &id, &staging).await;
        stage(csi, &id, &staging).await;
    });
    let restaged = restaged.await;
    let unstaged = timed_async(unstage(csi, &id, &staging)).await;
    let deleted = timed_async(delete(csi, &id)).await;
    [
        (Call::Create, created),
        (Call::Stage, staged),
        (Call::Publish, published),
        (Call::Stats, asked),
        (Call::Unpublish, unpublished),
        (Call::Restage, restaged),
        (Call::Unstage, unstaged),
        (Call::Delete, deleted),
    ]
}

/// An ext4 image beside the pool's folders, to attach and mount without the driver.
struct ByHand {
    image: File,
    mounted: PathBuf,
    bound: PathBuf,
}

impl ByHand {
    fn new(pool: &Path, scratch: &Scratch) -> ByHand {
        let path = pool.parent().expect("a pool has a parent").join("by-hand");
        let image = File::create_new(&path).expect("an image can be made");
        image.set_len(BYTES).expect("an image can be sparse");
        // The loop device has blocks of this size.
        run("mkfs.ext4", &["-q", "-F", "-b", "4096", text(&path)]);
        let image = File::options().read(true).write(true).open(&path);
        ByHand {
            image: image.expect("the image is there"),
            mounted: scratch.dir("by-hand"),
            bound: scratch.dir("by-hand-bound"),
        }
    }

    /// What the kernel itself takes.
    fn steps(&self) -> [(Step, f64); 6] {
        let ByHand { image, mounted, bound } = self;
        let mut attached = None;
        let configure = timed(|| attached = Some(bare_attach(image).expect("it attaches")));
        let (minor, writable) = attached.expect("it was attached");
        let source = loop_path(minor);
        // Some kernels refuse to mount a device that is open for writing.
        let device = File::open(&source).expect("the device is there");
        drop(writable);
        let mount_at = |from: &Path, at: &Path, fs, flags| {
            let none = None::<&str>;
            timed(|| mount(Some(from), at, fs, flags, none).expect("it can be mounted"))
        };
        let unmount = |at: &Path| {
            timed(|| umount2(at, MntFlags::UMOUNT_NOFOLLOW).expect("it can be unmounted"))
        };
        let mount = mount_at(&source, mounted, Some("ext4"), MsFlags::empty());
        let bind = mount_at(mounted, bound, None, MsFlags::MS_BIND);
        let unbind = unmount(bound);
        let unmount = unmount(mounted);
        // Closing the last handle detaches the device.
        let clear = timed(|| drop(device));
        [
            (Step::Configure, configure),
            (Step::Mount, mount),
            (Step::Bind, bind),
            (Step::Unbind, unbind),
            (Step::Unmount, unmount),
            (Step::Clear, clear),
        ]
    }
}
