use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;
use crate::health;
use crate::storage::VolumeHandle;
use crate::testkit::{PATIENCE, Site, assert_soon, new, tend};

/// A pool that hangs: `pool.json` is a FIFO, and opening it blocks until [`Hung::end`].
struct Hung {
    identity: PathBuf,
    kept: PathBuf,
}

impl Hung {
    fn new(pool: &Path) -> Hung {
        let hung = Hung {
            identity: pool.join("pool.json"),
            kept: pool.join("lost+found"),
        };
        std::fs::rename(&hung.identity, &hung.kept).unwrap();
        mknodat(CWD, &hung.identity, FileType::Fifo, Mode::RUSR, 0).unwrap();
        hung
    }

    /// Unblocks the waiting openers. They read an empty file, which is not a valid identity.
    fn end(self) {
        let fifo = OpenOptions::new().write(true).open(&self.identity).unwrap();
        std::fs::rename(&self.kept, &self.identity).unwrap();
        drop(fifo);
    }
}

/// Waits until a pool is open.
fn opened(pools: &Pools, name: &str) -> Arc<Pool> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(pool) = pools.named(Some(name)) {
            return pool;
        }
        assert!(Instant::now() < deadline, "{:?}", pools.slots());
        tend(pools);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_pool_that_hangs_holds_up_no_other_and_is_opened_when_it_answers() {
    let mut site = Site::fake(&["a", "b"]);
    let made = site.make("one");
    let handle = VolumeHandle::Id(made.id);
    site.close();
    let hung = Hung::new(&site.path(""));
    let (options, kernel) = (site.options.clone(), site.kernel.clone());
    let short = Duration::from_millis(200);
    let pools = Pools::open_within(&site.specs, options, kernel, short).unwrap();

    let why = pools.slots().remove(0).state.unwrap_err();
    assert!(why.contains("being opened"), "{why}");
    let unavailable = |e: &Error| matches!(e, Error::Unavailable { name, .. } if name == "a");
    assert!(unavailable(&pools.volume(&handle).unwrap_err()));
    assert!(unavailable(&pools.named(Some("a")).unwrap_err()));
    let b = opened(&pools, "b");
    let other = pools.create_volume(&b, new("two")).unwrap();
    assert_eq!(pools.volumes(), std::slice::from_ref(&other));
    // One thread is opening the pool; no second thread waits for it.
    (0..3).for_each(|_| tend(&pools));
    assert_soon(vec!["PoolMissing"], || {
        let problems = health::storage(&pools).into_iter();
        problems.map(|problem| problem.reason).collect()
    });

    hung.end();
    opened(&pools, "a");
    assert_eq!(pools.volumes(), [made, other]);
}

#[test]
fn an_open_pool_that_hangs_is_a_problem_of_its_own() {
    let site = Site::fake(&["a", "b"]);
    let (a, other) = (site.make("one"), site.create_in("b", new("two")));
    let hung = Hung::new(&site.path(""));
    let pools = site.pools();
    // On a busy machine, the other pool may not answer in time.
    for _ in 0..2 {
        assert_soon(vec![("a".to_owned(), "PoolGone")], || {
            let problems = health::storage(pools).into_iter();
            problems
                .map(|problem| (problem.pool, problem.reason))
                .collect()
        });
    }
    let reasons = |volume| -> Vec<String> {
        let entries = health::volume(pools, volume, &[]).0.into_iter();
        entries.map(|entry| entry.reason.to_owned()).collect()
    };
    assert_soon(vec!["PoolGone".to_owned()], || reasons(&a));
    assert_soon(Vec::new(), || reasons(&other));
    hung.end();
    let deadline = Instant::now() + PATIENCE;
    while !health::storage(pools).is_empty() {
        assert!(Instant::now() < deadline);
    }
}

/// The first pool answers last.
#[test]
fn a_look_at_all_pools_looks_once_at_each() {
    let site = Site::fake(&["a", "b"]);
    let [a, b] = ["a", "b"].map(|name| site.named(name).root().canonicalize().unwrap());
    let read = Arc::new(AtomicUsize::new(0));
    let reads = read.clone();
    site.kernel.set_disk(move |path, usage| {
        if path.starts_with(&a) {
            std::thread::sleep(Duration::from_millis(200));
        }
        if path.starts_with(&b) {
            reads.fetch_add(1, Ordering::SeqCst);
        }
        usage
    });
    let pools = site.pools();
    let look_alone = || {
        for name in ["a", "b"] {
            let pool = site.named(name);
            pool.begin_look(&pools.kernel);
            pool.wait_for_look().ok()?;
        }
        Some(read.swap(0, Ordering::SeqCst))
    };
    // The first look may read what the later ones know, and both pools are on one disk.
    look_alone();
    // On a busy machine, a pool may not answer in time, and its look goes on.
    let is_once = (0..10).any(|_| {
        let alone = look_alone();
        let is_complete = pools
            .look()
            .into_iter()
            .all(|(_, look)| look.is_some_and(|look| look.is_ok()));
        let together = read.swap(0, Ordering::SeqCst);
        is_complete && together > 0 && alone == Some(together)
    });
    assert!(is_once);
}

#[test]
fn an_identity_is_claimed_once() {
    let opening = Opening::of(2);
    let id = PoolId::generate();
    let claim = opening.claim(id, 0).unwrap();
    assert!(opening.claim(id, 1).is_none());
    drop(claim);
    opening.claim(id, 1).unwrap().keep();
    assert!(opening.claim(id, 0).is_none());
    assert!(opening.claim(id, 1).is_some());
}
