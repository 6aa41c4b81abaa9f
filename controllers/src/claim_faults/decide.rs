//! What a claim asks for, what is done for it, and what is said about it. Pure.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use crate::api::claim_fault::{CLASS_PARAMETER, ClaimFault, NONE};
use crate::api::constants::FAULT;
use crate::api::{pv, pvc};
use crate::client::EventKind;

use super::{FaultReport, FaultState};

/// The wait before a refusal that follows the end of a fault.
const SOON: Duration = Duration::from_secs(1);

/// The namespace of a claim and the name of its PersistentVolume. Namespaces take turns, so a fault
/// ends in time also while the claims of another namespace change all the time.
pub(super) type VolumeKey = (String, String);

/// What was last found of a volume.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KnownFault {
    /// The volume ID in CSI.
    pub(super) handle: String,
    /// The word of the fault; empty if the annotation has none.
    pub(super) name: &'static str,
    pub(super) report: FaultReport,
}

impl KnownFault {
    /// True if it is looked at again until pods come, or until they have gone. One that needs a restage
    /// and has its time behind it is not: its claim still asks for it.
    pub(super) fn waits_for_pods(&self) -> bool {
        let state = self.report.state;
        state == FaultState::Waiting
            || (state == FaultState::NeedsRestage && self.report.again.is_some())
    }
}

/// Facts about a volume and its claim.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// `None` if there is no such PersistentVolume.
    pub(super) volume: Option<Arc<PersistentVolume>>,
    /// True if this process may have the volume.
    pub(super) is_here: bool,
    /// The claim that the volume is bound to, if the volume is here.
    pub(super) claim: Option<Arc<PersistentVolumeClaim>>,
    /// The fault of the claim's class, as the class has it.
    pub(super) preset: Option<String>,
    /// What was last found of the volume.
    pub(super) known: Option<KnownFault>,
    /// True if the fault that the handle has is another PersistentVolume's.
    pub(super) is_of_another: bool,
}

/// A step towards what a claim asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// The volume is another driver's, or its claim has nothing to decide.
    Nothing,
    /// The fault is one from before the volume got a claim of another namespace, which has this key.
    HandOver(VolumeKey),
    /// Another process has the volume.
    Forget,
    /// The fault ends with its PersistentVolume.
    EndUnnamed(KnownFault),
    /// The volume with this ID in CSI gets this fault, or none.
    Give {
        handle: String,
        requested: RequestedFault,
    },
}

/// Decides the next step for the volume with this key.
pub(super) fn decide(facts: &Facts, key: &VolumeKey, driver: &str, is_enabled: bool) -> Step {
    let Some(volume) = facts.volume.as_deref() else {
        let known = facts.known.clone();
        return known.map_or(Step::Nothing, Step::EndUnnamed);
    };
    if pv::claim(volume).is_some() && claim_namespace(volume) != key.0 {
        let known = facts.known.as_ref();
        return known.map_or(Step::Nothing, |_| Step::HandOver(volume_key(volume)));
    }
    let Some(handle) = pv::handle(volume, driver) else {
        return Step::Nothing;
    };
    if !facts.is_here {
        return Step::Forget;
    }
    let annotation = facts.claim.as_deref().and_then(pvc::fault);
    let requested = requested(annotation, facts.preset.as_deref(), is_enabled);
    // A claim that asks for nothing does not end the fault of another claim.
    if requested == RequestedFault::Nothing && facts.is_of_another {
        return Step::Nothing;
    }
    Step::Give {
        handle: handle.to_owned(),
        requested,
    }
}

pub(super) fn volume_key(volume: &PersistentVolume) -> VolumeKey {
    (claim_namespace(volume).to_owned(), volume.name_any())
}

/// The namespace of the claim that a volume names.
pub(super) fn claim_namespace(volume: &PersistentVolume) -> &str {
    let reference = pv::claim(volume);
    reference
        .and_then(|claim| claim.namespace.as_deref())
        .unwrap_or_default()
}

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
fn requested(annotation: Option<&str>, preset: Option<&str>, is_enabled: bool) -> RequestedFault {
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

/// What is reported when the driver `found` this after another report. A refusal hides that there is
/// no fault, and not that one has ended: that is reported before.
pub(super) fn report(
    requested: &RequestedFault,
    before: Option<&FaultReport>,
    found: FaultReport,
) -> FaultReport {
    use FaultState::{Absent, NeedsRestage, Refused};
    let before = before.map(|before| before.state);
    let is_said = match found.state {
        Absent => true,
        // This is found until pods go.
        NeedsRestage => matches!(before, Some(NeedsRestage | Refused)),
        _ => false,
    };
    match requested {
        RequestedFault::Refused(why) if is_said => FaultReport {
            state: Refused,
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
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::DRIVER;

    fn known(name: &'static str) -> KnownFault {
        KnownFault {
            handle: "h".to_owned(),
            name,
            report: FaultReport {
                state: FaultState::Active,
                message: "m".to_owned(),
                again: None,
            },
        }
    }

    /// A volume with a claim in this namespace, and the claim with this annotation.
    fn facts(driver: &str, namespace: &str, annotation: Option<&str>) -> Facts {
        let volume: Value = json!({"metadata": {"name": "pv"}, "spec": {
            "claimRef": {"namespace": namespace, "name": "data"},
            "csi": {"driver": driver, "volumeHandle": "h"},
        }});
        let claim: Value = json!({"metadata": {"annotations":
            annotation.map(|fault| json!({"hostloop.csi.dev/fault": fault}))}});
        Facts {
            volume: Some(Arc::new(serde_json::from_value(volume).unwrap())),
            is_here: true,
            claim: Some(Arc::new(serde_json::from_value(claim).unwrap())),
            ..Facts::default()
        }
    }

    #[test]
    fn steps() {
        let ours = |annotation| facts(DRIVER, "ns", annotation);
        let give = |requested| Step::Give {
            handle: "h".to_owned(),
            requested,
        };
        let gone = RequestedFault::Fault(ClaimFault::parse("gone").unwrap());
        let known_before = || Some(known("gone"));
        for (facts, expected) in [
            (ours(Some("gone")), give(gone)),
            (ours(None), give(RequestedFault::Nothing)),
            (facts("another", "ns", Some("gone")), Step::Nothing),
            (facts(DRIVER, "other", Some("gone")), Step::Nothing),
            (
                Facts {
                    known: known_before(),
                    ..facts(DRIVER, "other", None)
                },
                Step::HandOver(("other".to_owned(), "pv".to_owned())),
            ),
            (
                Facts {
                    is_here: false,
                    ..ours(None)
                },
                Step::Forget,
            ),
            (
                Facts {
                    is_of_another: true,
                    ..ours(None)
                },
                Step::Nothing,
            ),
            (Facts::default(), Step::Nothing),
            (
                Facts {
                    known: known_before(),
                    ..Facts::default()
                },
                Step::EndUnnamed(known("gone")),
            ),
        ] {
            let key = ("ns".to_owned(), "pv".to_owned());
            assert_eq!(decide(&facts, &key, DRIVER, true), expected, "{facts:?}");
        }
    }

    #[test]
    fn a_fault_needs_the_flag_and_a_valid_annotation() {
        let (gone, full) = (
            ClaimFault::parse("gone").unwrap(),
            ClaimFault::parse("full").unwrap(),
        );
        for (annotation, preset, is_enabled, expected) in [
            (None, None, true, Ok(None)),
            (None, None, false, Ok(None)),
            (Some("gone"), None, true, Ok(Some(gone.clone()))),
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
    fn a_fault_waits_for_pods_while_it_is_looked_at() {
        for (state, again, expected) in [
            (FaultState::Waiting, Some(SOON), true),
            (FaultState::NeedsRestage, Some(SOON), true),
            (FaultState::NeedsRestage, None, false),
            (FaultState::Active, Some(SOON), false),
            (FaultState::Over, None, false),
        ] {
            let mut known = known("gone");
            (known.report.state, known.report.again) = (state, again);
            assert_eq!(known.waits_for_pods(), expected, "{state:?} {again:?}");
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
        let said = report(&refused, None, healed.clone());
        assert_eq!((said.state, said.again), (healed.state, Some(SOON)));
        assert_eq!(
            report(&RequestedFault::Nothing, None, healed.clone()),
            healed
        );
        let none = report(&refused, None, FaultReport::none());
        assert_eq!((none.state, &*none.message), (FaultState::Refused, "no"));
    }

    /// A filesystem may stay stopped for days.
    #[test]
    fn a_refusal_follows_what_a_fault_has_left() {
        let refused = RequestedFault::Refused("no".to_owned());
        let stopped = FaultReport {
            state: FaultState::NeedsRestage,
            message: "m".to_owned(),
            again: None,
        };
        let first = report(&refused, None, stopped.clone());
        assert_eq!(
            (first.state, first.again),
            (FaultState::NeedsRestage, Some(SOON))
        );
        let second = report(&refused, Some(&first), stopped.clone());
        assert_eq!((second.state, second.again), (FaultState::Refused, None));
        assert_eq!(report(&refused, Some(&second), stopped), second);
    }
}
