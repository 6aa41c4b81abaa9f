//! What many volumes cost: start with 10,000, memory at rest and with 1,000.

use std::path::Path;
use std::time::Instant;

use hostloop_proto::csi;
use hostloop_test::driver::{Driver, DriverSpec};
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;
use tokio::runtime::Runtime;

use crate::measure::{Aim, Figure, median, millis};
use crate::stage::create;

/// The figures.
pub(crate) fn figures(runtime: &Runtime) -> Vec<Figure> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 200 * GIB);
    let spec = || DriverSpec::new(&scratch, &[&pool]);
    let driver = spec().start();
    let at_rest = settled_mib(runtime, &driver);
    let volume = runtime.block_on(async { create(&driver.csi().await, "pattern", 1 << 20).await });
    driver.stop();

    multiply(pool.root(), &volume, 1_000);
    let driver = spec().start();
    let with_thousand = settled_mib(runtime, &driver);
    driver.stop();

    let few = start_time(spec);
    multiply(pool.root(), &volume, 10_000);
    let many = start_time(spec);
    let driver = spec().start();
    let listed = runtime.block_on(async { driver.csi().await.volume_ids().await.len() });
    assert_eq!(listed, 10_000, "the driver does not know all volumes");
    driver.stop();

    let memory = |what: &str, ours| Figure {
        what: format!("resident memory {what}"),
        ours,
        floor: None,
        unit: "MiB",
        aim: Aim::LessThan(15.0),
    };
    vec![
        memory("at rest", at_rest),
        memory("with 1,000 volumes", with_thousand),
        Figure {
            what: "start with 10,000 volumes, against 1,000".into(),
            ours: many,
            floor: Some(few),
            unit: "ms",
            aim: Aim::LessThan(1000.0),
        },
    ]
}

/// Resident memory after it has answered what an orchestrator asks all the time.
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

fn start_time<'a>(spec: impl Fn() -> DriverSpec<'a>) -> f64 {
    let once = || {
        let start = Instant::now();
        let driver = spec().start();
        let elapsed = millis(start.elapsed());
        driver.stop();
        elapsed
    };
    median((0..5).map(|_| once()).collect())
}

/// Copies a volume's entry until there are so many: the record with another ID and name, and an
/// image of holes.
fn multiply(pool: &Path, pattern: &str, count: usize) {
    let volumes = pool.join("volumes");
    let record = std::fs::read_to_string(volumes.join(pattern).join("volume.json"))
        .expect("a volume has a record");
    let there = std::fs::read_dir(&volumes)
        .expect("a pool has volumes")
        .count();
    for number in there..count {
        // The last digits of the ID are random ones: any do.
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
