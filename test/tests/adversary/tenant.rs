//! The adversary: a user with the ordinary rights in one namespace.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use hostloop_test::cluster::{pod, wait_for};
use hostloop_test::front::fields::{is_bound, is_ready_to_use, list, name};
use hostloop_test::front::objects::{self, Objects, Place};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::site::{NOW, SNAPSHOTS, Site};
use crate::victim::Victim;

/// How many requests the adversary makes at the same time.
const AT_ONCE: usize = 16;
/// A finalizer of the adversary's.
pub(crate) const FINALIZER: &str = "adversary.example.com/never";
/// What its shortest finalizers begin with.
pub(crate) const BRIEF: &str = "a/";
/// How long the adversary waits for its own objects, which wait for each other.
const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) struct Tenant<'s> {
    pub(crate) site: &'s Site,
    pub(crate) namespace: String,
    /// Requests with the adversary's identity.
    objects: Objects,
    /// The driver's ports.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The names of the victim's volume and of its snapshot's content.
    pub(crate) prey: [String; 2],
    /// True if no other attack is under way.
    pub(crate) is_alone: bool,
    /// How long connections are held.
    pub(crate) hold: Duration,
    /// The bytes of all objects that bombs consist of.
    sent: AtomicU64,
}

impl<'s> Tenant<'s> {
    pub(crate) async fn arrive(
        site: &'s Site,
        victim: &Victim<'_>,
        namespace: String,
        is_alone: bool,
        hold: Duration,
    ) -> Tenant<'s> {
        // As an administrator sets it for users: without it, a pod could have the node.
        let labels = json!({"pod-security.kubernetes.io/enforce": "baseline"});
        let labels = json!({"metadata": {"labels": labels}});
        let made = objects::with(objects::named("Namespace", &namespace), labels);
        site.objects.create(made).await;
        let roles = ["edit", SNAPSHOTS];
        let file = site
            .cluster
            .tenant(&namespace, "adversary", &roles, site.dir.path());
        let objects = Objects::connect(&file).await;
        let default = ["get", "serviceaccount", "-n", &namespace, "default"];
        wait_for("the default account", PATIENCE, async || {
            site.cluster.try_kubectl(&default)
        })
        .await;
        Tenant {
            site,
            namespace,
            objects,
            addresses: site.addresses().await,
            prey: victim.volume_and_content().await,
            is_alone,
            hold,
            sent: AtomicU64::new(0),
        }
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn place(&self, kind: &str, name: &str) -> Place {
        Place::of(kind, &self.namespace, name)
    }

    /// Creates an object in the namespace.
    pub(crate) async fn create(&self, mut object: Value) -> Result<Value, String> {
        object["metadata"]["namespace"] = json!(self.namespace);
        self.objects
            .try_create(object)
            .await
            .map_err(|e| e.to_string())
    }

    /// Creates objects, several at a time, and returns those that the API server took. It must take
    /// one at least.
    pub(crate) async fn create_all(
        &self,
        objects: impl Iterator<Item = Value>,
    ) -> Result<Vec<Value>, String> {
        let made = futures::stream::iter(objects.map(|object| self.create(object)));
        let made: Vec<_> = made.buffer_unordered(AT_ONCE).collect().await;
        let mut refused = String::new();
        let taken: Vec<_> = made
            .into_iter()
            .filter_map(|one| one.map_err(|why| refused = why).ok())
            .collect();
        if taken.is_empty() {
            Err(format!("nothing was created: {refused}"))
        } else {
            Ok(taken)
        }
    }

    /// Runs the same steps with numbers from 0, several at a time. Returns the first error.
    pub(crate) async fn each<F>(
        &self,
        count: usize,
        steps: impl Fn(usize) -> F,
    ) -> Result<(), String>
    where
        F: Future<Output = Result<(), String>>,
    {
        let all = futures::stream::iter((0..count).map(steps)).buffer_unordered(AT_ONCE);
        all.collect::<Vec<_>>().await.into_iter().collect()
    }

    /// [`Tenant::create_all`] of large objects.
    pub(crate) async fn bomb(&self, objects: impl Iterator<Item = Value>) -> Result<(), String> {
        let taken = self.create_all(objects).await?;
        let bytes: usize = taken.iter().map(|object| object.to_string().len()).sum();
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }

    /// A claim of this class and size, with this change.
    pub(crate) fn claim(&self, name: &str, class: &str, size: &str, change: Value) -> Value {
        objects::claim(&self.namespace, name, class, size, change)
    }

    /// A small claim that is bound at once, with this change.
    pub(crate) fn now(&self, name: &str, change: Value) -> Value {
        self.claim(name, NOW, "1Mi", change)
    }

    pub(crate) fn snapshot(&self, name: &str, claim: &str) -> Value {
        objects::snapshot(&self.namespace, name, "hostloop", claim)
    }

    /// Creates a small claim with this change, and waits until it is bound.
    pub(crate) async fn bound(&self, name: &str, change: Value) -> Result<Value, String> {
        self.create(self.now(name, change)).await?;
        self.until("PersistentVolumeClaim", name, "bound", is_bound)
            .await
    }

    /// Creates a snapshot of a claim, and waits until it is ready.
    pub(crate) async fn ready(&self, name: &str, claim: &str) -> Result<Value, String> {
        self.create(self.snapshot(name, claim)).await?;
        self.until("VolumeSnapshot", name, "ready", is_ready_to_use)
            .await
    }

    /// Creates a claim with data, which is copied. Returns once a pod has written it.
    pub(crate) async fn filled(&self, name: &str, size: &str) -> Result<(), String> {
        self.create(self.claim(name, NOW, size, json!({}))).await?;
        let script = format!("dd if=/dev/urandom of=/{name}/data bs=1M count=4 && sync");
        let once = json!({"restartPolicy": "Never"});
        let writer = pod(
            &self.namespace,
            name,
            &["sh", "-c", &script],
            (&[name], &[]),
            once,
        );
        self.create(writer).await?;
        self.until("Pod", name, "done", |pod| {
            pod["status"]["phase"] == "Succeeded"
        })
        .await?;
        self.delete("Pod", name).await;
        Ok(())
    }

    /// Waits until an object meets a condition, and returns it.
    pub(crate) async fn until(
        &self,
        kind: &str,
        name: &str,
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Result<Value, String> {
        let at = self.place(kind, name);
        match self.objects.until(&at, PATIENCE, is).await {
            Some(object) => Ok(object),
            None => Err(format!(
                "{at} is not {what}: {}",
                self.objects.describe(&at).await
            )),
        }
    }

    /// Waits for an event with this reason about an object.
    pub(crate) async fn warned(&self, kind: &str, name: &str, reason: &str) -> Result<(), String> {
        let at = self.place(kind, name);
        let warned = async {
            loop {
                let events = self.site.objects.events(&at).await;
                if events.iter().any(|event| event.1 == reason) {
                    return;
                }
                // Each list has all events of the namespace, which are many during a flood.
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, warned).await.is_ok() {
            return Ok(());
        }
        Err(format!(
            "{at} has no event {reason}: {}",
            self.site.objects.describe(&at).await
        ))
    }

    pub(crate) async fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.objects.get(&self.place(kind, name)).await
    }

    pub(crate) async fn delete(&self, kind: &str, name: &str) {
        self.objects.delete(&self.place(kind, name)).await;
    }

    /// Merges a change into an object, unless it is refused.
    pub(crate) async fn change(&self, kind: &str, name: &str, change: Value) {
        let _ = self
            .objects
            .try_merge(&self.place(kind, name), change)
            .await;
    }

    /// Deletes the namespace, and takes the adversary's finalizers away: with them, nothing could
    /// ever be deleted. A list of very large objects may end early, so this goes on until none is
    /// listed.
    pub(crate) async fn leave(&self) {
        let admin = &self.site.objects;
        admin
            .delete(&Place::of("Namespace", "", &self.namespace))
            .await;
        let end = Instant::now() + PATIENCE;
        while self.take_finalizers().await > 0 && Instant::now() < end {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Takes the adversary's finalizers from what is listed, and returns how many objects had some.
    async fn take_finalizers(&self) -> usize {
        let admin = &self.site.objects;
        let mut had = 0;
        for kind in [
            "Pod",
            "PersistentVolumeClaim",
            "VolumeSnapshot",
            "VolumeGroupSnapshot",
        ] {
            for object in admin.list(kind, &self.namespace).await {
                let at = Place::of(kind, &self.namespace, name(&object));
                let finalizers: Vec<_> = list(&object["metadata"]["finalizers"]).collect();
                let kept: Vec<_> = finalizers.iter().filter(|one| !is_ours(one)).collect();
                if kept.len() < finalizers.len() {
                    had += 1;
                    let kept = json!({"metadata": {"finalizers": kept}});
                    let _ = admin.try_merge(&at, kept).await;
                }
                if kind == "Pod" {
                    let now = DeleteParams::default().grace_period(0);
                    admin.delete_with(&at, &now).await;
                }
            }
        }
        had
    }
}

fn is_ours(finalizer: &Value) -> bool {
    finalizer
        .as_str()
        .is_some_and(|name| name.contains("adversary.") || name.starts_with(BRIEF))
}
