//! A model of kubelet's volume manager: its calls, their order, retries and backoff.
//!
//! Work on one volume is serial, work on several runs side by side. A failed call is repeated after
//! half a second, then after twice as long, up to two minutes and two seconds. A call has two
//! minutes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hostloop_fake_api::FakeApi;
use hostloop_proto::csi;
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
use crate::model::view::{is_ready, items};
use crate::trace;
use crate::users::{Refused, bytes, path_in, send, volume_path};

use self::line::Line;
use self::wanted::{Pod, Wanted, inline};
use self::work::Work;

pub(crate) mod line;
mod wanted;
mod work;

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
    /// What is under way, by handle.
    busy: BTreeMap<String, Work>,
    retries: BTreeMap<String, (Instant, Duration)>,
    /// Since when calls about a volume find no thread in the driver, by handle.
    starved: BTreeMap<String, Instant>,
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

    /// True if the volume with this handle is in use on the node.
    pub(crate) fn uses(&self, handle: &str) -> bool {
        let state = self.state.lock();
        state.staged.contains_key(handle)
            || state
                .published
                .keys()
                .any(|(_, published)| published == handle)
    }

    /// Begins what is due. Returns when something else is due, if that is known.
    async fn look(&self, work: &mut JoinSet<()>) -> Option<Instant> {
        let (mut next, mut wanted) = (None, BTreeMap::new());
        if self.report_ready().await.is_err() {
            next = Some(Instant::now() + FIRST_DELAY);
        }
        for pod in self.api.shared("pods") {
            if pod["spec"]["nodeName"] != self.node {
                continue;
            }
            let of = |field: &Value| field.as_str().unwrap_or_default().to_owned();
            let uid = of(&pod["metadata"]["uid"]);
            let at = path_in(
                &of(&pod["metadata"]["namespace"]),
                "pods",
                &of(&pod["metadata"]["name"]),
            );
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                let left = self
                    .state
                    .lock()
                    .published
                    .keys()
                    .any(|(user, _)| *user == uid);
                if !left {
                    let options = json!({"gracePeriodSeconds": 0,
                        "preconditions": {"uid": uid}});
                    if send(&self.client, Method::DELETE, &at, &options)
                        .await
                        .is_err()
                    {
                        next = Some(Instant::now() + FIRST_DELAY);
                    }
                }
                continue;
            }
            let (volumes, complete) = self.volumes(&pod);
            let ready = complete && self.are_published(&volumes);
            if ready && pod["status"]["phase"] != "Running" {
                let at = format!("{at}/status");
                let status = json!({"status": {"phase": "Running"}});
                let _ = send(&self.client, Method::PATCH, &at, &status).await;
            }
            for one in volumes {
                wanted.insert(one.key(), one);
            }
        }
        let now = Instant::now();
        let mut state = self.state.lock();
        let mut due = Vec::new();
        for (key, published) in &state.published {
            match wanted.get(key) {
                None => due.push(Work::Unpublish(key.clone(), published.clone())),
                Some(one) if one.grows_to.is_some() && published.certain => {
                    due.push(Work::Expand(one.clone()))
                }
                Some(_) => {}
            }
        }
        for (handle, staged) in &state.staged {
            let used = state
                .published
                .keys()
                .chain(wanted.keys())
                .any(|(_, one)| one == handle);
            if !used {
                due.push(Work::Unstage(handle.clone(), staged.clone()));
            }
        }
        for (key, one) in wanted {
            if state.published.get(&key).is_none_or(|one| !one.certain) {
                due.push(Work::Mount(one));
            }
        }
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
        let others = items(&node, "/status/conditions").filter(|one| one["type"] != "Ready");
        let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady"});
        let conditions: Vec<Value> = others.cloned().chain([ready]).collect();
        let status = json!({"status": {"conditions": conditions}});
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
        let (has, of_claim) = (
            bytes(&spec["capacity"]["storage"]),
            bytes(&object["status"]["capacity"]["storage"]),
        );
        let infeasible =
            object["status"]["allocatedResourceStatuses"]["storage"] == "NodeResizeInfeasible";
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
            grows_to: (has > of_claim && !infeasible).then_some(has),
        })
    }

    async fn perform(self, work: Work) {
        let done = match &work {
            Work::Mount(wanted) => self.mount(wanted).await,
            Work::Expand(wanted) => self.expand(wanted).await,
            Work::Unpublish(key, published) => self.unpublish(key, published).await,
            Work::Unstage(handle, staged) => self.unstage(handle, staged).await,
        };
        let mut state = self.state.lock();
        state.busy.remove(work.handle());
        match done {
            Ok(()) => {
                trace::line(self.node, format!("{work} succeeded"));
                state.retries.remove(&work.key());
                state.starved.remove(work.handle());
            }
            Err(status) => {
                trace::line(self.node, format!("{work} failed: {status}"));
                state.hungry(&work, &status);
                let before = state.retries.get(&work.key()).map(|(_, delay)| *delay * 2);
                let delay = before.unwrap_or(FIRST_DELAY).min(LAST_DELAY);
                state
                    .retries
                    .insert(work.key(), (Instant::now() + delay, delay));
            }
        }
    }

    async fn mount(&self, wanted: &Wanted) -> Result<(), Status> {
        let staging = self.staging(wanted);
        let is_staged = self
            .state
            .lock()
            .staged
            .get(&wanted.handle)
            .is_some_and(|one| one.certain);
        if !wanted.inline && !is_staged {
            make(&staging)?;
            let request = csi::NodeStageVolumeRequest {
                volume_id: wanted.handle.clone(),
                staging_target_path: text(&staging),
                volume_capability: Some(wanted.capability()),
                volume_context: wanted.attributes.clone(),
                ..Default::default()
            };
            let (mut client, call) = self.line.begin()?;
            let answer = call.answer(client.node_stage_volume(request)).await;
            // A volume that may be staged must be unstaged. Staging it again does no harm.
            let staged = match &answer {
                Ok(_) => Some(true),
                Err(status) if is_uncertain(status) => Some(false),
                Err(_) => None,
            };
            if let Some(certain) = staged {
                let staged = Staged {
                    path: staging.clone(),
                    certain,
                };
                self.state
                    .lock()
                    .staged
                    .insert(wanted.handle.clone(), staged);
            }
            answer?;
        }
        let target = self.target(wanted);
        make(target.parent().unwrap_or(&target))?;
        let request = csi::NodePublishVolumeRequest {
            volume_id: wanted.handle.clone(),
            staging_target_path: if wanted.inline {
                String::new()
            } else {
                text(&staging)
            },
            target_path: text(&target),
            volume_capability: Some(wanted.capability()),
            readonly: wanted.read_only,
            volume_context: wanted.attributes.clone(),
            ..Default::default()
        };
        let (mut client, call) = self.line.begin()?;
        let answer = call.answer(client.node_publish_volume(request)).await;
        // A volume that may be published must be unpublished.
        let certain = answer.is_ok();
        if certain || answer.as_ref().is_err_and(is_uncertain) {
            let published = Published {
                handle: wanted.handle.clone(),
                target,
                certain,
            };
            self.state.lock().published.insert(wanted.key(), published);
        }
        answer.map(drop)
    }

    async fn expand(&self, wanted: &Wanted) -> Result<(), Status> {
        let size = wanted.grows_to.unwrap_or_default();
        let request = csi::NodeExpandVolumeRequest {
            volume_id: wanted.handle.clone(),
            volume_path: text(&self.target(wanted)),
            staging_target_path: text(&self.staging(wanted)),
            capacity_range: Some(csi::CapacityRange {
                required_bytes: size.cast_signed(),
                limit_bytes: 0,
            }),
            volume_capability: Some(wanted.capability()),
            ..Default::default()
        };
        let (mut client, call) = self.line.begin()?;
        call.answer(client.node_expand_volume(request)).await?;
        let status = json!({"status": {
            "capacity": {"storage": size.to_string()},
            "allocatedResourceStatuses": null, "conditions": null,
        }});
        let claim = path_in(
            &wanted.pod.namespace,
            "persistentvolumeclaims",
            &wanted.claim,
        );
        let at = format!("{claim}/status");
        let saved = send(&self.client, Method::PATCH, &at, &status).await;
        saved
            .map(drop)
            .map_err(|refused| Status::unavailable(refused.message))
    }

    async fn unpublish(&self, key: &(String, String), published: &Published) -> Result<(), Status> {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: published.handle.clone(),
            target_path: text(&published.target),
        };
        let (mut client, call) = self.line.begin()?;
        call.answer(client.node_unpublish_volume(request)).await?;
        if published.target.exists() {
            return Err(Status::internal("the target is still there"));
        }
        if let Some(parent) = published.target.parent() {
            let _ = std::fs::remove_dir(parent);
        }
        self.state.lock().published.remove(key);
        Ok(())
    }

    async fn unstage(&self, handle: &str, staged: &Staged) -> Result<(), Status> {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: handle.to_owned(),
            staging_target_path: text(&staged.path),
        };
        let (mut client, call) = self.line.begin()?;
        call.answer(client.node_unstage_volume(request)).await?;
        let _ = std::fs::remove_dir(&staged.path);
        self.state.lock().staged.remove(handle);
        Ok(())
    }

    fn staging(&self, wanted: &Wanted) -> PathBuf {
        let plugins = self.dir.join("plugins/kubernetes.io/csi");
        match wanted.block {
            true => plugins.join("volumeDevices/staging").join(&wanted.name),
            false => plugins
                .join(DRIVER)
                .join(&wanted.handle)
                .join("globalmount"),
        }
    }

    fn target(&self, wanted: &Wanted) -> PathBuf {
        let uid = &wanted.pod.uid;
        if wanted.block {
            let plugins = self
                .dir
                .join("plugins/kubernetes.io/csi/volumeDevices/publish");
            return plugins.join(&wanted.name).join(uid);
        }
        let volumes = self
            .dir
            .join("pods")
            .join(uid)
            .join("volumes/kubernetes.io~csi");
        volumes.join(&wanted.name).join("mount")
    }
}

impl State {
    /// Notes whether a failed call has found a thread in the driver. Its threads are shared by all
    /// namespaces, and one namespace's calls must not keep them from the others' for long.
    fn hungry(&mut self, work: &Work, status: &Status) {
        let handle = work.handle().to_owned();
        if !status.message().contains("the call waits for") {
            self.starved.remove(&handle);
            return;
        }
        let since = *self.starved.entry(handle).or_insert_with(Instant::now);
        if since.elapsed() > STARVED {
            trace::violation(format!("starved: {work} finds no thread: {status}"));
        }
    }
}

/// True if the call may still have an effect.
fn is_uncertain(status: &Status) -> bool {
    use tonic::Code::{Aborted, Cancelled, DeadlineExceeded, Unavailable};
    matches!(
        status.code(),
        Aborted | Cancelled | DeadlineExceeded | Unavailable
    )
}

fn make(dir: &Path) -> Result<(), Status> {
    std::fs::create_dir_all(dir).map_err(|error| Status::internal(format!("mkdir: {error}")))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
