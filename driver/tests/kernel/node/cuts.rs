//! Cuts of volumes under load: each is what a machine without power would find on its disk.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use hostloop_driver::grpc::Server;
use hostloop_driver::kernel::FsType;
use hostloop_driver::storage::{SnapshotId, Source, VolumeId};
use hostloop_report::cuts::{CutsLine, EndedExploration, TakeCuts, TakenCut};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;

use super::Rig;
use crate::testkit::*;
use crate::tools::until;

/// The services over the pools of a rig, with faults.
fn server(rig: &Rig) -> Server {
    let mut configs = Configs::default();
    configs.node.faults = true;
    configs.server(&rig.node.pools)
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// Takes cuts in one burst, with something before each of them.
fn burst(
    server: &Server,
    id: VolumeId,
    cuts: u32,
    every_ms: u64,
    mut before: impl FnMut(usize),
) -> (Vec<TakenCut>, EndedExploration) {
    runtime().block_on(async {
        let request = TakeCuts {
            volume: id.to_string(),
            cuts,
            every_ms,
            expire_after_s: 3600,
        };
        let mut exploration = server.explore(request).await.unwrap();
        let mut taken = Vec::new();
        loop {
            before(taken.len());
            match exploration.next().await {
                CutsLine::Cut(cut) => taken.push(cut),
                CutsLine::Ended(ended) => return (taken, ended),
                other => panic!("{other:?}"),
            }
        }
    })
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A writer of records, each synced before the next.
#[derive(Default)]
struct Writer {
    /// When each record was acknowledged, by CLOCK_MONOTONIC.
    acknowledged: parking_lot::Mutex<Vec<u64>>,
    stop: AtomicBool,
}

impl Writer {
    fn run(&self, log: &Path) {
        let mut log = File::create(log).unwrap();
        for n in 1_u64.. {
            if self.stop.load(Ordering::SeqCst) {
                break;
            }
            log.write_all(&n.to_le_bytes()).unwrap();
            log.sync_all().unwrap();
            self.acknowledged.lock().push(monotonic_ns());
        }
    }

    /// The number of records that were acknowledged before this time.
    fn before(&self, monotonic_ns: u64) -> u64 {
        let acknowledged = self.acknowledged.lock();
        acknowledged.partition_point(|at| *at < monotonic_ns) as u64
    }
}

/// Stops a writer when a test ends or fails.
struct StopAtEnd<'a>(&'a Writer);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

/// The records in a log, as far as they were acknowledged.
fn records(log: &Path, acknowledged: u64) -> Vec<u64> {
    let bytes = std::fs::read(log).unwrap();
    let records = bytes.chunks_exact(8).take(acknowledged as usize);
    records
        .map(|record| u64::from_le_bytes(record.try_into().unwrap()))
        .collect()
}

fn cuts_under_load(rig: &Rig, fs: FsType) {
    const CUTS: u32 = 8;
    let (id, cap) = (rig.volume(on(fs), 64 * MI), mount(fs));
    rig.stage(id, "a", &cap).unwrap();
    let log = rig.staging("a").join("log");
    let (server, writer) = (server(rig), Writer::default());
    let (cuts, ended) = std::thread::scope(|scope| {
        let _stop = StopAtEnd(&writer);
        scope.spawn(|| writer.run(&log));
        until("a record is acknowledged", || writer.before(u64::MAX) > 0);
        burst(&server, id, CUTS, 50, |_| {})
    });
    assert!(ended.is_complete(), "{fs}: {ended:?}");
    assert_eq!(cuts.len(), CUTS as usize, "{fs}");

    let mut last = 0;
    for cut in &cuts {
        let acknowledged = writer.before(cut.monotonic_ns);
        assert!(acknowledged > 0, "{fs}: cut {}", cut.number);
        let snapshot: SnapshotId = cut.snapshot.parse().unwrap();
        let source = Source::Snapshot(snapshot);
        let restored = rig.create(copy_of(source, on(fs), cut.size_bytes));
        let staged = rig.stage(restored, "b", &cap);
        staged.unwrap_or_else(|e| panic!("{fs}: cut {}: {e}", cut.number));
        let found = records(&rig.staging("b").join("log"), acknowledged);
        let expected: Vec<u64> = (1..=acknowledged).collect();
        assert_eq!(found, expected, "{fs}: cut {}", cut.number);
        rig.unstage_patiently(restored, "b");
        rig.node.pools.delete_volume(&restored).unwrap();
        assert!(acknowledged >= last, "{fs}: the cuts are in order");
        last = acknowledged;
    }
    let all = writer.before(u64::MAX);
    assert_eq!(
        records(&log, all).len() as u64,
        all,
        "{fs}: the volume itself"
    );

    // Kept ones stay when the others go.
    let kept = &cuts[3].snapshot;
    let dropped = runtime().block_on(async {
        server.keep_cut(kept).await.unwrap();
        server.drop_cuts(&ended.exploration).await.unwrap()
    });
    assert_eq!(dropped.dropped, CUTS - 1, "{fs}");
    let left = rig.node.pools.snapshots();
    assert_eq!(left.len(), 1, "{fs}: {left:?}");
    assert_eq!(left[0].id.to_string(), *kept, "{fs}");
    rig.node.pools.delete_snapshot(&left[0].id).unwrap();
    rig.unstage_patiently(id, "a");
    rig.node.pools.delete_volume(&id).unwrap();
}

#[test]
fn each_cut_has_what_was_acknowledged_before_it() {
    let rig = Rig::on(FsType::Xfs, 4096 * MI);
    for fs in FsType::ALL {
        cuts_under_load(&rig, fs);
    }
}

/// A burst ends before the pool is full: the volume can still be written to its end.
#[test]
fn a_burst_without_room_leaves_the_volume_its_own() {
    const FILE: usize = 48 << 20;
    let mut site = Rig::site(&["default=DIR/pool"]);
    new_filesystem(&*site.kernel, &site.path(""), FsType::Xfs, 1024 * MI);
    site.options.overcommit = 1.0;
    let rig = Rig::over(site, Configs::default());
    let id = rig.volume(ext4(), 256 * MI);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    let at = rig.staging("a");
    let (cuts, ended) = burst(&server(&rig), id, 1000, 10, |n| {
        write(&at.join("same"), n as u8, FILE);
    });
    assert_eq!(ended.outcome, "no-room", "{ended:?}");
    assert!(cuts.len() > 1, "{ended:?}");
    for n in 0..3 {
        let path = at.join(format!("further{n}"));
        write(&path, n, FILE);
        assert_written(&path, n, FILE);
    }
    rig.unstage_patiently(id, "a");
}
