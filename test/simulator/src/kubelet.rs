//! A model of kubelet's volume manager: its calls, their order, retries and backoff.
//!
//! Work on one volume is serial, work on several runs side by side. A failed call is repeated after
//! half a second, then after twice as long, up to two minutes and two seconds. A call has two
//! minutes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hostloop_fake_api::FakeApi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use http::Method;
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Status;

use crate::cluster::DRIVER;
use crate::model::view::{is_deleting, is_ready, name, namespace, uid, with_condition};
use crate::users::{Refused, bytes, path_in, send, volume_path};
use crate::{messages, trace};

use self::attachments::Attachments;
use self::line::Line;
use self::secrets::Secrets;
use self::wanted::{Pod, Wanted, grows_to, inline};
use self::work::Work;

mod attachments;
mod calls;
pub(crate) mod line;
mod registration;
mod secrets;
mod wanted;
mod work;
mod writes;

const FIRST_DELAY: Duration = Duration::from_millis(500);
const LAST_DELAY: Duration = Duration::from_secs(122);
/// The wait before kubelet compares what pods want with what is there.
const LOOK: Duration = Duration::from_millis(300);
/// The longest time in which calls about one volume may find no thread in the driver. The longest
/// work but copies takes 15 seconds, so others end soon; kubelet's own backoff is two minutes.
const STARVED: Duration = Duration::from_secs(300);

/// A volume that is in place for a pod.
#[derive(Clone, Debug)]
struct Published {
    handle: String,
    target: PathBuf,
    /// False if the call had no final answer.
    certain: bool,
}

#[derive(Clone, Debug)]
struct Staged {
    path: PathBuf,
    /// False if the call had no final answer.
    certain: bool,
}

#[derive(Clone, Default)]
struct State {
    /// By UID of the pod and handle.
    published: BTreeMap<(String, String), Published>,
    staged: BTreeMap<String, Staged>,
    /// The handles of all volumes that were ever staged for certain.
    ever_staged: BTreeSet<String>,
    /// What is under way, by handle.
    busy: BTreeMap<String, Work>,
    retries: BTreeMap<String, (Instant, Duration)>,
    /// Since when calls about a volume find no thread in the driver, by handle.
    starved: BTreeMap<String, Instant>,
    /// The node has its objects, as far as this kubelet knows.
    is_registered: bool,
    /// Why volumes are not mounted, by UID of the pod and handle. Users see it in events.
    complaints: BTreeMap<(String, String), String>,
    /// When running pods write to volumes next, by UID of the pod and handle.
    writes: BTreeMap<(String, String), Instant>,
}

/// The kubelet of a node. Clones share its state.
#[derive(Clone)]
pub(crate) struct Kubelet {
    api: FakeApi,
    client: Client,
    node: &'static str,
    line: Line,
    dir: PathBuf,
    state: Arc<Mutex<State>>,
}

impl Kubelet {
    /// The kubelet of a node, which calls its driver over this line.
    pub(crate) fn new(
        api: FakeApi,
        client: Client,
        node: &'static str,
        line: Line,
        dir: &Path,
    ) -> Kubelet {
        Kubelet {
            api,
            client,
            node,
            line,
            dir: dir.join("kubelet"),
            state: Arc::default(),
        }
    }

    /// The kubelet that starts after this one has died. It finds what is in place on the node, but
    /// not how far calls under way have come, so it counts their volumes as maybe in place.
    pub(crate) fn successor(&self) -> Kubelet {
        let mut state = self.state.lock().clone();
        for work in std::mem::take(&mut state.busy).into_values() {
            let Work::Mount(wanted) = work else {
                continue;
            };
            if !wanted.inline {
                let staged = Staged {
                    path: self.staging(&wanted),
                    certain: false,
                };
                state.staged.entry(wanted.handle.clone()).or_insert(staged);
            }
            let published = Published {
                handle: wanted.handle.clone(),
                target: self.target(&wanted),
                certain: false,
            };
            state.published.entry(wanted.key()).or_insert(published);
        }
        state.retries.clear();
        state.starved.clear();
        state.is_registered = false;
        state.complaints.clear();
        Kubelet {
            state: Arc::new(Mutex::new(state)),
            ..self.clone()
        }
    }

    /// The kubelet that starts after its node has. It finds the folders of all that was in place,
    /// and nothing mounted in them.
    pub(crate) fn after_reboot(&self) -> Kubelet {
        let next = self.successor();
        {
            let mut state = next.state.lock();
            let published = state.published.values_mut();
            published.for_each(|one| one.certain = false);
            state
                .staged
                .values_mut()
                .for_each(|one| one.certain = false);
            // No pod runs.
            state.writes.clear();
        }
        next
    }

    /// Runs until it is dropped. `writes` changes with each write to the API server.
    pub(crate) async fn run(self, mut writes: watch::Receiver<u64>) {
        let mut work = JoinSet::new();
        loop {
            writes.borrow_and_update();
            let retry = self.look(&mut work).await;
            let at = retry.unwrap_or_else(Instant::now);
            tokio::select! {
                changed = writes.changed() => if changed.is_err() { return },
                Some(ended) = work.join_next(), if !work.is_empty() => {
                    if let Err(error) = ended {
                        trace::violation(format!("kubelet: {error}"));
                    }
                }
                () = tokio::time::sleep_until(at), if retry.is_some() => {}
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// True if nothing is staged or published.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.published.is_empty() && state.staged.is_empty()
    }

    /// True if no work is under way, and none has to be tried again.
    pub(crate) fn is_at_rest(&self) -> bool {
        let state = self.state.lock();
        state.busy.is_empty() && state.retries.is_empty() && state.starved.is_empty()
    }

    /// What the events of a pod say about its volumes that are not mounted.
    pub(crate) fn complaints(&self, pod: &str) -> Vec<String> {
        let state = self.state.lock();
        let of_pod = state.complaints.iter().filter(|((uid, _), _)| uid == pod);
        of_pod.map(|(_, why)| why.clone()).collect()
    }

    /// True if the volume with this handle is in use on the node.
    pub(crate) fn uses(&self, handle: &str) -> bool {
        let state = self.state.lock();
        state.staged.contains_key(handle)
            || state
                .published
                .keys()
                .any(|(_, published)| published == handle)
    }

    /// True if the volume with this handle was ever staged for certain. No pod writes to a volume
    /// before that.
    pub(crate) fn has_staged(&self, handle: &str) -> bool {
        self.state.lock().ever_staged.contains(handle)
    }

    /// The handles of the volumes that are staged for certain.
    pub(crate) fn staged(&self) -> Vec<String> {
        let state = self.state.lock();
        let certain = state.staged.iter().filter(|(_, staged)| staged.certain);
        certain.map(|(handle, _)| handle.clone()).collect()
    }

    /// Where the volume with this handle is published or may be.
    pub(crate) fn targets(&self, handle: &str) -> Vec<PathBuf> {
        let state = self.state.lock();
        let published = state.published.values();
        let its = published.filter(|published| published.handle == handle);
        its.map(|published| published.target.clone()).collect()
    }

    /// Begins what is due. Returns when something else is due, if that is known.
    async fn look(&self, work: &mut JoinSet<()>) -> Option<Instant> {
        let (mut next, mut wanted) = (None, BTreeMap::new());
        if self.register().await.is_err() || self.report_ready().await.is_err() {
            next = Some(Instant::now() + FIRST_DELAY);
        }
        for pod in self.api.shared("pods") {
            if pod["spec"]["nodeName"] != self.node {
                continue;
            }
            if is_deleting(&pod) {
                if self.remove(&pod).await.is_err() {
                    next = Some(Instant::now() + FIRST_DELAY);
                }
                continue;
            }
            for one in self.start(&pod).await {
                wanted.insert(one.key(), one);
            }
        }
        if self.report_in_use(&wanted).await.is_err() {
            next = Some(Instant::now() + FIRST_DELAY);
        }
        let attachments = self.attachments(&wanted);
        self.begin_due(work, wanted, &attachments, next)
    }

    /// Removes a deleted pod, if none of its volumes is in place any more.
    async fn remove(&self, pod: &Value) -> Result<(), Refused> {
        let user = uid(pod);
        let is_used = self
            .state
            .lock()
            .published
            .keys()
            .any(|(pod, _)| *pod == user);
        if is_used {
            return Ok(());
        }
        let at = path_in(namespace(pod), "pods", name(pod));
        let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": user}});
        let sent = send(&self.client, Method::DELETE, &at, &options).await;
        sent.map(drop)
    }

    /// Lets a pod run if all its volumes are in place. Returns those that it wants.
    async fn start(&self, pod: &Value) -> Vec<Wanted> {
        let (volumes, complete) = self.volumes(pod);
        let ready = complete && self.are_published(&volumes);
        if ready && pod["status"]["phase"] != "Running" {
            let at = path_in(namespace(pod), "pods", name(pod));
            let at = format!("{at}/status");
            let status = json!({"status": {"phase": "Running"}});
            let _ = send(&self.client, Method::PATCH, &at, &status).await;
        }
        if ready {
            self.write_when_due(&volumes);
        }
        volumes
    }

    /// Begins the work that is due, unless its volume is busy, or it waits to be tried again.
    /// Returns the time of the next try, or `next` if that is earlier.
    fn begin_due(
        &self,
        work: &mut JoinSet<()>,
        wanted: BTreeMap<(String, String), Wanted>,
        attachments: &Attachments,
        mut next: Option<Instant>,
    ) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let due = state.due(wanted, attachments);
        state.forget_but(&due);
        for one in due {
            let retry = state
                .retries
                .get(&one.key())
                .map(|(at, _)| *at)
                .filter(|at| *at > now);
            if let Some(at) = retry {
                next = Some(next.map_or(at, |next: Instant| next.min(at)));
            } else if let Entry::Vacant(free) = state.busy.entry(one.handle().to_owned()) {
                free.insert(one.clone());
                work.spawn(self.clone().perform(one));
            }
        }
        next
    }

    /// Says that the node is ready, if the API server has something else.
    async fn report_ready(&self) -> Result<(), Refused> {
        let at = format!("/api/v1/nodes/{}", self.node);
        let Some(node) = self.api.shared_at(&at).filter(|node| !is_ready(node)) else {
            return Ok(());
        };
        let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady"});
        let status = json!({"status": with_condition(&node, ready)});
        let at = format!("{at}/status");
        let sent = send(&self.client, Method::PATCH, &at, &status).await;
        sent.map(drop)
    }

    fn are_published(&self, volumes: &[Wanted]) -> bool {
        let state = self.state.lock();
        let published = &state.published;
        volumes
            .iter()
            .all(|one| published.get(&one.key()).is_some_and(|one| one.certain))
    }

    /// The volumes of a pod that can be mounted, and whether these are all of them.
    fn volumes(&self, pod: &Value) -> (Vec<Wanted>, bool) {
        let of = |field: &Value| field.as_str().unwrap_or_default().to_owned();
        let owner = Pod {
            name: of(&pod["metadata"]["name"]),
            namespace: of(&pod["metadata"]["namespace"]),
            uid: of(&pod["metadata"]["uid"]),
            account: "default".to_owned(),
        };
        let (mut found, mut complete) = (Vec::new(), true);
        for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
            if volume["csi"]["driver"] == DRIVER {
                found.push(inline(&owner, volume));
                continue;
            }
            let named = volume["persistentVolumeClaim"]["claimName"].as_str();
            let claim = match named {
                Some(name) => name.to_owned(),
                None if volume["ephemeral"].is_object() => {
                    format!("{}-{}", owner.name, of(&volume["name"]))
                }
                None => continue,
            };
            match self.persistent(&owner, &claim) {
                Some(wanted) => found.push(wanted),
                None => complete = false,
            }
        }
        (found, complete)
    }

    fn persistent(&self, pod: &Pod, claim: &str) -> Option<Wanted> {
        let claims = path_in(&pod.namespace, "persistentvolumeclaims", claim);
        let object = self.api.shared_at(&claims)?;
        if object["status"]["phase"] != "Bound" {
            return None;
        }
        let name = object["spec"]["volumeName"].as_str()?;
        let volume = self.api.shared_at(&volume_path(name))?;
        let spec = &volume["spec"];
        let of = |field: &Value| field.as_str().unwrap_or_default().to_owned();
        if spec["csi"]["driver"] != DRIVER || spec["claimRef"]["uid"] != object["metadata"]["uid"] {
            return None;
        }
        let modes = spec["accessModes"].as_array();
        let mode = modes
            .and_then(|modes| modes.first())
            .and_then(Value::as_str);
        let attributes = spec["csi"]["volumeAttributes"]
            .as_object()
            .into_iter()
            .flatten();
        let mut attributes: BTreeMap<String, String> = attributes
            .map(|(key, value)| (key.clone(), of(value)))
            .collect();
        attributes.extend(pod.info("false"));
        let flags = spec["mountOptions"].as_array().into_iter().flatten();
        Some(Wanted {
            pod: pod.clone(),
            name: name.to_owned(),
            handle: of(&spec["csi"]["volumeHandle"]),
            block: spec["volumeMode"] == "Block",
            read_only: false,
            inline: false,
            fs: of(&spec["csi"]["fsType"]),
            mode: match mode {
                Some("ReadWriteOncePod") => Mode::SingleNodeSingleWriter,
                Some("ReadWriteMany") => Mode::MultiNodeMultiWriter,
                Some("ReadOnlyMany") => Mode::MultiNodeReaderOnly,
                _ => Mode::SingleNodeMultiWriter,
            },
            mount_flags: flags.map(of).collect(),
            attributes,
            claim: claim.to_owned(),
            secrets: Secrets::of(&volume),
            grows_to: grows_to(bytes(&spec["capacity"]["storage"]), &object["status"]),
        })
    }
}

impl State {
    /// The work that is due: what is in place becomes what is wanted. Forgets the complaints about
    /// volumes that no pod wants any more.
    fn due(
        &mut self,
        wanted: BTreeMap<(String, String), Wanted>,
        attachments: &Attachments,
    ) -> Vec<Work> {
        self.complaints.retain(|key, _| wanted.contains_key(key));
        let mut due = Vec::new();
        for (key, published) in &self.published {
            match wanted.get(key) {
                None => due.push(Work::Unpublish(key.clone(), published.clone())),
                Some(one) if one.grows_to.is_some() && published.certain => {
                    due.push(Work::Expand(one.clone()))
                }
                Some(_) => {}
            }
        }
        for (handle, staged) in &self.staged {
            let used = self
                .published
                .keys()
                .chain(wanted.keys())
                .any(|(_, one)| one == handle);
            if !used {
                due.push(Work::Unstage(handle.clone(), staged.clone()));
            }
        }
        for (key, one) in wanted {
            let is_open = self.published.get(&key).is_none_or(|one| !one.certain);
            if is_open && attachments.allow(&one) {
                due.push(Work::Mount(one));
            }
        }
        due
    }

    /// Notes a volume that is or may be staged.
    fn note_staged(&mut self, handle: &str, staged: Staged) {
        if staged.certain {
            self.ever_staged.insert(handle.to_owned());
        }
        self.staged.insert(handle.to_owned(), staged);
    }

    /// Forgets the failures of all work that is not due any more.
    fn forget_but(&mut self, due: &[Work]) {
        if self.retries.is_empty() && self.starved.is_empty() {
            return;
        }
        let keys: BTreeSet<String> = due.iter().map(Work::key).collect();
        let handles: BTreeSet<&str> = due.iter().map(Work::handle).collect();
        self.retries.retain(|key, _| keys.contains(key));
        self.starved
            .retain(|handle, _| handles.contains(handle.as_str()));
    }

    /// Notes whether a failed call has found a thread in the driver. Its threads are shared by all
    /// namespaces, and one namespace's calls must not keep them from the others' for long.
    fn hungry(&mut self, work: &Work, status: &Status) {
        let handle = work.handle().to_owned();
        if !messages::waits_for_thread(status.message()) {
            self.starved.remove(&handle);
            return;
        }
        let since = *self.starved.entry(handle).or_insert_with(Instant::now);
        if since.elapsed() > STARVED {
            trace::violation(format!("starved: {work} finds no thread: {status}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_failures_of_work_that_is_due_are_kept() {
        let mut state = State::default();
        let [first, second] = ["a", "b"].map(|handle| {
            let staged = Staged {
                path: PathBuf::from("/stage"),
                certain: true,
            };
            Work::Unstage(handle.to_owned(), staged)
        });
        for work in [&first, &second] {
            let retry = (Instant::now(), FIRST_DELAY);
            state.retries.insert(work.key(), retry);
            let handle = work.handle().to_owned();
            state.starved.insert(handle, Instant::now());
        }
        state.forget_but(&[second]);
        assert!(state.retries.keys().eq(["unstaging b"]));
        assert!(state.starved.keys().eq(["b"]));
    }

    #[test]
    fn a_volume_was_staged_once_that_is_certain() {
        let mut state = State::default();
        for (certain, expected) in [(false, false), (true, true), (false, true)] {
            let staged = Staged {
                path: PathBuf::from("/stage"),
                certain,
            };
            state.note_staged("a", staged);
            assert_eq!(state.ever_staged.contains("a"), expected);
        }
        state.staged.clear();
        assert!(state.ever_staged.contains("a") && !state.ever_staged.contains("b"));
    }
}
