//! The policies allow a node's regular work. The end-to-end tests check that nothing was forbidden
//! to it, and this test does the work that they do not cause. The node's controllers run under the
//! node account, with an in-memory driver. The test acts as the scheduler.

use std::collections::BTreeMap;
use std::time::Duration;

use hostloop_proto::csi::VolumeHealthErrorType;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::volume_health::VolumeHealthEntry;
use hostloop_test::PATIENCE;
use hostloop_test::front::fields::{handle, is_bound};
use hostloop_test::front::objects::{self, Place, sized};
use hostloop_test::front::process::{Controllers, log};
use hostloop_test::front::wait::until;
use hostloop_test::memory::{MemoryDriver, Options, Step};
use hostloop_test::scratch::Scratch;
use serde_json::{Value, json};
use tonic::Code;

use crate::installation::{Installation, driver};
use crate::site::Site;
use crate::target::Target;

const SELECTED: &str = "volume.kubernetes.io/selected-node";

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
        let installed = Installation::of_run();
        let mut options = Options {
            name: installed.driver.clone(),
            node_id: own.clone(),
            pool: "p1".to_owned(),
            topology: vec![BTreeMap::from([(
                installed.topology_key.to_owned(),
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
        let kubeconfig = site.node_kubeconfig();
        let args = [
            format!("--csi-address={}", driver.endpoint()),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--node-name={own}"),
            "--controllers=provisioner,resizer,snapshotter,capacity,health".to_owned(),
            "--list-volumes-interval=1s".to_owned(),
            "--node-deployment=true".to_owned(),
            "--leader-tasks=elsewhere".to_owned(),
            "--volume-name-prefix=hostloop".to_owned(),
            "--capacity-ownerref-level=-1".to_owned(),
        ];
        let class = format!("{}-work", site.names.run);
        site.class(&class, &installed.driver, "WaitForFirstConsumer")
            .await;
        Work {
            controllers: Controllers::in_pod(scratch.path(), installed.namespace, None, &args),
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
        let object = self.site.admin.until(at, PATIENCE, is).await;
        object.unwrap_or_else(|| panic!("{at} is not {what}\n{}", log(self.scratch.path())))
    }

    /// The change with which a claim selects this node.
    fn selected(&self) -> Value {
        let own = &self.site.names.own;
        json!({"metadata": {
            "labels": {"hostloop.csi.dev/node": own}, "annotations": {SELECTED: own},
        }})
    }

    /// Creates a claim that selects this node, waits until it is bound, and returns its volume.
    async fn claim(&self, name: &str) -> Value {
        let at = self.site.claim(name, &self.class, self.selected()).await;
        let claim = self.until(&at, "bound", is_bound).await;
        let volume = claim["spec"]["volumeName"].as_str().expect("a name");
        let at = self.place("PersistentVolume", volume);
        self.until(&at, "there", |_| true).await
    }

    /// A claim on a tainted node gives it back, and gets its volume there once a pod tolerates that.
    async fn tolerate(&self, name: &str) {
        let admin = &self.site.admin;
        let node = Place::of("Node", "", &self.site.names.own);
        let taint = json!({"key": "team", "value": "gpu", "effect": "NoSchedule"});
        admin
            .merge(&node, json!({"spec": {"taints": [taint]}}))
            .await;
        // The node was fit for earlier claims, and counts as such for ten seconds.
        tokio::time::sleep(Duration::from_secs(11)).await;
        let at = self.site.claim(name, &self.class, self.selected()).await;
        let given_back = |claim: &Value| claim["metadata"]["annotations"][SELECTED].is_null();
        self.until(&at, "given back", given_back).await;
        let namespace = &self.site.names.run;
        // It stays pending: the node is not ready.
        let pod = admin
            .create(json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    "automountServiceAccountToken": false,
                    "tolerations": [{"key": "team", "operator": "Exists"}],
                    "containers": [{"name": "c", "image": "none"}],
                    "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}],
                },
            }))
            .await;
        // As the scheduler does, again if the node does not know of the pod yet and gives it back.
        let bound = || async {
            let claim = admin.get(&at).await.expect("the claim");
            if given_back(&claim) {
                admin.merge(&at, self.selected()).await;
            }
            is_bound(&claim).then_some(())
        };
        let bound = until(PATIENCE, bound).await;
        bound.unwrap_or_else(|| panic!("{at} is not bound\n{}", log(self.scratch.path())));
        admin.delete(&Place::of_object(&pod)).await;
        admin.merge(&node, json!({"spec": {"taints": null}})).await;
    }

    /// An expansion that the driver refuses, and then one to less, but more than it has.
    async fn recover(&self, claim: &str) {
        let at = self.place("PersistentVolumeClaim", claim);
        let code = Code::OutOfRange;
        self.driver
            .always("ControllerExpandVolume", Step::Fail(code));
        self.site.admin.merge(&at, sized("9Gi")).await;
        let refused = |claim: &Value| {
            let status = &claim["status"];
            status["allocatedResources"]["storage"] == "9Gi"
                && status["allocatedResourceStatuses"]["storage"] == "ControllerResizeInfeasible"
        };
        self.until(&at, "refused", refused).await;
        self.driver.unscript("ControllerExpandVolume");
        self.site.admin.merge(&at, sized("3Gi")).await;
        let done = |claim: &Value| {
            let status = &claim["status"];
            status["capacity"]["storage"] == "3Gi"
                && status["allocatedResources"]["storage"] == "3Gi"
        };
        self.until(&at, "expanded to less", done).await;
    }

    /// The volume of a claim is ill, and well again.
    async fn report_health(&self, claim: &str, volume: &Value) {
        let at = self.place("PersistentVolumeClaim", claim);
        let entry = VolumeHealthEntry {
            status: VolumeHealthErrorType::Inaccessible.into(),
            reason: "Unplugged".to_owned(),
            message: "its cable is on the floor".to_owned(),
        };
        self.driver.set_health(handle(volume), vec![entry]);
        let is_ill = |claim: &Value| {
            claim["status"]["healthStatus"]["healthConditions"][0]["reason"] == "Unplugged"
        };
        self.until(&at, "ill", is_ill).await;
        self.driver.set_health(handle(volume), Vec::new());
        let is_well = |claim: &Value| claim["status"]["healthStatus"].is_null();
        self.until(&at, "well again", is_well).await;
    }

    /// Other attributes, after ones that the driver refuses.
    async fn modify(&self, claim: &str) {
        let at = self.place("PersistentVolumeClaim", claim);
        for (name, parameter) in [("bad", "colour"), ("good", "speed")] {
            let class = format!("{}-{name}", self.site.names.run);
            let made = objects::attributes_class(&class, driver(), json!({parameter: "9"}));
            self.site.admin.create(made).await;
            self.site
                .admin
                .merge(&at, objects::with_attributes(&class))
                .await;
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
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_has_to_do_is_let_through() {
    let work = Work::begin().await;
    let volume = work.claim("made").await;
    work.recover("made").await;
    work.modify("made").await;
    work.report_health("made", &volume).await;
    work.tolerate("tolerated").await;
    work.site
        .admin
        .delete(&work.place("PersistentVolumeClaim", "made"))
        .await;
    let at = Place::of_object(&volume);
    let gone = work.site.admin.until_gone(&at, PATIENCE).await;
    let log = log(work.scratch.path());
    assert!(gone, "{at} is left\n{log}");
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
