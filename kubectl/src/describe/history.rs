//! What happened to a claim and its objects, in order of time: events, conditions, creation and
//! deletion.

use hostloop_api_objects::snapshots::VolumeSnapshot;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde::Serialize;

use crate::events;
use crate::volume_objects::{VolumeObjects, ns};

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Moment {
    /// When, in nanoseconds since the epoch.
    pub(crate) at_ns: u64,
    /// To what: `claim`, or a kind and a name as `pod/web`.
    pub(crate) object: String,
    /// What happened.
    pub(crate) what: String,
    /// True if it is a warning or an error.
    pub(crate) is_bad: bool,
}

/// The history of a claim.
pub(crate) fn history(objects: &VolumeObjects) -> Vec<Moment> {
    let mut moments = Vec::new();
    for claim in &objects.claims {
        of_claim(claim, &mut moments);
    }
    for volume in &objects.volumes {
        of_volume(volume, &mut moments);
    }
    for attachment in &objects.attachments {
        of_attachment(attachment, &mut moments);
    }
    for pod in &objects.pods {
        of_pod(pod, &mut moments);
    }
    for snapshot in &objects.snapshots {
        of_snapshot(snapshot, &mut moments);
    }
    for group in &objects.groups {
        ObjectHistory::begin(format!("group/{}", group.name_any()), group, &mut moments);
    }
    moments.extend(objects.events.iter().map(of_event));
    // The sort is stable, so a creation stays before a condition of the same second.
    moments.sort_by_key(|moment| moment.at_ns);
    moments
}

/// Collects what happened to one object.
struct ObjectHistory<'m> {
    name: String,
    moments: &'m mut Vec<Moment>,
}

impl<'m> ObjectHistory<'m> {
    /// Begins with the object's creation and deletion.
    fn begin(name: String, object: &impl ResourceExt, moments: &'m mut Vec<Moment>) -> Self {
        let mut begun = ObjectHistory { name, moments };
        let meta = object.meta();
        let (created, deleted) = (&meta.creation_timestamp, &meta.deletion_timestamp);
        begun.add(created.as_ref(), "created", false);
        begun.add(deleted.as_ref(), "deletion asked for", false);
        begun
    }

    fn add(&mut self, at: Option<&Time>, what: impl Into<String>, is_bad: bool) {
        let Some(at_ns) = at.map(ns) else { return };
        let object = self.name.clone();
        self.moments.push(Moment {
            at_ns,
            object,
            what: what.into(),
            is_bad,
        });
    }
}

fn of_claim(claim: &PersistentVolumeClaim, moments: &mut Vec<Moment>) {
    let mut object = ObjectHistory::begin("claim".to_owned(), claim, moments);
    let status = claim.status.iter();
    for condition in status.flat_map(|status| status.conditions.iter().flatten()) {
        let message = condition.message.as_deref().or(condition.reason.as_deref());
        let what = condition_text(&condition.type_, &condition.status, message);
        let is_bad = condition.type_.ends_with("Error") && condition.status == "True";
        object.add(condition.last_transition_time.as_ref(), what, is_bad);
    }
}

fn of_volume(volume: &PersistentVolume, moments: &mut Vec<Moment>) {
    let mut object = ObjectHistory::begin(format!("volume/{}", volume.name_any()), volume, moments);
    let Some(status) = &volume.status else { return };
    let phase = status.phase.as_deref().unwrap_or_default();
    let message = status
        .message
        .as_deref()
        .map(|m| format!(": {m}"))
        .unwrap_or_default();
    let at = status.last_phase_transition_time.as_ref();
    object.add(at, format!("phase {phase}{message}"), phase == "Failed");
}

fn of_attachment(attachment: &VolumeAttachment, moments: &mut Vec<Moment>) {
    let mut object = ObjectHistory::begin(
        format!("attachment/{}", attachment.name_any()),
        attachment,
        moments,
    );
    let Some(status) = &attachment.status else {
        return;
    };
    for (what, error) in [
        ("attaching", &status.attach_error),
        ("detaching", &status.detach_error),
    ] {
        let Some(error) = error else { continue };
        let message = error.message.as_deref().unwrap_or_default();
        object.add(
            error.time.as_ref(),
            format!("{what} failed: {message}"),
            true,
        );
    }
}

fn of_pod(pod: &Pod, moments: &mut Vec<Moment>) {
    let mut object = ObjectHistory::begin(format!("pod/{}", pod.name_any()), pod, moments);
    let status = pod.status.iter();
    for condition in status.flat_map(|status| status.conditions.iter().flatten()) {
        let message = condition.message.as_deref().or(condition.reason.as_deref());
        let what = condition_text(&condition.type_, &condition.status, message);
        object.add(condition.last_transition_time.as_ref(), what, false);
    }
}

fn of_snapshot(snapshot: &VolumeSnapshot, moments: &mut Vec<Moment>) {
    let mut object = ObjectHistory::begin(
        format!("snapshot/{}", snapshot.name_any()),
        snapshot,
        moments,
    );
    let Some(status) = &snapshot.status else {
        return;
    };
    object.add(
        status.creation_time.as_ref(),
        "the point in time that it shows",
        false,
    );
    if let Some(error) = &status.error {
        object.add(
            error.time.as_ref(),
            error.message.clone().unwrap_or_default(),
            true,
        );
    }
}

fn of_event(event: &Event) -> Moment {
    let about = &event.involved_object;
    let name = about.name.as_deref().unwrap_or_default();
    let object = match about.kind.as_deref().unwrap_or_default() {
        "PersistentVolumeClaim" => "claim".to_owned(),
        "PersistentVolume" => format!("volume/{name}"),
        "VolumeSnapshot" => format!("snapshot/{name}"),
        "VolumeGroupSnapshot" => format!("group/{name}"),
        "VolumeAttachment" => format!("attachment/{name}"),
        "VolumeSnapshotContent" => format!("content/{name}"),
        kind => format!("{}/{name}", kind.to_lowercase()),
    };
    let series = event.series.as_ref().and_then(|series| series.count);
    let times = match series.or(event.count) {
        Some(count) if count > 1 => format!(" (×{count})"),
        _ => String::new(),
    };
    Moment {
        at_ns: events::at_ns(event),
        object,
        what: format!("{}{times}", events::text(event)),
        is_bad: events::is_warning(event),
    }
}

fn condition_text(kind: &str, status: &str, message: Option<&str>) -> String {
    let message = message.filter(|message| !message.is_empty());
    let message = message
        .map(|message| format!(": {message}"))
        .unwrap_or_default();
    format!("condition {kind} is {status}{message}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_objects::{cluster, objects};

    #[test]
    fn everything_in_order_of_time() {
        let objects = cluster(&objects(include_str!("history/objects.yaml")));
        let lines: Vec<String> = history(&objects)
            .iter()
            .map(|m| {
                let second = (m.at_ns / 1_000_000_000) % 60;
                format!(
                    "{second} {}{}: {}",
                    if m.is_bad { "! " } else { "" },
                    m.object,
                    m.what
                )
            })
            .collect();
        assert_eq!(
            lines,
            [
                "1 claim: created",
                "2 claim: Reason: m",
                "3 volume/pv: created",
                "3 volume/pv: phase Bound",
                "4 pod/web: created",
                "4 pod/web: condition PodScheduled is True",
                "5 attachment/csi-1: created",
                "6 ! attachment/csi-1: attaching failed: late",
                "7 ! pod/web: Reason: m (×3)",
                "8 volume/pv: Reason: m",
                "9 claim: condition Resizing is True",
                "10 ! claim: condition ControllerResizeError is True: no room",
                "12 snapshot/s: created",
                "13 snapshot/s: the point in time that it shows",
                "14 ! snapshot/s: again",
                "20 claim: deletion asked for",
            ]
        );
    }
}
