//! The cost of many volumes: start with 10,000, of which none or 1,000 are attached, and memory at
//! rest, with 1,000, and with 10,000 of which 1,000 are attached.

use std::path::Path;
use std::time::{Duration, Instant};

use hostloop_proto::csi;
use hostloop_test::driver::{Driver, DriverSpec};
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;

use crate::attached::{LoopDevices, add_volumes};
use crate::calls::create;
use crate::measure::{Aim, Figure, millis};
use crate::runtime::Runtime;

/// Starts of each pool, by turns.
const RUNS: usize = 5;
const FEW: usize = 1_000;
const MANY: usize = 10_000;

pub(crate) fn figures(runtime: &Runtime) -> Vec<Figure> {
    let filled = [0, FEW, MANY].map(|count| Filled::new(runtime, count));
    let (mut memory, mut starts) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for _ in 0..RUNS {
        for (count, pool) in filled.iter().enumerate() {
            let (start, settled) = pool.restart(runtime);
            starts[count].push(start);
            memory[count].push(settled);
        }
    }
    let [_, few, many] = starts;
    let [at_rest, with_few, _] = memory;
    drop(filled);
    let (start_attached, with_attached) = attached(runtime);
    let small = Aim::LessThan(15.0);
    let soon = Aim::LessThan(1000.0);
    vec![
        Figure::alone("resident memory at rest", at_rest, "MiB", small),
        Figure::alone("resident memory with 1,000 volumes", with_few, "MiB", small),
        Figure::beside(
            "start with 10,000 volumes, against 1,000",
            many,
            few,
            "ms",
            soon,
        ),
        Figure::alone(
            "start with 10,000 volumes, 1,000 attached",
            start_attached,
            "ms",
            soon,
        ),
        Figure::alone(
            "resident memory with these",
            with_attached,
            "MiB",
            Aim::LessThan(20.0),
        ),
    ]
}

/// Starts of a driver with many volumes, some of them attached, and its memory afterwards.
fn attached(runtime: &Runtime) -> (Vec<f64>, Vec<f64>) {
    // Dropped last, once the scratch directory has detached them.
    let _devices = LoopDevices::now();
    let pool = Filled::new(runtime, MANY - FEW);
    let driver = pool.start();
    runtime.block_on(async { add_volumes(&driver.csi().await, &pool.scratch, 0..FEW).await });
    driver.stop();
    (0..RUNS).map(|_| pool.restart(runtime)).unzip()
}

/// A pool with a number of volumes.
struct Filled {
    pool: PoolFixture,
    scratch: Scratch,
}

impl Filled {
    fn new(runtime: &Runtime, count: usize) -> Filled {
        let scratch = Scratch::new();
        let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 200 * GIB);
        let filled = Filled { pool, scratch };
        if count > 0 {
            let driver = filled.start();
            let create = async { create(&driver.csi().await, "pattern", 1 << 20).await };
            let volume = runtime.block_on(create);
            driver.stop();
            multiply(filled.pool.root(), &volume, count);
            let driver = filled.start();
            let listed = runtime.block_on(async { driver.csi().await.volume_ids().await.len() });
            assert_eq!(listed, count, "the driver does not know all volumes");
            driver.stop();
        }
        filled
    }

    fn start(&self) -> Driver {
        DriverSpec::new(&self.scratch, &[&self.pool])
            .overcommitted()
            .start()
    }

    /// Starts a driver and stops it. Returns milliseconds until Probe says that it is ready, and
    /// its resident memory afterwards.
    fn restart(&self, runtime: &Runtime) -> (f64, f64) {
        let begun = Instant::now();
        let driver = self.start();
        runtime.block_on(async {
            let csi = driver.csi().await;
            while csi.ok(csi::ProbeRequest {}).await.ready == Some(false) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let elapsed = millis(begun.elapsed());
        let settled = settled_mib(runtime, &driver);
        driver.stop();
        (elapsed, settled)
    }
}

/// Resident memory after the frequent calls of an orchestrator.
fn settled_mib(runtime: &Runtime, driver: &Driver) -> f64 {
    runtime.block_on(async {
        let csi = driver.csi().await;
        for _ in 0..20 {
            csi.ok(csi::ListVolumesRequest {
                max_entries: 100,
                ..Default::default()
            })
            .await;
            csi.ok(csi::ProbeRequest {}).await;
        }
    });
    driver.resident_kib() as f64 / 1024.0
}

/// Copies a volume's entry until the pool has `count`: the record with another ID and name, and an
/// image of holes.
fn multiply(pool: &Path, pattern: &str, count: usize) {
    let volumes = pool.join("volumes");
    let record = std::fs::read_to_string(volumes.join(pattern).join("volume.json"))
        .expect("a volume has a record");
    let there = std::fs::read_dir(&volumes)
        .expect("a pool has volumes")
        .count();
    for number in there..count {
        // The last digits of the ID are random.
        let id = format!("{}{number:08x}", &pattern[..pattern.len() - 8]);
        let dir = volumes.join(&id);
        std::fs::create_dir(&dir).expect("an entry can be made");
        let text = record
            .replace(pattern, &id)
            .replace("\"pattern\"", &format!("\"copy-{number}\""));
        std::fs::write(dir.join("volume.json"), text).expect("a record can be written");
        let image = std::fs::File::create(dir.join("image")).expect("an image can be made");
        image.set_len(1 << 20).expect("an image can be sparse");
    }
}
