//! What a controller sees of the cluster, and what it writes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use http::Request;
use kube::Client;
use kube::api::WatchEvent;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

/// The annotation of a claim with the node that its volume is made on.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The annotation of a volume with the provisioner that made it, and that deletes it.
pub(crate) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// The label of a content with the node of its data.
pub(crate) const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// The time before a controller lists again, or tries a write again.
const RETRY: Duration = Duration::from_secs(1);

/// The objects of some kinds.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// By plural and then by key.
    kinds: BTreeMap<String, BTreeMap<String, Entry>>,
    /// How many objects have arrived so far.
    arrived: u64,
}

/// An object in a view.
#[derive(Debug)]
pub(super) struct Entry {
    /// A number that no other arrival of an object has. A version may come back with another content
    /// when the API server goes back to a backup.
    pub(super) arrival: u64,
    pub(super) object: Value,
}

impl View {
    /// All objects of a kind (by plural).
    pub(crate) fn all(&self, plural: &str) -> impl Iterator<Item = &Value> + use<'_> {
        let kind = self.kinds.get(plural).into_iter();
        kind.flat_map(BTreeMap::values).map(|entry| &entry.object)
    }

    /// All objects of a kind (by plural), each with its key.
    pub(super) fn entries(&self, plural: &str) -> impl Iterator<Item = (&String, &Entry)> {
        self.kinds.get(plural).into_iter().flatten()
    }

    /// An object; the namespace of a cluster-wide one is empty.
    pub(crate) fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<&Value> {
        Some(&self.kinds.get(plural)?.get(&key(namespace, name))?.object)
    }

    /// The arrival of the object with this key, if there is one.
    pub(super) fn arrival(&self, plural: &str, key: &str) -> Option<u64> {
        Some(self.kinds.get(plural)?.get(key)?.arrival)
    }

    pub(super) fn put(&mut self, plural: &str, object: Value) {
        self.arrived += 1;
        let at = key(namespace(&object), name(&object));
        let entry = Entry {
            arrival: self.arrived,
            object,
        };
        let kind = self.kinds.entry(plural.to_owned()).or_default();
        kind.insert(at, entry);
    }

    pub(super) fn take(&mut self, plural: &str, object: &Value) {
        if let Some(kind) = self.kinds.get_mut(plural) {
            kind.remove(&key(namespace(object), name(object)));
        }
    }
}

/// The key of an object; the namespace of a cluster-wide one is empty.
pub(super) fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// The field at a path in an object. Unlike [`Value::pointer`], it makes no text: models look here
/// thousands of times for each change.
fn field<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    let mut names = pointer.split('/').skip(1);
    names.try_fold(object, |value, name| value.get(name))
}

/// A text in an object; empty if it is missing.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    field(object, pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// The items of a list in an object.
pub(crate) fn items<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    field(object, pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

pub(crate) fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

pub(crate) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub(crate) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

pub(crate) fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str()
}

/// What an event is about, in both of its APIs.
pub(crate) fn event_about(event: &Value) -> &Value {
    if event["regarding"].is_null() {
        &event["involvedObject"]
    } else {
        &event["regarding"]
    }
}

/// What an event says, in both of its APIs; empty if it says nothing.
pub(crate) fn event_note(event: &Value) -> &str {
    if event["note"].is_null() {
        text(event, "/message")
    } else {
        text(event, "/note")
    }
}

/// True if a claim has no volume.
pub(crate) fn is_unbound(claim: &Value) -> bool {
    ["", "Pending"].contains(&text(claim, "/status/phase"))
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

pub(crate) fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    items(object, "/metadata/finalizers").any(|one| *one == *finalizer)
}

/// The list of an object's finalizers without one of them.
pub(crate) fn without_finalizer(object: &Value, finalizer: &str) -> Value {
    items(object, "/metadata/finalizers")
        .filter(|one| **one != *finalizer)
        .cloned()
        .collect()
}

/// A size in billionths of a byte; none if it is missing.
pub(crate) fn size(object: &Value, pointer: &str) -> Option<i128> {
    hostloop_fake_api::quantity::nanos(text(object, pointer))
}

/// The claims of a pod's volumes, as `(claim name, true for an ephemeral volume)`.
pub(crate) fn claims_of(pod: &Value) -> Vec<(String, bool)> {
    items(pod, "/spec/volumes")
        .filter_map(|volume| {
            if volume["ephemeral"].is_object() {
                return Some((format!("{}-{}", name(pod), text(volume, "/name")), true));
            }
            let claim = volume["persistentVolumeClaim"]["claimName"].as_str()?;
            Some((claim.to_owned(), false))
        })
        .collect()
}

/// True if a claim has been made for a pod.
pub(crate) fn is_for_pod(claim: &Value, pod: &Value) -> bool {
    items(claim, "/metadata/ownerReferences")
        .any(|owner| owner["controller"] == true && owner["uid"] == pod["metadata"]["uid"])
}

/// The reference of a snapshot to the group that it is a member of.
pub(crate) fn group_reference(snapshot: &Value) -> Option<&Value> {
    let mut owners = items(snapshot, "/metadata/ownerReferences");
    owners.find(|owner| owner["kind"] == "VolumeGroupSnapshot")
}

/// True if a pod has ended, so that it does not start again.
pub(crate) fn has_ended(pod: &Value) -> bool {
    ["Succeeded", "Failed"].contains(&text(pod, "/status/phase"))
}

/// True if a node is ready.
pub(crate) fn is_ready(node: &Value) -> bool {
    condition(node, "Ready") == Some("True")
}

/// True if a node has a taint with this key.
pub(crate) fn has_taint(node: &Value, key: &str) -> bool {
    items(node, "/spec/taints").any(|taint| taint["key"] == *key)
}

/// The taints of a node that have other keys.
pub(crate) fn taints_beside(node: &Value, key: &str) -> Vec<Value> {
    items(node, "/spec/taints")
        .filter(|taint| taint["key"] != *key)
        .cloned()
        .collect()
}

/// The status of an object's condition of this type.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    let mut all = items(object, "/status/conditions");
    all.find(|one| one["type"] == kind)?["status"].as_str()
}

/// The status of an object with this condition in place of the one of its type.
pub(crate) fn with_condition(object: &Value, condition: Value) -> Value {
    let others = items(object, "/status/conditions").filter(|one| one["type"] != condition["type"]);
    let conditions: Vec<Value> = others.cloned().chain([condition.clone()]).collect();
    json!({"conditions": conditions})
}

/// A write of a controller.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) body: Value,
}

impl Step {
    /// Creates an object, which has its kind and version.
    pub(crate) fn create(plural: &str, object: Value) -> Step {
        let path = collection(plural, namespace(&object));
        Step {
            method: "POST",
            path,
            body: object,
        }
    }

    /// Changes this version of an object.
    pub(crate) fn merge(plural: &str, object: &Value, mut patch: Value) -> Step {
        patch["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
        Step {
            method: "PATCH",
            path: path_of(plural, object),
            body: patch,
        }
    }

    /// Changes the status of this version of an object.
    pub(crate) fn status(plural: &str, object: &Value, status: Value) -> Step {
        let mut step = Step::merge(plural, object, json!({"status": status}));
        step.path.push_str("/status");
        step
    }

    /// Deletes an object if it is still the same.
    pub(crate) fn delete(plural: &str, object: &Value) -> Step {
        let body = json!({"preconditions": {"uid": object["metadata"]["uid"]}});
        Step {
            method: "DELETE",
            path: path_of(plural, object),
            body,
        }
    }

    /// Sends an event about an object. `who` is the component that sends it.
    pub(crate) fn event(
        who: &str,
        object: &Value,
        (kind, reason): (&str, &str),
        message: &str,
    ) -> Step {
        let space = Some(namespace(object))
            .filter(|space| !space.is_empty())
            .unwrap_or("default");
        let about = json!({"kind": object["kind"], "apiVersion": object["apiVersion"],
            "namespace": object["metadata"]["namespace"], "name": name(object),
            "uid": uid(object), "resourceVersion": object["metadata"]["resourceVersion"]});
        let event = json!({"apiVersion": "v1", "kind": "Event",
            "metadata": {"namespace": space, "generateName": format!("{}.", name(object))},
            "involvedObject": about, "type": kind, "reason": reason, "message": message,
            "count": 1, "source": {"component": who}, "reportingComponent": who});
        Step::create("events", event)
    }

    fn is_event(&self) -> bool {
        self.body["kind"] == "Event"
    }
}

/// The plural of a kind.
pub(crate) fn plural(kind: &str) -> String {
    let end = if kind.ends_with('s') { "es" } else { "s" };
    format!("{}{end}", kind.to_lowercase())
}

/// The path of the objects of a kind (by plural). The namespace of a cluster-wide kind is empty.
pub(crate) fn collection(plural: &str, namespace: &str) -> String {
    let group = match plural {
        "volumeattachments"
        | "storageclasses"
        | "csinodes"
        | "csidrivers"
        | "csistoragecapacities"
        | "volumeattributesclasses" => "/apis/storage.k8s.io/v1",
        "volumesnapshots" | "volumesnapshotcontents" | "volumesnapshotclasses" => {
            "/apis/snapshot.storage.k8s.io/v1"
        }
        "volumegroupsnapshots" | "volumegroupsnapshotcontents" | "volumegroupsnapshotclasses" => {
            "/apis/groupsnapshot.storage.k8s.io/v1"
        }
        "leases" => "/apis/coordination.k8s.io/v1",
        "deployments" | "daemonsets" | "replicasets" | "statefulsets" => "/apis/apps/v1",
        _ => "/api/v1",
    };
    match namespace {
        "" => format!("{group}/{plural}"),
        namespace => format!("{group}/namespaces/{namespace}/{plural}"),
    }
}

pub(crate) fn path_of(plural: &str, object: &Value) -> String {
    format!("{}/{}", collection(plural, namespace(object)), name(object))
}

/// A controller as a function of what it sees.
pub(crate) trait Model {
    /// The kinds that it watches, by plural.
    const KINDS: &[&str];

    /// The longest time between two decisions.
    const PERIOD: Duration;

    /// Decides what to write. It is asked again after each change of what it sees, so a change of
    /// several steps can return the first of them alone.
    fn decide(&mut self, view: &View, now: Instant) -> Vec<Step>;

    /// The time to the next decision if nothing changes.
    fn wait(&self, _now: Instant) -> Duration {
        Self::PERIOD
    }
}

/// Runs a controller until it is dropped. An event is sent once for an object, reason and message.
pub(crate) async fn run<M: Model>(client: Client, mut model: M) {
    let mut cache = Cache::new(&client, M::KINDS);
    let mut sent = Sent::default();
    loop {
        if cache.is_complete() {
            let (mut failed, mut changed) = (false, false);
            for step in model.decide(&cache.view, Instant::now()) {
                if step.is_event() && !sent.is_new(&step) {
                    continue;
                }
                failed |= write(&client, &step).await.is_err();
                changed |= cache.absorb();
            }
            if failed {
                sleep(RETRY).await;
                cache.absorb();
                continue;
            }
            if changed {
                continue;
            }
        }
        let _ = timeout(model.wait(Instant::now()), cache.change()).await;
        cache.absorb();
    }
}

/// The latest events that were sent.
#[derive(Default)]
struct Sent {
    known: BTreeSet<String>,
    order: VecDeque<String>,
}

impl Sent {
    /// The number of events to remember.
    const ROOM: usize = 1000;

    fn is_new(&mut self, step: &Step) -> bool {
        let field = |pointer: &str| text(&step.body, pointer);
        let about = field("/involvedObject/uid");
        let key = format!("{about} {} {}", field("/reason"), field("/message"));
        if !self.known.insert(key.clone()) {
            return false;
        }
        self.order.push_back(key);
        if self.order.len() > Sent::ROOM
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

/// Sends a write.
pub(crate) async fn write(client: &Client, step: &Step) -> kube::Result<Value> {
    let content = match step.method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder().method(step.method).uri(&step.path);
    let request = request.header("content-type", content);
    client
        .request(
            request
                .body(step.body.to_string().into_bytes())
                .expect("a request"),
        )
        .await
}

/// A change that a watch reports.
enum Change {
    /// All objects of the kind.
    All(Vec<Value>),
    Put(Value),
    Gone(Value),
}

type Changes = futures::stream::BoxStream<'static, (&'static str, Change)>;

/// Keeps a view up to date.
struct Cache {
    view: View,
    changes: futures::stream::SelectAll<Changes>,
    missing: BTreeSet<&'static str>,
}

impl Cache {
    fn new(client: &Client, kinds: &'static [&'static str]) -> Cache {
        let changes = kinds.iter().map(|kind| changes(client.clone(), kind));
        Cache {
            view: View::default(),
            changes: changes.collect(),
            missing: kinds.iter().copied().collect(),
        }
    }

    /// True once all kinds have been listed.
    fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Waits for a change, and takes it in.
    async fn change(&mut self) {
        let Some((plural, change)) = self.changes.next().await else {
            return;
        };
        match change {
            Change::Put(object) => self.view.put(plural, object),
            Change::Gone(object) => self.view.take(plural, &object),
            Change::All(objects) => {
                self.missing.remove(plural);
                self.view.kinds.remove(plural);
                objects
                    .into_iter()
                    .for_each(|object| self.view.put(plural, object));
            }
        }
    }

    /// Takes in all changes that have arrived. False if there are none.
    fn absorb(&mut self) -> bool {
        let mut any = false;
        while self.change().now_or_never().is_some() {
            any = true;
        }
        any
    }
}

/// The state of a watch.
struct Watch {
    client: Client,
    plural: &'static str,
    /// The version that has been seen; none before a list.
    version: Option<String>,
    events: Option<Events>,
}

type Events = futures::stream::BoxStream<'static, kube::Result<WatchEvent<Value>>>;

/// Lists a kind and follows its changes. It lists again when the server has forgotten some.
fn changes(client: Client, plural: &'static str) -> Changes {
    let watch = Watch {
        client,
        plural,
        version: None,
        events: None,
    };
    futures::stream::unfold(watch, |mut watch| {
        let next: BoxFuture<'static, _> = async move {
            let change = watch.next().await;
            Some(((watch.plural, change), watch))
        }
        .boxed();
        next
    })
    .boxed()
}

impl Watch {
    async fn next(&mut self) -> Change {
        loop {
            let Some(version) = self.version.clone() else {
                if let Some(all) = self.list().await {
                    return all;
                }
                sleep(RETRY).await;
                continue;
            };
            let Some(events) = &mut self.events else {
                self.events = follow(self.client.clone(), self.plural, &version).await;
                if self.events.is_none() {
                    sleep(RETRY).await;
                }
                continue;
            };
            let (object, is_gone) = match events.next().await {
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    (object, false)
                }
                Some(Ok(WatchEvent::Deleted(object))) => (object, true),
                Some(Ok(WatchEvent::Bookmark(_))) => continue,
                // The changes since are forgotten.
                Some(Ok(WatchEvent::Error(_))) => {
                    (self.version, self.events) = (None, None);
                    continue;
                }
                Some(Err(_)) | None => {
                    self.events = None;
                    continue;
                }
            };
            self.version = Some(text(&object, "/metadata/resourceVersion").to_owned());
            return if is_gone {
                Change::Gone(object)
            } else {
                Change::Put(object)
            };
        }
    }

    async fn list(&mut self) -> Option<Change> {
        let request = Request::get(collection(self.plural, ""))
            .body(Vec::new())
            .ok()?;
        let list: Value = self.client.request(request).await.ok()?;
        self.version = Some(text(&list, "/metadata/resourceVersion").to_owned());
        let kind = text(&list, "/kind").trim_end_matches("List");
        let all = items(&list, "/items").map(|item| {
            let mut item = item.clone();
            item["kind"] = json!(kind);
            item["apiVersion"] = list["apiVersion"].clone();
            item
        });
        Some(Change::All(all.collect()))
    }
}

/// Starts to watch a kind after a version. None if the server does not answer.
async fn follow(client: Client, plural: &str, version: &str) -> Option<Events> {
    let query = format!("watch=true&resourceVersion={version}&timeoutSeconds=600");
    let path = format!("{}?{query}", collection(plural, ""));
    let request = Request::get(path).body(Vec::new()).ok()?;
    let events = client.request_events::<Value>(request).await.ok()?;
    Some(events.boxed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_plurals() {
        for (kind, expected) in [
            ("Pod", "pods"),
            ("StorageClass", "storageclasses"),
            ("VolumeSnapshotContent", "volumesnapshotcontents"),
            ("VolumeGroupSnapshotClass", "volumegroupsnapshotclasses"),
        ] {
            assert_eq!(plural(kind), expected);
        }
    }
}
