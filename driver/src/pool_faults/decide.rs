//! What to do about a fault that is asked of a pool. Pure.

use std::time::Instant;

use hostloop_controllers::api::pool_fault::PoolFaultKind;
use hostloop_report::node_faults::PoolFaultNow;

use super::files::PoolFaultRequest;

/// What was done for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownPoolFault {
    /// `None` if it never began.
    pub(super) kind: Option<PoolFaultKind>,
    /// When it ends, while it is in force.
    pub(super) ends: Option<Instant>,
    /// What is shown of it.
    pub(super) now: PoolFaultNow,
}

/// A step towards what is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PoolFaultStep {
    Nothing,
    Begin(PoolFaultRequest),
    /// Its time has passed.
    Expire,
    /// It is cleared, or another one is asked for, which follows.
    End,
}

/// Decides the next step for a pool.
pub(super) fn decide(
    requested: Option<&PoolFaultRequest>,
    known: Option<&KnownPoolFault>,
    now: Instant,
) -> PoolFaultStep {
    match (requested, known) {
        (None, None) => PoolFaultStep::Nothing,
        (Some(requested), None) => PoolFaultStep::Begin(requested.clone()),
        (Some(requested), Some(known)) if is_of(known, requested) => match known.ends {
            Some(ends) if now >= ends => PoolFaultStep::Expire,
            _ => PoolFaultStep::Nothing,
        },
        (_, Some(_)) => PoolFaultStep::End,
    }
}

fn is_of(known: &KnownPoolFault, request: &PoolFaultRequest) -> bool {
    known.now.fault == request.fault && known.now.requested_ns == request.requested_ns
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hostloop_report::node_faults::PoolFaultState;
    use rstest::rstest;

    use super::*;

    fn request(fault: &str, requested_ns: u64) -> PoolFaultRequest {
        PoolFaultRequest {
            fault: fault.to_owned(),
            requested_ns,
        }
    }

    #[rstest]
    #[case::nothing(None, None, "nothing")]
    #[case::begins(Some(("full", 1)), None, "begin")]
    #[case::lasts(Some(("full", 1)), Some(Some(1)), "nothing")]
    #[case::expires(Some(("full", 1)), Some(Some(0)), "expire")]
    #[case::is_over(Some(("full", 1)), Some(None), "nothing")]
    #[case::is_cleared(None, Some(Some(1)), "end")]
    #[case::is_cleared_later(None, Some(None), "end")]
    #[case::another(Some(("missing", 1)), Some(Some(1)), "end")]
    #[case::again(Some(("full", 2)), Some(None), "end")]
    fn steps(
        #[case] requested: Option<(&str, u64)>,
        #[case] known: Option<Option<u64>>,
        #[case] expected: &str,
    ) {
        let now = Instant::now();
        let requested = requested.map(|(fault, at)| request(fault, at));
        let known = known.map(|ends| KnownPoolFault {
            kind: Some(PoolFaultKind::Full),
            ends: ends.map(|seconds| now + Duration::from_secs(seconds)),
            now: PoolFaultNow {
                fault: "full".to_owned(),
                requested_ns: 1,
                state: PoolFaultState::Active,
                message: String::new(),
            },
        });
        let step = match decide(requested.as_ref(), known.as_ref(), now) {
            PoolFaultStep::Nothing => "nothing",
            PoolFaultStep::Begin(begun) => {
                assert_eq!(Some(begun), requested);
                "begin"
            }
            PoolFaultStep::Expire => "expire",
            PoolFaultStep::End => "end",
        };
        assert_eq!(step, expected);
    }
}
