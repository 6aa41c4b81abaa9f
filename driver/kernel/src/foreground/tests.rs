use rstest::rstest;

use super::*;
use crate::wanted::Wanted;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[rstest]
#[case::no_call_ever_came(Quiet::For(Duration::MAX), TimeShare::Tenth, ms(5), ms(0), false)]
#[case::a_call_runs(Quiet::Not, TimeShare::Tenth, ms(5), ms(0), true)]
#[case::a_call_just_ended(Quiet::For(ms(9)), TimeShare::Tenth, ms(5), ms(20), true)]
#[case::the_moment_is_over(Quiet::For(ms(10)), TimeShare::Tenth, ms(5), ms(20), false)]
#[case::calls_never_end(Quiet::Not, TimeShare::Tenth, ms(1), ms(8), true)]
#[case::calls_never_end_but_it_has_its_share(Quiet::Not, TimeShare::Tenth, ms(1), ms(9), false)]
#[case::a_slow_step_costs_a_long_pause(Quiet::Not, TimeShare::Tenth, ms(20), ms(179), true)]
#[case::of_nine_times_the_step(Quiet::Not, TimeShare::Tenth, ms(20), ms(180), false)]
#[case::a_disk_that_hangs(Quiet::Not, TimeShare::Tenth, ms(60_000), ms(499), true)]
#[case::holds_it_up_for_no_longer(Quiet::Not, TimeShare::Tenth, ms(60_000), ms(500), false)]
#[case::series_of_calls(Quiet::For(ms(1)), TimeShare::Tenth, ms(5), ms(50), false)]
#[case::without_data_no_call_ever_came(
    Quiet::For(Duration::MAX),
    TimeShare::Half,
    ms(5),
    ms(0),
    false
)]
#[case::without_data_a_call_runs(Quiet::Not, TimeShare::Half, ms(20), ms(19), true)]
#[case::without_data_it_pauses_as_long_as_its_step(
    Quiet::Not,
    TimeShare::Half,
    ms(20),
    ms(20),
    false
)]
#[case::without_data_a_call_just_ended(Quiet::For(ms(9)), TimeShare::Half, ms(20), ms(10), true)]
#[case::without_data_the_moment_is_over(Quiet::For(ms(10)), TimeShare::Half, ms(20), ms(10), false)]
#[case::without_data_a_slow_step(Quiet::Not, TimeShare::Half, ms(3_000), ms(499), true)]
#[case::without_data_no_longer_than_others(Quiet::Not, TimeShare::Half, ms(3_000), ms(500), false)]
fn when_long_work_pauses(
    #[case] quiet: Quiet,
    #[case] share: TimeShare,
    #[case] step: Duration,
    #[case] paused: Duration,
    #[case] expected: bool,
) {
    let longest = longest_pause(step, share);
    assert_eq!(pauses(quiet, longest, paused, false), expected);
    // A pod that waits for the work itself goes before other calls.
    assert!(!pauses(quiet, longest, paused, true));
}

/// Does long work for this time, and gives way.
fn step(took: Duration, share: TimeShare) {
    let mut steps = Steps {
        began: Instant::now().checked_sub(took).unwrap(),
        share,
    };
    steps.give_way();
}

/// True if work behind these pools pauses once.
fn has_paused(pools: &[Arc<Foreground>], awaited: bool) -> bool {
    let wanted = Arc::new(Wanted::default());
    if awaited {
        wanted.hurry();
    }
    let before = paused();
    wanted.run(|| behind(pools.to_vec(), || step(ms(5), TimeShare::Tenth)));
    paused() - before >= POLL
}

#[test]
fn work_gives_way_to_calls_of_its_pools_alone() {
    let [a, b] = <[Arc<Foreground>; 2]>::default();
    let both = [a.clone(), b.clone()];
    assert!(!has_paused(&both, false));
    let call = b.enter();
    assert!(has_paused(&both, false));
    assert!(!has_paused(std::slice::from_ref(&a), false));
    assert!(!has_paused(&[], false));
    assert!(!has_paused(&both, true));
    assert!(behind(both.to_vec(), is_busy) && !behind(vec![a], is_busy));
    drop(call);
    assert_eq!(b.0.lock().running, 0);
    assert!(!is_busy());
}

/// How many calls run in a pool.
fn running(pool: &Foreground) -> usize {
    pool.0.lock().running
}

#[test]
fn a_call_that_steps_back_is_no_call_meanwhile() {
    let pool = Arc::new(Foreground::default());
    let pools = std::slice::from_ref(&pool);
    in_front(pools, || {
        assert!(has_paused(pools, false), "others pause for it");
        step_back(|| {
            assert_eq!(running(&pool), 0);
            assert!(!is_busy(), "it does not give way to itself");
            let other = pool.enter();
            assert!(is_busy(), "it gives way to another one");
            drop(other);
            step_back(|| assert_eq!(running(&pool), 0));
        });
        assert_eq!(running(&pool), 1);
    });
    assert_eq!(running(&pool), 0);
}

#[test]
fn work_that_is_not_in_the_foreground_gives_way_as_before() {
    let pool = Arc::new(Foreground::default());
    assert_eq!(step_back(|| 1), 1);
    let _call = pool.enter();
    assert!(behind(vec![pool.clone()], || step_back(is_busy)));
    assert_eq!(running(&pool), 1);
}

#[test]
fn a_panic_ends_a_call_that_has_stepped_back() {
    let pool = Arc::new(Foreground::default());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        in_front(std::slice::from_ref(&pool), || {
            step_back(|| panic!("boom"));
        });
    }));
    assert!(panicked.is_err());
    assert_eq!(running(&pool), 0);
}

#[test]
fn a_panic_leaves_the_thread_without_pools() {
    let pool = Arc::new(Foreground::default());
    let _call = pool.enter();
    let pools = vec![pool];
    let boom = || behind(pools, || panic!("boom"));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(boom));
    assert!(panicked.is_err());
    assert!(!is_busy());
}

/// Calls that never end keep no copy and no allocation from its end.
#[rstest]
#[case::steps_that_cost_less_than_a_look(Duration::from_micros(50), TimeShare::Tenth, ms(0))]
#[case::quick_steps(ms(1), TimeShare::Tenth, ms(9))]
#[case::slow_steps(ms(10), TimeShare::Tenth, ms(90))]
#[case::quick_steps_of_an_allocation(Duration::from_micros(300), TimeShare::Half, ms(0))]
#[case::slow_steps_of_an_allocation(ms(10), TimeShare::Half, ms(10))]
fn calls_that_never_end_leave_long_work_its_share(
    #[case] took: Duration,
    #[case] share: TimeShare,
    #[case] expected: Duration,
) {
    let pool = Arc::new(Foreground::default());
    let _call = pool.enter();
    let before = paused();
    behind(vec![pool], || step(took, share));
    // The clock of a busy machine is late, but a pause does not end early.
    assert!(paused() - before >= expected);
    assert_eq!(expected.is_zero(), paused() == before);
}

#[test]
fn the_copy_of_a_frozen_filesystem_never_pauses() {
    use crate::file::{Pace, copy_sparse};

    let [from, to] = [(); 2].map(|()| tempfile::tempfile().unwrap());
    std::os::unix::fs::FileExt::write_all_at(&from, &[1; 3 << 20], 0).unwrap();
    let pool = Arc::new(Foreground::default());
    let _call = pool.enter();
    let before = paused();
    behind(vec![pool], || {
        copy_sparse(&from, &to, Pace::Fast, &|| false)
    })
    .unwrap();
    assert_eq!(paused(), before);
}
