use std::sync::Arc;

use hostloop_proto::csi::list_volumes_response::Entry;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::advance;
use tonic::Status;

use super::apply::orphan_message;
use super::*;
use crate::cache::Store;
use crate::client::Resource;
use crate::testing::{Call, DRIVER, NODE_ID, World, attachment, entry, node_scope, options};

const GRACE: u64 = 600;
const UID: &str = "0a1b2c3d-0000-4000-8000-0123456789ab";

struct Bench {
    world: World,
    scanner: Scanner,
    inventory: Arc<Mutex<Result<Vec<InventoryEntry>, String>>>,
    listed: Vec<Entry>,
}

fn bench() -> Bench {
    bench_with(true)
}

/// A bench with or without the inventory of the driver.
fn bench_with(with_inventory: bool) -> Bench {
    let mut world = World::new(&[
        Can::ListVolumes,
        Can::PublishUnpublishVolume,
        Can::ListVolumesPublishedNodes,
    ]);
    world.context.scope = node_scope("n1", "t/node");
    let inventory = Arc::new(Mutex::new(Ok(Vec::new())));
    let asked = inventory.clone();
    let settings = ScanSettings {
        options: options(),
        naming: options(),
        max_entries: 0,
        inventory: if with_inventory {
            Inventory::reported(move || asked.lock().clone())
        } else {
            Inventory::default()
        },
        metrics: Metrics::default(),
    };
    Bench {
        scanner: Scanner::new(world.context.clone(), settings),
        world,
        inventory,
        listed: Vec::new(),
    }
}

impl Bench {
    /// Adds a volume that was made for the claim and never held data.
    fn has(&mut self, id: &str, published: &[&str], change: impl FnOnce(&mut InventoryEntry)) {
        let mut volume = InventoryEntry {
            id: id.to_owned(),
            name: format!("pvc-{UID}"),
            is_empty: true,
            ..InventoryEntry::default()
        };
        change(&mut volume);
        self.known(|volumes| volumes.as_mut().expect("volumes").push(volume));
        self.listed.push(entry(id, published));
    }

    /// Adds an object to the API server alone.
    fn put(&self, object: Value) {
        drop(self.world.api.put(object));
    }

    /// Adds volumes that need more than one page.
    fn crowd(&self) {
        for number in 0..600 {
            self.put(volume(&format!("v{number}"), &format!("h{number}")));
        }
    }

    /// Makes lists of this resource fail.
    fn hide(&self, resource: &str) {
        self.world.api.hide(resource, 500);
    }

    fn known(&self, change: impl FnOnce(&mut Result<Vec<InventoryEntry>, String>)) {
        change(&mut self.inventory.lock())
    }

    fn add<K: Resource>(&self, watch: Store<K>, object: Value) {
        self.world.add(&watch, object);
    }

    /// The calls to the driver in a scan this many seconds later, and the scan's error.
    async fn after(&mut self, seconds: u64) -> Vec<String> {
        advance(Duration::from_secs(seconds)).await;
        self.world.script.page(self.listed.clone(), "");
        let looked = self.scanner.scan().await;
        let calls = self.world.script.calls().into_iter();
        let mut asked: Vec<String> = calls
            .filter_map(|call| match call {
                Call::Delete(request) => Some(format!("delete {}", request.volume_id)),
                Call::Unpublish(request) => Some(format!(
                    "unpublish {} {}",
                    request.volume_id, request.node_id
                )),
                _ => None,
            })
            .collect();
        asked.extend(looked.err().map(|error| error.to_string()));
        asked
    }

    fn counted(&self) -> i64 {
        self.scanner.settings.metrics.orphans.get()
    }
}

fn volume(name: &str, handle: &str) -> Value {
    crate::testing::volume(name, DRIVER, handle)
}

/// A volume that is too large for the caches.
fn large_volume(name: &str, handle: &str) -> Value {
    let values = vec!["n1"; 100_000];
    let term = json!({"matchExpressions": [{"key": "k", "operator": "In", "values": values}]});
    let affinity = json!({"required": {"nodeSelectorTerms": [term]}});
    crate::testing::with(
        volume(name, handle),
        json!({"spec": {"nodeAffinity": affinity}}),
    )
}

fn claim(uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "ns", "name": "c", "uid": uid}, "spec": {},
    })
}

const NOTHING: &[&str] = &[];

#[tokio::test(start_paused = true)]
async fn orphans_are_counted_and_reported() {
    let mut bench = bench();
    bench.has("used", &[], |one| one.is_empty = false);
    bench.has("pod", &[], |one| one.inline = true);
    bench.has("known", &[], |_| {});
    bench.add(bench.world.context.caches.volumes(), volume("v", "known"));
    assert_eq!(bench.after(0).await, NOTHING);
    assert_eq!(bench.after(GRACE - 1).await, NOTHING);
    assert_eq!((bench.counted(), bench.world.events().len()), (0, 0));
    assert_eq!(bench.after(1).await, NOTHING);
    assert_eq!(bench.counted(), 1);
    let expected =
        "Warning OrphanedVolumes: Volumes without a PersistentVolume use space on this node: used";
    assert_eq!(bench.world.events(), [expected]);
    // The event is not repeated.
    bench.after(GRACE).await;
    assert_eq!(bench.world.events(), NOTHING);
    bench.add(bench.world.context.caches.volumes(), volume("w", "used"));
    bench.after(1).await;
    assert_eq!(bench.counted(), 0);
}

#[test]
fn a_report_names_at_most_five() {
    let orphans = (0..7).map(|number| format!("v{number}")).collect();
    let message = orphan_message(&orphans);
    assert!(
        message.ends_with("node: v0, v1, v2, v3, v4 and 2 more"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_empty_orphan_is_deleted() {
    let mut bench = bench();
    bench.has("a", &[], |_| {});
    bench.crowd();
    // Made by a node that is not trusted.
    bench.put(large_volume("large", "large"));
    bench.put(claim("another"));
    assert_eq!(bench.after(0).await, NOTHING);
    assert_eq!(bench.after(GRACE - 1).await, NOTHING);
    assert_eq!(bench.after(1).await, ["delete a"]);
    let expected = format!(
        "Normal OrphanDeleted: Volume a (pvc-{UID}) never held data, and its claim is gone: deleted"
    );
    assert_eq!(bench.world.events(), [expected]);
    assert_eq!(bench.counted(), 0);
}

#[tokio::test(start_paused = true)]
async fn any_doubt_keeps_it() {
    type Arrange = fn(&mut Bench);
    let unknown = "cannot read the volumes that the driver has: no pool";
    let cases: [(&str, Arrange, &str); 9] = [
        ("its claim is there", |bench| bench.put(claim(UID)), ""),
        (
            "its object has another handle",
            |bench| bench.put(volume(&format!("pvc-{UID}"), "other")),
            "",
        ),
        ("it has an object", |bench| bench.put(volume("z", "a")), ""),
        (
            "it has a large object",
            |bench| bench.put(large_volume("z", "a")),
            "",
        ),
        (
            "it has an object on the second page",
            |bench| {
                bench.crowd();
                bench.put(volume("z", "a"));
            },
            "",
        ),
        (
            "no claims",
            |bench| bench.hide("persistentvolumeclaims"),
            "list PersistentVolumeClaim ",
        ),
        (
            "no volumes",
            |bench| bench.hide("persistentvolumes"),
            "list PersistentVolume ",
        ),
        (
            "used meanwhile",
            |bench| bench.known(|all| all.as_mut().unwrap()[0].is_empty = false),
            "",
        ),
        (
            "the driver can't tell",
            |bench| bench.known(|all| *all = Err("no pool".into())),
            unknown,
        ),
    ];
    for (what, arrange, error) in cases {
        let mut bench = bench();
        bench.has("a", &[], |_| {});
        assert_eq!(bench.after(0).await, NOTHING);
        arrange(&mut bench);
        let asked = bench.after(GRACE).await;
        let as_expected = match error {
            "" => asked.is_empty(),
            error => asked.len() == 1 && asked[0].starts_with(error),
        };
        assert!(as_expected, "{what}: {asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_drivers_word_nothing_is_deleted() {
    let mut bench = bench_with(false);
    bench.has("a", &[NODE_ID], |_| {});
    bench.has(&format!("csi-{}", "0".repeat(64)), &[], |_| {});
    bench.after(0).await;
    assert_eq!(bench.after(GRACE).await, NOTHING);
    assert_eq!(bench.counted(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_orphan_that_is_not_deleted_stays_one() {
    let mut bench = bench();
    bench.has("a", &[], |_| {});
    bench.after(0).await;
    // ListVolumes gets the error, so the scan fails.
    bench.scanner.confirmed.clear();
    bench.world.script.fail(Status::unavailable("no list"));
    assert_eq!(bench.after(GRACE).await.len(), 1);
    assert_eq!(bench.counted(), 0);
    bench.world.api.put(claim(UID));
    bench.after(1).await;
    assert_eq!(bench.counted(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stale_publication_is_unpublished() {
    let mut bench = bench();
    for (id, nodes) in [
        ("forgotten", &[NODE_ID] as &[&str]),
        ("attached", &[NODE_ID]),
        ("elsewhere", &["id-2"]),
        ("staged", &[NODE_ID]),
        ("late", &[NODE_ID]),
        ("by-name", &[NODE_ID]),
        ("other-node", &[NODE_ID]),
    ] {
        bench.has(id, nodes, |one| one.staged = id == "staged");
        bench.add(
            bench.world.context.caches.volumes(),
            volume(&format!("pv-{id}"), id),
        );
    }
    let attachments = bench.world.context.caches.attachments();
    bench.add(attachments.clone(), attachment("va", "pv-attached", "n1"));
    bench.add(attachments, attachment("vb", "pv-other-node", "n2"));
    // These objects are in the API server, but not in the cache.
    bench.world.api.put(attachment("vc", "pv-late", "n1"));
    let name = crate::api::attachment::expected_name("by-name", DRIVER, "n1");
    bench.world.api.put(attachment(&name, "unheard-of", "n1"));
    assert_eq!(bench.after(0).await, NOTHING);
    assert_eq!(bench.after(GRACE - 1).await, NOTHING);
    let asked = bench.after(1).await;
    assert_eq!(
        asked,
        ["unpublish forgotten id-1", "unpublish other-node id-1"]
    );
    assert_eq!(bench.world.events().len(), 2);
    bench.world.api.hide("volumeattachments", 500);
    let asked = bench.after(1).await;
    assert!(
        asked.len() == 1 && asked[0].starts_with("list VolumeAttachment"),
        "{asked:?}"
    );
}

/// The driver keeps a shared volume staged while it is published. Its attachments may be to any node.
#[tokio::test(start_paused = true)]
async fn a_stale_publication_of_a_shared_volume_is_unpublished_from_each_node() {
    let mut bench = bench();
    let nodes = [NODE_ID, "by-name", "noted", "late", "gone"];
    bench.has("a", &nodes, |one| (one.staged, one.shared) = (true, true));
    bench.add(bench.world.context.caches.volumes(), volume("pv", "a"));
    let attachments = bench.world.context.caches.attachments();
    bench.add(attachments.clone(), attachment("va", "pv", "by-name"));
    let noted = json!({"metadata": {"annotations": {"csi.alpha.kubernetes.io/node-id": "noted"}}});
    let noted = crate::testing::with(attachment("vb", "pv", "n3"), noted);
    bench.add(attachments.clone(), noted);
    bench.add(attachments, attachment("vc", "other", "gone"));
    // The leader has not labelled it yet.
    let name = crate::api::attachment::expected_name("a", DRIVER, "late");
    bench.put(attachment(&name, "pv", "late"));
    assert_eq!(bench.after(0).await, NOTHING);
    assert_eq!(
        bench.after(GRACE).await,
        ["unpublish a gone", "unpublish a id-1"]
    );
    let events = [
        "Normal VolumeUnpublished: Volume a was published to node gone without an attachment",
        "Normal VolumeUnpublished: Volume a was published to this node without an attachment",
    ];
    assert_eq!(bench.world.events(), events);
}

#[tokio::test(start_paused = true)]
async fn looks_are_spread_and_follow_graces() {
    let mut bench = bench();
    for _ in 0..20 {
        let wait = bench.scanner.wait();
        assert!((540..=660).contains(&wait.as_secs()), "{wait:?}");
    }
    bench.scanner.settings.options.orphan_interval = Duration::from_secs(3600);
    bench.has("a", &[], |_| {});
    bench.after(0).await;
    assert_eq!(bench.scanner.wait(), Duration::from_secs(GRACE));
}
