//! What users do after the advice of events.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Value, json};

use crate::cluster::{Cluster, storage_class};
use crate::model::view::{
    claims_of, collection, has_ended, is_deleting, is_for_pod, is_unbound, items, name, namespace,
    text, uid,
};
use crate::oracle::objects::Objects;
use crate::oracle::remedies::{self, Remedy, SnapshotRemedy};
use crate::oracle::{deletions, missing};
use crate::users::{bytes, is_immediate, path_in, request_of, requested};

/// The class of the snapshots and groups that are taken again.
const SNAPSHOT_CLASS: &str = "deleted";

/// What has become of the advice of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// No one has followed it yet. It explains what is not done.
    Open,
    /// Users have done all of it. It explains nothing any more.
    Followed,
}

/// What a user does after an event's advice.
#[derive(Debug)]
pub(crate) struct AdvisedRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    /// A new object, a merge patch, or the options of a deletion.
    pub(crate) body: Value,
}

/// What users do after the advice of events. What is made again follows once its predecessor is
/// gone.
#[derive(Debug, Default)]
pub(crate) struct AdvisedSteps {
    pub(crate) at_once: Vec<AdvisedRequest>,
    pub(crate) then: Vec<AdvisedRequest>,
}

impl AdvisedRequest {
    fn delete(plural: &str, object: &Value) -> AdvisedRequest {
        AdvisedRequest {
            method: Method::DELETE,
            path: path_in(namespace(object), plural, name(object)),
            body: json!({}),
        }
    }

    fn create(plural: &str, object: Value) -> AdvisedRequest {
        AdvisedRequest {
            method: Method::POST,
            path: path_in(namespace(&object), plural, ""),
            body: object,
        }
    }

    fn patch(claim: &Value, body: Value) -> AdvisedRequest {
        AdvisedRequest {
            method: Method::PATCH,
            path: path_in(namespace(claim), "persistentvolumeclaims", name(claim)),
            body,
        }
    }
}

impl AdvisedSteps {
    fn delete(&mut self, plural: &str, object: &Value) {
        self.at_once.push(AdvisedRequest::delete(plural, object));
    }

    fn make_again(&mut self, plural: &str, old: &Value, new: Value) {
        self.delete(plural, old);
        self.then.push(AdvisedRequest::create(plural, new));
    }
}

/// What users do after the advice of events, in this order.
pub(crate) fn advice(cluster: &Cluster) -> AdvisedSteps {
    let objects = Objects::of(cluster);
    let mut steps = AdvisedSteps {
        at_once: missing::advice(cluster, &objects.claims),
        then: Vec::new(),
    };
    let gone = pods_to_delete(cluster, &objects);
    for claim in objects.claims.iter().filter(|claim| !is_deleting(claim)) {
        match text(claim, "/status/phase") {
            "Bound" => take_back(claim, &mut steps),
            "Lost" => {}
            // It goes with its pod.
            _ if gone.iter().any(|pod| is_for_pod(claim, pod)) => {}
            _ => make_possible(cluster, &objects, claim, &mut steps),
        }
    }
    for pod in gone {
        steps.delete("pods", pod);
    }
    let kept: BTreeSet<&str> = deletions::keeping(&objects).map(uid).collect();
    let snapshots = objects.snapshots.iter();
    for snapshot in snapshots.filter(|snapshot| !is_deleting(snapshot)) {
        if kept.contains(uid(snapshot)) {
            steps.delete("volumesnapshots", snapshot);
        } else if snapshot["status"]["readyToUse"] != true && objects.group_of(snapshot).is_none() {
            take_again(&objects, snapshot, &mut steps);
        }
    }
    let groups = objects.groups.iter();
    for group in groups.filter(|group| !is_deleting(group)) {
        if group["status"]["readyToUse"] != true {
            take_group_again(&objects, group, &mut steps);
        }
    }
    steps
}

/// Requests less of a claim that can't be expanded, and takes attributes back that it can't have.
fn take_back(claim: &Value, steps: &mut AdvisedSteps) {
    let status = &claim["status"];
    let requested = requested(claim);
    let has = bytes(&status["capacity"]["storage"]);
    if requested > has + 1 {
        steps
            .at_once
            .push(AdvisedRequest::patch(claim, request_of(has + 1)));
    }
    let wanted = &claim["spec"]["volumeAttributesClassName"];
    let current = &status["currentVolumeAttributesClassName"];
    if text(wanted, "").is_empty() || wanted == current {
        return;
    }
    let class = if text(current, "").is_empty() {
        json!("direct")
    } else {
        current.clone()
    };
    let patch = json!({"spec": {"volumeAttributesClassName": class}});
    steps.at_once.push(AdvisedRequest::patch(claim, patch));
}

/// Makes a claim that has no volume again, as its events advise.
fn make_possible(cluster: &Cluster, objects: &Objects, claim: &Value, steps: &mut AdvisedSteps) {
    let messages = messages_of_claim(objects, claim);
    let remedies = remedies::of_claim(messages.iter().map(String::as_str));
    if remedies.is_empty() {
        return;
    }
    let least = remedies::least(messages.iter().map(String::as_str));
    let class = remedies::other_class(claim);
    let classes = collection("storageclasses", "");
    let at = format!("{classes}/{class}");
    if remedies.contains(&Remedy::Class) && cluster.api.shared_at(&at).is_none() {
        steps
            .at_once
            .extend(storage_class(class).map(|body| AdvisedRequest {
                method: Method::POST,
                path: classes,
                body,
            }));
    }
    let Some(new) = remedies::instead(claim, &remedies, least) else {
        return;
    };
    let mut owners = objects.users(claim).filter(|pod| is_for_pod(claim, pod));
    match owners.next() {
        // A pod's own claim is made after its template.
        Some(pod) => steps.delete("pods", pod),
        None => steps.make_again("persistentvolumeclaims", claim, new),
    }
}

/// All that is said about a claim without a volume, and about the pods that wait for it.
fn messages_of_claim(objects: &Objects, claim: &Value) -> Vec<String> {
    let mut messages = objects.reasons(claim);
    messages.extend(objects.users(claim).flat_map(conditions));
    messages
}

/// What the scheduler says about a pod that it has no node for.
fn conditions(pod: &Value) -> impl Iterator<Item = String> + use<'_> {
    let waits = text(pod, "/spec/nodeName").is_empty();
    items(pod, "/status/conditions")
        .filter(move |_| waits)
        .map(|one| text(one, "/message").to_owned())
}

/// True if something is said that helps a claim without a volume, or a pod that waits for it.
pub(super) fn helps_claim(cluster: &Cluster, objects: &Objects, claim: &Value) -> bool {
    let messages = messages_of_claim(objects, claim);
    let remedies = remedies::of_claim(messages.iter().map(String::as_str));
    let mut pods = objects.users(claim);
    !remedies.is_empty()
        || pods.any(|pod| {
            is_deleting(pod)
                || gives_up(cluster, objects, pod)
                || conditions(pod).any(|message| {
                    is_about_another(&message, claim, claims(objects, pod).flatten())
                })
        })
}

/// True if a message about a pod means that another of its claims keeps this one waiting, which waits
/// for the pod. What is said at that one counts.
fn is_about_another<'a>(
    message: &str,
    claim: &Value,
    mut of_pod: impl Iterator<Item = &'a Value>,
) -> bool {
    remedies::is_about_immediate_claims(message)
        && !is_immediate(text(claim, "/spec/storageClassName"))
        && of_pod.any(|other| uid(other) != uid(claim) && is_pending(other))
}

/// True if a pod is to run and does not.
pub(super) fn is_stuck(pod: &Value) -> bool {
    !is_deleting(pod) && !has_ended(pod) && text(pod, "/status/phase") != "Running"
}

/// The claims that a pod names; `None` for one that is not there.
pub(super) fn claims<'a>(
    objects: &'a Objects,
    pod: &Value,
) -> impl Iterator<Item = Option<&'a Value>> {
    claims_of(pod).into_iter().map(move |(claim, _)| {
        objects
            .claims
            .iter()
            .find(|one| name(one) == claim && namespace(one) == namespace(pod))
    })
}

/// True if a claim has no volume yet.
pub(super) fn is_pending(claim: &Value) -> bool {
    !is_deleting(claim) && is_unbound(claim)
}

/// True if what is said about a pod that does not run means that it never will.
pub(super) fn gives_up(cluster: &Cluster, objects: &Objects, pod: &Value) -> bool {
    // Kubelet says so of a claim that has no volume any more, and waits for another.
    let is_on_node = !text(pod, "/spec/nodeName").is_empty();
    let lacks_claim = is_on_node
        && claims(objects, pod).any(|claim| {
            claim.is_none_or(|claim| is_deleting(claim) || text(claim, "/status/phase") == "Lost")
        });
    lacks_claim
        || conditions(pod)
            .chain(cluster.complaints(uid(pod)))
            .chain(objects.attach_errors(pod))
            .any(|message| remedies::gives_up_pod(&message))
}

/// The pods that will not run as they are.
fn pods_to_delete<'a>(cluster: &Cluster, objects: &'a Objects) -> Vec<&'a Value> {
    let stuck = objects.pods.iter().filter(|pod| is_stuck(pod));
    stuck
        .filter(|pod| gives_up(cluster, objects, pod))
        .collect()
}

/// What is said about a snapshot that is not ready.
pub(super) fn said_of_snapshot(objects: &Objects, snapshot: &Value) -> Vec<String> {
    said(objects, snapshot, objects.content(snapshot))
}

/// What is said about a group that is not ready.
pub(super) fn said_of_group(objects: &Objects, group: &Value) -> Vec<String> {
    said(objects, group, objects.group_content(group))
}

/// What events and the status say about a snapshot or group, and events about its content.
fn said(objects: &Objects, object: &Value, content: Option<&Value>) -> Vec<String> {
    let mut messages = objects.reasons(object);
    messages.push(text(object, "/status/error/message").to_owned());
    messages.extend(content.into_iter().flat_map(|it| objects.reasons(it)));
    messages.retain(|message| !message.is_empty());
    messages
}

/// What messages about a snapshot or group advise.
fn remedy(messages: &[String]) -> Option<SnapshotRemedy> {
    remedies::of_snapshot(messages.iter().map(String::as_str))
}

/// What is wrong with a snapshot or group that is not ready, of which this is said. If its data is
/// on a node that has left for good, it may stay as it is, but its user learns why.
pub(super) fn unready(
    is_out_of_reach: bool,
    messages: &[String],
    advice: Advice,
) -> Option<&'static str> {
    if is_out_of_reach {
        return messages.is_empty().then_some("nothing says why");
    }
    if advice == Advice::Followed {
        return Some("all advice was followed");
    }
    let is_silent = remedy(messages).is_none();
    is_silent.then_some("nothing says what to do")
}

/// Takes a group again that its class made impossible, and deletes one that can't be taken.
fn take_group_again(objects: &Objects, group: &Value, steps: &mut AdvisedSteps) {
    match remedy(&said_of_group(objects, group)) {
        Some(SnapshotRemedy::Class) => {
            let mut spec = group["spec"].clone();
            spec["volumeGroupSnapshotClassName"] = json!(SNAPSHOT_CLASS);
            let new = json!({"apiVersion": "groupsnapshot.storage.k8s.io/v1",
                "kind": "VolumeGroupSnapshot",
                "metadata": {"name": name(group), "namespace": namespace(group)}, "spec": spec});
            steps.make_again("volumegroupsnapshots", group, new);
        }
        Some(SnapshotRemedy::Delete) => steps.delete("volumegroupsnapshots", group),
        None => {}
    }
}

/// Takes a snapshot again that its class made impossible, and deletes one that can't be taken.
fn take_again(objects: &Objects, snapshot: &Value, steps: &mut AdvisedSteps) {
    let of = text(snapshot, "/spec/source/persistentVolumeClaimName");
    let has_claim = objects.claims.iter().any(|claim| {
        name(claim) == of
            && namespace(claim) == namespace(snapshot)
            && !is_deleting(claim)
            && claim["status"]["phase"] == "Bound"
    });
    match remedy(&said_of_snapshot(objects, snapshot)) {
        Some(SnapshotRemedy::Class) if has_claim => {
            let mut spec = snapshot["spec"].clone();
            spec["volumeSnapshotClassName"] = json!(SNAPSHOT_CLASS);
            let new = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                "metadata": {"name": name(snapshot), "namespace": namespace(snapshot)},
                "spec": spec});
            steps.make_again("volumesnapshots", snapshot, new);
        }
        Some(_) => steps.delete("volumesnapshots", snapshot),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NO_NODE: &str = "no node works on this content: node n1 does not exist";

    #[rstest]
    #[case::silent(false, "", Advice::Open, Some("nothing says what to do"))]
    #[case::helpless(false, "try again", Advice::Open, Some("nothing says what to do"))]
    #[case::advised(false, NO_NODE, Advice::Open, None)]
    #[case::followed(false, NO_NODE, Advice::Followed, Some("all advice was followed"))]
    #[case::out_of_reach(true, NO_NODE, Advice::Open, None)]
    #[case::out_of_reach_and_followed(true, NO_NODE, Advice::Followed, None)]
    #[case::out_of_reach_without_advice(true, "try again", Advice::Open, None)]
    #[case::out_of_reach_and_silent(true, "", Advice::Open, Some("nothing says why"))]
    #[case::silent_to_the_end(true, "", Advice::Followed, Some("nothing says why"))]
    fn snapshots_that_are_not_ready(
        #[case] is_out_of_reach: bool,
        #[case] message: &str,
        #[case] advice: Advice,
        #[case] expected: Option<&str>,
    ) {
        let mut messages = vec![message.to_owned()];
        messages.retain(|message| !message.is_empty());
        assert_eq!(unready(is_out_of_reach, &messages, advice), expected);
    }

    const IMMEDIATE: &str = "pod has unbound immediate PersistentVolumeClaims";

    #[rstest]
    #[case::another("ext4", &[("ext4-now", "Pending")], IMMEDIATE, true)]
    #[case::of_something_else("ext4", &[("ext4-now", "Pending")], "Insufficient cpu", false)]
    #[case::itself("ext4-now", &[], IMMEDIATE, false)]
    #[case::both("ext4-now", &[("ext4-now", "Pending")], IMMEDIATE, false)]
    #[case::over("ext4", &[("ext4-now", "Bound")], IMMEDIATE, false)]
    fn a_claim_may_wait_for_another(
        #[case] class: &str,
        #[case] others: &[(&str, &str)],
        #[case] message: &str,
        #[case] expected: bool,
    ) {
        let claim = |uid: &str, class: &str, phase: &str| {
            json!({"metadata": {"uid": uid}, "spec": {"storageClassName": class},
                "status": {"phase": phase}})
        };
        let waiting = claim("0", class, "Pending");
        let mut of_pod = vec![waiting.clone()];
        of_pod.extend(others.iter().map(|(class, phase)| claim("1", class, phase)));
        assert_eq!(is_about_another(message, &waiting, of_pod.iter()), expected);
    }
}
