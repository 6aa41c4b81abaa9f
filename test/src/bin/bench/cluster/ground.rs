//! Creates claims on a control plane, sees them bound, and deletes them.

use std::collections::HashSet;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use hostloop_test::cluster::{Cluster, wait_for};
use hostloop_test::driver::NODE;
use hostloop_test::fleet::storm::{self, Wish};
use hostloop_test::front::objects;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::DRIVER;
use crate::cluster::floors::{By, made_by_hand};

/// The claims' namespace.
pub(crate) const NAMESPACE: &str = "bench";
/// The label of the volumes that only this program deletes.
pub(crate) const LABEL: &str = "bench";

/// Objects that are created at once.
const AT_ONCE: usize = 50;
/// Maximum time without a change.
const PATIENCE: Duration = Duration::from_secs(180);
/// Maximum time to delete everything.
const CLEARING: Duration = Duration::from_secs(600);

/// The control plane, as the administrator sees it.
pub(crate) struct Ground {
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
    bound: mpsc::UnboundedReceiver<(String, Instant)>,
}

impl Ground {
    /// Creates the namespace and the classes of the floors.
    pub(crate) async fn lay(cluster: &Cluster) -> Ground {
        cluster.apply(&surroundings().to_string());
        let client = cluster.client().await;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
        Ground {
            bound: watch_bound(claims.clone()),
            volumes: Api::all(client),
            claims,
        }
    }

    /// Creates the volumes of `By::Hand` before the clock starts, until all are available.
    pub(crate) async fn prepare(&self, by: By, names: &[String]) {
        if by != By::Hand {
            return;
        }
        let params = &PostParams::default();
        let make = |volume| async move { self.volumes.create(params, &volume).await };
        let volumes = names.iter().map(|name| made_by_hand(name));
        let made = stream::iter(volumes).map(make).buffer_unordered(AT_ONCE);
        let made: Result<Vec<_>, _> = made.try_collect().await;
        made.expect("volumes can be made");
        wait_for("volumes made by hand", PATIENCE, async || {
            let listed = self.volumes.list(&ListParams::default()).await;
            let listed = listed.map_err(|e| e.to_string())?;
            let waits = |volume: &&PersistentVolume| {
                let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
                matches!(phase, None | Some("Pending"))
            };
            match listed.items.iter().filter(waits).count() {
                0 => Ok(()),
                n => Err(format!("{n} are not available yet")),
            }
        })
        .await;
    }

    /// Creates claims of these names. Returns the time until the last is bound.
    pub(crate) async fn bind(&mut self, by: By, names: &[String]) -> Duration {
        let wish = |name: &String| Wish {
            name: name.clone(),
            class: by.class().to_owned(),
            node: None,
        };
        let wishes: Vec<_> = names.iter().map(wish).collect();
        self.bind_wishes(&wishes).await
    }

    /// Creates claims. Returns the time until the last is bound.
    pub(crate) async fn bind_wishes(&mut self, wishes: &[Wish]) -> Duration {
        let began = Instant::now();
        storm::make(&self.claims, wishes).await;
        last_bound(&mut self.bound, wishes).await - began
    }

    /// Deletes all claims, and waits until their volumes are gone, too.
    pub(crate) async fn clear(&self) {
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        let deleted = self.claims.delete_collection(&delete, &all).await;
        deleted.expect("claims can be deleted");
        gone("claims", &self.claims).await;
        let ours = all.labels(&format!("{LABEL}=floor"));
        let deleted = self.volumes.delete_collection(&delete, &ours).await;
        deleted.expect("volumes can be deleted");
        gone("volumes", &self.volumes).await;
    }
}

async fn gone<K>(what: &str, api: &Api<K>)
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    wait_for(&format!("{what} gone"), CLEARING, async || {
        // One entry is enough. A list of thousands would load the server.
        let listed = api.list(&ListParams::default().limit(1)).await;
        let listed = listed.map_err(|e| e.to_string())?;
        let further = listed.metadata.remaining_item_count.unwrap_or(0);
        match listed.items.len() {
            0 => Ok(()),
            n => Err(format!("{n} and {further} more are left")),
        }
    })
    .await;
}

/// The time at which the last of these claims was seen bound.
pub(crate) async fn last_bound(
    bound: &mut mpsc::UnboundedReceiver<(String, Instant)>,
    wishes: &[Wish],
) -> Instant {
    let mut missing: HashSet<&str> = wishes.iter().map(|wish| &*wish.name).collect();
    let mut last = Instant::now();
    while !missing.is_empty() {
        let next = tokio::time::timeout(PATIENCE, bound.recv()).await;
        let Ok(Some((name, when))) = next else {
            let one = missing.iter().next().copied().unwrap_or_default();
            panic!("{} claims are not bound, {one} among them", missing.len());
        };
        if missing.remove(name.as_str()) {
            last = when;
        }
    }
    last
}

/// Sends the name of each claim whenever it is seen bound.
pub(crate) fn watch_bound(
    claims: Api<PersistentVolumeClaim>,
) -> mpsc::UnboundedReceiver<(String, Instant)> {
    let (send, bound) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let events = watcher(claims, watcher::Config::default()).default_backoff();
        let mut events = pin!(events.applied_objects());
        while let Some(event) = events.next().await {
            let now = Instant::now();
            // The watch restarts by itself.
            let Ok(claim) = event else { continue };
            let phase = claim.status.and_then(|s| s.phase);
            let name = claim.metadata.name.unwrap_or_default();
            if phase.as_deref() == Some("Bound") && send.send((name, now)).is_err() {
                return;
            }
        }
    });
    bound
}

/// The claims' namespace, and the classes of the floors.
fn surroundings() -> Value {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    list(vec![namespace, class(By::Null), class(By::Hand)])
}

/// A node with the driver but without a kubelet, and the driver's class.
pub(crate) fn driver() -> Value {
    let key = format!("topology.{DRIVER}/node");
    list(vec![
        json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": NODE, "labels": {&key: NODE, "kubernetes.io/hostname": NODE}}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": NODE},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": NODE, "topologyKeys": [&key]}]}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": false}}),
        class(By::Ours),
    ])
}

fn class(by: By) -> Value {
    objects::class(by.class(), by.provisioner(), json!({}))
}

fn list(items: Vec<Value>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}
