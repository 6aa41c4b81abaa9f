//! The victim: a user of another namespace, who keeps a volume and goes on to make others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{pod, wait_for};
use hostloop_test::deployed::{DRIVER, NAMESPACE};
use hostloop_test::front::fields::{is_bound, is_ready_to_use, list, name, text};
use hostloop_test::front::objects::{self, Place};
use serde_json::{Value, json};

use crate::site::{LATER, Site};

pub(crate) const VICTIM: &str = "victim";
/// The names of what the victim keeps: a claim, its pod and a snapshot.
pub(crate) const KEPT: &str = "kept";
/// A class of volumes with a secret.
const CLASS: &str = "victim-secret";
/// A value that must not appear in any log, event or object.
const SECRET: &str = "unspeakable-4712";
/// The same in base64, as a Secret holds it.
const ENCODED: &str = "dW5zcGVha2FibGUtNDcxMg==";
const STAMP: &str = "the victim's data";

/// How often the victim works before an attack and during one: a median needs three.
pub(crate) const ROUNDS: usize = 3;
/// How many times longer the victim may wait during an attack, by the median of its rounds.
const FACTOR: u32 = 5;
/// How many times longer any of its rounds may take.
const WORST: u32 = 10;
/// A shorter time without an adversary counts as this one, in which a pod can be started.
const LEAST: Duration = Duration::from_secs(2);
/// The same for a single round, which may meet a retry of kubelet or of the scheduler.
const LEAST_AT_WORST: Duration = Duration::from_secs(5);

pub(crate) struct Victim<'s> {
    site: &'s Site,
    count: AtomicU32,
    /// How long the work takes without an adversary.
    usual: Duration,
    /// What must stay the same about what the victim keeps.
    kept: BTreeMap<String, Value>,
}

impl<'s> Victim<'s> {
    /// Makes what the victim keeps, and takes the time of its work.
    pub(crate) async fn settle(site: &'s Site) -> Victim<'s> {
        let (objects, count) = (&site.objects, AtomicU32::new(0));
        objects.namespace(VICTIM).await;
        let parameters = json!({"parameters": {
            "csi.storage.k8s.io/node-stage-secret-name": "stage",
            "csi.storage.k8s.io/node-stage-secret-namespace": VICTIM},
            "volumeBindingMode": "WaitForFirstConsumer"});
        objects
            .create(objects::class(CLASS, DRIVER, parameters))
            .await;
        site.cluster.may_use_secrets(NAMESPACE, VICTIM, &["stage"]);
        let secret = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "stage", "namespace": VICTIM}, "stringData": {"token": SECRET}});
        objects.create(secret).await;
        let mut victim = Victim {
            site,
            count,
            usual: Duration::ZERO,
            kept: BTreeMap::default(),
        };
        victim.default_account().await;
        objects
            .create(objects::claim(VICTIM, KEPT, CLASS, "64Mi", json!({})))
            .await;
        let script = format!("echo {STAMP:?} > /{KEPT}/stamp && sync && sleep 1000000");
        let script = ["sh", "-c", &script];
        objects
            .create(pod(VICTIM, KEPT, &script, (&[KEPT], &[]), json!({})))
            .await;
        victim
            .until("Pod", KEPT, |pod| pod["status"]["phase"] == "Running")
            .await;
        victim.snapshot(KEPT).await;
        // The first round finds nothing in any cache.
        victim.round().await;
        victim.usual = median(victim.rounds(ROUNDS).await);
        println!(
            "the victim's work takes {:.1?} without an adversary",
            victim.usual
        );
        victim.kept = victim.what_is_kept().await;
        victim
    }

    /// Pods need the account, which the cluster makes soon after the namespace.
    async fn default_account(&self) {
        let get = ["get", "serviceaccount", "-n", VICTIM, "default"];
        wait_for("the default account", PATIENCE, async || {
            self.site.cluster.try_kubectl(&get)
        })
        .await;
    }

    async fn until(&self, kind: &str, name: &str, is: impl Fn(&Value) -> bool) -> Value {
        let at = Place::of(kind, VICTIM, name);
        match self.site.objects.until(&at, PATIENCE, is).await {
            Some(object) => object,
            None => panic!(
                "the victim's {at}: {}",
                self.site.objects.describe(&at).await
            ),
        }
    }

    async fn snapshot(&self, name: &str) {
        self.site
            .objects
            .create(objects::snapshot(VICTIM, name, "hostloop", KEPT))
            .await;
        self.until("VolumeSnapshot", name, is_ready_to_use).await;
    }

    async fn rounds(&self, count: usize) -> Vec<Duration> {
        let mut times = Vec::new();
        for _ in 0..count {
            times.push(self.round().await);
        }
        times
    }

    /// A claim, a pod that writes to its volume, and a snapshot of the kept volume. Returns how long
    /// they took. Their end is awaited, too, but it also depends on Kubernetes' own controllers, which
    /// serve all deletions in turn.
    pub(crate) async fn round(&self) -> Duration {
        let name = format!("round-{}", self.count.fetch_add(1, Ordering::Relaxed));
        let name = name.as_str();
        let objects = &self.site.objects;
        let began = Instant::now();
        objects
            .create(objects::claim(VICTIM, name, LATER, "64Mi", json!({})))
            .await;
        let script = format!("echo x > /{name}/file && sync");
        let once = json!({"restartPolicy": "Never"});
        let script = ["sh", "-c", &script];
        objects
            .create(pod(VICTIM, name, &script, (&[name], &[]), once))
            .await;
        let snapshot = self.snapshot(name);
        let ended = self.until("Pod", name, |pod| pod["status"]["phase"] == "Succeeded");
        tokio::join!(snapshot, ended);
        let volume = self.until("PersistentVolumeClaim", name, is_bound).await;
        let took = began.elapsed();
        let volume = Place::of("PersistentVolume", "", text(&volume["spec"]["volumeName"]));
        for kind in ["Pod", "VolumeSnapshot", "PersistentVolumeClaim"] {
            objects.delete(&Place::of(kind, VICTIM, name)).await;
        }
        let snapshot = Place::of("VolumeSnapshot", VICTIM, name);
        for at in [snapshot, volume] {
            assert!(
                objects.until_gone(&at, PATIENCE).await,
                "the victim's {at} is left"
            );
        }
        println!(
            "the victim waited {took:.1?}, and {:.1?} until all was gone",
            began.elapsed()
        );
        took
    }

    /// What is wrong with the times of an attack.
    pub(crate) fn problems(&self, times: Vec<Duration>) -> Vec<String> {
        let (usual, counted) = (self.usual, self.usual.max(LEAST));
        let worst = times.iter().max().copied().unwrap_or_default();
        let now = median(times);
        println!(
            "the victim's work takes {now:.1?}, at worst {worst:.1?}, and {usual:.1?} without an \
             adversary"
        );
        let mut wrong = Vec::new();
        if now > FACTOR * counted {
            wrong.push(format!(
                "the victim waits {now:.1?}, more than {FACTOR} times {counted:.1?}"
            ));
        }
        let at_worst = usual.max(LEAST_AT_WORST);
        if worst > WORST * at_worst {
            wrong.push(format!(
                "the victim once waits {worst:.1?}, more than {WORST} times {at_worst:.1?}"
            ));
        }
        wrong
    }

    /// What has changed of what the victim keeps.
    pub(crate) async fn changes(&self) -> Vec<String> {
        let now = self.what_is_kept().await;
        let differs = |(what, was): (&String, &Value)| {
            let is = now.get(what).cloned().unwrap_or_default();
            (is != *was).then(|| format!("the victim's {what} was {was} and is {is}"))
        };
        self.kept.iter().filter_map(differs).collect()
    }

    /// The identity and the definition of each object, and the data.
    async fn what_is_kept(&self) -> BTreeMap<String, Value> {
        let mut kept = BTreeMap::new();
        let mut note = |object: &Value| {
            let of = json!({"uid": object["metadata"]["uid"], "spec": object["spec"],
                "deleted": object["metadata"]["deletionTimestamp"],
                "containers": object["status"]["containerStatuses"][0]["containerID"]});
            kept.insert(Place::of_object(object).to_string(), of);
        };
        for kind in ["Pod", "PersistentVolumeClaim", "VolumeSnapshot"] {
            let object = self.until(kind, KEPT, |_| true).await;
            note(&object);
            let [volume, content] = [
                &object["spec"]["volumeName"],
                &object["status"]["boundVolumeSnapshotContentName"],
            ];
            for (kind, name) in [
                ("PersistentVolume", volume),
                ("VolumeSnapshotContent", content),
            ] {
                let at = Place::of(kind, "", text(name));
                if !text(name).is_empty()
                    && let Some(object) = self.site.objects.get(&at).await
                {
                    note(&object);
                }
            }
        }
        let stamp = ["cat", &format!("/{KEPT}/stamp")];
        let stamp = self.site.cluster.try_exec(VICTIM, KEPT, &stamp);
        kept.insert("data".to_owned(), json!(stamp));
        kept
    }

    /// Where the victim's secret appears.
    pub(crate) async fn secrets_shown(&self, tenant: &str) -> Vec<String> {
        let mut texts = vec![("the log".to_owned(), self.site.log())];
        for kind in [
            "Event",
            "PersistentVolume",
            "VolumeSnapshotContent",
            "CSIStorageCapacity",
        ] {
            let all = self.site.objects.list(kind, "").await;
            texts.push((format!("a {kind}"), json!(all).to_string()));
        }
        for kind in ["PersistentVolumeClaim", "VolumeSnapshot"] {
            let all = self.site.objects.list(kind, tenant).await;
            texts.push((format!("a {kind}"), json!(all).to_string()));
        }
        texts.retain(|(_, text)| text.contains(SECRET) || text.contains(ENCODED));
        texts
            .iter()
            .map(|(place, _)| format!("the victim's secret is in {place}"))
            .collect()
    }

    /// Deletes what the victim kept, and waits until it is gone.
    pub(crate) async fn leave(self) {
        let objects = &self.site.objects;
        let volumes = objects.list("PersistentVolume", "").await;
        objects.delete(&Place::of("Namespace", "", VICTIM)).await;
        let gone = objects
            .until_gone(&Place::of("Namespace", "", VICTIM), PATIENCE)
            .await;
        assert!(gone, "the victim's namespace is left");
        let of_victim = |v: &&Value| v["spec"]["claimRef"]["namespace"] == VICTIM;
        for volume in volumes.iter().filter(of_victim) {
            let at = Place::of("PersistentVolume", "", name(volume));
            assert!(
                objects.until_gone(&at, PATIENCE).await,
                "the victim's {at} is left"
            );
        }
        let classes = Place::of("StorageClass", "", CLASS);
        objects.delete(&classes).await;
    }

    /// The names of the kept volume and of the kept snapshot's content.
    pub(crate) async fn volume_and_content(&self) -> [String; 2] {
        let claim = self.until("PersistentVolumeClaim", KEPT, is_bound).await;
        let snapshot = self.until("VolumeSnapshot", KEPT, is_ready_to_use).await;
        let names = [
            &claim["spec"]["volumeName"],
            &snapshot["status"]["boundVolumeSnapshotContentName"],
        ];
        assert!(
            list(&json!(names)).all(|name| !text(name).is_empty()),
            "{names:?}"
        );
        names.map(|name| text(name).to_owned())
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
