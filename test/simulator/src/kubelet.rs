//! A model of kubelet's volume manager: its calls, their order, retries and backoff.
//!
//! Work on one volume is serial, work on several runs side by side. A failed call is repeated after
//! half a second, then after twice as long, up to two minutes and two seconds. A call has two minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hostloop_fake_api::FakeApi;
use hostloop_proto::csi;
use hostloop_proto::csi::node_client::NodeClient;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use http::Method;
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Status;
use tonic::service::Routes;

use crate::cluster::{DRIVER, NODE};
use crate::trace;
use crate::users::{bytes, path, send, volume_path};

use self::work::Work;

mod work;

const DEADLINE: Duration = Duration::from_secs(120);
const FIRST_DELAY: Duration = Duration::from_millis(500);
const LAST_DELAY: Duration = Duration::from_secs(122);
/// The wait before kubelet compares what pods want with what is there.
const LOOK: Duration = Duration::from_millis(300);

/// A volume that a pod wants.
#[derive(Clone, Debug)]
struct Wanted {
    pod: Pod,
    /// The name of the PersistentVolume, or of the inline volume in its pod.
    name: String,
    handle: String,
    block: bool,
    read_only: bool,
    inline: bool,
    fs: String,
    mode: Mode,
    mount_flags: Vec<String>,
    attributes: BTreeMap<String, String>,
    claim: String,
    /// The volume's size if it is larger than the claim says.
    grows_to: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Pod {
    name: String,
    namespace: String,
    uid: String,
    account: String,
}

/// A volume that is in place for a pod.
#[derive(Clone, Debug)]
struct Published {
    handle: String,
    target: PathBuf,
}

#[derive(Clone, Debug)]
struct Staged {
    path: PathBuf,
    /// False if the call had no final answer.
    certain: bool,
}

#[derive(Default)]
struct State {
    /// By UID of the pod and handle.
    published: BTreeMap<(String, String), Published>,
    staged: BTreeMap<String, Staged>,
    busy: BTreeSet<String>,
    retries: BTreeMap<String, (Instant, Duration)>,
}

/// The kubelet of the node. Clones share its state.
#[derive(Clone)]
pub(crate) struct Kubelet {
    api: FakeApi,
    client: Client,
    node: NodeClient<Routes>,
    dir: PathBuf,
    state: Arc<Mutex<State>>,
}

impl Kubelet {
    pub(crate) fn new(api: FakeApi, client: Client, routes: Routes, dir: &Path) -> Kubelet {
        let node = NodeClient::new(routes.prepare());
        Kubelet {
            api,
            client,
            node,
            dir: dir.join("kubelet"),
            state: Arc::default(),
        }
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
        for pod in self.api.all("pods") {
            if pod["spec"]["nodeName"] != NODE {
                continue;
            }
            let of = |field: &Value| field.as_str().unwrap_or_default().to_owned();
            let uid = of(&pod["metadata"]["uid"]);
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                let left = self
                    .state
                    .lock()
                    .published
                    .keys()
                    .any(|(user, _)| *user == uid);
                if !left {
                    let at = path("pods", &of(&pod["metadata"]["name"]));
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
            let ready = complete && self.are_published(&uid, &volumes);
            if ready && pod["status"]["phase"] != "Running" {
                let at = format!("{}/status", path("pods", &of(&pod["metadata"]["name"])));
                let status = json!({"status": {"phase": "Running"}});
                let _ = send(&self.client, Method::PATCH, &at, &status).await;
            }
            for one in volumes {
                wanted.insert((uid.clone(), one.handle.clone()), one);
            }
        }
        let now = Instant::now();
        let mut state = self.state.lock();
        let mut due = Vec::new();
        for (key, published) in &state.published {
            match wanted.get(key) {
                None => due.push(Work::Unpublish(key.clone(), published.clone())),
                Some(one) if one.grows_to.is_some() => due.push(Work::Expand(one.clone())),
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
            if !state.published.contains_key(&key) {
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
            } else if state.busy.insert(one.handle().to_owned()) {
                work.spawn(self.clone().perform(one));
            }
        }
        next
    }

    fn are_published(&self, pod: &str, volumes: &[Wanted]) -> bool {
        let state = self.state.lock();
        volumes.iter().all(|one| {
            state
                .published
                .contains_key(&(pod.to_owned(), one.handle.clone()))
        })
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
        let object = self.api.get(&path("persistentvolumeclaims", claim))?;
        if object["status"]["phase"] != "Bound" {
            return None;
        }
        let name = object["spec"]["volumeName"].as_str()?;
        let volume = self.api.get(&volume_path(name))?;
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
                trace::line("kubelet", format!("{work} succeeded"));
                state.retries.remove(&work.key());
            }
            Err(status) => {
                trace::line("kubelet", format!("{work} failed: {status}"));
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
            let answer = timely(self.node.clone().node_stage_volume(request)).await;
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
        timely(self.node.clone().node_publish_volume(request)).await?;
        let key = (wanted.pod.uid.clone(), wanted.handle.clone());
        let published = Published {
            handle: wanted.handle.clone(),
            target,
        };
        self.state.lock().published.insert(key, published);
        Ok(())
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
        timely(self.node.clone().node_expand_volume(request)).await?;
        let status = json!({"status": {
            "capacity": {"storage": size.to_string()},
            "allocatedResourceStatuses": null, "conditions": null,
        }});
        let at = format!("{}/status", path("persistentvolumeclaims", &wanted.claim));
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
        timely(self.node.clone().node_unpublish_volume(request)).await?;
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
        timely(self.node.clone().node_unstage_volume(request)).await?;
        let _ = std::fs::remove_dir(&staged.path);
        self.state.lock().staged.remove(handle);
        Ok(())
    }

    fn staging(&self, wanted: &Wanted) -> PathBuf {
        let plugins = self.dir.join("plugins/kubernetes.io/csi");
        if wanted.block {
            plugins.join("volumeDevices/staging").join(&wanted.name)
        } else {
            plugins
                .join(DRIVER)
                .join(&wanted.handle)
                .join("globalmount")
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

impl Pod {
    fn info(&self, ephemeral: &str) -> [(String, String); 5] {
        [
            ("pod.name", self.name.as_str()),
            ("pod.namespace", &self.namespace),
            ("pod.uid", &self.uid),
            ("serviceAccount.name", &self.account),
            ("ephemeral", ephemeral),
        ]
        .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()))
    }
}

impl Wanted {
    fn capability(&self) -> csi::VolumeCapability {
        let access_type = if self.block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.fs.clone(),
                mount_flags: self.mount_flags.clone(),
                volume_mount_group: String::new(),
            })
        };
        csi::VolumeCapability {
            access_mode: Some(AccessMode {
                mode: self.mode.into(),
            }),
            access_type: Some(access_type),
        }
    }
}

/// An inline volume of a pod. Kubelet's handle is a hash of the pod's UID and the volume's name.
fn inline(pod: &Pod, volume: &Value) -> Wanted {
    let name = volume["name"].as_str().unwrap_or_default();
    let mut digits = String::new();
    for part in 0..4 {
        let bytes = pod.uid.bytes().chain(name.bytes()).chain([part]);
        let hash = bytes.fold(u64::from(part) + 7, |state, byte| {
            crate::dice::mix(state ^ u64::from(byte)).wrapping_add(0x9e37_79b9)
        });
        digits.push_str(&format!("{hash:016x}"));
    }
    let given = volume["csi"]["volumeAttributes"]
        .as_object()
        .into_iter()
        .flatten();
    let given = given.map(|(key, value)| (key.clone(), value.as_str().unwrap_or("").to_owned()));
    let mut attributes: BTreeMap<String, String> = given.collect();
    attributes.extend(pod.info("true"));
    Wanted {
        pod: pod.clone(),
        name: name.to_owned(),
        handle: format!("csi-{digits}"),
        block: false,
        read_only: false,
        inline: true,
        fs: String::new(),
        mode: Mode::SingleNodeWriter,
        mount_flags: Vec::new(),
        attributes,
        claim: String::new(),
        grows_to: None,
    }
}

async fn timely<T>(
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("no answer")),
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
