//! The controller of persistent volumes: it binds claims and volumes, asks for new volumes, and
//! releases the volumes of claims that are gone. External provisioners make and delete the volumes.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::settled::Settled;
use super::view::{
    Model, PROVISIONED_BY, SELECTED_NODE, Step, View, annotation, claims_of, is_deleting, items,
    key, name, namespace, size, text, uid,
};

const WHO: &str = "persistentvolume-controller";
const CLAIMS: &str = "persistentvolumeclaims";
const VOLUMES: &str = "persistentvolumes";
const COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// The annotation of a volume or claim that a controller bound, and no user.
pub(crate) const BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONERS: [&str; 2] = [
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
];

/// The controller of persistent volumes.
#[derive(Default)]
pub(crate) struct Binder {
    /// The volumes that are as their claims want them.
    volumes: Settled,
    /// The bound claims that are as their volumes want them.
    claims: Settled,
}

impl Model for Binder {
    const KINDS: &[&str] = &[CLAIMS, VOLUMES, "storageclasses", "pods"];
    const PERIOD: Duration = Duration::from_secs(15);

    fn decide(&mut self, view: &View, _: Instant) -> Vec<Step> {
        let mut all = self.volumes.steps(view, VOLUMES, CLAIMS, |volume| {
            let reference = &volume["spec"]["claimRef"];
            let claim = key(text(reference, "/namespace"), text(reference, "/name"));
            (volume_steps(view, volume), Some(claim))
        });
        all.extend(self.claims.steps(view, CLAIMS, VOLUMES, |claim| {
            let mut steps = claim_steps(view, claim);
            steps.extend(expansion(claim));
            // What becomes of a claim that is not bound depends on more than one volume.
            let is_bound = annotation(claim, COMPLETED).is_some();
            let volume = is_bound.then(|| key("", text(claim, "/spec/volumeName")));
            (steps, volume)
        }));
        // One volume may suit two claims: only the first of them binds it, and the second looks
        // again.
        let mut taken = BTreeSet::new();
        all.retain(|step| step.method == "POST" || taken.insert(step.path.clone()));
        all
    }
}

fn claim_steps(view: &View, claim: &Value) -> Vec<Step> {
    let wanted = text(claim, "/spec/volumeName");
    let volume = view.get(VOLUMES, "", wanted);
    if annotation(claim, COMPLETED).is_some() {
        return bound_claim(claim, wanted, volume);
    }
    if wanted.is_empty() {
        return open_claim(view, claim);
    }
    let Some(volume) = volume else {
        return unbound(claim);
    };
    let tell = |reason: &str, message: &str| Step::event(WHO, claim, ("Warning", reason), message);
    if volume["spec"]["claimRef"].is_null() {
        if let Err(why) = suits(volume, claim) {
            let message = format!("Cannot bind to requested volume {wanted:?}: {why}");
            return [vec![tell("VolumeMismatch", &message)], unbound(claim)].concat();
        }
        return bind(volume, claim);
    }
    if is_bound_to(volume, claim) {
        return bind(volume, claim);
    }
    let message = format!("volume {wanted:?} already bound to a different claim.");
    [vec![tell("FailedBinding", &message)], unbound(claim)].concat()
}

/// Says that a bound claim which requests more waits for a resizer.
fn expansion(claim: &Value) -> Option<Step> {
    let has = size(claim, "/status/capacity/storage")?;
    if text(claim, "/status/phase") != "Bound" || requested(claim) <= has {
        return None;
    }
    let message = "waiting for an external controller to expand this PVC";
    Some(Step::event(
        "volume_expand",
        claim,
        ("Normal", "ExternalExpanding"),
        message,
    ))
}

/// A claim that was bound stays so, or has lost its volume.
fn bound_claim(claim: &Value, wanted: &str, volume: Option<&Value>) -> Vec<Step> {
    let lost = |reason: &str, message: &str| {
        if text(claim, "/status/phase") == "Lost" {
            return Vec::new();
        }
        let status = json!({"phase": "Lost", "accessModes": null, "capacity": null,
            "currentVolumeAttributesClassName": null});
        let event = Step::event(WHO, claim, ("Warning", reason), message);
        vec![Step::status(CLAIMS, claim, status), event]
    };
    match volume {
        _ if wanted.is_empty() => lost(
            "ClaimLost",
            "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
        ),
        None => lost(
            "ClaimLost",
            "Bound claim has lost its PersistentVolume. Data on the volume is lost!",
        ),
        Some(volume) if volume["spec"]["claimRef"].is_null() => bind(volume, claim),
        Some(volume) if text(volume, "/spec/claimRef/uid") == uid(claim) => bind(volume, claim),
        Some(_) => lost(
            "ClaimMisbound",
            "Two claims are bound to the same volume, this one is bound incorrectly",
        ),
    }
}

/// A claim without a volume gets the best one that there is, or a new one is asked for.
fn open_claim(view: &View, claim: &Value) -> Vec<Step> {
    let class_name = text(claim, "/spec/storageClassName");
    let class = view.get("storageclasses", "", class_name);
    let waits =
        class.is_some_and(|class| text(class, "/volumeBindingMode") == "WaitForFirstConsumer");
    if let Some(volume) = best_volume(view, claim, None, waits) {
        return bind(volume, claim);
    }
    if claim["spec"]["storageClassName"].is_null() {
        let key = "storageclass.kubernetes.io/is-default-class";
        let mut defaults = view
            .all("storageclasses")
            .filter(|class| annotation(class, key) == Some("true"));
        if let Some(default) = defaults.next_back_by_age() {
            let patch = json!({"spec": {"storageClassName": name(default)}});
            return vec![Step::merge(CLAIMS, claim, patch)];
        }
    }
    let tell =
        |kind: &str, reason: &str, message: &str| Step::event(WHO, claim, (kind, reason), message);
    if waits && annotation(claim, SELECTED_NODE).is_none() {
        let (reason, message) = what_it_waits_for(view, claim);
        return [vec![tell("Normal", reason, &message)], unbound(claim)].concat();
    }
    if class_name.is_empty() {
        let message = "no persistent volumes available for this claim and no storage class is set";
        return [
            vec![tell("Normal", "FailedBinding", message)],
            unbound(claim),
        ]
        .concat();
    }
    let Some(class) = class else {
        let message = format!("storageclass.storage.k8s.io {class_name:?} not found");
        return vec![tell("Warning", "ProvisioningFailed", &message)];
    };
    let provisioner = text(class, "/provisioner");
    if provisioner.starts_with("kubernetes.io/") {
        let message = format!("no volume plugin matched name: {provisioner}");
        return vec![tell("Warning", "ProvisioningFailed", &message)];
    }
    if PROVISIONERS
        .iter()
        .all(|key| annotation(claim, key) == Some(provisioner))
    {
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner \
             '{provisioner}' or manually by the system administrator. If volume creation is \
             delayed, please verify that the provisioner is running and correctly registered."
        );
        return vec![tell("Normal", "ExternalProvisioning", &message)];
    }
    let annotations: Value = PROVISIONERS
        .iter()
        .map(|key| ((*key).to_owned(), json!(provisioner)))
        .collect();
    vec![Step::merge(
        CLAIMS,
        claim,
        json!({"metadata": {"annotations": annotations}}),
    )]
}

/// The reason and the message of an event about a claim that waits for its first pod.
fn what_it_waits_for(view: &View, claim: &Value) -> (&'static str, String) {
    let uses = |pod: &&Value| {
        namespace(pod) == namespace(claim)
            && text(pod, "/spec/nodeName").is_empty()
            && claims_of(pod).iter().any(|(used, _)| used == name(claim))
    };
    let pods: Vec<&str> = view.all("pods").filter(uses).map(name).collect();
    match pods.as_slice() {
        [] => (
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding".to_owned(),
        ),
        [pod] => (
            "WaitForPodScheduled",
            format!("waiting for pod {pod} to be scheduled"),
        ),
        pods => {
            let pods = pods.join(",");
            (
                "WaitForPodScheduled",
                format!("waiting for pods {pods} to be scheduled"),
            )
        }
    }
}

/// The choice of the newest default class.
trait Newest<'a> {
    fn next_back_by_age(&mut self) -> Option<&'a Value>;
}

impl<'a, I: Iterator<Item = &'a Value>> Newest<'a> for I {
    fn next_back_by_age(&mut self) -> Option<&'a Value> {
        self.max_by_key(|class| text(class, "/metadata/creationTimestamp").to_owned())
    }
}

/// Leaves a claim without a volume.
fn unbound(claim: &Value) -> Vec<Step> {
    let status = &claim["status"];
    if status["phase"] == "Pending"
        && [
            "accessModes",
            "capacity",
            "currentVolumeAttributesClassName",
        ]
        .iter()
        .all(|field| status[*field].is_null())
    {
        return Vec::new();
    }
    let none = json!({"phase": "Pending", "accessModes": null, "capacity": null,
        "currentVolumeAttributesClassName": null});
    vec![Step::status(CLAIMS, claim, none)]
}

/// True if a volume refers to a claim.
pub(crate) fn is_bound_to(volume: &Value, claim: &Value) -> bool {
    let reference = &volume["spec"]["claimRef"];
    reference["name"] == claim["metadata"]["name"]
        && reference["namespace"] == claim["metadata"]["namespace"]
        && ["", uid(claim)].contains(&text(reference, "/uid"))
}

/// Why a volume that a claim names can't be bound to it.
fn suits(volume: &Value, claim: &Value) -> Result<(), &'static str> {
    let same = |field: &str| text(&volume["spec"], field) == text(&claim["spec"], field);
    let problems = [
        (is_deleting(volume), "the volume is marked for deletion"),
        (
            capacity(volume) < requested(claim),
            "requested PV is too small",
        ),
        (
            !same("/storageClassName"),
            "storageClassName does not match",
        ),
        (
            !same("/volumeAttributesClassName"),
            "volumeAttributesClassName does not match",
        ),
        (!has_mode(volume, claim), "incompatible volumeMode"),
        (!has_access(volume, claim), "incompatible accessMode"),
    ];
    problems
        .iter()
        .find(|(is_so, _)| *is_so)
        .map_or(Ok(()), |(_, why)| Err(why))
}

fn capacity(volume: &Value) -> i128 {
    size(volume, "/spec/capacity/storage").unwrap_or(0)
}

fn requested(claim: &Value) -> i128 {
    size(claim, "/spec/resources/requests/storage").unwrap_or(0)
}

fn has_mode(volume: &Value, claim: &Value) -> bool {
    let mode = |object: &Value| object["spec"]["volumeMode"] == "Block";
    mode(volume) == mode(claim)
}

fn has_access(volume: &Value, claim: &Value) -> bool {
    let modes: Vec<_> = items(volume, "/spec/accessModes").collect();
    items(claim, "/spec/accessModes").all(|mode| modes.contains(&mode))
}

/// The volume that is meant for a claim, or else the smallest one that suits it. `node` has the
/// labels of the node where it has to be reachable. Without a node, a claim that waits for its
/// first pod gets only a volume that is meant for it.
pub(crate) fn best_volume<'a>(
    view: &'a View,
    claim: &Value,
    node: Option<&Value>,
    waits: bool,
) -> Option<&'a Value> {
    let usable = view.all(VOLUMES).filter(|volume| {
        (volume["spec"]["claimRef"].is_null() || is_bound_to(volume, claim))
            && has_access(volume, claim)
            && capacity(volume) >= requested(claim)
            && has_mode(volume, claim)
            && text(volume, "/spec/volumeAttributesClassName")
                == text(claim, "/spec/volumeAttributesClassName")
            && !is_deleting(volume)
    });
    let mut best: Option<&Value> = None;
    for volume in usable {
        let is_near = node.is_none_or(|labels| is_reachable(volume, labels));
        if is_bound_to(volume, claim) {
            return Some(volume).filter(|_| is_near);
        }
        let is_free = text(volume, "/status/phase") == "Available"
            && selects(&claim["spec"]["selector"], &volume["metadata"]["labels"])
            && text(volume, "/spec/storageClassName") == text(claim, "/spec/storageClassName");
        let is_left_to_scheduler = waits && node.is_none();
        if is_near
            && is_free
            && !is_left_to_scheduler
            && best.is_none_or(|best| capacity(volume) < capacity(best))
        {
            best = Some(volume);
        }
    }
    best
}

/// True if a label selector selects labels. A missing one selects all.
pub(crate) fn selects(selector: &Value, labels: &Value) -> bool {
    let equal = selector["matchLabels"].as_object().into_iter().flatten();
    equal.into_iter().all(|(key, value)| labels[key] == *value)
        && items(selector, "/matchExpressions").all(|one| matches(one, labels))
}

/// True if labels meet a requirement of a selector.
fn matches(requirement: &Value, labels: &Value) -> bool {
    let label = &labels[text(requirement, "/key")];
    let is_one_of = items(requirement, "/values").any(|value| value == label);
    match text(requirement, "/operator") {
        "In" => is_one_of,
        "NotIn" => !is_one_of,
        "Exists" => !label.is_null(),
        "DoesNotExist" => label.is_null(),
        _ => false,
    }
}

/// True if a node with these labels can reach a volume.
pub(crate) fn is_reachable(volume: &Value, labels: &Value) -> bool {
    let required = &volume["spec"]["nodeAffinity"]["required"];
    required.is_null()
        || items(required, "/nodeSelectorTerms")
            .any(|term| items(term, "/matchExpressions").all(|one| matches(one, labels)))
}

/// The reference with which a volume names its claim.
pub(crate) fn claim_ref(claim: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name(claim),
        "namespace": namespace(claim), "uid": uid(claim),
        "resourceVersion": claim["metadata"]["resourceVersion"]})
}

/// The next step of binding a volume and a claim to each other.
fn bind(volume: &Value, claim: &Value) -> Vec<Step> {
    let reference = &volume["spec"]["claimRef"];
    if !is_bound_to(volume, claim) || text(reference, "/uid") != uid(claim) {
        let mut patch = json!({"spec": {"claimRef": claim_ref(claim)}});
        // A reference that a user has made stays marked as the user's.
        if !is_bound_to(volume, claim) {
            patch["metadata"]["annotations"][BY_CONTROLLER] = json!("yes");
        }
        return vec![Step::merge(VOLUMES, volume, patch)];
    }
    if text(volume, "/status/phase") != "Bound" {
        return vec![phase(volume, "Bound")];
    }
    let mut patch = json!({});
    if text(claim, "/spec/volumeName") != name(volume) {
        patch["spec"]["volumeName"] = json!(name(volume));
        if annotation(claim, BY_CONTROLLER).is_none() {
            patch["metadata"]["annotations"][BY_CONTROLLER] = json!("yes");
        }
    }
    if annotation(claim, COMPLETED).is_none() {
        patch["metadata"]["annotations"][COMPLETED] = json!("yes");
    }
    if patch != json!({}) {
        return vec![Step::merge(CLAIMS, claim, patch)];
    }
    let mut status = json!({});
    if claim["status"]["accessModes"] != volume["spec"]["accessModes"] {
        status["accessModes"] = volume["spec"]["accessModes"].clone();
    }
    // The capacity of a claim that is bound already may differ until its filesystem has grown.
    if text(claim, "/status/phase") != "Bound" {
        status["phase"] = json!("Bound");
        let before = annotation(volume, "volume.alpha.kubernetes.io/pre-resize-capacity");
        let all = &volume["spec"]["capacity"];
        status["capacity"] = before.map_or_else(|| all.clone(), |text| json!({"storage": text}));
        let class = &volume["spec"]["volumeAttributesClassName"];
        if text(claim, "/status/phase") == "Pending" && !class.is_null() {
            status["currentVolumeAttributesClassName"] = class.clone();
        }
    }
    if status == json!({}) {
        return Vec::new();
    }
    vec![Step::status(CLAIMS, claim, status)]
}

fn phase(volume: &Value, phase: &str) -> Step {
    Step::status(VOLUMES, volume, json!({"phase": phase}))
}

/// Keeps the phase of a volume right, and releases it when its claim is gone.
fn volume_steps(view: &View, volume: &Value) -> Vec<Step> {
    let is = |wanted: &str| text(volume, "/status/phase") == wanted;
    let set = |wanted: &str| {
        if is(wanted) {
            Vec::new()
        } else {
            vec![phase(volume, wanted)]
        }
    };
    let reference = &volume["spec"]["claimRef"];
    if text(reference, "/uid").is_empty() {
        return set("Available");
    }
    let claim = view.get(
        CLAIMS,
        text(reference, "/namespace"),
        text(reference, "/name"),
    );
    let Some(claim) = claim.filter(|claim| uid(claim) == text(reference, "/uid")) else {
        return if is("Failed") {
            Vec::new()
        } else {
            set("Released")
        };
    };
    let bound = text(claim, "/spec/volumeName");
    if bound == name(volume) {
        return set("Bound");
    }
    if bound.is_empty() {
        if has_mode(volume, claim) {
            // The claim binds it.
            return Vec::new();
        }
        let message = format!(
            "Cannot bind PersistentVolume {:?} to requested PersistentVolumeClaim due to \
             incompatible volumeMode.",
            name(volume)
        );
        return vec![Step::event(
            WHO,
            claim,
            ("Warning", "VolumeMismatch"),
            &message,
        )];
    }
    // The claim is bound to another volume.
    let is_deleted = text(volume, "/spec/persistentVolumeReclaimPolicy") == "Delete";
    if annotation(volume, PROVISIONED_BY).is_some() && is_deleted {
        return if is("Failed") {
            Vec::new()
        } else {
            set("Released")
        };
    }
    let patch = match annotation(volume, BY_CONTROLLER) {
        Some(_) => json!({"spec": {"claimRef": null},
            "metadata": {"annotations": {BY_CONTROLLER: null}}}),
        None => json!({"spec": {"claimRef": {"uid": null}}}),
    };
    vec![Step::merge(VOLUMES, volume, patch)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_that_was_left_alone_is_looked_at_after_a_change() {
        let claim = json!({"metadata": {"name": "c", "namespace": "n", "uid": "1",
                "annotations": {COMPLETED: "yes"}},
            "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
        let volume = json!({"metadata": {"name": "v"}, "status": {"phase": "Bound"},
            "spec": {"claimRef": {"namespace": "n", "name": "c", "uid": "1"}}});
        for (plural, gone, phase) in [(VOLUMES, &volume, "Lost"), (CLAIMS, &claim, "Released")] {
            let (mut view, mut binder) = (View::default(), Binder::default());
            view.put(CLAIMS, claim.clone());
            view.put(VOLUMES, volume.clone());
            for _ in 0..2 {
                assert_eq!(binder.decide(&view, Instant::now()), Vec::new());
            }
            assert!(binder.volumes.has_any() && binder.claims.has_any());
            view.take(plural, gone);
            let steps = binder.decide(&view, Instant::now());
            let mut phases = steps.iter().map(|step| text(&step.body, "/status/phase"));
            assert!(phases.any(|one| one == phase), "{steps:?}");
        }
    }
}
