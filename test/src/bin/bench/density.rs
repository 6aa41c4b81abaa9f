//! The calls of one further volume beside few and many attached ones. See `docs/density.md`.

mod report;

use std::collections::BTreeMap;
use std::time::Duration;

use hostloop_test::client::Csi;
use hostloop_test::driver::DriverSpec;
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;
use nix::mount::{MsFlags, mount};

use crate::attached::{BYTES, LoopDevices, add_volumes, places, remove_volumes};
use crate::by_hand::ByHand;
use crate::calls::{create, delete, publish, stage, stats, unpublish, unstage};
use crate::measure::{Figure, timed_async};
use crate::page::Docs;
use crate::runtime::Runtime;
use crate::withheld::Cpus;
use report::{Beside, Call, Density};

/// The time from adding or removing volumes to a measurement. The kernel frees later what they used.
const PAUSE: Duration = Duration::from_secs(1);
/// Further volumes beside each number in each pass. One more comes first and is not counted.
const ROUNDS: usize = 7;

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Numbers of attached volumes.
    pub(crate) volumes: Vec<usize>,
    /// How often a run goes through all numbers of attached volumes, by turns from few to many and
    /// from many to few. So a machine that becomes slower counts for and against each number.
    pub(crate) passes: usize,
    /// The number of runs. Each run has a pool and a driver of its own.
    pub(crate) runs: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            volumes: vec![1, 50, 200, 500, 1_000, 2_000],
            passes: 12,
            runs: 1,
        }
    }
}

impl Settings {
    /// Settings that only show that the benchmark works.
    pub(crate) fn quick(self) -> Settings {
        Settings {
            volumes: vec![1, 20],
            passes: 2,
            ..self
        }
    }
}

pub(crate) fn figures(settings: &Settings, docs: &Docs) -> Vec<Figure> {
    docs.figures(|| {
        let runtime = Runtime::of_one_thread();
        let runs = (0..settings.runs).flat_map(|_| measured(&runtime, settings));
        Density {
            numbers: runs.collect(),
        }
    })
}

/// Makes one run, which adds and removes volumes to reach each number in each pass.
fn measured(runtime: &Runtime, settings: &Settings) -> Vec<Beside> {
    let mut upwards = settings.volumes.clone();
    upwards.sort_unstable();
    let downwards = upwards.iter().rev().copied().collect();
    let orders = [upwards, downwards];
    // Dropped last, once the scratch directory has detached them.
    let _devices = LoopDevices::now();
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 100 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).overcommitted().start();
    let by_hand = ByHand::new(&pool, &scratch, "by-hand");
    // Kubelet's directories are in memory. ext4 without a journal needs up to a millisecond to make
    // a directory once many were removed.
    let kubelet = scratch.dir("kubelet");
    let mounted = mount(
        Some("tmpfs"),
        &kubelet,
        Some("tmpfs"),
        MsFlags::empty(),
        None::<&str>,
    );
    mounted.expect("a tmpfs can be mounted");
    runtime.block_on(async {
        let csi = driver.csi().await;
        let (mut there, mut measured) = (0, Vec::new());
        for pass in 0..settings.passes {
            for count in orders[pass % 2].iter().copied() {
                remove_volumes(&csi, &scratch, count..there).await;
                add_volumes(&csi, &scratch, there..count).await;
                there = count;
                tokio::time::sleep(PAUSE).await;
                let before = Cpus::now();
                let mut beside = Beside::new(count);
                for round in 0..=ROUNDS {
                    let name = format!("further-{pass}-{count}-{round}");
                    let calls = calls(&csi, &scratch, &name).await;
                    let steps = by_hand.steps();
                    if round > 0 {
                        add(&mut beside.calls, calls);
                        add(&mut beside.kernel, steps);
                    }
                }
                beside.withheld = Cpus::now().withheld_since(before);
                measured.push(beside);
            }
            eprintln!("  pass {} of {}: measured", pass + 1, settings.passes);
        }
        measured
    })
}

fn add<K: Ord, const N: usize>(runs: &mut BTreeMap<K, Vec<f64>>, run: [(K, f64); N]) {
    for (key, elapsed) in run {
        // Microseconds are precise enough, and short in the data file.
        runs.entry(key)
            .or_default()
            .push((elapsed * 1e3).round() / 1e3);
    }
}

/// Makes the calls of one volume's whole life.
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
