use std::collections::BTreeMap;

use serde_json::json;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::cache::Caches;
use crate::client::events::Event;
use crate::client::{Events, Kube, Leadership};
use crate::controller::Metrics;
use crate::controller::context::Common;
use crate::csi::Driver;
use crate::testing::Api;
use fake::{Answer, Fake};

mod fake;

/// The running health watcher, and the events it emits.
struct Run {
    fake: Fake,
    events: Receiver<Event>,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

/// A PV with this handle on a node, bound to a claim.
fn pv(handle: &str, node: &str) -> PersistentVolume {
    let value = json!({
        "metadata": {"name": format!("pv-{handle}"), "uid": handle, "resourceVersion": "1"},
        "spec": {
            "csi": {"driver": "d", "volumeHandle": handle},
            "claimRef": {"namespace": "ns", "name": handle},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "node", "operator": "In", "values": [node]},
            ]}]}},
        },
        "status": {"phase": "Bound"},
    });
    serde_json::from_value(value).unwrap()
}

async fn start(
    fake: &Fake,
    scope: Scope,
    leader: Leadership,
    volumes: Vec<PersistentVolume>,
) -> Run {
    let client = Api::default().client();
    let metrics = Arc::new(Metrics::default());
    let stop = CancellationToken::new();
    let caches = Caches::unwatched();
    let watch = caches.volumes();
    tokio::spawn(watch.clone().run(
        client.clone(),
        kube::Api::all,
        kube::runtime::watcher::Config::default(),
        stop.clone(),
    ));
    watch.synced().await;
    for volume in volumes {
        watch.apply_write(PersistentVolume {
            metadata: kube::core::ObjectMeta {
                resource_version: Some("9".to_owned()),
                ..volume.metadata
            },
            ..volume
        });
    }
    let (sender, events) = Events::collected(metrics.clone());
    let driver = Driver::introduce(fake.serve(), &stop).await.unwrap();
    let context = Context {
        driver: Arc::new(driver),
        kube: Kube::new(client, None, metrics.clone(), "test"),
        caches: Arc::new(caches),
        events: sender,
        metrics,
        scope,
        pools: Default::default(),
        leader,
        room: Arc::default(),
        stop: stop.clone(),
        common: Common::default(),
    };
    let running = tokio::spawn(run(context, Options::default(), Conditions::default()));
    Run {
        fake: fake.clone(),
        events,
        stop,
        running,
    }
}

fn node(name: &str) -> Scope {
    let segments = BTreeMap::from([("node".to_owned(), name.to_owned())]);
    Scope::Node {
        name: name.to_owned(),
        segments,
    }
}

impl Run {
    /// The events within the next `seconds`: reason, object and message.
    async fn events(&mut self, seconds: u64) -> Vec<String> {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let mut events = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            let about = event.about;
            let namespace = about.namespace.as_deref().unwrap_or("-");
            let (kind, name) = (about.kind.unwrap(), about.name.unwrap());
            let Event {
                kind: good,
                reason,
                message,
                ..
            } = event;
            events.push(format!(
                "{good:?} {reason} {kind} {namespace}/{name}: {message}"
            ));
        }
        events.sort();
        events
    }

    fn sets(&self, handle: &'static str, answer: Answer) {
        self.fake.state().volumes.insert(handle, Some(answer));
    }

    async fn ends(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn claims_get_the_listed_conditions() {
    let fake = Fake::default();
    fake.state().lists = true;
    fake.state()
        .volumes
        .insert("one", Some(Answer::Ill("Gone")));
    fake.state()
        .volumes
        .insert("two", Some(Answer::Ill("Gone")));
    fake.state()
        .volumes
        .insert("unknown", Some(Answer::Ill("Gone")));
    let volumes = vec![pv("one", "a"), pv("two", "a"), pv("far", "b")];
    let mut run = start(&fake, node("a"), Leadership::elected().1, volumes).await;
    let ill = |name| {
        format!(
            "Warning VolumeConditionAbnormal PersistentVolumeClaim ns/{name}: \
             Inaccessible: Gone: it is away"
        )
    };
    assert_eq!(run.events(1).await, [ill("one"), ill("two")]);
    assert_eq!(fake.state().calls, ["list ", "list two", "list unknown"]);
    run.sets("one", Answer::Healthy);
    assert!(run.events(298).await.is_empty());
    let well =
        "Normal VolumeConditionNormal PersistentVolumeClaim ns/one: The volume is well again";
    assert_eq!(run.events(2).await, [well]);
    assert!(run.events(1400).await.is_empty());
    assert_eq!(run.events(300).await, [ill("two")]);
    run.ends().await;
}

/// ControllerListVolumeHealth fails while one of several pools is missing. The health of each
/// volume is still reported.
#[tokio::test(start_paused = true)]
async fn each_volume_is_asked_for_while_the_list_fails() {
    let fake = Fake::default();
    fake.state().lists = true;
    fake.state()
        .volumes
        .insert("bad", Some(Answer::Ill("Gone")));
    fake.state().volumes.insert("good", Some(Answer::Healthy));
    let volumes = ["bad", "good"].map(|handle| pv(handle, "a")).to_vec();
    let mut run = start(&fake, node("a"), Leadership::elected().1, volumes).await;
    assert_eq!(run.events(1).await.len(), 1);
    fake.state().list_fails = true;
    run.sets("good", Answer::Ill("PoolGone"));
    let gone = "Warning VolumeConditionAbnormal PersistentVolumeClaim ns/good: \
                Inaccessible: PoolGone: it is away";
    assert_eq!(run.events(300).await, [gone]);
    run.ends().await;
}

#[tokio::test(start_paused = true)]
async fn each_volume_is_asked_for_where_nothing_is_listed() {
    let fake = Fake::default();
    fake.state()
        .volumes
        .insert("bad", Some(Answer::Ill("Gone")));
    fake.state().volumes.insert("good", Some(Answer::Healthy));
    fake.state().volumes.insert("odd", Some(Answer::Error));
    let volumes = ["bad", "good", "odd", "lost"]
        .map(|handle| pv(handle, "a"))
        .to_vec();
    let mut run = start(&fake, node("a"), Leadership::elected().1, volumes).await;
    let expected = [
        "Warning VolumeConditionAbnormal PersistentVolumeClaim ns/bad: \
         Inaccessible: Gone: it is away",
        "Warning VolumeConditionAbnormal PersistentVolumeClaim ns/lost: \
         Inaccessible: VolumeNotFound: the driver knows no such volume",
    ];
    assert_eq!(run.events(1).await, expected);
    // A failed call leaves the condition as it was.
    run.sets("bad", Answer::Error);
    assert!(run.events(60).await.is_empty());
    run.sets("bad", Answer::Healthy);
    run.sets("lost", Answer::Healthy);
    assert_eq!(run.events(60).await.len(), 2);
    assert_eq!(fake.state().calls.len(), 12);
    run.ends().await;
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_reports_for_the_cluster() {
    let fake = Fake::default();
    fake.state()
        .volumes
        .insert("one", Some(Answer::Ill("Gone")));
    let (leads, leader) = Leadership::elected();
    let mut run = start(&fake, Scope::Cluster, leader, vec![pv("one", "a")]).await;
    assert!(run.events(300).await.is_empty());
    assert!(fake.state().calls.is_empty());
    leads
        .send(Some(Instant::now() + Duration::from_secs(100)))
        .unwrap();
    assert_eq!(run.events(61).await.len(), 1);
    // Another process leads now and reports; this one reports only when it leads again.
    run.sets("one", Answer::Ill("Other"));
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
    let mut run = start(&fake, node("a"), Leadership::elected().1, Vec::new()).await;
    let ill = "Warning StorageConditionAbnormal Node -/a: Degraded: Full";
    assert_eq!(run.events(1).await, [ill]);
    assert!(run.events(600).await.is_empty());
    fake.state().storage.clear();
    let well = "Normal StorageConditionNormal Node -/a: The storage is well again";
    assert_eq!(run.events(60).await, [well]);
    run.ends().await;

    // A driver that serves the whole cluster has no node to report storage problems on.
    fake.state().storage = vec!["Full"];
    let mut run = start(&fake, Scope::Cluster, Leadership::always(), Vec::new()).await;
    assert!(run.events(100).await.is_empty());
    run.ends().await;
}

#[test]
fn flags_have_the_defaults_of_the_code() {
    use clap::{Args, FromArgMatches};
    let matches = Options::augment_args(clap::Command::new("test")).get_matches_from(["test"]);
    let read = Options::from_arg_matches(&matches).unwrap();
    assert_eq!(format!("{read:?}"), format!("{:?}", Options::default()));
}

#[tokio::test(start_paused = true)]
async fn it_runs_without_a_health_capability() {
    let fake = Fake::default();
    fake.state().silent = true;
    let mut run = start(&fake, Scope::Cluster, Leadership::elected().1, Vec::new()).await;
    assert!(run.events(1000).await.is_empty());
    assert!(!run.running.is_finished());
    run.ends().await;
}
