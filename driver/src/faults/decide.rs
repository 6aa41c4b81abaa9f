//! What to do about a fault that a claim asks for. Pure.

use std::time::Duration;

use hostloop_controllers::api::claim_fault::ClaimFault;

use crate::record::FaultRecord;

/// A step towards the fault that a claim asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultStep {
    /// The claim asks for none, and the volume has none.
    Nothing,
    /// Nothing uses the volume now.
    Wait,
    Begin,
    /// Begin again what has gone.
    Keep,
    /// End the fault: its time has passed.
    Expire,
    /// End the fault: the claim asks for another one, or for none.
    End,
    /// The fault is over, and is not repeated.
    Rest,
}

/// Decides the next step for a volume with this record. `in_use`: it is staged on this node, so
/// that there is something that can fail.
pub(super) fn decide(
    recorded: Option<&FaultRecord>,
    requested: Option<&ClaimFault>,
    in_use: bool,
    now_ns: u64,
) -> FaultStep {
    // A withdrawn fault makes room for the next one.
    let recorded = recorded.filter(|fault| requested.is_none() || !fault.is_withdrawn);
    let (recorded, requested) = match (recorded, requested) {
        (None, None) => return FaultStep::Nothing,
        (Some(_), None) => return FaultStep::End,
        (None, Some(_)) if in_use => return FaultStep::Begin,
        (None, Some(_)) => return FaultStep::Wait,
        (Some(recorded), Some(requested)) => (recorded, requested),
    };
    let has_passed = requested
        .lasts
        .is_some_and(|lasts| left(recorded.since_ns, lasts, now_ns).is_zero());
    if recorded.fault != requested.to_string() {
        FaultStep::End
    } else if recorded.over {
        FaultStep::Rest
    } else if has_passed {
        FaultStep::Expire
    } else if in_use {
        FaultStep::Keep
    } else {
        FaultStep::Wait
    }
}

/// The time that is left of a fault. All of it if the clock was set back a little since it began: it
/// ends late rather than at once. None if the clock was set back by more than the fault may last,
/// which would otherwise last for all that time.
pub(super) fn left(since_ns: u64, lasts: Duration, now_ns: u64) -> Duration {
    let ahead = Duration::from_nanos(since_ns.saturating_sub(now_ns));
    if ahead > lasts {
        return Duration::ZERO;
    }
    let passed = Duration::from_nanos(now_ns.saturating_sub(since_ns));
    lasts.saturating_sub(passed)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::FaultStep::*;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn record(fault: &str, over: bool) -> Option<FaultRecord> {
        Some(FaultRecord {
            since_ns: 100 * SECOND,
            over,
            ..FaultRecord::of(fault)
        })
    }

    fn withdrawn(fault: &str) -> Option<FaultRecord> {
        Some(FaultRecord {
            is_withdrawn: true,
            ..record(fault, true)?
        })
    }

    #[rstest]
    #[case::nothing(None, None, true, 0, Nothing)]
    #[case::begins(None, Some("gone"), true, 0, Begin)]
    #[case::waits_for_a_pod(None, Some("gone"), false, 0, Wait)]
    #[case::lasts(record("gone,for=600s", false), Some("gone"), true, 699, Keep)]
    #[case::unstaged(record("gone,for=600s", false), Some("gone"), false, 699, Wait)]
    #[case::ends_in_time(record("gone,for=600s", false), Some("gone"), true, 700, Expire)]
    #[case::ends_unstaged(record("gone,for=600s", false), Some("gone"), false, 700, Expire)]
    #[case::has_ended(record("gone,for=600s", true), Some("gone"), true, 700, Rest)]
    #[case::is_removed(record("gone,for=600s", false), None, true, 101, End)]
    #[case::is_removed_later(record("gone,for=600s", true), None, false, 9999, End)]
    #[case::another(record("gone,for=600s", false), Some("frozen"), true, 101, End)]
    #[case::another_time(record("gone,for=600s", false), Some("gone,for=1m"), true, 101, End)]
    #[case::another_seed(record("powercut", true), Some("powercut,seed=1"), true, 101, End)]
    #[case::an_instant(record("powercut", true), Some("powercut"), true, 9999, Rest)]
    #[case::half_done(record("powercut", false), Some("powercut"), true, 9999, Keep)]
    #[case::has_left_a_stop(withdrawn("gone,for=600s"), None, true, 9999, End)]
    #[case::the_next_one(withdrawn("gone,for=600s"), Some("frozen"), true, 101, Begin)]
    #[case::the_same_again(withdrawn("gone,for=600s"), Some("gone"), true, 101, Begin)]
    #[case::the_next_one_waits(withdrawn("gone,for=600s"), Some("gone"), false, 101, Wait)]
    #[case::clock_set_back(record("gone,for=600s", false), Some("gone"), true, 1, Keep)]
    #[case::clock_set_back_far(record("frozen,for=30s", false), Some("frozen"), true, 1, Expire)]
    fn steps(
        #[case] recorded: Option<FaultRecord>,
        #[case] requested: Option<&str>,
        #[case] in_use: bool,
        #[case] now: u64,
        #[case] expected: FaultStep,
    ) {
        let requested = requested.map(|text| ClaimFault::parse(text).unwrap());
        let step = decide(recorded.as_ref(), requested.as_ref(), in_use, now * SECOND);
        assert_eq!(step, expected);
    }
}
