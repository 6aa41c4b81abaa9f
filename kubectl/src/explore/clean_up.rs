//! Deletes what explorations have left: objects with their label, and cuts on the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hostloop_api_objects::labels::node_label;
use hostloop_api_objects::snapshots::{VolumeSnapshot, VolumeSnapshotContent};
use hostloop_report::cuts::CutList;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use super::cut_objects::{EXPLORATION, ExplorationId, KEPT, selector_of_all};
use crate::api::{self, ApiError, Kind, served};
use crate::cluster::Cluster;
use crate::node_pods::{self, NodePod};
use crate::output;
use crate::persist::persist;
use crate::status::node_of;
use crate::volume_objects::{claim_ref, handle};
use crate::waiting::PAUSE;

/// How long a list of the nodes' cuts waits for the API server.
const PATIENCE: Duration = Duration::from_secs(30);

/// What `--clean-up` has done. Names and meanings are stable; fields may be added.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct CleanedUp {
    pub(super) namespace: String,
    /// The number of deleted objects.
    pub(super) objects: usize,
    /// The number of deleted cuts that no object had.
    pub(super) cuts: usize,
    /// The VolumeSnapshots of cuts that failed a check. They stay.
    pub(super) kept: Vec<String>,
}

impl CleanedUp {
    /// The objects for `-o name`.
    pub(super) fn names(&self) -> Vec<String> {
        let kept = self.kept.iter();
        kept.map(|name| format!("volumesnapshot/{name}")).collect()
    }
}

/// Why something is left.
#[derive(Debug, thiserror::Error)]
pub enum CleanUpError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("still being deleted after {} s: {names}", .timeout.as_secs())]
    Stays { names: String, timeout: Duration },
    #[error(
        "cuts that may be left: {0}; without anything else, they go a day after they were taken"
    )]
    Cuts(String),
}

/// Deletes what all explorations of the namespace have left, those that run included.
pub(super) async fn clean_up(
    cluster: &Cluster,
    timeout: Duration,
) -> Result<CleanedUp, CleanUpError> {
    let found = Leftovers::of(cluster, &selector_of_all()).await?;
    let explorations = found.explorations();
    let objects = remove(cluster, &selector_of_all(), &BTreeSet::new(), timeout).await?;
    let cuts = drop_cuts(cluster, &explorations, timeout).await?;
    let kept = ListParams::default().labels(KEPT);
    let snapshots: Api<VolumeSnapshot> = cluster.own();
    let kept = served(api::list(&snapshots, kept).await)?;
    Ok(CleanedUp {
        namespace: cluster.namespace.clone(),
        objects,
        cuts,
        kept: kept.iter().map(ResourceExt::name_any).collect(),
    })
}

/// True if a selector selects any object.
pub(super) async fn has_objects(
    cluster: &Cluster,
    selector: &str,
    timeout: Duration,
) -> Result<bool, ApiError> {
    let found = persist(timeout, async || Leftovers::of(cluster, selector).await).await?;
    Ok(!found.names().is_empty())
}

/// Deletes the objects that a selector selects, until none is left but snapshots with these names and
/// their contents. Returns how many there were.
pub(super) async fn remove(
    cluster: &Cluster,
    selector: &str,
    kept: &BTreeSet<String>,
    timeout: Duration,
) -> Result<usize, CleanUpError> {
    let started = Instant::now();
    let mut names = BTreeSet::new();
    loop {
        let is_late = started.elapsed() >= timeout;
        let left = persist(timeout, async || Leftovers::of(cluster, selector).await).await?;
        let left = left.without(kept);
        let left_names = left.names();
        if left_names.is_empty() {
            return Ok(names.len());
        }
        if is_late {
            let names = output::names(left_names);
            return Err(CleanUpError::Stays { names, timeout });
        }
        names.extend(left_names);
        left.delete(cluster).await?;
        sleep(PAUSE).await;
    }
}

/// Objects of explorations.
struct Leftovers {
    jobs: Vec<Job>,
    claims: Vec<PersistentVolumeClaim>,
    snapshots: Vec<VolumeSnapshot>,
    contents: Vec<VolumeSnapshotContent>,
}

impl Leftovers {
    /// Those that a selector selects, in the namespace of the command.
    async fn of(cluster: &Cluster, selector: &str) -> Result<Leftovers, ApiError> {
        let selected = ListParams::default().labels(selector);
        let namespace = Some(cluster.namespace.as_str());
        let jobs = api::list(&cluster.own(), selected.clone()).await?;
        let claims = api::list(&cluster.own(), selected.clone()).await?;
        let snapshots = api::list(&cluster.own(), selected.clone()).await;
        let contents: Result<Vec<VolumeSnapshotContent>, ApiError> =
            api::list(&cluster.all(), selected).await;
        let mut contents = served(contents)?;
        contents
            .retain(|content| content.spec.volume_snapshot_ref.namespace.as_deref() == namespace);
        Ok(Leftovers {
            jobs,
            claims,
            snapshots: served(snapshots)?,
            contents,
        })
    }

    /// Those that are not kept.
    fn without(mut self, kept: &BTreeSet<String>) -> Leftovers {
        self.snapshots
            .retain(|snapshot| !kept.contains(&snapshot.name_any()));
        self.contents
            .retain(|content| !kept.contains(&content.name_any()));
        self
    }

    /// The IDs of the explorations that have them.
    fn explorations(&self) -> BTreeSet<ExplorationId> {
        let mut found = BTreeSet::new();
        found.extend(self.jobs.iter().filter_map(exploration_of));
        found.extend(self.claims.iter().filter_map(exploration_of));
        found.extend(self.snapshots.iter().filter_map(exploration_of));
        found.extend(self.contents.iter().filter_map(exploration_of));
        found
    }

    fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        names.extend(self.jobs.iter().map(name_of));
        names.extend(self.claims.iter().map(name_of));
        names.extend(self.snapshots.iter().map(name_of));
        names.extend(self.contents.iter().map(name_of));
        names
    }

    /// Asks for the deletion of those that others do not wait for.
    async fn delete(&self, cluster: &Cluster) -> Result<(), ApiError> {
        delete_all(&cluster.own(), &self.jobs).await?;
        delete_all(&cluster.own(), &self.claims).await?;
        // A claim that is being made needs its snapshot.
        if self.jobs.is_empty() && self.claims.is_empty() {
            delete_all(&cluster.own(), &self.snapshots).await?;
        }
        // The end of a bound content follows that of its snapshot.
        if self.snapshots.is_empty() {
            delete_all(&cluster.all(), &self.contents).await?;
        }
        Ok(())
    }
}

async fn delete_all<K: Kind>(api: &Api<K>, objects: &[K]) -> Result<(), ApiError> {
    let stay = objects
        .iter()
        .filter(|object| object.meta().deletion_timestamp.is_none());
    for object in stay {
        match api::delete(api, &object.name_any(), object.uid(), None, false).await {
            // It is asked for again.
            Err(error) if !error.is_transient() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn exploration_of<K: Kind>(object: &K) -> Option<ExplorationId> {
    ExplorationId::parse(object.labels().get(EXPLORATION)?)
}

fn name_of<K: Kind>(object: &K) -> String {
    format!("{} {}", K::kind(&()), object.name_any())
}

/// Deletes the cuts of these explorations, and those of volumes of the namespace, on all nodes.
/// Returns how many there were. Each node may take this long.
async fn drop_cuts(
    cluster: &Cluster,
    explorations: &BTreeSet<ExplorationId>,
    longest: Duration,
) -> Result<usize, CleanUpError> {
    let volumes: Api<PersistentVolume> = cluster.all();
    let volumes = persist(PATIENCE, async || api::list_all(&volumes).await).await?;
    let pods = node_pods::node_pods(cluster).await?;
    let (mut dropped, mut problems) = (0, Vec::new());
    for pod in &pods {
        let owned = owned_on(&volumes, cluster, pod, &pods);
        match timeout(longest, drop_cuts_of(cluster, pod, explorations, &owned)).await {
            Ok(Ok(count)) => dropped += count,
            Ok(Err(error)) => problems.push(format!("node {}: {error}", pod.node)),
            Err(_) => {
                let seconds = longest.as_secs();
                problems.push(format!("node {}: not deleted within {seconds} s", pod.node));
            }
        }
    }
    if problems.is_empty() {
        Ok(dropped)
    } else {
        Err(CleanUpError::Cuts(output::names(problems)))
    }
}

/// The handles of volumes that may be on the node of a pod, each with whether it is of the namespace
/// alone. A volume is on the node that it names: another node may have written any handle.
fn owned_on<'v>(
    volumes: &'v [PersistentVolume],
    cluster: &Cluster,
    pod: &NodePod,
    pods: &[NodePod],
) -> BTreeMap<&'v str, bool> {
    let mut owned = BTreeMap::new();
    for volume in volumes {
        if is_elsewhere(volume, pod, pods) {
            continue;
        }
        if let Some(handle) = handle(volume, &cluster.driver_name) {
            *owned.entry(handle).or_insert(true) &= is_of_namespace(volume, &cluster.namespace);
        }
    }
    owned
}

/// True if a volume names the node of another pod.
fn is_elsewhere(volume: &PersistentVolume, pod: &NodePod, pods: &[NodePod]) -> bool {
    let Some(node) = node_of(volume) else {
        return false;
    };
    let mut others = pods.iter().filter(|other| other.node != pod.node);
    others.any(|other| other.node == node || node_label(&other.node) == node)
}

fn is_of_namespace(volume: &PersistentVolume, namespace: &str) -> bool {
    let claim = claim_ref(volume);
    claim.and_then(|claim| claim.namespace.as_deref()) == Some(namespace)
}

async fn drop_cuts_of(
    cluster: &Cluster,
    pod: &NodePod,
    explorations: &BTreeSet<ExplorationId>,
    owned: &BTreeMap<&str, bool>,
) -> Result<usize, node_pods::NodeError> {
    let list = pod.list_cuts(cluster).await?;
    let mut dropped = 0;
    for id in &unwanted(&list, explorations, owned) {
        dropped += pod.drop_cuts(cluster, id.as_str()).await?.dropped as usize;
    }
    Ok(dropped)
}

/// The explorations of a node's cuts that are of the namespace. Anyone who labels an object can name an
/// exploration, so that decides only where no volume does.
fn unwanted(
    list: &CutList,
    explorations: &BTreeSet<ExplorationId>,
    owned: &BTreeMap<&str, bool>,
) -> BTreeSet<ExplorationId> {
    let ids = list.cuts.iter().filter_map(|cut| {
        let id = ExplorationId::parse(&cut.exploration)?;
        let is_ours = match owned.get(cut.volume.as_str()) {
            Some(is_ours) => *is_ours,
            None => explorations.contains(&id),
        };
        is_ours.then_some(id)
    });
    ids.collect()
}

#[cfg(test)]
mod tests {
    use hostloop_fake_api::FakeApi;
    use serde_json::{Value, json};

    use super::*;
    use crate::explore::testing::exploration;
    use crate::test_objects::{cluster_of, read};

    const PATIENT: Duration = Duration::from_secs(60);

    fn labelled(version: &str, kind: &str, name: &str, labels: Value) -> Value {
        let namespace = (kind != "VolumeSnapshotContent").then_some("demo");
        json!({"apiVersion": version, "kind": kind, "metadata": {
            "name": name, "namespace": namespace, "uid": format!("uid-{kind}-{name}"),
            "labels": labels,
        }, "spec": {
            "driver": "hostloop.csi.dev", "deletionPolicy": "Delete", "source": {},
            "volumeSnapshotRef": {"namespace": "demo", "name": name},
        }})
    }

    /// An exploration that was killed: one cut is checked, and another one is kept.
    fn left_behind() -> FakeApi {
        let api = FakeApi::with_snapshots();
        let id = exploration();
        let labels = || json!({EXPLORATION: id.as_str()});
        let kept = || json!({EXPLORATION: id.as_str(), KEPT: "true"});
        const SNAPSHOTS: &str = "snapshot.storage.k8s.io/v1";
        for (version, kind) in [
            ("batch/v1", "Job"),
            ("v1", "PersistentVolumeClaim"),
            (SNAPSHOTS, "VolumeSnapshot"),
            (SNAPSHOTS, "VolumeSnapshotContent"),
        ] {
            api.put(labelled(version, kind, "one", labels()));
            api.put(labelled(version, kind, "of-a-person", json!({})));
        }
        api.put(labelled(SNAPSHOTS, "VolumeSnapshot", "kept", kept()));
        api.put(labelled(SNAPSHOTS, "VolumeSnapshotContent", "kept", kept()));
        api
    }

    fn names(api: &FakeApi, plural: &str) -> Vec<String> {
        let all = api.all(plural);
        let names = all
            .iter()
            .filter_map(|one| one["metadata"]["name"].as_str());
        names.map(str::to_owned).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_the_label_and_is_not_kept_goes() {
        let api = left_behind();
        let cleaned = clean_up(&cluster_of(&api), PATIENT).await.unwrap();
        let expected = CleanedUp {
            namespace: "demo".to_owned(),
            objects: 4,
            cuts: 0,
            kept: vec!["kept".to_owned()],
        };
        assert_eq!(cleaned, expected);
        assert_eq!(names(&api, "jobs"), ["of-a-person"]);
        assert_eq!(names(&api, "persistentvolumeclaims"), ["of-a-person"]);
        for plural in ["volumesnapshots", "volumesnapshotcontents"] {
            assert_eq!(names(&api, plural), ["kept", "of-a-person"], "{plural}");
        }
        let again = clean_up(&cluster_of(&api), PATIENT).await.unwrap();
        assert_eq!(again.objects, 0);
    }

    /// A volume for a claim of this namespace, on this node.
    fn volume(handle: &str, namespace: &str, node: Option<&str>) -> PersistentVolume {
        let affinity = node.map(|node| {
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.hostloop.csi.dev/node", "operator": "In", "values": [node]}]}]}})
        });
        read(json!({"metadata": {"name": "pv"}, "spec": {
            "csi": {"driver": "hostloop.csi.dev", "volumeHandle": handle},
            "claimRef": {"namespace": namespace, "name": "data"},
            "nodeAffinity": affinity,
        }}))
    }

    fn pod(node: &str) -> NodePod {
        NodePod {
            node: node.to_owned(),
            name: format!("hostloop-{node}"),
            container: "hostloop".to_owned(),
            not_running: None,
            program: "hostloop".to_owned(),
        }
    }

    fn cut_of(volume: &str) -> CutList {
        read(json!({"cuts": [{
            "exploration": exploration().as_str(), "number": 1, "snapshot": "snap-1",
            "volume": volume, "pool": "default", "size_bytes": 1, "taken_ns": 1, "expires_ns": 1,
            "promised_bytes": 1,
        }]}))
    }

    /// What a cut on node n1 is to a clean-up of namespace demo.
    #[tokio::test]
    async fn cuts_of_other_namespaces_stay() {
        let cluster = cluster_of(&FakeApi::default());
        let pods = [pod("n1"), pod("n2")];
        let (none, labelled) = (BTreeSet::new(), BTreeSet::from([exploration()]));
        for (volumes, explorations, is_dropped) in [
            (vec![volume("v", "demo", Some("n1"))], &none, true),
            (vec![volume("v", "demo", None)], &none, true),
            (vec![volume("v", "other", Some("n1"))], &none, false),
            // A user of the namespace has labelled an object with the exploration of another one.
            (vec![volume("v", "other", Some("n1"))], &labelled, false),
            // Another node has made a volume with the handle.
            (vec![volume("v", "demo", Some("n2"))], &none, false),
            // The volume is deleted.
            (vec![], &none, false),
            (vec![volume("w", "demo", Some("n1"))], &none, false),
            (vec![], &labelled, true),
        ] {
            let owned = owned_on(&volumes, &cluster, &pods[0], &pods);
            let found = unwanted(&cut_of("v"), explorations, &owned);
            assert_eq!(
                !found.is_empty(),
                is_dropped,
                "{volumes:?} {explorations:?}"
            );
        }
    }

    /// Another namespace's explorations go on.
    #[tokio::test(start_paused = true)]
    async fn other_namespaces_keep_theirs() {
        let api = left_behind();
        let mut cluster = cluster_of(&api);
        cluster.namespace = "other".to_owned();
        let cleaned = clean_up(&cluster, PATIENT).await.unwrap();
        assert_eq!((cleaned.objects, cleaned.kept.len()), (0, 0));
        assert_eq!(names(&api, "volumesnapshotcontents").len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_stays_is_named() {
        let api = left_behind();
        let mut stuck = labelled("v1", "PersistentVolumeClaim", "one", json!({}));
        stuck["metadata"]["labels"] = json!({EXPLORATION: exploration().as_str()});
        stuck["metadata"]["finalizers"] = json!(["example.com/slow"]);
        api.put(stuck);
        let error = clean_up(&cluster_of(&api), PATIENT).await.unwrap_err();
        let expected = "still being deleted after 60 s: PersistentVolumeClaim one, VolumeSnapshot one, \
                        VolumeSnapshotContent one";
        assert_eq!(error.to_string(), expected);
    }

    /// A cluster without the snapshot API has no cuts either.
    #[tokio::test(start_paused = true)]
    async fn a_cluster_without_snapshots_is_clean() {
        let api = FakeApi::default();
        let cleaned = clean_up(&cluster_of(&api), PATIENT).await.unwrap();
        assert_eq!(cleaned.objects, 0);
    }

    /// The nodes of a cluster say whether they have cuts.
    #[tokio::test(start_paused = true)]
    async fn a_node_that_does_not_answer_is_named() {
        let api = left_behind();
        let pod = crate::test_objects::node_pod("hostloop-a", "n1");
        api.set("/api/v1/namespaces/hostloop/pods", pod);
        api.hide("/api/v1/namespaces/hostloop/pods/hostloop-a/exec", 403);
        let error = clean_up(&cluster_of(&api), PATIENT).await.unwrap_err();
        let said = error.to_string();
        assert!(
            said.starts_with("cuts that may be left: node n1: you may not"),
            "{said}"
        );
        assert_eq!(names(&api, "jobs"), ["of-a-person"]);
    }
}
