//! The scheduler's use of the published capacity: pods with late binding go where their claims fit.
//! The tests run without a kubelet, so pods get a node but do not start.

use hostloop_test::PATIENCE;
use hostloop_test::front::fields::text;
use hostloop_test::front::wait::until;
use hostloop_test::front::{FrontSpec, objects};
use hostloop_test::memory::Step;
use serde_json::{Value, json};
use tonic::Code;

use crate::{Rig, SELECTED_NODE, annotation, in_class};

impl Rig {
    /// Two nodes of 10 GiB each that pods could run on. Returns the rig and the name of a class
    /// with late binding.
    async fn for_pods(name: &str) -> (Rig, String) {
        let args = [
            "--enable-capacity",
            "--capacity-ownerref-level=-1",
            "--capacity-poll-interval=1h",
            "--strict-topology=true",
        ];
        let spec = FrontSpec::new(name, "provisioner,capacity").nodes(2);
        let rig = Rig::up(spec.driver(|o| o.capacity = 10 << 30).args(&args)).await;
        let driver = rig.at("CSIDriver", &rig.driver_name);
        // `attachRequired` is immutable, and no controller of this test attaches.
        rig.delete(driver).await;
        let spec = json!({"attachRequired": false, "storageCapacity": true});
        rig.create(objects::csi_driver(&rig.driver_name, spec))
            .await;
        let room = json!({"cpu": "4", "memory": "4Gi", "pods": "20"});
        let status = json!({"status": {"capacity": room, "allocatable": room}});
        for node in &rig.nodes {
            let at = rig.at("Node", node);
            rig.objects.merge_status(&at, status.clone()).await;
        }
        let class = rig.late_class().await;
        let published = || async { (rig.capacities().await.len() == 2).then_some(()) };
        let published = until(PATIENCE, published).await;
        assert!(published.is_some(), "no capacity:\n{}", rig.log());
        (rig, class)
    }

    async fn late_claim(&self, class: &str, name: &str, size: &str, node: Option<&str>) {
        let mut claim = objects::with(in_class(class), objects::sized(size));
        if let Some(node) = node {
            claim["metadata"] = json!({"annotations": {SELECTED_NODE: node}});
        }
        self.claim(name, claim).await;
    }

    /// A pod with a claim of its name.
    async fn pod(&self, class: &str, name: &str, size: &str) {
        self.late_claim(class, name, size, None).await;
        // The pod must not run on other tests' nodes.
        let own = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": self.nodes});
        self.create(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 0,
                // No kubelet reports these nodes as ready.
                "tolerations": [{"operator": "Exists"}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [own]}],
                }}},
                "containers": [{"name": "c", "image": "none"}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}],
            },
        }))
        .await;
    }

    /// The node that the scheduler gave a pod.
    async fn node_of(&self, pod: &str) -> String {
        let given = |pod: &Value| !text(&pod["spec"]["nodeName"]).is_empty();
        let pod = self.until(&self.at("Pod", pod), "on a node", given).await;
        text(&pod["spec"]["nodeName"]).to_owned()
    }

    async fn without_pods(self, pods: &[&str]) {
        for pod in pods {
            self.delete(self.at("Pod", pod)).await;
        }
        self.down().await;
    }
}

/// A pod goes to the only node on which its claim fits. If it fits on no node, the scheduler
/// reports that, and finds a node once there is room again.
#[tokio::test(flavor = "multi_thread")]
async fn pods_go_where_there_is_room() {
    let (rig, class) = Rig::for_pods("fits").await;
    let [first, second] = [rig.nodes[0].clone(), rig.nodes[1].clone()];
    rig.late_claim(&class, "large", "8Gi", Some(&first)).await;
    rig.bound("large").await;
    for pod in ["one", "two"] {
        rig.pod(&class, pod, "4Gi").await;
        assert_eq!(rig.node_of(pod).await, second, "{}", rig.log());
        let (claim, _) = rig.bound(pod).await;
        assert_eq!(*annotation(&claim, SELECTED_NODE), second);
    }
    rig.pod(&class, "three", "4Gi").await;
    let waits = ["did not have enough free storage"];
    let pod = rig.at("Pod", "three");
    rig.warned(&pod, "FailedScheduling", &waits).await;
    assert_eq!(rig.driver.volumes().len(), 3);
    rig.delete(rig.claim_at("large")).await;
    assert_eq!(rig.node_of("three").await, first, "{}", rig.log());
    rig.bound("three").await;
    rig.without_pods(&["one", "two", "three"]).await;
}

/// After a node turns out to be full, the scheduler moves the pod to another node.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_room_is_given_back() {
    let (rig, class) = Rig::for_pods("exhausted").await;
    let full = Step::Fail(Code::ResourceExhausted);
    rig.driver.script("CreateVolume", [full.clone(), full]);
    rig.pod(&class, "pod", "1Gi").await;
    let words = ["ResourceExhausted", "another node will be selected"];
    let claim = rig.claim_at("pod");
    rig.warned(&claim, "ProvisioningFailed", &words).await;
    let node = rig.node_of("pod").await;
    assert!(rig.nodes.contains(&node), "{node}");
    let (_, volume) = rig.bound("pod").await;
    let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    let place = &terms[0]["matchExpressions"][0];
    assert_eq!(place["values"], json!([node]), "where the pod is: {terms}");
    rig.without_pods(&["pod"]).await;
}
