//! What a claim asks for, and what is said about it. Pure.

use std::time::Duration;

use crate::api::claim_fault::{CLASS_PARAMETER, ClaimFault, NONE};
use crate::api::constants::FAULT;
use crate::client::EventKind;

use super::{FaultReport, FaultState};

/// The wait before a refusal that follows the end of a fault.
const SOON: Duration = Duration::from_secs(1);

/// What a claim asks for, or its class.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RequestedFault {
    Nothing,
    Fault(ClaimFault),
    /// It may have none, for this reason.
    Refused(String),
}

impl RequestedFault {
    /// The word of the fault; empty if there is none.
    pub(super) fn name(&self) -> &'static str {
        match self {
            RequestedFault::Fault(fault) => fault.kind.name(),
            RequestedFault::Nothing | RequestedFault::Refused(_) => "",
        }
    }
}

/// Reads the annotation of a claim or, without one, the parameter of its class.
pub(super) fn requested(
    annotation: Option<&str>,
    preset: Option<&str>,
    is_enabled: bool,
) -> RequestedFault {
    let (source, text) = match (annotation, preset) {
        (Some(NONE), _) | (None, None) => return RequestedFault::Nothing,
        (Some(text), _) => (format!("annotation {FAULT}"), text),
        (None, Some(text)) => (format!("parameter {CLASS_PARAMETER} of its class"), text),
    };
    if !is_enabled {
        return RequestedFault::Refused(format!(
            "The {source} has no effect: the driver runs without --enable-faults"
        ));
    }
    match ClaimFault::parse(text) {
        Ok(fault) => RequestedFault::Fault(fault),
        Err(why) => RequestedFault::Refused(format!("The {source} has no effect: {why}")),
    }
}

/// What is reported when the driver `found` this. A refusal hides that there is no fault, and not
/// that one has ended.
pub(super) fn report(requested: &RequestedFault, found: FaultReport) -> FaultReport {
    match requested {
        RequestedFault::Refused(why) if found.state == FaultState::Absent => FaultReport {
            state: FaultState::Refused,
            message: why.clone(),
            again: None,
        },
        // The refusal follows.
        RequestedFault::Refused(_) => FaultReport {
            again: found.again.or(Some(SOON)),
            ..found
        },
        _ => found,
    }
}

/// The event about a report that follows another one, if there is something new to say.
pub(super) fn event(
    before: Option<&FaultReport>,
    now: &FaultReport,
) -> Option<(EventKind, &'static str)> {
    let is_new =
        before.is_none_or(|before| (before.state, &before.message) != (now.state, &now.message));
    let event = match now.state {
        FaultState::Absent | FaultState::Over => return None,
        FaultState::Waiting => (EventKind::Normal, "FaultWaiting"),
        FaultState::Active => (EventKind::Warning, "FaultInjected"),
        FaultState::Expired | FaultState::Healed => (EventKind::Normal, "FaultHealed"),
        FaultState::NeedsRestage => (EventKind::Warning, "FaultNeedsRestage"),
        FaultState::Refused => (EventKind::Warning, "FaultRefused"),
    };
    is_new.then_some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_needs_the_flag_and_a_valid_annotation() {
        let (gone, full) = (
            ClaimFault::parse("gone").unwrap(),
            ClaimFault::parse("full").unwrap(),
        );
        for (annotation, preset, is_enabled, expected) in [
            (None, None, true, Ok(None)),
            (None, None, false, Ok(None)),
            (Some("gone"), None, true, Ok(Some(gone))),
            (
                Some("gone"),
                None,
                false,
                Err("The annotation hostloop.csi.dev/fault has no effect: the driver runs without"),
            ),
            (
                Some("speed=3"),
                None,
                true,
                Err("unknown fault \"speed=3\""),
            ),
            (None, Some("full"), true, Ok(Some(full))),
            (
                None,
                Some("full"),
                false,
                Err("The parameter fault of its class has no effect: the driver runs without"),
            ),
            (
                None,
                Some(""),
                true,
                Err("The parameter fault of its class has no effect: unknown fault \"\""),
            ),
            (Some("gone"), Some("full"), true, Ok(Some(gone))),
            (Some("x"), Some("full"), true, Err("unknown fault \"x\"")),
            (Some("none"), Some("full"), true, Ok(None)),
            (Some("none"), Some("full"), false, Ok(None)),
            (Some("none"), None, true, Ok(None)),
        ] {
            match (requested(annotation, preset, is_enabled), expected) {
                (RequestedFault::Nothing, Ok(None)) => {}
                (RequestedFault::Fault(fault), Ok(Some(expected))) => assert_eq!(fault, expected),
                (RequestedFault::Refused(why), Err(expected)) => {
                    assert!(why.contains(expected), "{why}")
                }
                (requested, expected) => panic!("{annotation:?}: {requested:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn each_change_is_said_once() {
        let report = |state| FaultReport {
            state,
            message: "m".to_owned(),
            again: None,
        };
        use FaultState::*;
        for (before, now, expected) in [
            (None, Absent, None),
            (None, Waiting, Some("FaultWaiting")),
            (Some(Waiting), Waiting, None),
            (Some(Waiting), Active, Some("FaultInjected")),
            (Some(Active), Active, None),
            (Some(Active), Over, None),
            (Some(Active), Expired, Some("FaultHealed")),
            (Some(Active), Healed, Some("FaultHealed")),
            (Some(Active), NeedsRestage, Some("FaultNeedsRestage")),
            (None, Refused, Some("FaultRefused")),
            (Some(Healed), Absent, None),
            // After a restart of the process.
            (None, Active, Some("FaultInjected")),
            (None, Over, None),
        ] {
            let event = event(before.map(report).as_ref(), &report(now));
            assert_eq!(
                event.map(|(_, reason)| reason),
                expected,
                "{before:?} {now:?}"
            );
        }
        let other = FaultReport {
            message: "another".to_owned(),
            ..report(Active)
        };
        assert!(
            event(Some(&other), &report(Active)).is_some(),
            "another fault"
        );
    }

    #[test]
    fn a_refusal_does_not_hide_the_end_of_a_fault() {
        let refused = RequestedFault::Refused("no".to_owned());
        let healed = FaultReport {
            state: FaultState::Healed,
            message: "m".to_owned(),
            again: None,
        };
        let said = report(&refused, healed.clone());
        assert_eq!((said.state, said.again), (healed.state, Some(SOON)));
        assert_eq!(report(&RequestedFault::Nothing, healed.clone()), healed);
        let none = report(&refused, FaultReport::none());
        assert_eq!((none.state, &*none.message), (FaultState::Refused, "no"));
    }
}
