use serde_json::{Value, json};
use tokio::time::advance;

use super::sample::*;
use super::*;
use crate::api::scope::{NODE_LABEL, SELECTED_NODE};
use crate::client::{Leadership, Resource};
use crate::testing::{World, options};

const GRACE: u64 = 300;

struct Bench {
    world: World,
    cleanup: NodeCleanup,
}

fn bench() -> Bench {
    bench_with(|_| {})
}

fn bench_with(change: impl FnOnce(&mut World)) -> Bench {
    let mut world = World::new(&[]);
    change(&mut world);
    let own = Options {
        gone_node_grace: Duration::from_secs(GRACE),
    };
    let capacities = Some(Store::new());
    let cleanup = NodeCleanup::new(world.context.clone(), &own, options(), capacities);
    let bench = Bench { world, cleanup };
    bench.add(|caches| caches.nodes(), node("n1"));
    bench.add(|caches| caches.csi_nodes(), csi_node("n1"));
    bench
}

impl Bench {
    fn add<K: Resource>(&self, watch: impl Fn(&crate::cache::Caches) -> Store<K>, value: Value) {
        self.world.add(&watch(&self.world.context.caches), value);
    }

    /// Adds one object of each kind that belongs to a node.
    fn fill(&self, node: &str) {
        self.add(
            |caches| caches.attachments(),
            deleted(attachment("a", "other", node)),
        );
        self.add(|caches| caches.volumes(), released("released", node));
        self.add(|caches| caches.volumes(), volume("bound", node));
        let retained = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
        self.add(
            |caches| caches.volumes(),
            with(released("retained", node), retained),
        );
        self.add(|caches| caches.claims(), claim("waiting", node));
        self.add(|caches| caches.contents(), content("content", node));
        self.add(
            |caches| caches.group_contents(),
            group_content("group", node),
        );
        let room = capacity("room", &format!("external-provisioner-{node}"), node);
        let watch = self.cleanup.capacities.clone().expect("a watch");
        self.world.add(&watch, room);
    }

    /// The writes of a pass after this many seconds.
    async fn after(&mut self, seconds: u64) -> Vec<String> {
        advance(Duration::from_secs(seconds)).await;
        self.cleanup.pass().await;
        self.world.api.writes()
    }
}

const NOTHING: &[&str] = &[];

#[tokio::test(start_paused = true)]
async fn what_a_gone_node_left_is_tidied_up() {
    let mut bench = bench();
    let labelled = json!({"metadata": {"labels": {NODE_LABEL: "n2"}}});
    bench.fill("n2");
    bench.add(
        |caches| caches.claims(),
        with(claim("labelled", "n2"), labelled),
    );
    assert_eq!(bench.after(0).await, NOTHING);
    assert_eq!(bench.after(GRACE - 1).await, NOTHING);
    assert_eq!(
        bench.after(1).await,
        [
            "a", "released", "released", "labelled", "waiting", "content", "group", "room"
        ]
    );
    let api = &bench.world.api;
    for claim in ["labelled", "waiting"] {
        let metadata = &api.get(&format!("claims/{claim}")).expect("a claim")["metadata"];
        assert_eq!(metadata["annotations"][SELECTED_NODE], Value::Null);
        assert_eq!(metadata["labels"][NODE_LABEL], Value::Null);
    }
    for gone in [
        "volumeattachments/a",
        "contents/content",
        "contents/group",
        "capacities/room",
    ] {
        assert_eq!(api.get(gone), None, "{gone}");
    }
    // The control plane removes the last finalizer.
    let left = &api.get("volumes/released").expect("a volume")["metadata"];
    assert_eq!(left["finalizers"], json!(["kubernetes.io/pv-protection"]));
    assert!(left["deletionTimestamp"].is_string());
    for kept in ["bound", "retained"] {
        let kept = api.get(&format!("volumes/{kept}")).expect("a volume");
        assert_eq!(
            kept["metadata"]["finalizers"].as_array().map(Vec::len),
            Some(3)
        );
        assert_eq!(kept["metadata"]["deletionTimestamp"], Value::Null);
    }
    let events = bench.world.events();
    let of = |kind: &str| {
        events
            .iter()
            .filter(|event| event.starts_with(kind))
            .count()
    };
    assert_eq!(
        (of("Normal NodeGone"), of("Warning NodeGone")),
        (7, 2),
        "{events:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn its_return_cancels_all() {
    let mut bench = bench();
    bench.fill("n2");
    bench.after(0).await;
    bench.add(|caches| caches.nodes(), node("n2"));
    assert_eq!(bench.after(GRACE - 1).await, NOTHING);
    assert_eq!(bench.after(GRACE).await, NOTHING);
    assert_eq!(bench.world.events(), NOTHING);
}

#[tokio::test(start_paused = true)]
async fn only_the_server_proves_it() {
    let mut bench = bench();
    bench.fill("n2");
    // The cache misses a node that exists.
    bench.world.api.put(node("n2"));
    bench.after(0).await;
    assert_eq!(bench.after(GRACE).await, NOTHING);
    // The grace period starts again.
    bench.world.api.take("nodes/n2");
    assert_eq!(bench.after(1).await, NOTHING);
    assert_eq!(bench.after(GRACE - 1).await, NOTHING);
    assert!(!bench.after(1).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn any_other_answer_is_a_doubt() {
    for code in [403, 410, 429, 500, 503] {
        let mut bench = bench();
        bench.fill("n2");
        bench.world.api.hide("nodes/n2", code);
        bench.after(0).await;
        for _ in 0..3 {
            assert_eq!(bench.after(GRACE).await, NOTHING, "{code}");
        }
        assert_eq!(bench.world.events(), NOTHING, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_lead_does_nothing() {
    let (leads, leader) = Leadership::elected();
    let mut bench = bench_with(|world| world.context.leader = leader);
    bench.fill("n2");
    assert_eq!(bench.after(0).await, NOTHING);
    assert_eq!(bench.after(2 * GRACE).await, NOTHING);
    // Observations without the leadership do not count.
    leads.send_replace(Some(Instant::now() + Duration::from_secs(GRACE / 2)));
    assert_eq!(bench.after(0).await, NOTHING);
    assert_eq!(bench.after(GRACE).await, NOTHING, "the lead was lost");
    assert_eq!(bench.world.events(), NOTHING);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_judged_as_it_is_now() {
    let retained = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    let moved = json!({"spec": {"nodeAffinity": on(&["n1"])}});
    for (what, now) in [
        ("bound again", volume("v", "n2")),
        ("retained", with(released("v", "n2"), retained)),
        ("elsewhere", with(released("v", "n2"), moved)),
        (
            "another of its name",
            with(released("v", "n2"), json!({"metadata": {"uid": "new"}})),
        ),
    ] {
        let mut bench = bench();
        bench.add(|caches| caches.volumes(), released("v", "n2"));
        bench.world.api.put(now);
        bench.after(0).await;
        assert_eq!(bench.after(GRACE).await, NOTHING, "{what}");
    }
    let mut bench = bench();
    bench.add(|caches| caches.volumes(), released("v", "n2"));
    bench.world.api.take("volumes/v");
    bench.after(0).await;
    assert_eq!(bench.after(GRACE).await, NOTHING, "gone already");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_was_cut_short_is_finished() {
    let mut bench = bench();
    bench.add(|caches| caches.volumes(), deleted(released("v", "n2")));
    bench.after(0).await;
    bench.world.api.refuse("volumes/v", 500);
    assert_eq!(bench.after(GRACE).await.len(), 1);
    assert_eq!(bench.world.events(), NOTHING);
    assert_eq!(bench.after(30).await.len(), 1);
    let events = bench.world.events();
    assert_eq!(
        events,
        ["Normal NodeGone: Node n2 is gone, and the volume with it: finalizers removed"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_with_a_volume_is_left_alone() {
    let mut bench = bench();
    bench.add(|caches| caches.claims(), claim("c", "n2"));
    // The cache misses a volume that exists.
    bench.world.api.put(volume("pvc-uid-of-c", "n2"));
    bench.after(0).await;
    assert_eq!(bench.after(GRACE).await, NOTHING);
    bench.world.api.hide("volumes/pvc-uid-of-c", 500);
    assert_eq!(bench.after(GRACE).await, NOTHING, "an unreadable volume");
    assert_eq!(bench.world.events(), NOTHING);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_has_changed_is_left_alone() {
    let mut bench = bench();
    bench.add(|caches| caches.claims(), claim("c", "n2"));
    bench.world.api.put(claim("c", "n1"));
    bench.after(0).await;
    assert_eq!(bench.after(GRACE).await.len(), 1);
    let now = bench.world.api.get("claims/c").expect("a claim");
    assert_eq!(now["metadata"]["annotations"][SELECTED_NODE], "n1");
    assert_eq!(bench.world.events(), NOTHING);
}

#[tokio::test(start_paused = true)]
async fn a_bound_volume_is_reported_hourly() {
    let mut bench = bench();
    for number in 0..130 {
        let bound = volume(&format!("v{number}"), "n2");
        bench.add(|caches| caches.volumes(), bound);
    }
    bench.after(0).await;
    for (seconds, reported) in [
        (GRACE, 100),
        (30, 30),
        (30, 0),
        (3500, 0),
        (100, 100),
        (30, 30),
    ] {
        assert_eq!(bench.after(seconds).await, NOTHING);
        let events = bench.world.events();
        assert_eq!(events.len(), 2 * reported, "of each volume and its claim");
        assert!(
            events
                .iter()
                .all(|event| event.starts_with("Warning NodeGone: Node n2 is gone"))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn out_of_service_releases_attachments() {
    let out = json!({
        "spec": {"taints": [
            {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
    });
    for (what, live, written) in [
        ("it is", Some(with(node("n2"), out.clone())), 1),
        ("not any more", Some(node("n2")), 0),
        ("gone", None, 0),
    ] {
        let mut bench = bench();
        bench.add(|caches| caches.nodes(), with(node("n2"), out.clone()));
        bench.fill("n2");
        match live {
            Some(live) => drop(bench.world.api.put(live)),
            None => bench.world.api.take("nodes/n2"),
        }
        assert_eq!(bench.after(0).await.len(), written, "{what}");
        assert_eq!(bench.world.events().len(), written, "{what}");
        let left = bench.world.api.get("volumeattachments/a").is_some();
        assert_eq!(left, written == 0, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_the_node_that_has_a_volume_is_reported() {
    let mut bench = bench();
    let state = |ready: &str| {
        let conditions = json!([{"type": "Ready", "status": ready}]);
        with(node("n2"), json!({"status": {"conditions": conditions}}))
    };
    bench.add(|caches| caches.nodes(), state("Unknown"));
    let volume = shared("v", "n2", &["n2", "n1"]);
    bench.add(|caches| caches.volumes(), volume);
    let attached = attachment("a", "v", "n1");
    bench.add(|caches| caches.attachments(), attached);
    assert_eq!(bench.after(0).await, NOTHING);
    assert_eq!(bench.after(29).await, NOTHING);
    assert_eq!(bench.world.events(), NOTHING);
    assert_eq!(bench.after(1).await, NOTHING);
    let expected = "Warning OwnerAway: The volume waits to be attached to node n1: node n2, which has it, \
                    is not ready. Bring node n2 back";
    assert_eq!(bench.world.events(), [expected]);
    // Not in each pass, but again after an hour.
    bench.after(30).await;
    assert_eq!(bench.world.events(), NOTHING);
    bench.after(3600).await;
    assert_eq!(bench.world.events(), [expected]);
    bench.add(|caches| caches.nodes(), state("True"));
    bench.after(3600).await;
    assert_eq!(bench.world.events(), NOTHING);
}
