//! What a backup or a restore makes in the cluster, and deletes again: snapshots, claims and pods.

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use hostloop_api_objects::constants::ALLOW_MODE_CHANGE;
use hostloop_api_objects::duration;
use hostloop_api_objects::labels::MANAGED_BY;
use hostloop_api_objects::snapshots::{
    DeletionPolicy, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use uuid::Uuid;

use super::error::Error;
use super::transfer::DEVICE;
use crate::Cluster;
use crate::api::{self, ApiError, Kind, Namespaced};
use crate::new_objects::{self, from_snapshot};
use crate::persist::is_gone;
use crate::progress_line::ProgressLine;
use crate::waiting::{Waiting, pod_runs, snapshot_ready};

/// The label of all objects. Its value is the name of the backup or restore.
const LABEL: &str = "hostloop.csi.dev/backup";
/// Volume modes.
pub(super) const BLOCK: &str = "Block";
pub(super) const FILESYSTEM: &str = "Filesystem";
/// Where a pod has the volume's filesystem.
const MOUNT: &str = "/volume";
/// The name of the volume in a pod.
const VOLUME: &str = "volume";

/// How backups and restores use the cluster.
#[derive(Clone, Debug, clap::Args)]
pub struct WorkArgs {
    /// The image of the pod that has the volume's device; it needs sh and dd, as busybox has them
    #[arg(long, value_name = "IMAGE", default_value = "busybox:1")]
    pub image: String,

    /// The VolumeSnapshotClass [default: one of the driver that deletes its snapshots]
    #[arg(long, value_name = "NAME")]
    pub snapshot_class: Option<String>,

    /// The namespace of the block volume with the bytes, and of its pod: where no user can write to it
    /// [default: the claim's]
    #[arg(long, value_name = "NAMESPACE")]
    pub via: Option<String>,

    /// How long each wait may take
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration::parse)]
    pub timeout: Duration,
}

/// An object that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Made {
    Pod(String),
    Claim(String),
    Snapshot(String),
    /// The content of a snapshot that has another content, too.
    Content(String),
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Made::Pod(name) => write!(f, "pod/{name}"),
            Made::Claim(name) => write!(f, "pvc/{name}"),
            Made::Snapshot(name) => write!(f, "volumesnapshot/{name}"),
            Made::Content(name) => write!(f, "volumesnapshotcontent/{name}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadySnapshot {
    pub(super) name: String,
    /// The name of its content.
    pub(super) content: String,
    pub(super) handle: String,
    /// The label of its content with the node that has it.
    pub(super) node: Option<String>,
    /// The size of a volume that is restored from it, in bytes.
    pub(super) size: u64,
}

pub(super) struct NewClaim<'a> {
    pub(super) name: &'a str,
    /// The volume mode.
    pub(super) mode: &'a str,
    pub(super) class: Option<&'a str>,
    /// In bytes.
    pub(super) size: u64,
    /// The VolumeSnapshot that it is restored from.
    pub(super) snapshot: Option<&'a str>,
}

/// The work of one command in one namespace.
pub(super) struct Work<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) args: &'a WorkArgs,
    /// The name that objects without another one have.
    pub(super) name: String,
    /// What exists, or may exist, in the order in which it was made.
    made: RefCell<Vec<Made>>,
}

/// The cluster with the namespace of the block volume.
pub(super) fn cluster_of_block_volume(cluster: &Cluster, args: &WorkArgs) -> Cluster {
    Cluster {
        namespace: args.via.as_ref().unwrap_or(&cluster.namespace).clone(),
        ..cluster.clone()
    }
}

impl<'a> Work<'a> {
    /// `what` begins the name of its objects.
    pub(super) fn new(cluster: &'a Cluster, args: &'a WorkArgs, what: &str) -> Work<'a> {
        let id = Uuid::new_v4().simple().to_string();
        Work {
            cluster,
            args,
            name: format!("hostloop-{what}-{}", &id[..8]),
            made: RefCell::default(),
        }
    }

    /// The objects of a kind in the namespace of the command.
    pub(super) fn api<K: Namespaced>(&self) -> Api<K> {
        self.cluster.own()
    }

    /// Takes a snapshot of a claim, and waits until it is ready.
    pub(super) async fn snapshot(
        &self,
        claim: &str,
        progress: &mut ProgressLine,
    ) -> Result<ReadySnapshot, Error> {
        let name = self.name.clone();
        let class = self.snapshot_class().await?;
        let object = new_objects::snapshot(self.metadata(&name), &class, claim);
        self.create::<VolumeSnapshot>(Made::Snapshot(name.clone()), &object)
            .await?;
        self.until_snapshot_is_ready(&name, claim, progress).await?;
        let snapshots: Api<VolumeSnapshot> = self.api();
        let snapshot = api::get(&snapshots, &name).await?;
        let content = self.content_of(snapshot.as_ref()).await?;
        let Some(content) = content else {
            return Err(Error::NoHandle(claim.to_owned()));
        };
        let content_name = content.name_any();
        let node = content.labels().get(MANAGED_BY).cloned();
        let status = content.status.unwrap_or_default();
        let (Some(handle), Some(size)) = (status.snapshot_handle, status.restore_size) else {
            return Err(Error::NoHandle(claim.to_owned()));
        };
        Ok(ReadySnapshot {
            name,
            content: content_name,
            handle,
            node,
            size: u64::try_from(size).unwrap_or(0),
        })
    }

    /// Waits for a snapshot. The events of `about` say why it is not ready.
    pub(super) async fn until_snapshot_is_ready(
        &self,
        name: &str,
        about: &str,
        progress: &mut ProgressLine,
    ) -> Result<(), Error> {
        let what = format!("for snapshot {name} to be ready");
        let waiting = self.waiting(name, &what, about);
        let snapshots: Api<VolumeSnapshot> = self.api();
        let ready = waiting.until(&snapshots, progress, snapshot_ready).await;
        ready.map_err(|why| Error::Waiting { what, why })
    }

    /// The content of a snapshot, if it is bound to one. Others may have made the snapshot again meanwhile,
    /// with any content.
    async fn content_of(
        &self,
        snapshot: Option<&VolumeSnapshot>,
    ) -> Result<Option<VolumeSnapshotContent>, ApiError> {
        let Some(snapshot) = snapshot else {
            return Ok(None);
        };
        let Some(name) = snapshot.bound_content() else {
            return Ok(None);
        };
        let contents: Api<VolumeSnapshotContent> = self.cluster.all();
        let content = api::get(&contents, name).await?;
        let driver = &self.cluster.driver_name;
        Ok(content.filter(|content| is_content_of(content, snapshot, driver)))
    }

    /// The class that is named, or one of the driver that deletes its snapshots.
    async fn snapshot_class(&self) -> Result<String, Error> {
        if let Some(named) = &self.args.snapshot_class {
            return Ok(named.clone());
        }
        let classes: Api<VolumeSnapshotClass> = self.cluster.all();
        let driver = &self.cluster.driver_name;
        api::list_all(&classes)
            .await?
            .into_iter()
            .filter(|one| one.driver == *driver && one.deletion_policy == DeletionPolicy::Delete)
            .map(|one| one.name_any())
            .min()
            .ok_or_else(|| Error::NoSnapshotClass(driver.clone()))
    }

    /// Allows volumes of either mode from a snapshot.
    pub(super) async fn allow_mode_change(&self, snapshot: &ReadySnapshot) -> Result<(), Error> {
        let contents: Api<VolumeSnapshotContent> = self.cluster.all();
        let patch = json!({"metadata": {"annotations": {ALLOW_MODE_CHANGE: "true"}}});
        match api::merge(&contents, &snapshot.content, &patch, false).await {
            Err(error @ ApiError::Forbidden { .. }) => Err(Error::ModeChange(error)),
            allowed => Ok(allowed?),
        }
    }

    /// Makes a claim. Its volume comes with the first pod.
    pub(super) async fn claim(&self, claim: NewClaim<'_>) -> Result<(), Error> {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": claim.mode,
            "storageClassName": claim.class,
            "dataSource": claim.snapshot.map(from_snapshot),
        });
        let object = new_objects::claim(self.metadata(claim.name), claim.size, spec);
        self.create::<PersistentVolumeClaim>(Made::Claim(claim.name.to_owned()), &object)
            .await
    }

    /// Runs a pod that has the volume of a claim in this mode, and waits until it runs.
    pub(super) async fn pod(
        &self,
        claim: &str,
        mode: &str,
        progress: &mut ProgressLine,
    ) -> Result<(), Error> {
        let name = self.name.as_str();
        let object = pod(self.metadata(name), &self.args.image, claim, mode);
        self.create::<Pod>(Made::Pod(name.to_owned()), &object)
            .await?;
        let what = format!("for pod {name} to run");
        let waiting = self.waiting(name, &what, claim);
        let pods: Api<Pod> = self.api();
        let running = waiting.until(&pods, progress, pod_runs).await;
        running.map_err(|why| Error::Waiting { what, why })
    }

    /// Deletes the pod, and waits until it is gone: its volume is then free.
    pub(super) async fn end_pod(&self) -> Result<(), Error> {
        let pods: Api<Pod> = self.api();
        self.delete(&Made::Pod(self.name.clone())).await?;
        if is_gone(&pods, &self.name, self.args.timeout).await? {
            return Ok(());
        }
        Err(Error::Waiting {
            what: format!("for the end of pod {}", self.name),
            why: format!("not within {} s", self.args.timeout.as_secs()),
        })
    }

    /// Keeps an object that was made.
    pub(super) fn keep(&self, kept: &Made) {
        self.made.borrow_mut().retain(|made| made != kept);
    }

    /// Deletes an object with the rest that another command made.
    pub(super) fn adopt(&self, made: Made) {
        self.made.borrow_mut().push(made);
    }

    /// Deletes what was made and is not kept, the last first. Returns what may be left.
    pub(super) async fn clean_up(&self) -> Vec<Made> {
        let made = self.made.take();
        let mut left = Vec::new();
        for one in made.into_iter().rev() {
            if self.delete(&one).await.is_err() {
                left.push(one);
            }
        }
        left
    }

    async fn delete(&self, made: &Made) -> Result<(), ApiError> {
        match made {
            Made::Pod(name) => self.delete_kind::<Pod>(name).await?,
            Made::Claim(name) => self.delete_kind::<PersistentVolumeClaim>(name).await?,
            Made::Snapshot(name) => self.delete_kind::<VolumeSnapshot>(name).await?,
            Made::Content(name) => {
                let contents: Api<VolumeSnapshotContent> = self.cluster.all();
                self.delete_of(&contents, name).await?;
            }
        }
        self.keep(made);
        Ok(())
    }

    async fn delete_kind<K: Namespaced>(&self, name: &str) -> Result<(), ApiError> {
        self.delete_of(&self.api::<K>(), name).await
    }

    /// Deletes an object of this command or, if its name says so, of an earlier one. Others may have made
    /// one of that name meanwhile, and it stays.
    async fn delete_of<K: Kind>(&self, api: &Api<K>, name: &str) -> Result<(), ApiError> {
        let Some(object) = api::get(api, name).await? else {
            return Ok(());
        };
        let label = object.labels().get(LABEL);
        if label.is_none_or(|made_by| *made_by != self.name && made_by != name) {
            return Ok(());
        }
        api::delete(api, name, object.uid(), None, false).await
    }

    pub(super) async fn create<K: Namespaced>(
        &self,
        made: Made,
        object: &Value,
    ) -> Result<(), Error> {
        self.create_among(&self.api::<K>(), made, object).await
    }

    pub(super) async fn create_among<K: Kind>(
        &self,
        api: &Api<K>,
        made: Made,
        object: &Value,
    ) -> Result<(), Error> {
        // After a request without an answer the object may exist.
        self.made.borrow_mut().push(made.clone());
        let created = api::create(api, object, false).await;
        let Err(error) = created else { return Ok(()) };
        if !error.is_transient() {
            self.keep(&made);
        }
        Err(error.into())
    }

    pub(super) fn metadata(&self, name: &str) -> Value {
        json!({
            "name": name,
            "namespace": self.cluster.namespace,
            "labels": self.labels(),
        })
    }

    /// The labels of what this command makes.
    pub(super) fn labels(&self) -> Value {
        new_objects::labels(LABEL, &self.name)
    }

    fn waiting<'w>(&'w self, name: &'w str, what: &str, claim: &str) -> Waiting<'w> {
        Waiting {
            cluster: self.cluster,
            namespace: &self.cluster.namespace,
            name,
            what: what.to_owned(),
            timeout: self.args.timeout,
            // The events of the claim say why a pod does not start.
            related: vec![claim.to_owned()],
        }
    }
}

/// True if a content is this driver's, and of this snapshot.
fn is_content_of(content: &VolumeSnapshotContent, snapshot: &VolumeSnapshot, driver: &str) -> bool {
    let of = &content.spec.volume_snapshot_ref;
    let has_uid = of.uid.is_none() || of.uid == snapshot.metadata.uid;
    content.spec.driver == driver
        && of.namespace == snapshot.metadata.namespace
        && of.name == snapshot.metadata.name
        && has_uid
}

/// A pod that waits for commands. It is root, whom devices belong to, and nothing else.
fn pod(metadata: Value, image: &str, claim: &str, mode: &str) -> Value {
    let (field, volume) = if mode == BLOCK {
        (
            "volumeDevices",
            json!({"name": VOLUME, "devicePath": DEVICE}),
        )
    } else {
        ("volumeMounts", json!({"name": VOLUME, "mountPath": MOUNT}))
    };
    let mut container = json!({
        "name": "copy",
        "image": image,
        "command": ["sleep", "1000000"],
        "resources": {
            "requests": {"cpu": "10m", "memory": "16Mi"},
            "limits": {"memory": "256Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
    });
    container[field] = json!([volume]);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            // sleep ignores the signal that would end it.
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsUser": 0,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": VOLUME, "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    fn read<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn contents_of_a_snapshot() {
        let snapshot: VolumeSnapshot = read(json!({
            "metadata": {"namespace": "demo", "name": "s", "uid": "u"}, "spec": {"source": {}},
        }));
        for (driver, of, expected) in [
            (
                "d",
                json!({"namespace": "demo", "name": "s", "uid": "u"}),
                true,
            ),
            ("d", json!({"namespace": "demo", "name": "s"}), true),
            (
                "d",
                json!({"namespace": "demo", "name": "s", "uid": "v"}),
                false,
            ),
            (
                "d",
                json!({"namespace": "other", "name": "s", "uid": "u"}),
                false,
            ),
            ("d", json!({"namespace": "demo", "name": "t"}), false),
            (
                "e",
                json!({"namespace": "demo", "name": "s", "uid": "u"}),
                false,
            ),
        ] {
            let content: VolumeSnapshotContent = read(json!({
                "metadata": {"name": "c"},
                "spec": {"driver": driver, "deletionPolicy": "Delete", "source": {},
                    "volumeSnapshotRef": of},
            }));
            let found = is_content_of(&content, &snapshot, "d");
            assert_eq!(
                found, expected,
                "{driver} {:?}",
                content.spec.volume_snapshot_ref
            );
        }
    }
}
