//! Kubernetes events: their times, and the last warning about an object.

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, Resource};

use super::api;
use super::cluster::Cluster;
use super::volume_objects::{condition, created_ns, ns};

/// A warning about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Warning {
    /// The reason and the message.
    pub(super) text: String,
    /// When it was last seen, in nanoseconds since the epoch.
    pub(super) at_ns: u64,
}

/// When an event was last seen, in nanoseconds since the epoch. Which of the times are set depends
/// on the library that emitted the event.
pub(super) fn at_ns(event: &Event) -> u64 {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref());
    let exact = [series, event.event_time.as_ref()].into_iter().flatten();
    let exact = exact.map(|time| u64::try_from(time.0.as_nanosecond()).unwrap_or(0));
    let seconds = [&event.last_timestamp, &event.first_timestamp]
        .into_iter()
        .flatten()
        .map(ns);
    exact
        .chain(seconds)
        .max()
        .unwrap_or_else(|| created_ns(event))
}

/// The reason and the message of an event.
pub(super) fn text(event: &Event) -> String {
    let message = event.message.as_deref().unwrap_or_default().trim();
    match event.reason.as_deref() {
        Some(reason) if !reason.is_empty() => format!("{reason}: {message}"),
        _ => message.to_owned(),
    }
}

/// The warnings in a namespace; none if they can't be read.
pub(super) async fn warnings(cluster: &Cluster, namespace: &str) -> Vec<Event> {
    let events: Api<Event> = cluster.namespaced(Some(namespace));
    let warnings = ListParams::default().fields("type=Warning");
    api::list(&events, warnings).await.unwrap_or_default()
}

/// The text of the last event about an object with such a name.
pub(super) fn last_about(events: &[Event], is_meant: impl Fn(&str) -> bool) -> Option<String> {
    events
        .iter()
        .filter(|event| is_meant(event.involved_object.name.as_deref().unwrap_or_default()))
        .max_by_key(|event| at_ns(event))
        .map(text)
}

/// True if an event warns.
pub(super) fn is_warning(event: &Event) -> bool {
    event.type_.as_deref() == Some("Warning")
}

/// True if an event is about the object with this UID.
pub(super) fn is_about(event: &Event, uid: Option<&str>) -> bool {
    uid.is_some() && event.involved_object.uid.as_deref() == uid
}

/// True if there is an event about an object with this reason.
pub(super) fn has_reason<K: Resource<DynamicType = ()>>(
    events: &[Event],
    object: &K,
    reason: &str,
) -> bool {
    let uid = object.meta().uid.as_deref();
    events
        .iter()
        .any(|event| is_about(event, uid) && event.reason.as_deref() == Some(reason))
}

/// The last warning about an object since a time, in nanoseconds since the epoch. An older one is
/// history, because another state has followed.
pub(super) fn last_warning<K: Resource<DynamicType = ()>>(
    events: &[Event],
    object: &K,
    since_ns: u64,
) -> Option<Warning> {
    last_of(events, object, |event| at_ns(event) >= since_ns)
}

/// The last warning about the volumes of a pod, or about the search for its node. That search is
/// history once the pod has a node.
pub(super) fn last_warning_about_volumes(events: &[Event], pod: &Pod) -> Option<Warning> {
    let is_scheduled = condition(pod, "PodScheduled", "True").is_some();
    last_of(events, pod, |event| match event.reason.as_deref() {
        Some("FailedMount" | "FailedMapVolume" | "FailedAttachVolume") => true,
        Some("FailedScheduling") => !is_scheduled,
        _ => false,
    })
}

fn last_of<K: Resource<DynamicType = ()>>(
    events: &[Event],
    object: &K,
    counts: impl Fn(&Event) -> bool,
) -> Option<Warning> {
    let uid = object.meta().uid.as_deref();
    let about: Vec<&Event> = events.iter().filter(|event| is_about(event, uid)).collect();
    let last = about
        .iter()
        .filter(|event| is_warning(event) && counts(event) && !has_ended(event, &about))
        .max_by_key(|event| at_ns(event))?;
    Some(Warning {
        text: text(last),
        at_ns: at_ns(last),
    })
}

/// The reasons of warnings, each with that of the event that says: it is over.
const ENDED_BY: [(&str, &str); 8] = [
    ("FaultFailed", "FaultHealed"),
    ("FaultInjected", "FaultHealed"),
    ("FaultNeedsRestage", "FaultHealed"),
    ("ProvisioningFailed", "ProvisioningSucceeded"),
    ("VolumeConditionAbnormal", "VolumeConditionNormal"),
    ("VolumeModifyFailed", "VolumeModifyCanceled"),
    ("VolumeModifyFailed", "VolumeModifySuccessful"),
    ("VolumeResizeFailed", "VolumeResizeSuccessful"),
];

/// True if a later event about the same object says that what a warning is about is over.
fn has_ended(warning: &Event, about: &[&Event]) -> bool {
    let reason = warning.reason.as_deref();
    about.iter().any(|event| {
        let is_its_end = ENDED_BY
            .iter()
            .any(|&(begin, end)| reason == Some(begin) && event.reason.as_deref() == Some(end));
        is_its_end && at_ns(event) >= at_ns(warning)
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use serde_json::json;

    use super::*;
    use crate::test_objects::read;

    #[test]
    fn times() {
        let seconds = |text: &str| {
            let time: k8s_openapi::jiff::Timestamp = text.parse().unwrap();
            u64::try_from(time.as_nanosecond()).unwrap()
        };
        let (early, late) = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:09Z");
        let micro = "2026-01-01T00:00:05.000001Z";
        for (times, at) in [
            (json!({}), 0),
            (json!({"firstTimestamp": early}), seconds(early)),
            (
                json!({"firstTimestamp": early, "lastTimestamp": late}),
                seconds(late),
            ),
            (json!({"eventTime": micro}), seconds(micro)),
            (
                json!({"eventTime": early, "series": {"count": 2, "lastObservedTime": micro}}),
                seconds(micro),
            ),
        ] {
            assert_eq!(at_ns(&read(times.clone())), at, "{times}");
        }
    }

    #[test]
    fn the_last_warning_about_an_object() {
        let about = |uid: &str, kind: &str, second: u32, reason: &str| {
            read::<Event>(json!({
                "involvedObject": {"uid": uid}, "type": kind, "reason": reason, "message": "why",
                "lastTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
            }))
        };
        let events = [
            about("a", "Warning", 1, "First"),
            about("a", "Warning", 3, "Last"),
            about("a", "Warning", 2, "Middle"),
            about("a", "Normal", 4, "Normal"),
            about("b", "Warning", 5, "Other"),
        ];
        let claim =
            |uid: Option<&str>| read::<PersistentVolumeClaim>(json!({"metadata": {"uid": uid}}));
        for (uid, text) in [
            (Some("a"), Some("Last: why")),
            (Some("b"), Some("Other: why")),
            (Some("c"), None),
            (None, None),
        ] {
            let last = last_warning(&events, &claim(uid), 0);
            assert_eq!(last.map(|warning| warning.text).as_deref(), text, "{uid:?}");
        }
        let last = at_ns(&events[1]);
        assert!(last_warning(&events, &claim(Some("a")), last).is_some());
        assert!(last_warning(&events, &claim(Some("a")), last + 1).is_none());
    }

    #[test]
    fn what_is_over_is_no_warning_any_more() {
        let about = |kind: &str, second: u32, reason: &str| {
            read::<Event>(json!({
                "involvedObject": {"uid": "a"}, "type": kind, "reason": reason,
                "lastTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
            }))
        };
        let claim: PersistentVolumeClaim = read(json!({"metadata": {"uid": "a"}}));
        for (warning, later, counts) in [
            ("ProvisioningFailed", ("ProvisioningSucceeded", 6), false),
            ("ProvisioningFailed", ("ProvisioningSucceeded", 5), false),
            ("ProvisioningFailed", ("ProvisioningSucceeded", 4), true),
            ("ProvisioningFailed", ("Provisioning", 6), true),
            (
                "VolumeConditionAbnormal",
                ("VolumeConditionNormal", 6),
                false,
            ),
            ("VolumeResizeFailed", ("VolumeModifySuccessful", 6), true),
            ("FaultNeedsRestage", ("FaultHealed", 6), false),
            ("FaultNeedsRestage", ("FaultHealed", 4), true),
        ] {
            let events = [
                about("Warning", 5, warning),
                about("Normal", later.1, later.0),
            ];
            let last = last_warning(&events, &claim, 0);
            assert_eq!(last.is_some(), counts, "{warning} {later:?}");
            assert!(has_reason(&events, &claim, later.0));
            assert!(!has_reason(&events, &claim, "Other"));
        }
    }

    #[test]
    fn warnings_about_the_volumes_of_a_pod() {
        let pod: Pod = read(json!({"metadata": {"uid": "p"}}));
        for (reason, counts) in [
            ("FailedMount", true),
            ("FailedScheduling", true),
            ("FailedAttachVolume", true),
            ("FailedMapVolume", true),
            ("BackOff", false),
            ("Unhealthy", false),
        ] {
            let event: Event = read(json!({
                "involvedObject": {"uid": "p"}, "type": "Warning", "reason": reason,
            }));
            assert_eq!(
                last_warning_about_volumes(&[event], &pod).is_some(),
                counts,
                "{reason}"
            );
        }
        let scheduled: Pod = read(json!({
            "metadata": {"uid": "p"},
            "status": {"conditions": [{"type": "PodScheduled", "status": "True"}]},
        }));
        for (reason, counts) in [("FailedMount", true), ("FailedScheduling", false)] {
            let event: Event = read(json!({
                "involvedObject": {"uid": "p"}, "type": "Warning", "reason": reason,
            }));
            let last = last_warning_about_volumes(&[event], &scheduled);
            assert_eq!(last.is_some(), counts, "{reason}");
        }
    }
}
