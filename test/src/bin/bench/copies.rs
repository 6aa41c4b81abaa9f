//! The calls of a volume's life while 40 restores run and wait on a pool without reflinks, against
//! the same calls on an idle driver. Then these restores alone, against copies by hand.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use hostloop_proto::csi;
use hostloop_test::client::{Csi, new_volume};
use hostloop_test::driver::{Driver, DriverSpec};
use hostloop_test::pools::{GIB, MIB, PoolFixture, PoolKind};
use hostloop_test::requests::{self, of_snapshot};
use hostloop_test::scratch::Scratch;

use crate::calls::{create, delete, publish, stage, unpublish, unstage};
use crate::measure::{Aim, Figure, median, timed, timed_async};
use crate::runtime::Runtime;

/// Restores at once.
const COPIES: usize = 40;
/// The data of each copy in MiB, unless an option says otherwise.
pub(crate) const DATA: u64 = 64;
/// The sizes of a volume and of the pool, in units of a copy's data. All copies fit into the pool.
const VOLUME: u64 = 4;
const POOL: u64 = 256;
/// Copies by hand at once, as many as in the driver.
const BY_HAND: usize = 2;
/// Pairs of idle and busy runs, and the lives in each.
const RUNS: usize = 5;
const LIVES: usize = 10;

const CALLS: [&str; 5] = ["create", "stage", "publish", "unpublish", "unstage"];

/// Milliseconds of each call.
type Life = [f64; CALLS.len()];

/// Copies so many MiB of data each.
pub(crate) fn figures(runtime: &Runtime, mib: u64) -> Vec<Figure> {
    let (scratch, data) = (Scratch::new(), mib * MIB);
    let pool = PoolFixture::new(&scratch, PoolKind::Ext4, (POOL * data).max(GIB));
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    let (mut idle, mut busy): (Vec<Life>, Vec<Life>) = Default::default();
    let (mut alone, mut by_hand) = (Vec::new(), Vec::new());
    runtime.block_on(async {
        let csi = driver.csi().await;
        let snapshot = source(&csi, &scratch, data).await;
        lives(&csi, &scratch).await;
        for _ in 0..RUNS {
            idle.push(lives(&csi, &scratch).await);
            let done = AtomicBool::new(false);
            let measured = async {
                let life = lives(&csi, &scratch).await;
                done.store(true, Ordering::Relaxed);
                life
            };
            let copies = (0..COPIES).map(|n| copy_until(&driver, n, (&snapshot, data), &done));
            let (life, _) = tokio::join!(measured, join_all(copies));
            busy.push(life);
            by_hand.push(timed(|| copies_by_hand(&pool, data)));
            alone.push(restores(&csi, &snapshot, data).await);
        }
        csi.ok(requests::delete_snapshot(&snapshot)).await;
    });
    let figure = |(call, name): (usize, &&str)| {
        let runs = |lives: &[Life]| lives.iter().map(|life| life[call]).collect();
        let what = format!("{name} beside {COPIES} restores of {mib} MiB, ext4");
        Figure::beside(what, runs(&busy), runs(&idle), "ms", Aim::RatioAtMost(2.0))
    };
    let what = format!("{COPIES} restores of {mib} MiB alone against copies by hand, ext4");
    let alone = Figure::beside(what, alone, by_hand, "ms", Aim::None);
    CALLS
        .iter()
        .enumerate()
        .map(figure)
        .chain([alone])
        .collect()
}

/// A snapshot with data.
async fn source(csi: &Csi, scratch: &Scratch, data: u64) -> String {
    let (id, staging) = (
        create(csi, "source", VOLUME * data).await,
        scratch.dir("source"),
    );
    stage(csi, &id, &staging).await;
    fill(&staging.join("data"), data);
    unstage(csi, &id, &staging).await;
    let taken = csi.ok(requests::snapshot("source", &id)).await;
    delete(csi, &id).await;
    taken
        .snapshot
        .expect("CreateSnapshot answers a snapshot")
        .snapshot_id
}

/// Writes a file with so many bytes.
fn fill(path: &Path, data: u64) {
    let mut file = File::create(path).expect("the filesystem takes a file");
    let mut bytes = std::io::repeat(0x5a).take(data);
    std::io::copy(&mut bytes, &mut file).expect("the filesystem takes data");
}

/// The medians of a few lives.
async fn lives(csi: &Csi, scratch: &Scratch) -> Life {
    let mut samples: [Vec<f64>; CALLS.len()] = Default::default();
    let (staging, target) = (scratch.dir("staging"), scratch.path().join("target"));
    for _ in 0..LIVES {
        for (samples, sample) in samples.iter_mut().zip(life(csi, &staging, &target).await) {
            samples.push(sample);
        }
    }
    samples.map(|samples| median(&samples))
}

async fn life(csi: &Csi, staging: &Path, target: &Path) -> Life {
    let mut id = String::new();
    let created = timed_async(async { id = create(csi, "life", 64 * MIB).await }).await;
    let staged = timed_async(stage(csi, &id, staging)).await;
    let published = timed_async(publish(csi, &id, staging, target)).await;
    let unpublished = timed_async(unpublish(csi, &id, target)).await;
    let unstaged = timed_async(unstage(csi, &id, staging)).await;
    delete(csi, &id).await;
    [created, staged, published, unpublished, unstaged]
}

/// Restores the snapshot again and again, as long as the others are measured.
async fn copy_until(
    driver: &Driver,
    number: usize,
    (snapshot, data): (&str, u64),
    done: &AtomicBool,
) {
    let csi = driver.csi().await;
    let request = csi::CreateVolumeRequest {
        volume_content_source: of_snapshot(snapshot),
        ..new_volume(&format!("copy-{number}"), VOLUME * data)
    };
    loop {
        // A copy that has waited for long is ABORTED, and keeps its place for the retry.
        if let Ok(made) = csi.call(request.clone()).await {
            delete(&csi, &requests::id_of(made)).await;
            if done.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// Milliseconds of all restores without other calls.
async fn restores(csi: &Csi, snapshot: &str, data: u64) -> f64 {
    let restore = async |number| {
        let request = csi::CreateVolumeRequest {
            volume_content_source: of_snapshot(snapshot),
            ..new_volume(&format!("alone-{number}"), VOLUME * data)
        };
        loop {
            // A copy that has waited for long is ABORTED, and keeps its place for the retry.
            if let Ok(made) = csi.call(request.clone()).await {
                return requests::id_of(made);
            }
        }
    };
    let mut made = Vec::new();
    let all = timed_async(async { made = join_all((0..COPIES).map(restore)).await });
    let took = all.await;
    join_all(made.iter().map(|id| delete(csi, id))).await;
    took
}

/// Writes as many bytes as the restores do.
fn copies_by_hand(pool: &PoolFixture, data: u64) {
    let beside = pool
        .mount()
        .expect("the pool is a directory")
        .join("by-hand");
    std::fs::create_dir(&beside).expect("the filesystem of the pool takes a directory");
    let source = beside.join("source");
    fill(&source, data);
    std::thread::scope(|scope| {
        for thread in 0..BY_HAND {
            let (source, copy) = (&source, beside.join(thread.to_string()));
            scope.spawn(move || {
                for _ in 0..COPIES / BY_HAND {
                    std::fs::copy(source, &copy).expect("the filesystem takes a copy");
                    let made = File::open(&copy).expect("the copy is there");
                    made.sync_all().expect("the copy can be synced");
                    std::fs::remove_file(&copy).expect("the copy can be removed");
                }
            });
        }
    });
    std::fs::remove_file(&source).expect("the source can be removed");
    std::fs::remove_dir(&beside).expect("the directory is empty");
}
