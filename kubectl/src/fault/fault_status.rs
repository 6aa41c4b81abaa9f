//! What events at a claim say about its fault. Pure, but for reading them.

use std::collections::BTreeSet;

use hostloop_api_objects::claim_fault::ClaimFault;
use hostloop_api_objects::constants::FAULT;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::api::ListParams;
use serde::Serialize;

use crate::api::{self, ApiError};
use crate::cluster::Cluster;
use crate::events::{at_ns, is_about};

/// What has become of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultProgress {
    /// A dry run: nothing has changed.
    DryRun,
    /// The claim asks for it. Nothing says more.
    Asked,
    /// The claim asks for none.
    Cleared,
    /// No pod uses the volume yet.
    Waiting,
    /// The volume has the fault.
    Injected,
    /// The fault has ended, and the volume works.
    Healed,
    /// The fault has ended, and the volume works once its pods are gone.
    NeedsRestage,
    /// The driver does not give the volume the fault.
    Refused,
    /// The driver could not begin or end the fault, and tries again.
    Failed,
    /// No event came in time.
    Unknown,
}

impl FaultProgress {
    /// Its word in tables.
    pub(crate) fn word(self) -> &'static str {
        match self {
            FaultProgress::DryRun => "dry-run",
            FaultProgress::Asked => "asked",
            FaultProgress::Cleared => "cleared",
            FaultProgress::Waiting => "waiting",
            FaultProgress::Injected => "injected",
            FaultProgress::Healed => "healed",
            FaultProgress::NeedsRestage => "needs-restage",
            FaultProgress::Refused => "refused",
            FaultProgress::Failed => "failed",
            FaultProgress::Unknown => "unknown",
        }
    }

    /// What an event with this reason says.
    fn of_reason(reason: &str) -> Option<FaultProgress> {
        Some(match reason {
            "FaultWaiting" => FaultProgress::Waiting,
            "FaultInjected" => FaultProgress::Injected,
            "FaultHealed" => FaultProgress::Healed,
            "FaultNeedsRestage" => FaultProgress::NeedsRestage,
            "FaultRefused" => FaultProgress::Refused,
            "FaultFailed" => FaultProgress::Failed,
            _ => return None,
        })
    }

    /// True if the volume does not have the fault that was asked for, or may not have it.
    pub(crate) fn is_failure(self) -> bool {
        matches!(
            self,
            FaultProgress::Refused | FaultProgress::Failed | FaultProgress::Unknown
        )
    }
}

/// What is known of the fault of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FaultStatus {
    pub(crate) progress: FaultProgress,
    /// A sentence for people.
    pub(crate) message: String,
}

impl FaultStatus {
    pub(crate) fn new(progress: FaultProgress, message: impl Into<String>) -> FaultStatus {
        FaultStatus {
            progress,
            message: message.into(),
        }
    }

    /// What an event says, if it is one about a fault.
    fn of_event(event: &Event) -> Option<FaultStatus> {
        let progress = FaultProgress::of_reason(event.reason.as_deref()?)?;
        let message = event.message.as_deref().unwrap_or_default().trim();
        Some(FaultStatus::new(progress, message))
    }
}

/// What a command waits for.
#[derive(Clone, Debug)]
pub(crate) enum AwaitedFault {
    /// The volume has this fault, or gets it with its next pod, or never.
    Begin(ClaimFault),
    /// The fault has ended, whatever is left of it.
    End,
}

impl AwaitedFault {
    fn is_answered_by(&self, said: &FaultStatus) -> bool {
        match (self, said.progress) {
            (_, FaultProgress::Failed) => false,
            // A driver without faults names none.
            (AwaitedFault::Begin(fault), FaultProgress::Refused) => {
                fault.is_named_in(&said.message) || said.message.contains(FAULT)
            }
            (AwaitedFault::Begin(fault), _) => fault.is_named_in(&said.message),
            (AwaitedFault::End, FaultProgress::Healed | FaultProgress::NeedsRestage) => true,
            (AwaitedFault::End, _) => false,
        }
    }
}

/// What the last of the events about the claim says that is an answer.
pub(crate) fn answer(
    events: &[&Event],
    claim: &PersistentVolumeClaim,
    awaited: &AwaitedFault,
) -> Option<FaultStatus> {
    last(events, claim, |said| awaited.is_answered_by(said))
}

/// What the last of the events about the claim says, of any fault.
pub(crate) fn last_said(events: &[&Event], claim: &PersistentVolumeClaim) -> Option<FaultStatus> {
    last(events, claim, |_| true)
}

/// What the last of the events about the claim says of the end of its fault, if that has left the
/// volume's filesystem stopped.
pub(crate) fn last_stop(events: &[&Event], claim: &PersistentVolumeClaim) -> Option<FaultStatus> {
    use FaultProgress::{Healed, Injected, NeedsRestage};
    let said = last(events, claim, |said| {
        matches!(said.progress, Injected | Healed | NeedsRestage)
    });
    said.filter(|said| said.progress == NeedsRestage)
}

fn last(
    events: &[&Event],
    claim: &PersistentVolumeClaim,
    counts: impl Fn(&FaultStatus) -> bool,
) -> Option<FaultStatus> {
    let uid = claim.metadata.uid.as_deref();
    events
        .iter()
        .filter(|event| is_about(event, uid))
        .filter_map(|event| Some((at_ns(event), FaultStatus::of_event(event)?)))
        .filter(|(_, said)| counts(said))
        .max_by_key(|(at, _)| *at)
        .map(|(_, said)| said)
}

/// The events that were there before a command changed something. An event that is repeated later
/// has another version then, so the clocks of the cluster do not matter.
#[derive(Debug)]
pub(crate) struct KnownEvents(BTreeSet<(String, Option<String>)>);

impl KnownEvents {
    /// Reads those of the namespace.
    pub(crate) async fn read(cluster: &Cluster) -> Result<KnownEvents, ApiError> {
        let events = fault_events(cluster, Some(&cluster.namespace)).await?;
        Ok(KnownEvents::of(&events))
    }

    pub(crate) fn of(events: &[Event]) -> KnownEvents {
        KnownEvents(events.iter().map(version).collect())
    }

    /// Those of the events that are new.
    pub(crate) fn others<'e>(&self, events: &'e [Event]) -> Vec<&'e Event> {
        let new = events.iter();
        new.filter(|event| !self.0.contains(&version(event)))
            .collect()
    }
}

fn version(event: &Event) -> (String, Option<String>) {
    (event.name_any(), event.resource_version())
}

/// The events about faults of claims, in a namespace or in all.
pub(crate) async fn fault_events(
    cluster: &Cluster,
    namespace: Option<&str>,
) -> Result<Vec<Event>, ApiError> {
    let about_claims = ListParams::default().fields("involvedObject.kind=PersistentVolumeClaim");
    let mut events: Vec<Event> = api::list(&cluster.namespaced(namespace), about_claims).await?;
    events.retain(|event| FaultStatus::of_event(event).is_some());
    Ok(events)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::test_objects::read;

    const GONE: &str =
        "The volume has the fault gone,for=600s, which its claim or its class asks for";

    fn event(second: u32, reason: &str, message: &str) -> Event {
        read(json!({
            "metadata": {"name": format!("{reason}-{second}"), "resourceVersion": second.to_string()},
            "involvedObject": {"uid": "u"}, "reason": reason, "message": message,
            "lastTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
        }))
    }

    fn claim(uid: &str) -> PersistentVolumeClaim {
        read(json!({"metadata": {"uid": uid}}))
    }

    fn gone() -> AwaitedFault {
        AwaitedFault::Begin(ClaimFault::parse("gone").unwrap())
    }

    #[rstest]
    #[case::injected("FaultInjected", GONE, Some(FaultProgress::Injected))]
    #[case::another_fault(
        "FaultInjected",
        "The volume has the fault frozen,for=30s, which",
        None
    )]
    #[case::waits(
        "FaultWaiting",
        "The volume gets the fault gone,for=600s once a pod uses it",
        Some(FaultProgress::Waiting)
    )]
    #[case::an_earlier_one_goes_on("FaultWaiting", "The fault can't end yet: no", None)]
    #[case::impossible(
        "FaultRefused",
        "The volume can't have the fault gone,for=600s: no",
        Some(FaultProgress::Refused)
    )]
    #[case::off(
        "FaultRefused",
        "The annotation hostloop.csi.dev/fault has no effect: the driver runs without",
        Some(FaultProgress::Refused)
    )]
    #[case::another_is_impossible(
        "FaultRefused",
        "can't have the fault readonly,for=600s: no",
        None
    )]
    #[case::is_tried_again("FaultFailed", "the fault gone,for=600s; it is tried again", None)]
    #[case::short(
        "FaultHealed",
        "The fault gone,for=600s has ended, and the volume works again",
        Some(FaultProgress::Healed)
    )]
    #[case::of_another_controller("ProvisioningFailed", GONE, None)]
    fn the_beginning(
        #[case] reason: &str,
        #[case] message: &str,
        #[case] expected: Option<FaultProgress>,
    ) {
        let event = event(1, reason, message);
        let said = answer(&[&event], &claim("u"), &gone());
        assert_eq!(said.map(|said| said.progress), expected);
        assert_eq!(answer(&[&event], &claim("other"), &gone()), None);
    }

    #[rstest]
    #[case::healed("FaultHealed", true)]
    #[case::stopped("FaultNeedsRestage", true)]
    #[case::still_there("FaultInjected", false)]
    #[case::is_tried_again("FaultFailed", false)]
    fn the_end(#[case] reason: &str, #[case] is_answer: bool) {
        let event = event(1, reason, "m");
        let said = answer(&[&event], &claim("u"), &AwaitedFault::End);
        assert_eq!(said.is_some(), is_answer);
    }

    #[test]
    fn the_last_event_counts() {
        let (begun, ended) = (
            event(2, "FaultInjected", GONE),
            event(3, "FaultHealed", "The fault gone,for=600s has ended"),
        );
        let earlier = event(1, "FaultRefused", "The annotation has no effect");
        let all = [&ended, &earlier, &begun];
        let said = answer(&all, &claim("u"), &gone()).unwrap();
        assert_eq!(said.progress, FaultProgress::Healed);
        assert_eq!(last_said(&all[1..], &claim("u")).unwrap().message, GONE);
        assert_eq!(last_said(&all, &claim("other")), None);
    }

    #[test]
    fn a_repeated_event_is_new() {
        let known = [
            event(1, "FaultInjected", GONE),
            event(2, "FaultHealed", "m"),
        ];
        let before = KnownEvents::of(&known);
        let mut repeated = known[0].clone();
        repeated.metadata.resource_version = Some("9".to_owned());
        let after = [repeated, known[1].clone(), event(3, "FaultRefused", "m")];
        let new: Vec<&str> = before
            .others(&after)
            .iter()
            .filter_map(|event| event.reason.as_deref())
            .collect();
        assert_eq!(new, ["FaultInjected", "FaultRefused"]);
    }

    #[test]
    fn words_are_those_of_the_json() {
        for progress in [
            FaultProgress::DryRun,
            FaultProgress::Asked,
            FaultProgress::Cleared,
            FaultProgress::Waiting,
            FaultProgress::Injected,
            FaultProgress::Healed,
            FaultProgress::NeedsRestage,
            FaultProgress::Refused,
            FaultProgress::Failed,
            FaultProgress::Unknown,
        ] {
            assert_eq!(json!(progress), progress.word());
        }
    }
}
