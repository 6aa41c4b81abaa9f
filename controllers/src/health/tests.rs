use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::json;
use tokio::task::JoinHandle;

use super::*;
use crate::client::Leadership;
use crate::csi::Driver;
use crate::testing::{World, affinity, node_scope, options, read, volume, with};
use fake::{Answer, Fake};

mod claim_status;
mod fake;

/// The running health watcher, and the events it emits.
struct Run {
    fake: Fake,
    world: World,
    running: JoinHandle<()>,
}

/// A PV with this handle on a node, bound to a claim.
fn pv(handle: &str, node: &str) -> PersistentVolume {
    let more = json!({
        "metadata": {"uid": handle, "resourceVersion": "1"},
        "spec": {
            "claimRef": {"namespace": "ns", "name": handle, "uid": format!("{handle}-claim")},
            "nodeAffinity": affinity("node", &[node]),
        },
        "status": {"phase": "Bound"},
    });
    read(with(volume(&format!("pv-{handle}"), "d", handle), more))
}

async fn start(fake: &Fake, scope: Scope, leader: Leadership, volumes: &[&str]) -> Run {
    let mut world = World::new(&[]);
    let context = &mut world.context;
    let driver = Driver::introduce(fake.serve(), &context.stop).await;
    context.driver = Arc::new(driver.unwrap());
    (context.scope, context.leader) = (scope, leader);
    let watch = context.caches.volumes();
    for handle in volumes {
        let node = if *handle == "far" { "b" } else { "a" };
        watch.apply_write(pv(handle, node));
    }
    watch.note_synced();
    let watcher = run(context.clone(), options(), Conditions::default());
    Run {
        fake: fake.clone(),
        world,
        running: tokio::spawn(watcher),
    }
}

/// Starts the watcher of node `a`. The volume `far` is on another node.
async fn start_on_node(fake: &Fake, volumes: &[&str]) -> Run {
    start(
        fake,
        node_scope("a", "node"),
        Leadership::elected().1,
        volumes,
    )
    .await
}

impl Run {
    /// The events within the next `seconds`: reason, object and message.
    async fn events(&mut self, seconds: u64) -> Vec<String> {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let events = self.world.take_events().into_iter().map(|event| {
            let about = event.about;
            let namespace = about.namespace.as_deref().unwrap_or("-");
            let (object, name) = (about.kind.unwrap(), about.name.unwrap());
            let (kind, reason, message) = (event.kind, event.reason, event.message);
            format!("{kind:?} {reason} {object} {namespace}/{name}: {message}")
        });
        let mut events: Vec<_> = events.collect();
        events.sort();
        events
    }

    async fn ends(self) {
        self.world.context.stop.cancel();
        self.running.await.unwrap();
    }
}

/// The event about a claim's volume with this reason.
fn abnormal(claim: &str, reason: &str) -> String {
    format!(
        "Warning VolumeConditionAbnormal PersistentVolumeClaim ns/{claim}: \
         Inaccessible: {reason}: it is away"
    )
}

#[tokio::test(start_paused = true)]
async fn claims_get_the_listed_conditions() {
    let fake = Fake::default();
    fake.state().lists = true;
    fake.set("one", Answer::Ill("Gone"));
    fake.set("two", Answer::Ill("Gone"));
    fake.set("unknown", Answer::Ill("Gone"));
    let mut run = start_on_node(&fake, &["one", "two", "far"]).await;
    let ill = |name| abnormal(name, "Gone");
    assert_eq!(run.events(1).await, [ill("one"), ill("two")]);
    assert_eq!(fake.state().calls, ["list ", "list two", "list unknown"]);
    run.fake.set("one", Answer::Healthy);
    assert!(run.events(298).await.is_empty());
    let well = "Normal VolumeConditionNormal PersistentVolumeClaim ns/one: The volume has no \
                problem any more";
    assert_eq!(run.events(2).await, [well]);
    assert!(run.events(1400).await.is_empty());
    assert_eq!(run.events(300).await, [ill("two")]);
    run.ends().await;
}

/// The controller of claims' faults says when one begins or ends.
#[tokio::test(start_paused = true)]
async fn a_change_that_is_announced_is_reported_soon() {
    let fake = Fake::default();
    fake.state().lists = true;
    let mut run = start_on_node(&fake, &["one"]).await;
    assert!(run.events(20).await.is_empty());
    fake.set("one", Answer::Ill("Gone"));
    run.world.context.health_changed.notify_one();
    assert_eq!(run.events(1).await, [abnormal("one", "Gone")]);
    // Another one soon after that waits.
    fake.set("one", Answer::Ill("Other"));
    run.world.context.health_changed.notify_one();
    assert!(run.events(8).await.is_empty());
    assert_eq!(run.events(2).await, [abnormal("one", "Other")]);
    run.ends().await;
}

/// ControllerListVolumeHealth fails while one of several pools is missing. The health of each
/// volume is still reported.
#[tokio::test(start_paused = true)]
async fn each_volume_is_asked_for_while_the_list_fails() {
    let fake = Fake::default();
    fake.state().lists = true;
    fake.set("bad", Answer::Ill("Gone"));
    fake.set("good", Answer::Healthy);
    let mut run = start_on_node(&fake, &["bad", "good"]).await;
    assert_eq!(run.events(1).await.len(), 1);
    fake.state().list_fails = true;
    run.fake.set("good", Answer::Ill("PoolGone"));
    assert_eq!(run.events(300).await, [abnormal("good", "PoolGone")]);
    run.ends().await;
}

#[tokio::test(start_paused = true)]
async fn each_volume_is_asked_for_where_nothing_is_listed() {
    let fake = Fake::default();
    fake.set("bad", Answer::Ill("Gone"));
    fake.set("good", Answer::Healthy);
    fake.set("odd", Answer::Error);
    let mut run = start_on_node(&fake, &["bad", "good", "odd", "lost"]).await;
    let lost = "Warning VolumeConditionAbnormal PersistentVolumeClaim ns/lost: \
                Inaccessible: VolumeNotFound: the driver knows no such volume";
    let expected = [abnormal("bad", "Gone"), lost.to_owned()];
    assert_eq!(run.events(1).await, expected);
    // A failed call leaves the condition as it was.
    run.fake.set("bad", Answer::Error);
    assert!(run.events(60).await.is_empty());
    run.fake.set("bad", Answer::Healthy);
    run.fake.set("lost", Answer::Healthy);
    assert_eq!(run.events(60).await.len(), 2);
    assert_eq!(fake.state().calls.len(), 12);
    run.ends().await;
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_reports_for_the_cluster() {
    let fake = Fake::default();
    fake.set("one", Answer::Ill("Gone"));
    let (leads, leader) = Leadership::elected();
    let mut run = start(&fake, Scope::Cluster, leader, &["one"]).await;
    assert!(run.events(300).await.is_empty());
    assert!(fake.state().calls.is_empty());
    leads
        .send(Some(Instant::now() + Duration::from_secs(100)))
        .unwrap();
    assert_eq!(run.events(61).await.len(), 1);
    // Another process leads now and reports; this one reports only when it leads again.
    run.fake.set("one", Answer::Ill("Other"));
    assert!(run.events(600).await.is_empty());
    leads
        .send(Some(Instant::now() + Duration::from_secs(100)))
        .unwrap();
    assert_eq!(run.events(61).await.len(), 1);
    run.ends().await;
}

#[tokio::test(start_paused = true)]
async fn storage_is_reported_at_its_node() {
    let fake = Fake::default();
    fake.state().lists = true;
    fake.state().storage = vec!["Full"];
    let mut run = start_on_node(&fake, &[]).await;
    let ill = "Warning StorageConditionAbnormal Node -/a: Degraded: Full";
    assert_eq!(run.events(1).await, [ill]);
    assert!(run.events(600).await.is_empty());
    fake.state().storage.clear();
    let well = "Normal StorageConditionNormal Node -/a: The storage has no problem any more";
    assert_eq!(run.events(60).await, [well]);
    run.ends().await;

    // A driver that serves the whole cluster has no node to report storage problems on.
    fake.state().storage = vec!["Full"];
    let mut run = start(&fake, Scope::Cluster, Leadership::always(), &[]).await;
    assert!(run.events(100).await.is_empty());
    run.ends().await;
}

#[tokio::test(start_paused = true)]
async fn it_runs_without_a_health_capability() {
    let fake = Fake::default();
    fake.state().silent = true;
    let mut run = start(&fake, Scope::Cluster, Leadership::elected().1, &[]).await;
    assert!(run.events(1000).await.is_empty());
    assert!(!run.running.is_finished());
    run.ends().await;
}
