//! Concurrent calls against the same calls one by one: 32 clients on different volumes, a hundred
//! creations at once, and 24 restores at once from one snapshot.

use std::path::PathBuf;

use futures::future::join_all;
use hostloop_proto::csi;
use hostloop_test::client::{Csi, new_volume};
use hostloop_test::driver::DriverSpec;
use hostloop_test::pools::{GIB, MIB, PoolFixture, PoolKind};
use hostloop_test::requests;
use hostloop_test::scratch::Scratch;

use crate::attached::{BYTES, places};
use crate::by_hand::ByHand;
use crate::calls::{create, delete, stage, unstage};
use crate::measure::{Aim, Figure, timed, timed_async};
use crate::runtime::Runtime;

/// Clients with a volume each.
const CLIENTS: usize = 32;
/// Stages and unstages of each client in a run.
const CYCLES: usize = 4;
/// Volumes that are created at once.
const CREATIONS: usize = 100;
/// Restores at once from one snapshot, and their data.
const RESTORES: usize = 24;
const DATA: usize = 32 << 20;
/// Concurrent runs, each after a run of the same calls one by one.
const RUNS: usize = 5;

pub(crate) fn figures(runtime: &Runtime) -> Vec<Figure> {
    let mut figures = Vec::from(staging(runtime));
    figures.extend(creating(runtime));
    let kinds = [PoolKind::Xfs, PoolKind::Ext4];
    figures.extend(kinds.into_iter().flat_map(|kind| restoring(runtime, kind)));
    figures
}

/// A client with a formatted volume.
struct Client {
    csi: Csi,
    id: String,
    staging: PathBuf,
}

impl Client {
    async fn cycle(&self) {
        stage(&self.csi, &self.id, &self.staging).await;
        unstage(&self.csi, &self.id, &self.staging).await;
    }

    async fn cycles(&self) {
        for _ in 0..CYCLES {
            self.cycle().await;
        }
    }
}

fn staging(runtime: &Runtime) -> [Figure; 2] {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 40 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    let (mut together, mut alone) = (Vec::new(), Vec::new());
    let threads: Vec<ByHand> = (0..CLIENTS)
        .map(|n| ByHand::new(&pool, &scratch, &format!("by-hand-{n}")))
        .collect();
    let (mut kernel_together, mut kernel_alone) = (Vec::new(), Vec::new());
    runtime.block_on(async {
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let name = format!("client-{number}");
            let (csi, (staging, _)) = (driver.csi().await, places(&scratch, &name));
            let client = Client {
                id: create(&csi, &name, BYTES).await,
                csi,
                staging,
            };
            client.cycle().await;
            clients.push(client);
        }
        for _ in 0..RUNS {
            let one_by_one = timed_async(async {
                for client in &clients {
                    client.cycle().await;
                }
            });
            alone.push(rate(CLIENTS, one_by_one.await));
            let at_once = timed_async(async {
                join_all(clients.iter().map(Client::cycles)).await;
            });
            together.push(rate(CLIENTS * CYCLES, at_once.await));
            kernel_alone.push(rate(
                CLIENTS,
                timed(|| threads.iter().for_each(ByHand::cycle)),
            ));
            kernel_together.push(rate(CLIENTS * CYCLES, timed(|| side_by_side(&threads))));
        }
    });
    let what = format!("stage and unstage, {CLIENTS} clients against one");
    let kernel = format!("attach, mount and undo both by hand, {CLIENTS} threads against one");
    [
        Figure::beside(what, together, alone, "/s", Aim::RatioAtLeast(6.0)),
        Figure::beside(kernel, kernel_together, kernel_alone, "/s", Aim::None),
    ]
}

/// Runs each image in a thread of its own, as often as a client stages its volume.
fn side_by_side(threads: &[ByHand]) {
    std::thread::scope(|scope| {
        for by_hand in threads {
            scope.spawn(|| (0..CYCLES).for_each(|_| by_hand.cycle()));
        }
    });
}

fn creating(runtime: &Runtime) -> [Figure; 2] {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 40 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    let (mut created, mut deleted) = <([Vec<f64>; 2], [Vec<f64>; 2])>::default();
    runtime.block_on(async {
        let csi = driver.csi().await;
        for run in 0..RUNS {
            let names = |how| (0..CREATIONS).map(move |number| format!("{how}-{run}-{number}"));
            let mut ids = Vec::new();
            let one_by_one = timed_async(async {
                for name in names("alone") {
                    ids.push(create(&csi, &name, BYTES).await);
                }
            });
            created[1].push(rate(CREATIONS, one_by_one.await));
            let one_by_one = timed_async(async {
                for id in ids {
                    delete(&csi, &id).await;
                }
            });
            deleted[1].push(rate(CREATIONS, one_by_one.await));

            let (csi, mut ids) = (&csi, Vec::new());
            let at_once = timed_async(async {
                let calls =
                    names("together").map(|name| async move { create(csi, &name, BYTES).await });
                ids = join_all(calls).await;
            });
            created[0].push(rate(CREATIONS, at_once.await));
            let at_once = timed_async(async {
                join_all(ids.iter().map(|id| delete(csi, id))).await;
            });
            deleted[0].push(rate(CREATIONS, at_once.await));
        }
    });
    let figure = |what, [together, alone]: [Vec<f64>; 2], aim| {
        let what = format!("{CREATIONS} volumes {what} at once, against one by one");
        Figure::beside(what, together, alone, "/s", aim)
    };
    [
        figure("created", created, Aim::RatioAtLeast(3.0)),
        figure("deleted", deleted, Aim::None),
    ]
}

fn restoring(runtime: &Runtime, kind: PoolKind) -> [Figure; 2] {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, kind, 40 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    let (mut failed, mut together, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        let csi = driver.csi().await;
        let (staging, _) = places(&scratch, "source");
        let source = create(&csi, "source", 64 * MIB).await;
        stage(&csi, &source, &staging).await;
        std::fs::write(staging.join("data"), vec![0x5a; DATA]).expect("the volume takes data");
        unstage(&csi, &source, &staging).await;
        let snapshot = snapshot(&csi, &source).await;
        for run in 0..RUNS {
            let once = timed_async(async {
                let restored = restore(&csi, &snapshot, format!("alone-{run}")).await;
                delete(&csi, &restored.expect("one restore succeeds")).await;
            });
            alone.push(once.await);
            let mut answers = Vec::new();
            let at_once = timed_async(async {
                let name = |number| format!("together-{run}-{number}");
                let calls = (0..RESTORES).map(|n| restore(&csi, &snapshot, name(n)));
                answers = join_all(calls).await;
                let restored = answers.iter().flatten();
                join_all(restored.map(|id| delete(&csi, id))).await;
            });
            together.push(at_once.await / answers.iter().flatten().count() as f64);
            let errors: Vec<_> = answers
                .iter()
                .filter_map(|answer| answer.as_ref().err())
                .collect();
            if let Some(first) = errors.first() {
                eprintln!("  {} restores failed, the first one: {first}", errors.len());
            }
            failed.push(errors.len() as f64);
        }
    });
    let what = format!("{RESTORES} restores at once on {}", kind.name());
    let failures = Figure::alone(format!("{what}: failed"), failed, "", Aim::LessThan(1.0));
    let against = format!("{what} and deleted, each, against one");
    [
        failures,
        Figure::beside(against, together, alone, "ms", Aim::None),
    ]
}

async fn snapshot(csi: &Csi, source: &str) -> String {
    let answer = csi.ok(requests::snapshot("snapshot", source)).await;
    answer
        .snapshot
        .expect("CreateSnapshot answers a snapshot")
        .snapshot_id
}

/// Creates a volume from the snapshot.
async fn restore(csi: &Csi, snapshot: &str, name: String) -> Result<String, tonic::Status> {
    let request = csi::CreateVolumeRequest {
        volume_content_source: requests::of_snapshot(snapshot),
        ..new_volume(&name, 64 * MIB)
    };
    csi.call(request).await.map(requests::id_of)
}

/// Calls per second, from their number and the elapsed milliseconds.
fn rate(count: usize, elapsed: f64) -> f64 {
    count as f64 / elapsed * 1e3
}
