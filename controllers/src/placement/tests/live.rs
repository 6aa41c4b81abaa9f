//! Reconciles triggered by watch events, with all queues running.

use super::*;

/// A rig with running queues, until it is dropped.
struct Live {
    world: World,
    at_work: Arc<Placement>,
}

impl Live {
    fn begin(rig: Rig) -> Self {
        let at_work = Arc::new(rig.at_work);
        let queues = at_work.queues();
        at_work.listen(&queues);
        tokio::spawn(at_work.clone().work(queues));
        let world = rig.world;
        Live { world, at_work }
    }

    /// Changes the world, then gives the queues some time.
    async fn then(&mut self, act: impl FnOnce(&Rig)) {
        let other = World::new(&[]);
        let world = std::mem::replace(&mut self.world, other);
        // Both share the caches, so the running queues see the changes.
        let options = self.at_work.options.clone();
        let capacities = self.at_work.capacities.clone();
        let at_work = Placement::new(world.context.clone(), options, capacities);
        let rig = Rig { world, at_work };
        act(&rig);
        tokio::time::sleep(Duration::from_secs(3)).await;
        self.world = rig.world;
    }

    fn node_of(&self, claim: &str) -> Option<String> {
        let path = format!("persistentvolumeclaims/{claim}");
        let claim = self.world.api.get(&path).expect("the claim");
        let node = claim["metadata"]["annotations"][SELECTED_NODE].as_str();
        node.map(str::to_owned)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.at_work.context.stop.cancel();
    }
}

/// Sets retry delays longer than the test, so that retries can't hide a missed event.
fn patient(mut rig: Rig) -> Rig {
    rig.at_work.context.common.retry_interval_start = Some(Duration::from_secs(3600));
    rig.at_work.context.common.retry_interval_max = Some(Duration::from_secs(3600));
    rig
}

#[tokio::test(start_paused = true)]
async fn room_brings_claims_forward() {
    let rig = patient(Rig::new(&["n1", "n2"]));
    rig.room("n1", "now", 5);
    let mut live = Live::begin(rig);
    live.then(|rig| rig.claim("a", "now", json!({}))).await;
    assert_eq!(live.node_of("a"), None);
    live.then(|rig| rig.room("n1", "now", 4)).await;
    assert_eq!(live.node_of("a"), None);
    live.then(|rig| rig.room("n1", "now", 50)).await;
    assert_eq!(live.node_of("a").as_deref(), Some("n1"));
}

#[tokio::test(start_paused = true)]
async fn nodes_bring_claims_forward() {
    let rig = patient(Rig::new(&[]));
    rig.node("n1", json!({"unschedulable": true}));
    rig.room("n1", "now", 50);
    let mut live = Live::begin(rig);
    live.then(|rig| rig.claim("a", "now", json!({}))).await;
    assert_eq!(live.node_of("a"), None);
    live.then(|rig| rig.bare_node("n1", json!({}))).await;
    assert_eq!(live.node_of("a").as_deref(), Some("n1"));
    // A node can become unfit again.
    let cordoned = json!({"unschedulable": true});
    live.then(|rig| rig.bare_node("n1", cordoned)).await;
    live.then(|rig| rig.claim("b", "now", json!({}))).await;
    assert_eq!(live.node_of("b"), None);
}

#[tokio::test(start_paused = true)]
async fn sources_and_classes_bring_claims_forward() {
    let rig = patient(Rig::new(&["n1"]));
    rig.room("n1", "new", 50);
    let mut live = Live::begin(rig);
    live.then(|rig| {
        let source = json!({"kind": "PersistentVolumeClaim", "name": "data"});
        rig.claim("a", "late", json!({"spec": {"dataSource": source}}));
        rig.claim("data", "late", json!({}));
        rig.claim("b", "new", json!({}));
    })
    .await;
    assert_eq!((live.node_of("a"), live.node_of("b")), (None, None));
    live.then(|rig| {
        rig.volume("v", "n1", "h", "data");
        rig.claim("data", "late", json!({"spec": {"volumeName": "v"}}));
        let class = json!({"kind": "StorageClass", "metadata": {"name": "new"},
            "provisioner": DRIVER, "volumeBindingMode": "Immediate"});
        rig.world.add(&rig.world.context.caches.classes(), class);
    })
    .await;
    assert_eq!(live.node_of("a").as_deref(), Some("n1"));
    assert_eq!(live.node_of("b").as_deref(), Some("n1"));
}

#[tokio::test(start_paused = true)]
async fn what_is_there_already_is_labelled_and_so_is_what_comes_to_be_known() {
    let rig = patient(Rig::new(&["n1"]));
    rig.volume("v", "n1", "vol-1", "a");
    rig.volume("w", "n2", "vol-2", "b");
    let mut live = Live::begin(rig);
    let source = json!({"snapshotHandle": "snap-pooln2-1"});
    live.then(|rig| rig.content("c", source, json!({}))).await;
    let label = |node: &str| json!({"metadata": {"labels": {NODE_LABEL: node}}});
    assert_eq!(live.world.api.writes(), [format!("v {}", label("n1"))]);
    live.then(|rig| {
        rig.node("n2", json!({}));
        rig.room("n2", "now", 5);
    })
    .await;
    let managed = json!({"metadata": {"labels": {MANAGED_BY: "n2"}}});
    let mut writes = live.world.api.writes();
    writes.sort();
    assert_eq!(
        writes,
        [format!("c {managed}"), format!("w {}", label("n2"))]
    );
}
