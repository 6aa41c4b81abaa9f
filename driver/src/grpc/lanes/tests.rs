use super::*;

fn permits(lanes: &Lanes, lane: &Lane, work: Work) -> usize {
    lanes.threads(lane, work).available_permits()
}

#[test]
fn lanes_are_of_pools_whatever_their_order() {
    assert_eq!(Lane::of([2, 0, 2]), Lane::of([0, 2]));
    assert_ne!(Lane::of([0]), Lane::of([0, 1]));
    assert_eq!(Lane::of([]), Lane::default());
}

#[test]
fn each_lane_and_each_kind_of_question_has_threads_of_its_own() {
    let lanes = Lanes::default();
    let (a, b, none) = (Lane::of([0]), Lane::of([1]), Lane::default());
    let held = lanes.threads(&a, Work::Change).try_acquire_owned().unwrap();
    let asked = lanes.threads(&a, Work::Question("Stats"));
    let asked = asked.try_acquire_owned().unwrap();
    let table = [
        (&a, Work::Change, CHANGES - 1),
        (&b, Work::Change, CHANGES),
        (&none, Work::Change, CHANGES),
        (&a, Work::Stream, STREAMS),
        (&a, Work::Question("Stats"), 0),
        (&b, Work::Question("Stats"), 1),
        (&a, Work::Question("Health"), 1),
        (&none, Work::Question("Stats"), POOLLESS),
    ];
    for (lane, work, free) in table {
        assert_eq!(permits(&lanes, lane, work), free, "{lane:?} {work:?}");
    }
    drop((held, asked));
    assert_eq!(permits(&lanes, &a, Work::Change), CHANGES);
}

#[tokio::test(start_paused = true)]
async fn a_question_that_waits_for_long_is_unavailable() {
    let lanes = Lanes::default();
    let lane = Lane::of([0]);
    let first = lanes.question(&lane, "Stats").await.unwrap();
    let refused = lanes.question(&lane, "Stats").await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("an earlier Stats"));
    drop(lanes.question(&lane, "Health").await.unwrap());
    drop(first);
    drop(lanes.question(&lane, "Stats").await.unwrap());
}
