//! Tests of a node that a claim names, and that takes no ordinary pods.

use rstest::rstest;

use super::*;

const LATE: &str = "WaitForFirstConsumer";
const NOW: &str = "Immediate";
const TAINT: &str = "node-role.kubernetes.io/control-plane";

fn tainted() -> Value {
    json!({"taints": [{"key": TAINT, "effect": "NoSchedule"}]})
}

fn tolerating() -> Value {
    json!({"tolerations": [{"key": TAINT, "operator": "Exists"}]})
}

impl Rig {
    /// This node's Node, which no cache of its process has.
    fn own_node(&self, spec: Value) {
        self.world
            .api
            .put(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "labels": {"zone": "a"}}, "spec": spec}));
    }

    fn binding_class(&self, mode: &str, zones: &Value) {
        let expression = json!({"key": "zone", "values": zones});
        let allowed = zones
            .is_array()
            .then(|| json!([{"matchLabelExpressions": [expression]}]));
        let class = json!({"kind": "StorageClass", "metadata": {"name": "fast", "uid": "c"},
                           "provisioner": "d", "volumeBindingMode": mode,
                           "allowedTopologies": allowed});
        self.world.add(&self.world.context.caches.classes(), class);
    }

    /// A pending pod of the namespace that uses a claim.
    fn pod(&self, name: &str, claim: &str, spec: Value) {
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
        self.world.api.put(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": testing::with(json!({"containers": [], "volumes": volumes}), spec),
            "status": {"phase": "Pending"}}));
    }

    fn selected(&self, claim: &str) -> Value {
        let claim = self
            .world
            .api
            .get(&format!("shop/persistentvolumeclaims/{claim}"));
        claim.expect("the claim")["metadata"]["annotations"][SELECTED_NODE].clone()
    }

    fn calls(&self) -> usize {
        self.driver.state().created.len()
    }
}

/// A rig on the node n1, with a claim that names it.
fn on_node(mode: &str, spec: Value) -> Rig {
    let rig = rig(here(), true);
    rig.own_node(spec);
    rig.binding_class(mode, &Value::Null);
    rig.put_claim(&claim_value(Some("n1"), &Value::Null));
    rig
}

/// Who says that the claim may have its volume on a tainted node.
#[rstest]
#[case::no_pod(LATE, None, false)]
#[case::a_plain_pod(LATE, Some(json!({})), false)]
#[case::a_pod_that_tolerates_the_taint(LATE, Some(tolerating()), true)]
#[case::a_pod_that_is_there(LATE, Some(json!({"nodeName": "n1"})), true)]
#[case::a_pod_elsewhere(LATE, Some(testing::with(tolerating(), json!({"nodeName": "n2"}))), false)]
#[case::no_pod_at_once(NOW, None, false)]
#[case::a_pod_that_is_not_waited_for(NOW, Some(tolerating()), false)]
#[tokio::test]
async fn a_claim_without_a_scheduled_pod_gets_no_volume_on_a_tainted_node(
    #[case] mode: &str,
    #[case] pod: Option<Value>,
    #[case] expected: bool,
) {
    let mut rig = on_node(mode, tainted());
    // A pod that may run there, and uses another claim.
    rig.pod("other", "other", tolerating());
    if let Some(pod) = pod {
        rig.pod("p", "data", pod);
    }
    assert_eq!(rig.work().await, Outcome::Done);
    assert_eq!(rig.calls(), usize::from(expected));
    if expected {
        assert_eq!(rig.selected("data"), "n1");
        return;
    }
    assert_eq!(rig.selected("data"), Value::Null);
    let message = rig.last_message();
    for part in [
        "the selected node n1 has the taint node-role.kubernetes.io/control-plane:NoSchedule, and",
        "volume.kubernetes.io/selected-node to the",
        "; another node will be selected",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

/// What a node is like, without any pod, for each binding mode.
#[rstest]
#[case::fit(json!({}), Value::Null, true)]
#[case::cordoned(json!({"unschedulable": true}), Value::Null, false)]
#[case::weakly_tainted(json!({"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}), Value::Null, true)]
#[case::cordoned_and_allowed(json!({"unschedulable": true}), json!(["a"]), false)]
#[case::not_allowed(json!({}), json!(["b"]), false)]
#[tokio::test]
async fn a_claim_without_a_pod_is_held_to_the_nodes_fitness(
    #[case] spec: Value,
    #[case] zones: Value,
    #[case] expected: bool,
) {
    for mode in [LATE, NOW] {
        let rig = on_node(mode, spec.clone());
        rig.binding_class(mode, &zones);
        rig.work().await;
        assert_eq!(rig.calls(), usize::from(expected), "{mode}");
        assert_eq!(rig.selected("data").is_null(), !expected, "{mode}");
    }
}

/// A claim with a source is where its source is, and nowhere else. The source is checked.
#[tokio::test]
async fn a_copy_needs_no_pod() {
    let mut rig = on_node(LATE, tainted());
    rig.put_claim(&claim_value(Some("n1"), &from_snapshot()));
    assert_eq!(rig.work().await, Outcome::Failed);
    assert_eq!(rig.selected("data"), "n1");
    let message = rig.last_message();
    assert!(message.contains("snap"), "{message}");
    assert!(!rig.log().contains(&get("nodes/n1")));
}

/// The taint came after the first call, and the volume may exist.
#[tokio::test]
async fn a_call_that_may_still_run_is_repeated() {
    let rig = on_node(LATE, json!({}));
    rig.fail([Status::unavailable("busy")]);
    assert_eq!(rig.work().await, Outcome::Failed);
    rig.own_node(tainted());
    assert_eq!(rig.work().await, Outcome::Done);
    assert_eq!((rig.calls(), rig.selected("data")), (2, json!("n1")));
}

/// Claims come in bursts. What a node was a moment ago only counts in a claim's favour.
#[tokio::test(start_paused = true)]
async fn a_fit_node_is_not_read_for_every_claim() {
    let rig = on_node(LATE, json!({}));
    let reads = || {
        rig.log()
            .into_iter()
            .filter(|line| *line == get("nodes/n1"))
            .count()
    };
    let claim = async |name: &str| {
        let claim = claim_value(Some("n1"), &Value::Null);
        rig.put_claim(&testing::with(
            claim,
            json!({"metadata": {"name": name, "uid": name}}),
        ));
        rig.at_work.claim(name).await
    };
    assert_eq!(claim("a").await, Outcome::Done);
    assert_eq!(reads(), 1);
    rig.own_node(tainted());
    assert_eq!(claim("b").await, Outcome::Done);
    assert_eq!((reads(), rig.selected("b")), (0, json!("n1")));
    tokio::time::advance(std::time::Duration::from_secs(11)).await;
    assert_eq!(claim("c").await, Outcome::Done);
    assert_eq!((reads(), rig.selected("c")), (1, Value::Null));
    // Each claim asks again: the taint may be gone.
    rig.own_node(json!({}));
    assert_eq!(claim("d").await, Outcome::Done);
    assert_eq!((reads(), rig.selected("d")), (1, json!("n1")));
}

/// Upstream's role lets no provisioner list pods.
#[tokio::test]
async fn without_the_right_to_look_the_annotation_counts() {
    for kind in ["nodes", "pods"] {
        let rig = on_node(LATE, tainted());
        rig.world
            .api
            .fault(&["GET"], kind, Some(1), Fault::Refuse(403));
        assert_eq!(rig.work().await, Outcome::Done, "{kind}");
        assert_eq!(
            (rig.calls(), rig.selected("data")),
            (1, json!("n1")),
            "{kind}"
        );
    }
}

/// Without an answer, no volume is made, and the claim keeps its node.
#[tokio::test]
async fn a_node_that_cant_be_read_is_not_fit() {
    for kind in ["nodes", "pods"] {
        let rig = on_node(LATE, tainted());
        rig.pod("p", "data", tolerating());
        rig.world
            .api
            .fault(&["GET"], kind, Some(1), Fault::Refuse(500));
        assert_eq!(rig.work().await, Outcome::Failed, "{kind}");
        assert_eq!(
            (rig.calls(), rig.selected("data")),
            (0, json!("n1")),
            "{kind}"
        );
        assert_eq!(rig.work().await, Outcome::Done, "{kind}");
        assert_eq!(rig.calls(), 1, "{kind}");
    }
}

/// A namespace may have thousands of large pods, and many claims that ask for them.
#[tokio::test(start_paused = true)]
async fn pods_are_listed_once_for_all_claims_that_wait_for_the_list() {
    let rig = on_node(LATE, tainted());
    let names: Vec<_> = (0..24).map(|number| format!("c{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let claim = claim_value(Some("n1"), &Value::Null);
        let named = json!({"metadata": {"name": name, "uid": name}});
        rig.put_claim(&testing::with(claim, named));
        if number % 2 == 0 {
            rig.pod(&format!("p{number}"), name, tolerating());
        }
    }
    let late = Fault::Delay(std::time::Duration::from_secs(1));
    rig.world.api.fault(&["GET"], "pods", None, late);
    rig.world.api.requests();
    let all = names.iter().map(|name| rig.at_work.claim(name));
    futures::future::join_all(all).await;
    let lists = rig.world.api.requests().into_iter();
    let lists: Vec<_> = lists.filter(|line| line.contains("/pods?")).collect();
    assert!(lists.len() <= 2, "{lists:?}");
    for (number, name) in names.iter().enumerate() {
        assert_eq!(rig.selected(name).is_null(), number % 2 == 1, "{name}");
    }
}

/// The list of a namespace's pods may take long, and keeps no claim of another namespace waiting.
#[tokio::test(start_paused = true)]
async fn claims_do_not_wait_for_the_pods_of_other_namespaces() {
    let rig = on_node(LATE, tainted());
    for namespace in ["slow", "quick"] {
        let named =
            json!({"metadata": {"name": namespace, "namespace": namespace, "uid": namespace}});
        let claim = claim_value(Some("n1"), &Value::Null);
        rig.put_claim(&testing::with(claim, named));
    }
    rig.world.api.on_request(|request| {
        let is_slow = request.path.contains("namespaces/slow/pods");
        is_slow.then_some(Fault::Delay(std::time::Duration::from_secs(20)))
    });
    let begin = tokio::time::Instant::now();
    let slow = rig.at_work.claim("slow");
    let quick = async {
        // The list of the other namespace has begun.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let asked = tokio::time::Instant::now();
        rig.at_work.claim("quick").await;
        asked.elapsed()
    };
    let (_, took) = tokio::join!(slow, quick);
    assert!(took < std::time::Duration::from_secs(10), "{took:?}");
    assert!(begin.elapsed() >= std::time::Duration::from_secs(20));
}
