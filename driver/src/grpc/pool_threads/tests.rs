use futures::FutureExt;
use rstest::rstest;

use super::*;
use crate::testkit::{Site, pairs};

fn in_use(pool_threads: &PoolThreads, lane: &Lane, work: Work) -> usize {
    pool_threads.of(lane, work).in_use()
}

#[test]
fn lanes_are_of_pools_whatever_their_order() {
    assert_eq!(Lane::of([2, 0, 2]), Lane::of([0, 2]));
    assert_ne!(Lane::of([0]), Lane::of([0, 1]));
    assert_eq!(Lane::of([]), Lane::default());
}

fn lane_of_class(site: &Site, parameters: &str) -> Lane {
    Lane::of_class(site.pools(), &pairs(parameters), None)
}

/// An unknown or invalid name touches no pool: the call is refused.
#[rstest]
#[case::neither("", &[0])]
#[case::by_pool("pool=b", &[1])]
#[case::by_kind("kind=b", &[1])]
#[case::by_both("kind=b pool=b", &[1])]
#[case::two_pools("kind=a pool=b", &[])]
#[case::unknown_pool("pool=c", &[])]
#[case::unknown_kind("kind=c", &[])]
#[case::empty("kind=", &[])]
fn a_class_uses_the_lane_of_its_pool(#[case] parameters: &str, #[case] slots: &[usize]) {
    let site = Site::fake(&["a", "b"]);
    assert_eq!(lane_of_class(&site, parameters), Lane::of(slots.to_vec()));
}

#[tokio::test]
async fn a_hanging_pool_that_a_class_names_as_its_kind_takes_no_thread_of_the_first() {
    let site = Site::fake(&["a", "b"]);
    let pool_threads = PoolThreads::default();
    let threads = pool_threads.of(&lane_of_class(&site, "kind=b"), Work::Change);
    let mut hanging = Vec::new();
    while let Some(Some(permit)) = threads.acquire("").now_or_never() {
        hanging.push(permit);
    }
    for (text, free) in [("", CHANGES), ("kind=a", CHANGES), ("pool=b", 0)] {
        let fits = fits(&pool_threads, &lane_of_class(&site, text), Work::Change).await;
        assert_eq!(fits, free, "{text}");
    }
}

/// `b` is the only pool that allows inline volumes.
#[rstest]
#[case::none("", &[1])]
#[case::by_pool("pool=b", &[1])]
#[case::not_allowed("pool=a", &[])]
#[case::no_attribute("kind=a", &[1])]
fn a_new_inline_volume_uses_the_lane_of_its_pool(#[case] context: &str, #[case] slots: &[usize]) {
    let mut site: Site = Site::new(&["a=DIR/a", "b=DIR/b,inline"]);
    site.open();
    let id = format!("csi-{}", "0".repeat(64));
    let lane = Lane::of_publication(site.pools(), &id, &pairs(context));
    assert_eq!(lane, Lane::of(slots.to_vec()));
}

/// How many calls of this kind a lane takes at once.
async fn fits(pool_threads: &PoolThreads, lane: &Lane, work: Work) -> usize {
    let threads = pool_threads.of(lane, work);
    let mut held = Vec::new();
    while let Some(Some(permit)) = threads.acquire("").now_or_never() {
        held.push(permit);
    }
    held.len()
}

#[tokio::test]
async fn each_lane_and_each_kind_of_work_has_threads_of_its_own() {
    let pool_threads = PoolThreads::default();
    let (a, b, none) = (Lane::of([0]), Lane::of([1]), Lane::default());
    let mut held = Vec::new();
    for _ in 0..COPIES {
        held.push(pool_threads.of(&a, Work::Copy).acquire("").await);
    }
    held.push(pool_threads.of(&a, Work::Change).acquire("").await);
    held.push(
        pool_threads
            .of(&a, Work::Question("Stats"))
            .acquire("")
            .await,
    );
    let table = [
        (&a, Work::Copy, 0),
        (&b, Work::Copy, COPIES),
        (&a, Work::Change, CHANGES - 1),
        (&a, Work::Leave, LEAVES),
        (&a, Work::Unstage, UNSTAGES),
        (&a, Work::Delete, DELETIONS),
        (&a, Work::Allocate, ALLOCATIONS),
        (&a, Work::StageThick, THICK_STAGES),
        (&a, Work::Clone, CLONES),
        (&b, Work::Change, CHANGES),
        (&none, Work::Change, CHANGES),
        (&a, Work::Stream, STREAMS),
        (&a, Work::Question("Stats"), 0),
        (&b, Work::Question("Stats"), 1),
        (&a, Work::Question("Health"), 1),
        (&none, Work::Question("Stats"), POOLLESS),
    ];
    for (lane, work, free) in table {
        assert_eq!(
            fits(&pool_threads, lane, work).await,
            free,
            "{lane:?} {work:?}"
        );
    }
    drop(held);
    assert_eq!(in_use(&pool_threads, &a, Work::Copy), 0);
}

#[tokio::test(start_paused = true)]
async fn a_question_that_waits_for_long_is_unavailable() {
    let pool_threads = PoolThreads::default();
    let lane = Lane::of([0]);
    let first = pool_threads.question(&lane, "Stats").await.unwrap();
    let refused = pool_threads.question(&lane, "Stats").await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("an earlier Stats"));
    drop(pool_threads.question(&lane, "Health").await.unwrap());
    drop(first);
    drop(pool_threads.question(&lane, "Stats").await.unwrap());
}

/// Whether this long work in each lane gives way meanwhile.
fn gives_way(pool_threads: &PoolThreads, work: Work, long: &[Lane]) -> Vec<bool> {
    long.iter()
        .map(|lane| pool_threads.run(lane, work, foreground::is_busy))
        .collect()
}

#[test]
fn long_work_gives_way_to_calls_of_its_pools() {
    let [a, b, both, none] = [&[0][..], &[1], &[0, 1], &[]].map(|slots| Lane::of(slots.to_vec()));
    let long = [a.clone(), b.clone(), both.clone(), none.clone()];
    let table = [
        (&a, Work::Change, [true, false, true, false]),
        (&a, Work::Leave, [true, false, true, false]),
        (&b, Work::Leave, [false, true, true, false]),
        (&b, Work::Unstage, [false, true, true, false]),
        (&b, Work::Delete, [false; 4]),
        (&both, Work::Change, [true, true, true, false]),
        (&none, Work::Change, [false; 4]),
        (&a, Work::Copy, [false; 4]),
        (&a, Work::Clone, [false; 4]),
        (&a, Work::Allocate, [false; 4]),
        (&a, Work::StageThick, [true, false, true, false]),
        (&a, Work::Stream, [false; 4]),
        (&a, Work::Question("Stats"), [false; 4]),
    ];
    for (lane, work, expected) in table {
        for waits in [Work::Allocate, Work::Clone, Work::Copy] {
            let pool_threads = PoolThreads::default();
            let found = std::thread::scope(|scope| {
                pool_threads.run(lane, work, || {
                    let look = scope.spawn(|| gives_way(&pool_threads, waits, &long));
                    look.join().unwrap()
                })
            });
            assert_eq!(found, expected, "{waits:?} beside {lane:?} {work:?}");
        }
    }
    let pool_threads = PoolThreads::default();
    assert!(pool_threads.run(&a, Work::Allocate, || pool_threads.run(
        &a,
        Work::Change,
        foreground::is_busy
    )));
}

#[test]
fn the_staging_of_a_thick_volume_gives_way_while_it_allocates() {
    let (pool_threads, lane) = (PoolThreads::default(), Lane::of([0]));
    let copies = std::slice::from_ref(&lane);
    let pauses = pool_threads.run(&lane, Work::StageThick, || {
        let before = gives_way(&pool_threads, Work::Copy, copies);
        let meanwhile = foreground::step_back(|| gives_way(&pool_threads, Work::Copy, copies));
        let after = gives_way(&pool_threads, Work::Copy, copies);
        [before, meanwhile, after].concat()
    });
    assert_eq!(pauses, [true, false, true], "of a copy");

    let yields = std::thread::scope(|scope| {
        pool_threads.run(&lane, Work::Change, || {
            let staging = scope.spawn(|| {
                pool_threads.run(&lane, Work::StageThick, || {
                    foreground::step_back(foreground::is_busy)
                })
            });
            staging.join().unwrap()
        })
    });
    assert!(yields, "it allocates beside a change");
}
