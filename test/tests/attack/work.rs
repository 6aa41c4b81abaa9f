//! The policies allow a node's regular work. Runs its controllers under the node account, with an
//! in-memory driver. The test acts as scheduler, controller and snapshot controller.

use std::collections::BTreeMap;

use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_test::front::objects::Place;
use hostloop_test::front::process::{Controllers, log};
use hostloop_test::front::wait::{PATIENCE, until};
use hostloop_test::memory::{MemoryDriver, Options, Step};
use hostloop_test::scratch::Scratch;
use serde_json::{Value, json};
use tonic::Code;

use crate::site::Site;
use crate::target::Target;

const DRIVER: &str = "hostloop.csi.dev";
struct Work {
    site: Site,
    class: String,
    controllers: Controllers,
    driver: MemoryDriver,
    scratch: Scratch,
}

impl Work {
    async fn begin() -> Work {
        let site = Site::up().await;
        let scratch = Scratch::new();
        let own = site.names.own.clone();
        let mut options = Options {
            name: DRIVER.to_owned(),
            node_id: own.clone(),
            pool: "p1".to_owned(),
            topology: vec![BTreeMap::from([(
                "topology.hostloop.csi.dev/node".to_owned(),
                own.clone(),
            )])],
            capacity: 1 << 40,
            ..Options::default()
        };
        let rpcs = &mut options.capabilities.controller;
        rpcs.remove(&ControllerRpc::PublishUnpublishVolume);
        rpcs.remove(&ControllerRpc::ListVolumesPublishedNodes);
        options.known_mutable = Some(["speed".to_owned()].into());
        let driver = MemoryDriver::start(scratch.path().join("csi.sock"), options);
        let kubeconfig = site.node_kubeconfig(scratch.path());
        let args = [
            format!("--csi-address={}", driver.endpoint()),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--node-name={own}"),
            "--controllers=provisioner,resizer,snapshotter,capacity".to_owned(),
            "--node-deployment=true".to_owned(),
            "--leader-tasks=elsewhere".to_owned(),
            "--volume-name-prefix=hostloop".to_owned(),
            "--capacity-ownerref-level=-1".to_owned(),
        ];
        let class = format!("{}-work", site.names.run);
        site.class(&class, DRIVER, "WaitForFirstConsumer").await;
        Work {
            controllers: Controllers::in_pod(scratch.path(), "hostloop", None, &args),
            site,
            class,
            driver,
            scratch,
        }
    }

    fn place(&self, kind: &str, name: &str) -> Place {
        Place::of(kind, &self.site.names.run, name)
    }

    /// Waits until an object meets the condition.
    async fn until(&self, at: &Place, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let object = self.site.until(at, is).await;
        object.unwrap_or_else(|| panic!("{at} is not {what}\n{}", log(self.scratch.path())))
    }

    async fn until_gone(&self, at: &Place) {
        let ask = || async { self.site.admin.get(at).await.is_none().then_some(()) };
        let gone = until(PATIENCE, ask).await;
        assert!(gone.is_some(), "{at} is left\n{}", log(self.scratch.path()));
    }

    /// Creates a claim that selects this node, waits until it is bound, and returns its volume.
    async fn claim(&self, name: &str, source: Value) -> Value {
        let own = &self.site.names.own;
        let change = json!({
            "metadata": {
                "labels": {"hostloop.csi.dev/node": own},
                "annotations": {"volume.kubernetes.io/selected-node": own},
            },
            "spec": {"dataSource": source},
        });
        let at = self.site.claim(name, &self.class, change).await;
        let bound = |claim: &Value| claim["status"]["phase"] == "Bound";
        let claim = self.until(&at, "bound", bound).await;
        let volume = claim["spec"]["volumeName"].as_str().expect("a name");
        let at = self.place("PersistentVolume", volume);
        self.until(&at, "there", |_| true).await
    }

    async fn expand(&self, claim: &str, volume: &str) {
        let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
        let claim = self.place("PersistentVolumeClaim", claim);
        self.site.admin.merge(&claim, larger).await;
        let volume = self.place("PersistentVolume", volume);
        let grown = |volume: &Value| volume["spec"]["capacity"]["storage"] == "2Gi";
        self.until(&volume, "larger", grown).await;
        let is = |claim: &Value| claim["status"]["allocatedResources"]["storage"] == "2Gi";
        self.until(&claim, "allocated its new size", is).await;
    }

    /// An expansion that the driver refuses, and then one to less, but more than it has.
    async fn recover(&self, claim: &str) {
        let at = self.place("PersistentVolumeClaim", claim);
        let ask = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
        let code = Code::OutOfRange;
        self.driver.always("ControllerExpandVolume", Step::Fail(code));
        self.site.admin.merge(&at, ask("9Gi")).await;
        let refused = |claim: &Value| {
            let status = &claim["status"];
            status["allocatedResources"]["storage"] == "9Gi"
                && status["allocatedResourceStatuses"]["storage"] == "ControllerResizeInfeasible"
        };
        self.until(&at, "refused", refused).await;
        self.driver.unscript("ControllerExpandVolume");
        self.site.admin.merge(&at, ask("3Gi")).await;
        let done = |claim: &Value| {
            let status = &claim["status"];
            status["capacity"]["storage"] == "3Gi"
                && status["allocatedResources"]["storage"] == "3Gi"
        };
        self.until(&at, "expanded to less", done).await;
    }

    /// Other attributes, after ones that the driver refuses.
    async fn modify(&self, claim: &str) {
        let at = self.place("PersistentVolumeClaim", claim);
        for (name, parameter) in [("bad", "colour"), ("good", "speed")] {
            let class = format!("{}-{name}", self.site.names.run);
            let made = json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
                "metadata": {"name": class}, "driverName": DRIVER, "parameters": {parameter: "9"},
            });
            self.site.admin.create(made).await;
            let ask = json!({"spec": {"volumeAttributesClassName": class}});
            self.site.admin.merge(&at, ask).await;
            let ended = |claim: &Value| {
                let status = &claim["status"];
                let tried = &status["modifyVolumeStatus"];
                match name {
                    "bad" => tried["targetVolumeAttributesClassName"] == *class,
                    _ => status["currentVolumeAttributesClassName"] == *class && tried.is_null(),
                }
            };
            self.until(&at, name, ended).await;
        }
    }

    async fn snapshot(&self, handle: &Value) {
        let source = json!({"volumeHandle": handle});
        let ready = |content: &Value| content["status"]["readyToUse"] == true;
        self.content("snapshot", "Snapshot", source, ready).await;
    }

    async fn group(&self, handle: &Value) {
        let source = json!({"volumeHandles": [handle]});
        let ready = |content: &Value| {
            let status = &content["status"];
            status["readyToUse"] == true
                && status["volumeSnapshotInfoList"][0]["volumeHandle"] == *handle
        };
        self.content("groupsnapshot", "GroupSnapshot", source, ready).await;
    }

    /// Makes a class and a content of this API group, waits until the content is ready, and
    /// deletes it.
    async fn content(
        &self,
        group: &str,
        kind: &str,
        source: Value,
        is_ready: impl Fn(&Value) -> bool,
    ) {
        let run = &self.site.names.run;
        let name = format!("{run}-{group}");
        let api = format!("{group}.storage.k8s.io/v1");
        let key = format!("{group}.storage.kubernetes.io/volume{group}");
        let class = json!({
            "apiVersion": api, "kind": format!("Volume{kind}Class"),
            "metadata": {"name": name}, "driver": DRIVER, "deletionPolicy": "Delete",
        });
        self.site.admin.create(class).await;
        let kind_of_content = format!("Volume{kind}Content");
        let content = json!({
            "apiVersion": api, "kind": kind_of_content,
            "metadata": {
                "name": name, "finalizers": [format!("{key}content-bound-protection")],
                "labels": {"snapshot.storage.kubernetes.io/managed-by": self.site.names.own},
            },
            "spec": {
                "deletionPolicy": "Delete", "driver": DRIVER,
                format!("volume{kind}ClassName"): name,
                "source": source,
                format!("volume{kind}Ref"): {"name": "none", "namespace": run, "uid": "any"},
            },
        });
        self.site.admin.create(content).await;
        let at = self.place(&kind_of_content, &name);
        self.until(&at, "ready", is_ready).await;
        let deleted = json!({"metadata": {"annotations": {format!("{key}-being-deleted"): "yes"}}});
        self.site.admin.merge(&at, deleted).await;
        self.site.admin.delete(&at).await;
        self.until_gone(&at).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_has_to_do_is_let_through() {
    let work = Work::begin().await;
    let volume = work.claim("made", Value::Null).await;
    let source = json!({"kind": "PersistentVolumeClaim", "name": "made"});
    let clone = work.claim("cloned", source).await;
    let name = |object: &Value| object["metadata"]["name"].as_str().expect("a name").to_owned();
    work.expand("made", &name(&volume)).await;
    work.recover("made").await;
    work.modify("made").await;
    work.snapshot(&volume["spec"]["csi"]["volumeHandle"]).await;
    work.group(&volume["spec"]["csi"]["volumeHandle"]).await;
    let published = || async {
        let all = work.site.admin.list("CSIStorageCapacity", "hostloop").await;
        all.into_iter().find(|capacity| capacity["storageClassName"] == *work.class)
    };
    let published = until(PATIENCE, published).await;
    published.expect("the node publishes its capacity");
    for (claim, volume) in [("cloned", &clone), ("made", &volume)] {
        let at = work.place("PersistentVolumeClaim", claim);
        work.site.admin.delete(&at).await;
        if claim == "made" {
            // The controller would remove the finalizer of the clone's source.
            let free = json!({"metadata": {"finalizers": null}});
            work.site.admin.merge(&at, free).await;
        }
        let at = work.place("PersistentVolume", &name(volume));
        work.until_gone(&at).await;
    }
    let log = log(work.scratch.path());
    // Without a leader, a node watches everything and also tries objects that belong to no node
    // yet.
    let unplaced = work.site.names.of(Target::Unplaced);
    let refused: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("is forbidden") && !line.contains(&unplaced))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
    work.controllers.stop();
}
