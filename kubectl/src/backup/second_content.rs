//! A second content of a snapshot, so that another namespace has it, too.
//!
//! Who may create pods in the namespace of a claim, or run commands in them, can write to its block
//! volumes. With `--via`, the block volume of a backup or of a restore is in another namespace. Only the
//! snapshot between both volumes is in both namespaces, and no one can write to a snapshot.

use hostloop_api_objects::constants::ALLOW_MODE_CHANGE;
use hostloop_api_objects::labels::MANAGED_BY;
use hostloop_api_objects::snapshots::{VolumeSnapshot, VolumeSnapshotContent};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::error::Error;
use super::work::{Made, ReadySnapshot, Work};
use crate::api;
use crate::new_objects::SNAPSHOT_API;
use crate::progress_line::ProgressLine;

impl Work<'_> {
    /// The name of a snapshot in this namespace for claims with the content of one that `of` has taken.
    /// `changes_mode`: their volume mode is another one than that of its volume.
    pub(super) async fn source(
        &self,
        snapshot: &ReadySnapshot,
        of: &Work<'_>,
        changes_mode: bool,
        progress: &mut ProgressLine,
    ) -> Result<String, Error> {
        if self.cluster.namespace != of.cluster.namespace {
            return self.import(snapshot, progress).await;
        }
        if changes_mode {
            of.allow_mode_change(snapshot).await?;
        }
        Ok(snapshot.name.clone())
    }

    /// Makes a snapshot of another namespace one of this namespace, too, for volumes of either mode.
    async fn import(
        &self,
        snapshot: &ReadySnapshot,
        progress: &mut ProgressLine,
    ) -> Result<String, Error> {
        let name = self.name.as_str();
        let object = json!({
            "apiVersion": SNAPSHOT_API,
            "kind": "VolumeSnapshot",
            "metadata": self.metadata(name),
            "spec": {"source": {"volumeSnapshotContentName": name}},
        });
        let made = Made::Snapshot(name.to_owned());
        self.create::<VolumeSnapshot>(made.clone(), &object).await?;
        let snapshots: Api<VolumeSnapshot> = self.api();
        let stored = api::get(&snapshots, name).await?;
        let Some(uid) = stored.and_then(|stored| stored.uid()) else {
            return Err(Error::Waiting {
                what: format!("for snapshot {name} to be ready"),
                why: "it was deleted".to_owned(),
            });
        };
        let contents: Api<VolumeSnapshotContent> = self.cluster.all();
        let content = self.content(snapshot, &uid);
        self.create_among(&contents, Made::Content(name.to_owned()), &content)
            .await?;
        // It is deleted before its content.
        self.keep(&made);
        self.adopt(made);
        self.until_snapshot_is_ready(name, name, progress).await?;
        Ok(name.to_owned())
    }

    /// The content. The snapshot's own one deletes the snapshot.
    fn content(&self, snapshot: &ReadySnapshot, uid: &str) -> Value {
        let mut labels = self.labels();
        if let Some(node) = &snapshot.node {
            labels[MANAGED_BY] = json!(node);
        }
        json!({
            "apiVersion": SNAPSHOT_API,
            "kind": "VolumeSnapshotContent",
            "metadata": {
                "name": self.name,
                "labels": labels,
                "annotations": {ALLOW_MODE_CHANGE: "true"},
            },
            "spec": {
                "deletionPolicy": "Retain",
                "driver": self.cluster.driver_name,
                "source": {"snapshotHandle": snapshot.handle},
                // With the UID, no other object of this name has the content.
                "volumeSnapshotRef": {
                    "apiVersion": SNAPSHOT_API,
                    "kind": "VolumeSnapshot",
                    "namespace": self.cluster.namespace,
                    "name": self.name,
                    "uid": uid,
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hostloop_fake_api::FakeApi;

    use super::*;
    use crate::backup::work::{WorkArgs, cluster_of_block_volume};
    use crate::test_objects::{cluster_of, writes};

    fn args(via: Option<&str>) -> WorkArgs {
        WorkArgs {
            image: "busybox:1".to_owned(),
            snapshot_class: None,
            via: via.map(str::to_owned),
            timeout: Duration::from_secs(60),
        }
    }

    fn snapshot() -> ReadySnapshot {
        ReadySnapshot {
            name: "s".to_owned(),
            content: "c".to_owned(),
            handle: "h".to_owned(),
            node: Some("n1".to_owned()),
            size: 1 << 20,
        }
    }

    #[tokio::test]
    async fn another_namespace_has_the_snapshot_until_the_end() {
        let api = FakeApi::with_snapshots();
        api.on_create(|object| {
            object["status"] = json!({"readyToUse": true});
            Vec::new()
        });
        let (demo, args) = (cluster_of(&api), args(Some("vault")));
        let vault = cluster_of_block_volume(&demo, &args);
        let work = Work::new(&demo, &args, "backup");
        let other = Work::new(&vault, &args, "backup");
        let mut progress = ProgressLine::new();
        let source = other.source(&snapshot(), &work, false, &mut progress).await;
        let name = source.unwrap();
        assert_eq!(name, other.name);

        let (snapshots, contents) = (
            api.all("volumesnapshots"),
            api.all("volumesnapshotcontents"),
        );
        let (snapshot, content) = (&snapshots[0], &contents[0]);
        assert_eq!(snapshot["metadata"]["namespace"], "vault");
        assert_eq!(
            snapshot["spec"]["source"]["volumeSnapshotContentName"],
            *name
        );
        assert_eq!(content["metadata"]["labels"][MANAGED_BY], "n1");
        assert_eq!(
            content["metadata"]["annotations"][ALLOW_MODE_CHANGE],
            "true"
        );
        let spec = &content["spec"];
        assert_eq!(spec["deletionPolicy"], "Retain");
        assert_eq!(spec["source"]["snapshotHandle"], "h");
        let of = &spec["volumeSnapshotRef"];
        assert_eq!(
            (&of["namespace"], &of["name"]),
            (&json!("vault"), &json!(name))
        );
        assert_eq!(of["uid"], snapshot["metadata"]["uid"]);

        writes(&api);
        assert!(other.clean_up().await.is_empty());
        let expected = [
            format!("DELETE vault/volumesnapshots/{name}"),
            format!("DELETE volumesnapshotcontents/{name}"),
        ];
        assert_eq!(writes(&api), expected);
    }

    #[tokio::test]
    async fn a_namespace_has_its_own_snapshot() {
        let api = FakeApi::with_snapshots();
        let (demo, args) = (cluster_of(&api), args(None));
        let same = cluster_of_block_volume(&demo, &args);
        let work = Work::new(&demo, &args, "backup");
        let other = Work::new(&same, &args, "backup");
        let mut progress = ProgressLine::new();
        let source = other.source(&snapshot(), &work, false, &mut progress).await;
        assert_eq!(source.unwrap(), "s");
        assert_eq!(writes(&api), [""; 0]);
    }
}
