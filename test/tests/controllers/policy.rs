//! The policy with which the API server labels and places claims: its effects, and the cases it
//! leaves to the leader.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hostloop_test::PATIENCE;
use hostloop_test::deployed;
use hostloop_test::fleet::{Binding, Fleet, FleetSpec};
use hostloop_test::front::objects::sized;
use hostloop_test::front::wait::until;
use hostloop_test::front::{FrontSpec, objects};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::{LABEL, Rig, SELECTED_NODE as SELECTED, annotation, in_class};

const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// A policy in force, and the rig that it applies to.
struct Policed {
    rig: Rig,
    yaml: String,
}

impl Policed {
    /// Starts without a provisioner. There are the classes `late`, `other` (of another driver), and
    /// a class with immediate binding for each of these tables.
    async fn up(name: &str, tables: &[(&str, String)]) -> Policed {
        let rig = Rig::up(FrontSpec::new(name, "attacher")).await;
        let yaml = deployed::place_claims(&rig.driver_name, &rig.name, &rig.namespace);
        let policed = Policed { rig, yaml };
        let rig = &policed.rig;
        let late = json!({"volumeBindingMode": "WaitForFirstConsumer"});
        let other = json!({"volumeBindingMode": "WaitForFirstConsumer",
            "provisioner": "other.csi.dev"});
        rig.class(&policed.class("late"), late).await;
        rig.class(&policed.class("other"), other).await;
        let mut data = json!({});
        for (class, table) in tables {
            let now = json!({"volumeBindingMode": "Immediate"});
            rig.class(&policed.class(class), now).await;
            data[policed.class(class)] = json!(table);
        }
        tokio::task::block_in_place(|| rig.plane.apply(&policed.yaml));
        let place = rig.at("ConfigMap", deployed::TABLE);
        rig.objects.merge(&place, json!({"data": data})).await;
        let class = tables.first().map(|(class, _)| *class);
        policed.until_in_force(class).await;
        policed
    }

    /// Waits until the API server enforces the policy, some time after its creation: claims are
    /// labelled, and claims of this class are placed.
    async fn until_in_force(&self, class: Option<&str>) {
        let tries = AtomicUsize::new(0);
        let ask = || async {
            let name = format!("first-{}", tries.fetch_add(1, Ordering::Relaxed));
            let claim = match class {
                Some(class) => self.handed(&name, class, json!({})).await,
                None => self.placed(&name, "late", "n1").await,
            };
            claim["metadata"]["labels"][LABEL].is_string().then_some(())
        };
        let in_force = until(PATIENCE, ask).await;
        in_force.expect("claims are labelled before long");
    }

    fn class(&self, name: &str) -> String {
        format!("{name}-{}", self.rig.name)
    }

    /// A claim after the cluster has handed it to the driver of its class.
    async fn handed(&self, name: &str, class: &str, change: Value) -> Value {
        self.rig
            .claim(name, objects::with(in_class(&self.class(class)), change))
            .await;
        self.until_handed(name).await
    }

    async fn until_handed(&self, name: &str) -> Value {
        let handed = |claim: &Value| annotation(claim, PROVISIONER).is_string();
        let at = self.rig.claim_at(name);
        self.rig.until(&at, "handed to its driver", handed).await
    }

    /// A claim with a node from the scheduler, after the cluster has handed it to the driver.
    async fn placed(&self, name: &str, class: &str, node: &str) -> Value {
        self.rig.claim(name, in_class(&self.class(class))).await;
        self.select(name, json!(node)).await;
        self.until_handed(name).await
    }

    async fn select(&self, name: &str, node: Value) -> Value {
        let chosen = json!({"metadata": {"annotations": {SELECTED: node}}});
        let at = self.rig.claim_at(name);
        self.rig.objects.merge(&at, chosen).await
    }

    async fn down(self) {
        tokio::task::block_in_place(|| self.rig.plane.delete(&self.yaml));
        self.rig.down().await;
    }
}

/// The node and the label of a claim.
fn place(claim: &Value) -> [&Value; 2] {
    let label = &claim["metadata"]["labels"][LABEL];
    [annotation(claim, SELECTED), label]
}

/// A table with a node for each turn: `t00` to `tff`.
fn table(size: &str) -> String {
    let turns = (0..256).map(|turn| format!(" t{turn:02x}"));
    turns.fold(size.to_owned(), |table, turn| table + &turn)
}

/// A matching claim is labelled in the same write that hands it to the driver. Others are not.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_labels_claims_that_are_placed() {
    let policed = Policed::up("labels", &[]).await;
    let long = "n".repeat(64);
    for (name, class, node, label) in [
        ("placed", "late", "n2", json!("n2")),
        ("at-most", "late", &long[1..], json!(&long[1..])),
        ("too-long", "late", long.as_str(), Value::Null),
        ("another-drivers", "other", "n2", Value::Null),
    ] {
        let claim = policed.placed(name, class, node).await;
        assert_eq!(place(&claim), [&json!(node), &label], "{name}");
    }
    // A second choice of the scheduler is left to the leader, and so is a label set by hand.
    let again = policed.select("placed", json!("n3")).await;
    assert_eq!(again["metadata"]["labels"][LABEL], "n2");
    policed.down().await;
}

/// An attachment is labelled in the write that creates it. Those of other drivers and to nodes with
/// overlong names are not.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_labels_attachments() {
    let policed = Policed::up("attachments", &[]).await;
    let rig = &policed.rig;
    let (long, driver) = ("n".repeat(64), rig.driver_name.as_str());
    let attachment = |name: &str, attacher: &str, node: &str, label: Value| {
        let name = format!("{}-{name}", rig.name);
        let attachment = objects::attachment(&name, attacher, node, "none");
        objects::with(attachment, json!({"metadata": {"labels": label}}))
    };
    // The policy for attachments may come into force after the one for claims.
    let tries = AtomicUsize::new(0);
    let ask = || async {
        let name = format!("first-{}", tries.fetch_add(1, Ordering::Relaxed));
        let made = rig
            .create(attachment(&name, driver, "n1", Value::Null))
            .await;
        rig.objects.delete(&objects::Place::of_object(&made)).await;
        made["metadata"]["labels"][LABEL].is_string().then_some(())
    };
    until(PATIENCE, ask)
        .await
        .expect("attachments are labelled before long");
    for (name, attacher, node, before, after) in [
        (
            "bare",
            driver,
            "n2",
            json!({"app": "x"}),
            json!({"app": "x", LABEL: "n2"}),
        ),
        (
            "wrong",
            driver,
            "n2",
            json!({LABEL: "n3"}),
            json!({LABEL: "n2"}),
        ),
        (
            "at-most",
            driver,
            &long[1..],
            Value::Null,
            json!({LABEL: &long[1..]}),
        ),
        ("too-long", driver, &long, Value::Null, Value::Null),
        (
            "another-drivers",
            "other.csi.dev",
            "n2",
            Value::Null,
            Value::Null,
        ),
    ] {
        let made = rig.create(attachment(name, attacher, node, before)).await;
        assert_eq!(made["metadata"]["labels"], after, "{name}");
        rig.objects.delete(&objects::Place::of_object(&made)).await;
    }
    policed.down().await;
}

/// A matching claim is placed from the table by its UID, in that same write. Others are not.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_places_claims_by_the_table() {
    let tables = [
        ("now", table("1073741824")),
        ("short", "1073741824".to_owned()),
        ("nonsense", table("x")),
        ("empty", String::new()),
    ];
    let policed = Policed::up("by-table", &tables).await;
    let old = "volume.beta.kubernetes.io/storage-class";
    let old = |class| json!({"metadata": {"annotations": {old: policed.class(class)}}});
    for (name, class, change, is_placed) in [
        ("small", "now", sized("1"), true),
        ("at-most", "now", sized("1Gi"), true),
        ("larger", "now", sized("1025Mi"), false),
        ("with-a-source", "now", objects::cloned("some"), false),
        ("of-now", "empty", old("now"), true),
        ("of-empty", "now", old("empty"), false),
        // None of these tables blocks the cluster's writes.
        ("short", "short", json!({}), false),
        ("nonsense", "nonsense", json!({}), false),
        ("empty", "empty", json!({}), false),
    ] {
        let claim = policed.handed(name, class, change).await;
        let uid = claim["metadata"]["uid"].as_str().expect("a UID");
        let node = if is_placed {
            json!(format!("t{}", &uid[..2]))
        } else {
            Value::Null
        };
        assert_eq!(place(&claim), [&node, &node], "{name}");
    }
    // The node had no room and has rejected the claim: the leader selects another node.
    let at = policed.rig.claim_at("small");
    let refused = json!({"metadata": {"annotations": {SELECTED: null}, "labels": {LABEL: null}}});
    let refused = policed.rig.objects.merge(&at, refused).await;
    assert_eq!(place(&refused), [&Value::Null, &Value::Null]);
    policed.down().await;
}

/// The number of claims that a fleet's leader has placed itself, by its metrics.
fn counted_by_leader(fleet: &Fleet) -> usize {
    let placed = r#"hostloop_assignments_total{outcome="assigned"}"#;
    fleet
        .members
        .iter()
        .map(|member| member.counter(placed))
        .sum()
}

/// The number of claims that a fleet's leader has placed itself. Their nodes have a manager, and those
/// of a policy have none. The leader counts later than it writes.
async fn placed_by_leader(fleet: &Fleet) -> usize {
    let field = format!("f:{SELECTED}");
    let claims = fleet.all_claims().await;
    let managers = claims.iter().map(|claim| json!(claim.managed_fields()));
    managers
        .filter(|managers| managers.to_string().contains(&field))
        .count()
}

/// The leader maintains the table, the API server places claims from it, and nodes make their
/// volumes. A cordoned node gets no more claims.
#[tokio::test(flavor = "multi_thread")]
async fn claims_are_placed_without_a_write() {
    let plane = crate::plane(false).await;
    let table = format!("--placement-table={}", deployed::TABLE);
    let fleet = FleetSpec::new("placing", 3).args(&[&table]);
    let fleet = fleet.up(&plane.kubeconfig()).await;
    let yaml = deployed::place_claims(&fleet.driver_name, &fleet.name, &fleet.namespace);
    tokio::task::block_in_place(|| plane.apply(&yaml));
    fleet.start(Duration::ZERO).await;
    fleet.ready(PATIENCE).await;

    // The leader places claims until the whole policy is in force.
    let mut made = 0;
    let in_force = async {
        loop {
            let before = placed_by_leader(&fleet).await;
            fleet.storm(Binding::Immediate, made..made + 1).await;
            made += 1;
            fleet.bound(made, PATIENCE).await;
            if placed_by_leader(&fleet).await == before {
                break;
            }
        }
    };
    let in_force = tokio::time::timeout(PATIENCE, in_force).await;
    in_force.expect("the API server places claims before long");
    let before = placed_by_leader(&fleet).await;
    fleet.storm(Binding::Immediate, made..made + 30).await;
    // The table is older than one of the nodes, which now has the most room.
    let place = objects::Place::of("ConfigMap", &fleet.namespace, deployed::TABLE);
    let class = fleet.class(Binding::Immediate);
    let named = async || -> BTreeSet<String> {
        let table = fleet.objects.get(&place).await.expect("the table");
        let text = table["data"][&class].as_str().unwrap_or_default();
        text.split(' ').skip(1).map(str::to_owned).collect()
    };
    let all = || async { (named().await.len() == 3).then_some(()) };
    let all = until(PATIENCE, all).await;
    all.expect("each node has its turns");
    // The API server may take a moment to apply the table.
    fleet.bound(made + 30, PATIENCE).await;
    fleet.storm(Binding::Immediate, made + 30..made + 90).await;
    fleet.bound(made + 90, PATIENCE).await;
    fleet.each_once(PATIENCE).await;
    assert_eq!(placed_by_leader(&fleet).await, before);
    let counted = || async { (counted_by_leader(&fleet) == before).then_some(()) };
    let counted = until(PATIENCE, counted).await;
    counted.unwrap_or_else(|| panic!("{before}, not {}", counted_by_leader(&fleet)));
    let volumes = fleet.all_volumes().await;
    let nodes: BTreeSet<_> = volumes.iter().filter_map(|v| fleet.node_of(v)).collect();
    assert_eq!(nodes.len(), 3, "each node has made some");

    // A node that must not get claims soon has no turns in the table.
    let cordoned = &fleet.members[0].node;
    let node = objects::Place::of("Node", "", cordoned);
    let spec = json!({"spec": {"unschedulable": true}});
    fleet.objects.merge(&node, spec).await;
    let gone = || async { (!named().await.contains(cordoned)).then_some(()) };
    let gone = until(PATIENCE, gone).await;
    gone.expect("the table does not name it any more");

    fleet.clear(PATIENCE).await;
    fleet.down().await;
    tokio::task::block_in_place(|| plane.delete(&yaml));
}
