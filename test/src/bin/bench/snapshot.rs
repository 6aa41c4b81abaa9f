//! CreateSnapshot of staged volumes of very different sizes, on a pool with reflinks. It takes as
//! long for the large one as for the small one.

use std::path::Path;

use hostloop_test::client::Csi;
use hostloop_test::driver::DriverSpec;
use hostloop_test::pools::{GIB, MIB, PoolFixture, PoolKind};
use hostloop_test::requests;
use hostloop_test::scratch::Scratch;

use crate::calls::{create, delete, stage, unstage};
use crate::measure::{Aim, Figure, timed_async};
use crate::runtime::Runtime;

const ROUNDS: usize = 21;

const SIZES: [(&str, u64, usize); 3] = [
    ("1 MiB", MIB, 0),
    ("1 GiB", GIB, 64),
    ("100 GiB", 100 * GIB, 256),
];

pub(crate) fn figures(runtime: &Runtime) -> Vec<Figure> {
    [PoolKind::Xfs, PoolKind::Btrfs]
        .into_iter()
        .flat_map(|kind| of_pool(runtime, kind))
        .collect()
}

fn of_pool(runtime: &Runtime, kind: PoolKind) -> Vec<Figure> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, kind, 250 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).overcommitted().start();
    let runs: Vec<_> = runtime.block_on(async {
        let csi = driver.csi().await;
        let mut volumes = Vec::new();
        for (number, (_, bytes, data_mib)) in SIZES.into_iter().enumerate() {
            let id = create(&csi, &format!("snap-{number}"), bytes).await;
            let staging = scratch.dir(&format!("staging-{number}"));
            stage(&csi, &id, &staging).await;
            fill(&staging, data_mib);
            volumes.push((id, staging, Vec::new()));
        }
        for round in 0..ROUNDS {
            for (id, _, samples) in &mut volumes {
                samples.push(snapshot_once(&csi, id, round).await);
            }
        }
        for (id, staging, _) in &volumes {
            unstage(&csi, id, staging).await;
            delete(&csi, id).await;
        }
        volumes.into_iter().map(|(_, _, runs)| runs).collect()
    });
    let larger = SIZES.iter().zip(&runs).skip(1);
    let figures = larger.map(|((size, ..), ours)| {
        let what = format!("snapshot of {size} on {}, against 1 MiB", kind.name());
        let (ours, smallest) = (ours.clone(), runs[0].clone());
        Figure::beside(what, ours, smallest, "ms", Aim::RatioAtMost(2.0))
    });
    figures.collect()
}

/// Writes data to the volume and to the disk before the clock starts.
fn fill(dir: &Path, mib: usize) {
    let content = vec![0x5a; mib << 20];
    let file = dir.join("data");
    std::fs::write(&file, content).expect("the volume takes data");
    std::fs::File::open(&file)
        .and_then(|f| f.sync_all())
        .expect("and keeps it");
}

async fn snapshot_once(csi: &Csi, volume: &str, round: usize) -> f64 {
    let request = requests::snapshot(&format!("{volume}-{round}"), volume);
    let mut made = None;
    let elapsed = timed_async(async { made = csi.ok(request).await.snapshot }).await;
    let made = made.expect("CreateSnapshot answers a snapshot");
    csi.ok(requests::delete_snapshot(&made.snapshot_id)).await;
    elapsed
}
