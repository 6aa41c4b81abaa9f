//! Slow disks. Each case is a time of seconds, so that what a busy machine adds is small.

use std::fs::File;
use std::io::{Seek, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hostloop_fault_disk::Settings;
use hostloop_fault_disk::limits::Limits;
use hostloop_fault_disk::rules::{Effect, Rule};
use hostloop_kernel::FsType;
use rstest::rstest;

use crate::rig::{Attached, Block, Rig};

/// Reads or writes blocks by so many threads: how many in a second.
fn rate(attached: &Attached, threads: u64, writes: bool, lasts: Duration) -> f64 {
    let done = AtomicU64::new(0);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..threads {
            let done = &done;
            scope.spawn(move || {
                let device = attached.open();
                let mut block = Block::new(1);
                while begin.elapsed() < lasts {
                    let offset = (number + threads * done.load(Ordering::Relaxed) % 1000) * 4096;
                    if writes {
                        block.write(&device, offset).unwrap();
                    } else {
                        block.read(&device, offset).unwrap();
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    done.into_inner() as f64 / begin.elapsed().as_secs_f64()
}

/// Expects this rate, and never more. A machine that stands still for a while has a lower one, so it
/// may try some times.
fn has_rate(attached: &Attached, threads: u64, writes: bool, expected: f64) {
    let mut found = Vec::new();
    for _ in 0..10 {
        let found_now = rate(attached, threads, writes, Duration::from_secs(3));
        assert!(found_now < expected * 1.05, "{found_now} of {expected}");
        if found_now > expected * 0.95 {
            return;
        }
        found.push(found_now);
    }
    panic!("{found:?} of {expected}");
}

/// Limits of reads, writes, and written bytes → threads, writes, expected rate.
#[rstest]
#[case::reads(Some(200), None, None, 1, false, 200.0)]
#[case::reads_of_many(Some(2000), None, None, 16, false, 2000.0)]
#[case::writes(None, Some(200), None, 4, true, 200.0)]
#[case::writes_of_many(Some(10), Some(1000), None, 32, true, 1000.0)]
#[case::bytes(None, None, Some(2_048_000), 4, true, 500.0)]
fn a_limit_holds(
    #[case] riops: Option<u64>,
    #[case] wiops: Option<u64>,
    #[case] wbps: Option<u64>,
    #[case] threads: u64,
    #[case] writes: bool,
    #[case] expected: f64,
) {
    let limits = Limits {
        riops,
        wiops,
        rbps: None,
        wbps,
    };
    let settings = Settings {
        limits,
        ..Settings::default()
    };
    let rig = Rig::new();
    let attached = rig.serve(0, Settings::default());
    // The kernel looks for partitions at first.
    attached.disk.set(settings).unwrap();
    has_rate(&attached, threads, writes, expected);
    attached.end();
}

#[test]
fn written_pages_have_the_same_limit() {
    const RATE: u64 = 8 << 20;
    let rig = Rig::new();
    let attached = rig.serve(0, Settings::default());
    rig.mkfs(&attached.device, FsType::Ext4);
    let mounted = rig.mount(&attached.device, FsType::Ext4);
    let mut file = File::create(rig.mounted_at().join("file")).unwrap();
    let limits = Limits {
        wbps: Some(RATE),
        ..Limits::default()
    };
    let settings = Settings {
        limits,
        ..Settings::default()
    };
    attached.disk.set(settings).unwrap();
    let mut found = Vec::new();
    while !found.last().is_some_and(|took| *took < 4.2) {
        assert!(found.len() < 10, "{found:?} s");
        file.rewind().unwrap();
        let begin = Instant::now();
        file.write_all(&vec![7; 4 * RATE as usize]).unwrap();
        file.sync_all().unwrap();
        let took = begin.elapsed().as_secs_f64();
        assert!(took > 3.8, "{took} s");
        found.push(took);
    }
    attached.disk.set(Settings::default()).unwrap();
    drop((file, mounted));
    attached.end();
}

/// A delay holds up no other operation. The threads of the disk would do 160 in a second if they slept.
#[rstest]
#[case::reads(false)]
#[case::writes(true)]
fn delays_run_side_by_side(#[case] writes: bool) {
    let rig = Rig::new();
    let attached = rig.serve(0, Settings::default());
    let settings = Settings {
        rules: vec![Rule {
            operations: Vec::new(),
            bytes: None,
            share: 1.0,
            effect: Effect::DelayMicros(50_000),
        }],
        ..Settings::default()
    };
    attached.disk.set(settings).unwrap();
    let mut found = Vec::new();
    // 32 in 50 ms each would be 640.
    while !found.last().is_some_and(|rate| *rate > 400.0) {
        assert!(found.len() < 10, "{found:?}");
        found.push(rate(&attached, 32, writes, Duration::from_secs(3)));
    }
    assert!(found.iter().all(|rate| *rate < 645.0), "{found:?}");
    attached.disk.set(Settings::default()).unwrap();
    attached.end();
}
