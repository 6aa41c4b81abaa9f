//! The real cluster: one node, and the driver as it is deployed.

use std::path::PathBuf;
use std::time::Duration;

use axum::http::{Method, Request};
use hostloop_api_objects::lease_name::leader_lease;
use hostloop_fidelity::{Call, FoundObjects, KINDS, NAMESPACE as USERS, Names, RecordDirectory};
use hostloop_test::PATIENCE;
use hostloop_test::cluster::{Cluster, Options, check, wait_for};
use hostloop_test::deployed::{self, DRIVER, NAMESPACE};
use hostloop_test::front::fields::{list, name, text};
use hostloop_test::front::objects::{Objects, Place};
use hostloop_test::front::wait::until;
use hostloop_test::loop_devices::{self, Loop};
use hostloop_test::machine::text as path_text;
use hostloop_test::scratch::Scratch;
use kube::Client;
use kube::api::DeleteParams;
use kube::client::Body;
use serde_json::{Value, json};
use tempfile::TempDir;

/// More than all volumes of a history take, and less than those that must not fit.
const POOL_OPTIONS: &str = ",capacity=16Gi";
/// Of a large disk, the usual percentage may be all that is free.
const RESERVE: &str = "- name: HOSTLOOP_RESERVE\n          value: 64Mi";
/// What comes after it in the manifest.
const OPTIONS: &str = "- name: POOL_OPTIONS";

/// How long objects may stay that are deleted after a history.
const LEAVE: Duration = Duration::from_secs(120);

/// A cluster with the driver in it.
pub(crate) struct Site {
    cluster: Cluster,
    objects: Objects,
    client: Client,
    pool_dir: TempDir,
}

impl Site {
    /// Starts the cluster, and deploys the driver.
    pub(crate) async fn up() -> Site {
        let cluster = Cluster::up(&Options::one_node().apart("fidelity"));
        let pool_dir = tempfile::Builder::new()
            .prefix("hostloop-fidelity-")
            .tempdir_in("/var/tmp");
        let site = Site {
            objects: Objects::connect(&cluster.kubeconfig()).await,
            client: cluster.client().await,
            cluster,
            pool_dir: pool_dir.expect("a directory can be made in /var/tmp"),
        };
        let scratch = Scratch::new();
        let image = scratch.path().join("hostloop.tar");
        site.cluster.load(&deployed::tested_image(image));
        site.cluster.create_crds();
        site.cluster.apply(&site.manifest());
        site.wait_for_driver().await;
        site
    }

    async fn wait_for_driver(&self) {
        let lease = leader_lease(DRIVER);
        let lease = Place::of("Lease", NAMESPACE, &lease);
        let node = Place::of("CSINode", "", &self.cluster.node(1));
        wait_for("the driver and its controller", PATIENCE, async || {
            let pods = self.objects.list("Pod", NAMESPACE).await;
            let node = self.objects.get(&node).await.unwrap_or_default();
            let registered = list(&node["spec"]["drivers"]).any(|d| d["name"] == DRIVER);
            let leads = self.objects.get(&lease).await.is_some();
            if pods.len() == 2 && pods.iter().all(is_ready) && registered && leads {
                return Ok(());
            }
            let pods: Vec<&Value> = pods.iter().map(|pod| &pod["status"]).collect();
            Err(format!(
                "registered: {registered}; leads: {leads}; pods: {pods:?}"
            ))
        })
        .await;
    }

    fn manifest(&self) -> String {
        let [pool, kubelet] = [self.pool_dir.path(), self.cluster.kubelet_dir()].map(path_text);
        let manifest = deployed::render(&[
            "--overlay",
            "snapshot-controller",
            "--pool-dir",
            pool,
            "--pool-options",
            POOL_OPTIONS,
            "--kubelet-dir",
            kubelet,
        ]);
        assert!(
            manifest.contains(OPTIONS),
            "the DaemonSet has options of its pool"
        );
        manifest.replacen(OPTIONS, &format!("{RESERVE}\n        {OPTIONS}"), 1)
    }

    /// The directory of the pool, as this machine sees it.
    pub(crate) fn pool(&self) -> PathBuf {
        self.cluster.on(1).path(self.pool_dir.path())
    }

    /// Creates what an administrator makes, unless it is there, and waits for what pods and claims
    /// need: the namespace's account, and the node's capacity for the classes.
    pub(crate) async fn prepare(&self, setup: &[Value]) {
        for object in setup {
            match self.objects.try_create(object.clone()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(why) => panic!("making {} {}: {why}", object["kind"], name(object)),
            }
        }
        let account = ["get", "serviceaccount", "default", "-n", USERS];
        wait_for("the account of pods", PATIENCE, async || {
            self.cluster.try_kubectl(&account).map(drop)
        })
        .await;
        // The scheduler looks at capacities only for these.
        let waits = "WaitForFirstConsumer";
        let classes: Vec<&str> = setup
            .iter()
            .filter(|object| object["volumeBindingMode"] == waits)
            .map(name)
            .collect();
        wait_for("the capacities", PATIENCE, async || {
            let capacities = self.objects.list("CSIStorageCapacity", "").await;
            let missing: Vec<&&str> = classes
                .iter()
                .filter(|class| {
                    !capacities
                        .iter()
                        .any(|capacity| capacity["storageClassName"] == ***class)
                })
                .collect();
            check(missing.is_empty(), || {
                format!("no capacity for {missing:?}")
            })
        })
        .await;
    }

    /// What the cluster has now.
    pub(crate) async fn found(&self, pool: &RecordDirectory) -> FoundObjects {
        let mut found = FoundObjects::new(pool.records());
        for (kind, _) in KINDS {
            found.add(kind, self.objects.list(kind, "").await);
        }
        found
    }

    /// Sends a user's write. Returns the code of the answer, and what it says.
    pub(crate) async fn send(&self, call: &Call, names: &Names) -> (u16, String) {
        let Some(path) = names.raw_path(&call.path) else {
            return (404, "there is no such object here".to_owned());
        };
        let content = match call.method.as_str() {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let method: Method = call.method.parse().expect("a method");
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content)
            .body(Body::from(call.body.to_string().into_bytes()))
            .expect("a request");
        let answer = self.client.send(request).await;
        let answer = answer.unwrap_or_else(|e| panic!("{} {}: {e}", call.method, call.path));
        let code = answer.status().as_u16();
        let body = answer.into_body().collect_bytes().await;
        let body: Value = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
        (code, text(&body["message"]).to_owned())
    }

    /// Messages of events in the users' namespace, for people.
    pub(crate) async fn events(&self) -> Vec<String> {
        let events = self.objects.list("Event", USERS).await;
        let lines = events.iter().map(|event| {
            let about = &event["involvedObject"];
            let [kind, name] = ["kind", "name"].map(|field| text(&about[field]));
            let [reason, message] = ["reason", "message"].map(|field| text(&event[field]));
            format!("{kind} {name}: {reason}: {message}")
        });
        lines.collect()
    }

    /// The log of all pods of the driver.
    pub(crate) fn log(&self) -> String {
        let both = "-l=app.kubernetes.io/name in (hostloop, hostloop-controller)";
        self.cluster.logs(NAMESPACE, both)
    }

    /// Deletes all that a history has left. What is kept in the pool without an object stays there.
    /// Returns what did not go by itself.
    pub(crate) async fn clear(&self) -> Option<String> {
        let namespace = Place::of("Namespace", "", USERS);
        let found = self.objects.get(&namespace).await;
        // The API server refuses to delete it twice.
        if found.is_some_and(|found| found["metadata"]["deletionTimestamp"].is_null()) {
            self.objects.delete(&namespace).await;
        }
        let stays = if self.objects.until_gone(&namespace, LEAVE).await {
            None
        } else {
            let seen = self.objects.describe(&namespace).await;
            let events = self.events().await.join("\n");
            self.remove_by_force().await;
            let is_gone = self.objects.until_gone(&namespace, PATIENCE).await;
            assert!(
                is_gone,
                "the namespace stays, even without finalizers: {seen}"
            );
            Some(format!("the namespace stays: {seen}\n{events}"))
        };
        let kept = [
            ("VolumeSnapshotContent", "deletionPolicy"),
            ("PersistentVolume", "persistentVolumeReclaimPolicy"),
        ];
        for (kind, policy) in kept {
            for object in self.objects.list(kind, "").await {
                let at = Place::of(kind, "", name(&object));
                // It may be gone by now.
                let change = json!({"spec": {policy: "Delete"}});
                let _ = self.objects.try_merge(&at, change).await;
                self.objects.delete(&at).await;
                if self.objects.until_gone(&at, LEAVE).await {
                    continue;
                }
                // Of data that the driver does not have, it stays.
                println!("    {at} stays, and is removed by force");
                let change = json!({"metadata": {"finalizers": null}});
                let _ = self.objects.try_merge(&at, change).await;
            }
        }
        // Kubelet may still unmount what pods had.
        let unused = until(PATIENCE, || async {
            self.devices().is_empty().then_some(())
        });
        assert!(
            unused.await.is_some(),
            "still attached: {:?}",
            self.devices()
        );
        stays
    }

    /// Takes what keeps the users' objects.
    async fn remove_by_force(&self) {
        for kind in ["Pod", "VolumeSnapshot", "PersistentVolumeClaim"] {
            for object in self.objects.list(kind, USERS).await {
                let at = Place::of(kind, USERS, name(&object));
                println!("    {at} stays, and is removed by force");
                let change = json!({"metadata": {"finalizers": null}});
                let _ = self.objects.try_merge(&at, change).await;
                let now = DeleteParams::default().grace_period(0);
                self.objects.delete_with(&at, &now).await;
            }
        }
    }

    /// The loop devices over files of the pool.
    fn devices(&self) -> Vec<Loop> {
        loop_devices::beneath(self.pool_dir.path())
    }

    /// Removes the driver, and the cluster.
    pub(crate) fn down(self) {
        let manifest = self.manifest();
        deployed::remove(self.cluster, &manifest, self.pool_dir.path());
    }
}

fn is_ready(pod: &Value) -> bool {
    pod["status"]["containerStatuses"][0]["ready"] == true
}
