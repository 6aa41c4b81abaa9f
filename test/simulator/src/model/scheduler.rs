//! The scheduler, as far as volumes matter: it finds a node where a pod's volumes are, or where
//! they can be made, waits until they are bound, and assigns the pod.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::binder::{BY_CONTROLLER, best_volume, claim_ref, is_reachable, selects};
use super::view::{
    Model, SELECTED_NODE, Step, View, annotation, claims_of, has_ended, is_deleting, is_for_pod,
    items, name, namespace, path_of, size, text, uid,
};

const WHO: &str = "default-scheduler";
const CLAIMS: &str = "persistentvolumeclaims";
const VOLUMES: &str = "persistentvolumes";

/// The time within which the volumes of a pod have to be bound.
const BIND_WITHIN: Duration = Duration::from_secs(600);

/// The times before a pod is tried again: the first one, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// The scheduler.
#[derive(Default)]
pub(crate) struct Scheduler {
    /// The nodes chosen for pods, by UID, while their volumes are being bound.
    chosen: BTreeMap<String, Choice>,
    /// When pods are tried again, and after which wait, by UID.
    waiting: BTreeMap<String, (Instant, Duration)>,
}

struct Choice {
    node: String,
    since: Instant,
}

/// A claim of a pod that has no volume yet, and what becomes of it on a node.
enum Plan {
    /// It is bound to this volume, which there is.
    Bind(Value),
    /// A volume is made for it.
    Provision,
}

/// The unbound claims of a pod, each with its plan.
type Plans<'a> = Vec<(&'a Value, Plan)>;

impl Model for Scheduler {
    const KINDS: &[&str] = &[
        "csidrivers",
        "csinodes",
        "csistoragecapacities",
        "nodes",
        CLAIMS,
        VOLUMES,
        "pods",
        "storageclasses",
    ];
    const PERIOD: Duration = Duration::from_secs(300);

    fn decide(&mut self, view: &View, now: Instant) -> Vec<Step> {
        let open = view.all("pods").filter(|pod| is_open(pod));
        let open: Vec<&Value> = open.collect();
        let is_there = |known: &String| open.iter().any(|pod| uid(pod) == known);
        self.chosen.retain(|known, _| is_there(known));
        self.waiting.retain(|known, _| is_there(known));
        // One pod a round, since it changes what is left for the others.
        open.into_iter()
            .map(|pod| self.schedule(view, pod, now))
            .find(|steps| !steps.is_empty())
            .unwrap_or_default()
    }

    fn wait(&self, now: Instant) -> Duration {
        let again = self.waiting.values().map(|(at, _)| *at);
        let expire = self
            .chosen
            .values()
            .map(|choice| choice.since + BIND_WITHIN);
        let next = again.chain(expire).filter(|at| *at > now).min();
        next.map_or(Self::PERIOD, |at| (at - now).min(Self::PERIOD))
    }
}

/// True if a pod waits for a node.
fn is_open(pod: &Value) -> bool {
    text(pod, "/spec/nodeName").is_empty()
        && !is_deleting(pod)
        && !has_ended(pod)
        && ["", WHO].contains(&text(pod, "/spec/schedulerName"))
        && items(pod, "/spec/schedulingGates").next().is_none()
}

impl Scheduler {
    /// The next steps for a pod.
    fn schedule(&mut self, view: &View, pod: &Value, now: Instant) -> Vec<Step> {
        if let Some(choice) = self.chosen.get(uid(pod)) {
            let node = view.get("nodes", "", &choice.node);
            let is_late = now - choice.since > BIND_WITHIN;
            return match node.map(|node| is_bound_on(view, pod, node)) {
                Some(Ok(true)) => {
                    let node = choice.node.clone();
                    vec![assign(pod, &node), scheduled(pod, &node)]
                }
                Some(Ok(false)) if !is_late => Vec::new(),
                Some(Ok(false)) => {
                    self.fail(pod, now, "binding volumes: context deadline exceeded")
                }
                Some(Err(why)) => self.fail(pod, now, &format!("binding volumes: {why}")),
                None => self.fail(pod, now, &format!("node {:?} not found", choice.node)),
            };
        }
        if self.waiting.get(uid(pod)).is_some_and(|(at, _)| *at > now) {
            return Vec::new();
        }
        match choose(view, pod) {
            Ok((node, plans)) => {
                let choice = Choice {
                    node: name(node).to_owned(),
                    since: now,
                };
                self.chosen.insert(uid(pod).to_owned(), choice);
                let steps = plans
                    .iter()
                    .filter_map(|(claim, plan)| prepare(claim, plan, node));
                let steps: Vec<Step> = steps.collect();
                if steps.is_empty() {
                    self.schedule(view, pod, now)
                } else {
                    steps
                }
            }
            Err(why) => self.fail(pod, now, &why),
        }
    }

    /// Reports that a pod can't be scheduled now, and tries again later.
    fn fail(&mut self, pod: &Value, now: Instant, why: &str) -> Vec<Step> {
        self.chosen.remove(uid(pod));
        let (first, longest) = BACKOFF;
        let known = self.waiting.get(uid(pod));
        let wait = known.map_or(first, |(_, wait)| (*wait * 2).min(longest));
        self.waiting.insert(uid(pod).to_owned(), (now + wait, wait));
        let event = Step::event(WHO, pod, ("Warning", "FailedScheduling"), why);
        let condition = json!({"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": why});
        let known = items(pod, "/status/conditions");
        let (same, mut others): (Vec<Value>, Vec<Value>) = known
            .cloned()
            .partition(|one| one["type"] == "PodScheduled");
        if same.iter().any(|one| one["message"] == why) {
            return vec![event];
        }
        others.push(condition);
        vec![
            event,
            Step::status("pods", pod, json!({"conditions": others})),
        ]
    }
}

/// Assigns a pod to a node.
fn assign(pod: &Value, node: &str) -> Step {
    let body = json!({"apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name(pod), "namespace": namespace(pod), "uid": uid(pod)},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
    let path = format!("{}/binding", path_of("pods", pod));
    Step {
        method: "POST",
        path,
        body,
    }
}

fn scheduled(pod: &Value, node: &str) -> Step {
    let place = format!("{}/{}", namespace(pod), name(pod));
    let message = format!("Successfully assigned {place} to {node}");
    Step::event(WHO, pod, ("Normal", "Scheduled"), &message)
}

/// Binds a claim to the volume of a plan, or asks for one on the node.
fn prepare(claim: &Value, plan: &Plan, node: &Value) -> Option<Step> {
    match plan {
        Plan::Bind(volume) if text(volume, "/spec/claimRef/uid") == uid(claim) => None,
        Plan::Bind(volume) => {
            let mut patch = json!({"spec": {"claimRef": claim_ref(claim)}});
            if volume["spec"]["claimRef"].is_null() {
                patch["metadata"]["annotations"] = json!({BY_CONTROLLER: "yes"});
            }
            Some(Step::merge(VOLUMES, volume, patch))
        }
        Plan::Provision if annotation(claim, SELECTED_NODE) == Some(name(node)) => None,
        Plan::Provision => {
            let patch = json!({"metadata": {"annotations": {SELECTED_NODE: name(node)}}});
            Some(Step::merge(CLAIMS, claim, patch))
        }
    }
}

/// True if all claims of a pod are bound to volumes that a node can reach. An error says why they
/// will not be.
fn is_bound_on(view: &View, pod: &Value, node: &Value) -> Result<bool, String> {
    let mut all = true;
    for (claim, _) in claims_of(pod) {
        let Some(claim) = view.get(CLAIMS, namespace(pod), &claim) else {
            return Err(format!("persistentvolumeclaim {claim:?} not found"));
        };
        let volume = text(claim, "/spec/volumeName");
        if volume.is_empty() {
            let selected = annotation(claim, SELECTED_NODE);
            let is_static = || {
                let mine = |volume: &&Value| text(volume, "/spec/claimRef/uid") == uid(claim);
                view.all(VOLUMES).any(|volume| mine(&volume))
            };
            if selected != Some(name(node)) && !is_static() {
                return Err(format!("provisioning failed for PVC {:?}", name(claim)));
            }
            all = false;
            continue;
        }
        if let Some(volume) = view.get(VOLUMES, "", volume)
            && !is_reachable(volume, &node["metadata"]["labels"])
        {
            let why = format!("node affinity doesn't match node {:?}", name(node));
            return Err(format!("pv {:?} {why}", name(volume)));
        }
        all &= annotation(claim, "pv.kubernetes.io/bind-completed").is_some();
    }
    Ok(all)
}

/// Chooses a node for a pod, with the plans for its claims there.
fn choose<'a>(view: &'a View, pod: &'a Value) -> Result<(&'a Value, Plans<'a>), String> {
    let nodes: Vec<&Value> = view.all("nodes").collect();
    let none = |why: &str| format!("0/{} nodes are available: {why}.", nodes.len());
    let claims = claims(view, pod).map_err(|why| none(&why))?;
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut fit = Vec::new();
    for node in &nodes {
        match plans(view, pod, &claims, node) {
            Ok(plans) => fit.push((*node, plans)),
            Err(why) => *reasons.entry(why).or_default() += 1,
        }
    }
    // The node with the fewest pods; of equal ones, any.
    let rank = |node: &Value| {
        let on_node = |pod: &&Value| text(pod, "/spec/nodeName") == name(node) && !has_ended(pod);
        let mut hasher = DefaultHasher::new();
        (uid(pod), name(node)).hash(&mut hasher);
        (view.all("pods").filter(on_node).count(), hasher.finish())
    };
    let best = fit.into_iter().min_by_key(|(node, _)| rank(node));
    best.ok_or_else(|| {
        let reasons = reasons.iter().map(|(why, count)| format!("{count} {why}"));
        none(&reasons.collect::<Vec<_>>().join(", "))
    })
}

/// The claims of a pod. An error says why no node will do.
fn claims<'a>(view: &'a View, pod: &Value) -> Result<Vec<&'a Value>, String> {
    let mut claims = Vec::new();
    for (claim_name, is_ephemeral) in claims_of(pod) {
        let Some(claim) = view.get(CLAIMS, namespace(pod), &claim_name) else {
            return Err(if is_ephemeral {
                format!(
                    "waiting for ephemeral volume controller to create the persistentvolumeclaim \
                     {claim_name:?}"
                )
            } else {
                format!("persistentvolumeclaim {claim_name:?} not found")
            });
        };
        if text(claim, "/status/phase") == "Lost" {
            let volume = text(claim, "/spec/volumeName");
            let lost = format!("bound to non-existent persistentvolume {volume:?}");
            return Err(format!("persistentvolumeclaim {claim_name:?} {lost}"));
        }
        if is_deleting(claim) {
            return Err(format!(
                "persistentvolumeclaim {claim_name:?} is being deleted"
            ));
        }
        if is_ephemeral && !is_for_pod(claim, pod) {
            return Err(format!("PVC {claim_name} was not created for the pod"));
        }
        claims.push(claim);
    }
    // The scheduler looks for all claims first.
    if claims
        .iter()
        .any(|claim| !is_bound(claim) && !waits_for_pod(view, claim))
    {
        return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
    }
    if claims.iter().any(|claim| is_taken(view, pod, claim)) {
        let why = "node has pod using PersistentVolumeClaim with the same name and \
                   ReadWriteOncePod access mode";
        return Err(why.to_owned());
    }
    Ok(claims)
}

/// True if a claim is for one pod, and another one on a node uses it.
fn is_taken(view: &View, pod: &Value, claim: &Value) -> bool {
    items(claim, "/spec/accessModes").any(|mode| mode == "ReadWriteOncePod")
        && view
            .all("pods")
            .any(|other| is_user(other, pod, name(claim)))
}

/// True if another pod on a node uses a claim.
fn is_user(other: &Value, pod: &Value, claim: &str) -> bool {
    uid(other) != uid(pod)
        && namespace(other) == namespace(pod)
        && !text(other, "/spec/nodeName").is_empty()
        && !has_ended(other)
        && claims_of(other).iter().any(|(used, _)| used == claim)
}

fn is_bound(claim: &Value) -> bool {
    !text(claim, "/spec/volumeName").is_empty()
        && annotation(claim, "pv.kubernetes.io/bind-completed").is_some()
}

fn waits_for_pod(view: &View, claim: &Value) -> bool {
    let class = view.get("storageclasses", "", text(claim, "/spec/storageClassName"));
    text(claim, "/spec/volumeName").is_empty()
        && class.is_some_and(|class| text(class, "/volumeBindingMode") == "WaitForFirstConsumer")
}

/// What becomes of a pod's unbound claims on a node. An error says why the node will not do.
fn plans<'a>(
    view: &View,
    pod: &Value,
    claims: &[&'a Value],
    node: &Value,
) -> Result<Plans<'a>, String> {
    let labels = &node["metadata"]["labels"];
    takes_pod(pod, node)?;
    if exceeds_limit(view, pod, claims, node) {
        return Err("node(s) exceed max volume count".to_owned());
    }
    let mut plans = Vec::new();
    for claim in claims {
        if is_bound(claim) {
            let volume = view.get(VOLUMES, "", text(claim, "/spec/volumeName"));
            let Some(volume) = volume else {
                let why = "node(s) unavailable due to one or more pvc(s) bound to non-existent \
                           pv(s)";
                return Err(why.to_owned());
            };
            if !is_reachable(volume, labels) {
                return Err("node(s) didn't match PersistentVolume's node affinity".to_owned());
            }
            continue;
        }
        let no_match = || "node(s) didn't find available persistent volumes to bind".to_owned();
        let selected = annotation(claim, SELECTED_NODE);
        if selected.is_some_and(|selected| selected != name(node)) {
            return Err(no_match());
        }
        let volume = best_volume(view, claim, Some(labels), true).filter(|_| selected.is_none());
        let plan = match volume {
            Some(volume) => Plan::Bind(volume.clone()),
            None => {
                let class = text(claim, "/spec/storageClassName");
                let class = view.get("storageclasses", "", class).ok_or_else(no_match)?;
                let provisioner = text(class, "/provisioner");
                if provisioner == "kubernetes.io/no-provisioner" || !is_allowed(class, labels) {
                    return Err(no_match());
                }
                if !has_room(view, claim, class, labels) {
                    return Err("node(s) did not have enough free storage".to_owned());
                }
                Plan::Provision
            }
        };
        plans.push((*claim, plan));
    }
    Ok(plans)
}

/// Checks a pod against a node, without its volumes.
fn takes_pod(pod: &Value, node: &Value) -> Result<(), String> {
    let labels = &node["metadata"]["labels"];
    let tolerates = |taint: &&Value| {
        items(pod, "/spec/tolerations").any(|one| {
            let is_any = text(one, "/key").is_empty() && one["operator"] == "Exists";
            let is_key = one["key"] == taint["key"]
                && (one["operator"] == "Exists" || text(one, "/value") == text(taint, "/value"));
            let effect = text(one, "/effect");
            (is_any || is_key) && ["", text(taint, "/effect")].contains(&effect)
        })
    };
    if node["spec"]["unschedulable"] == true {
        return Err("node(s) were unschedulable".to_owned());
    }
    let hard = |taint: &&Value| taint["effect"] != "PreferNoSchedule";
    if items(node, "/spec/taints")
        .filter(hard)
        .any(|taint| !tolerates(&taint))
    {
        return Err("node(s) had untolerated taint(s)".to_owned());
    }
    let is_selected = selects(&json!({"matchLabels": pod["spec"]["nodeSelector"]}), labels);
    let required = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    let affinity = pod
        .pointer(required)
        .map(|required| json!({"spec": {"nodeAffinity": {"required": required}}}));
    if !is_selected || affinity.is_some_and(|affinity| !is_reachable(&affinity, labels)) {
        return Err("node(s) didn't match Pod's node affinity/selector".to_owned());
    }
    Ok(())
}

/// True if the volumes of a pod are too many for a node, with those that other pods have there.
fn exceeds_limit(view: &View, pod: &Value, claims: &[&Value], node: &Value) -> bool {
    let Some(csi_node) = view.get("csinodes", "", name(node)) else {
        return false;
    };
    let driver_of = |claim: &Value| {
        let volume = view.get(VOLUMES, "", text(claim, "/spec/volumeName"));
        let class = view.get("storageclasses", "", text(claim, "/spec/storageClassName"));
        volume.map_or_else(
            || {
                class.map_or(String::new(), |class| {
                    text(class, "/provisioner").to_owned()
                })
            },
            |volume| text(volume, "/spec/csi/driver").to_owned(),
        )
    };
    items(csi_node, "/spec/drivers").any(|driver| {
        let Some(limit) = driver["allocatable"]["count"].as_u64() else {
            return false;
        };
        let is_mine = |claim: &&Value| driver_of(claim) == text(driver, "/name");
        let here = view.all("pods").filter(|other| {
            text(other, "/spec/nodeName") == name(node)
                && uid(other) != uid(pod)
                && !has_ended(other)
        });
        let theirs = here.flat_map(|other| {
            claims_of(other)
                .into_iter()
                .filter_map(|(claim, _)| view.get(CLAIMS, namespace(other), &claim))
        });
        let mut used: Vec<&str> = theirs.filter(|claim| is_mine(claim)).map(uid).collect();
        let new = claims
            .iter()
            .filter(|claim| is_mine(claim))
            .map(|claim| uid(claim));
        let new: Vec<&str> = new.filter(|claim| !used.contains(claim)).collect();
        let is_new = !new.is_empty();
        used.extend(new);
        used.sort_unstable();
        used.dedup();
        is_new && used.len() as u64 > limit
    })
}

/// True if a class allows volumes on a node with these labels.
fn is_allowed(class: &Value, labels: &Value) -> bool {
    let mut terms = items(class, "/allowedTopologies").peekable();
    terms.peek().is_none()
        || terms.any(|term| {
            items(term, "/matchLabelExpressions")
                .all(|one| items(one, "/values").any(|value| *value == labels[text(one, "/key")]))
        })
}

/// True if the reported capacities have room for a claim on a node with these labels.
fn has_room(view: &View, claim: &Value, class: &Value, labels: &Value) -> bool {
    let driver = view.get("csidrivers", "", text(class, "/provisioner"));
    if driver.is_none_or(|driver| driver["spec"]["storageCapacity"] != true) {
        return true;
    }
    let wanted = size(claim, "/spec/resources/requests/storage").unwrap_or(0);
    view.all("csistoragecapacities").any(|capacity| {
        let limit = size(capacity, "/maximumVolumeSize").or_else(|| size(capacity, "/capacity"));
        text(capacity, "/storageClassName") == name(class)
            && limit.is_some_and(|limit| limit >= wanted)
            && !capacity["nodeTopology"].is_null()
            && selects(&capacity["nodeTopology"], labels)
    })
}
