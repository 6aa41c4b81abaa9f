//! The stores that all controllers share, one per kind. A watch starts when a controller first asks
//! for its kind.
//!
//! On a node, the watches select only objects that concern this node: the changes of a hundred
//! nodes must not reach each of them. A label selects claims, volumes, attachments and contents; if
//! no process writes the label, the watch is widened to all objects. Field selectors narrow pods
//! and nodes. Work that one process does for all nodes needs cluster-wide caches. Its controllers
//! share them while any of these runs ([`Caches::wide`]).

use std::sync::{Arc, OnceLock, Weak};

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, StorageClass, VolumeAttachment, VolumeAttributesClass,
};
use kube::Client;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::api::pod::Pod;
use crate::api::pv;
use crate::api::scope::{MANAGED_BY, NODE_LABEL, node_label};
use crate::cache::missing_kinds::Served;
use crate::cache::store::{
    Encoding, Index, Range, Reports, Selectors, Store, Subscription, WatchError, WatchScope,
};
use crate::client::Events;
use crate::client::kube::Resource;
use crate::metrics::Metrics;
use crate::snapshots::{
    VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshot,
    VolumeSnapshotClass, VolumeSnapshotContent,
};

/// The scope of the caches that a process has for its own work.
const PROCESS: &str = "process";
/// The scope of those that it has for work that one process does for all nodes.
const CLUSTER: &str = "cluster";

/// The stores of all kinds.
pub struct Caches {
    /// `None` starts no watches: tests fill the stores themselves.
    client: Option<Client>,
    stop: CancellationToken,
    reports: Reports,
    /// The scope of the caches in metrics: [`PROCESS`] or [`CLUSTER`].
    scope: &'static str,
    /// The node that the watches are narrowed to, if any.
    node: Option<String>,
    /// The optional kinds that the API server serves.
    served: Served,
    /// True if a label assigns every content to its node.
    contents_labelled: bool,
    watch_scope: watch::Sender<WatchScope>,
    /// The cluster-wide caches, while they are in use.
    wide: Mutex<Weak<SharedCaches>>,
    shared: Arc<SharedCaches>,
    /// Owns the handlers registered through these caches.
    term: Subscription,
}

/// The state that caches of the same objects share. Dropping it ends the watches.
struct SharedCaches {
    watches: Stores,
    by_handle: OnceLock<Index<PersistentVolume>>,
    stop: CancellationToken,
    _ending: DropGuard,
}

impl SharedCaches {
    fn until(stop: &CancellationToken) -> Arc<Self> {
        let stop = stop.child_token();
        Arc::new(SharedCaches {
            watches: Stores::default(),
            by_handle: OnceLock::new(),
            _ending: stop.clone().drop_guard(),
            stop,
        })
    }
}

/// Cluster-wide caches for one user. Dropping this removes its handlers; dropping the last one ends
/// the watches.
#[must_use = "no handler is called after the drop"]
pub struct Wide(Arc<Caches>);

impl Wide {
    /// Returns the caches.
    pub fn caches(&self) -> Arc<Caches> {
        self.0.clone()
    }
}

impl Drop for Wide {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Builds the selectors that narrow a kind to a node.
type Narrow = fn(&Caches, &str) -> Selectors;

macro_rules! narrow {
    () => {
        None
    };
    ($narrow:ident) => {
        Some($narrow as Narrow)
    };
}

macro_rules! form {
    () => {
        Encoding::Open
    };
    (many) => {
        Encoding::packed()
    };
}

// A kind, how it is narrowed to a node, and `many` if its objects are packed.
macro_rules! watches {
    ($($name:ident: $kind:ty $(, $narrow:ident $(, $many:ident)?)?;)+) => {
        #[derive(Default)]
        struct Stores { $($name: OnceLock<Store<$kind>>,)+ }

        impl Caches {
            $(
                pub fn $name(&self) -> Store<$kind> {
                    let form = form!($($($many)?)?);
                    let all = self.shared.watches.$name.get_or_init(|| {
                        self.begin(self.selectors(narrow!($($narrow)?)), form)
                    });
                    all.of_term(&self.term)
                }
            )+

            fn leave(&self) {
                $(
                    if let Some(watch) = self.shared.watches.$name.get() {
                        watch.leave(&self.term);
                    }
                )+
            }
        }

        impl Stores {
            fn troubles(&self) -> Vec<(&'static str, WatchError)> {
                let mut troubles = Vec::new();
                $(
                    if let Some(trouble) = self.$name.get().and_then(Store::trouble) {
                        troubles.push((stringify!($name), trouble));
                    }
                )+
                troubles
            }
        }
    };
}

watches! {
    claims: PersistentVolumeClaim, by_label, many;
    volumes: PersistentVolume, by_label, many;
    pods: Pod, by_place, many;
    nodes: Node, by_name;
    csi_drivers: CSIDriver;
    csi_nodes: CSINode, by_name;
    classes: StorageClass;
    attachments: VolumeAttachment, by_label;
    attributes_classes: VolumeAttributesClass;
    snapshots: VolumeSnapshot, everywhere, many;
    contents: VolumeSnapshotContent, by_manager;
    snapshot_classes: VolumeSnapshotClass;
    groups: VolumeGroupSnapshot, everywhere, many;
    group_contents: VolumeGroupSnapshotContent, by_manager;
    group_classes: VolumeGroupSnapshotClass;
}

/// Kinds that every API server serves and that most controllers need.
const REQUIRED: [&str; 6] = [
    "claims",
    "volumes",
    "nodes",
    "csi_nodes",
    "classes",
    "attachments",
];

/// The index key of a volume: its driver and its handle.
fn handle_key(driver: &str, handle: &str) -> String {
    format!("{driver}/{handle}")
}

fn everywhere(_: &Caches, _: &str) -> Selectors {
    Selectors::default()
}

fn by_label(_: &Caches, node: &str) -> Selectors {
    Selectors::by_label(NODE_LABEL, node_label(node))
}

fn by_manager(caches: &Caches, node: &str) -> Selectors {
    if caches.contents_labelled {
        Selectors::by_label(MANAGED_BY, node_label(node))
    } else {
        Selectors::default()
    }
}

fn by_place(_: &Caches, node: &str) -> Selectors {
    Selectors::by_field("spec.nodeName", node.to_owned())
}

fn by_name(_: &Caches, node: &str) -> Selectors {
    Selectors::by_field("metadata.name", node.to_owned())
}

impl Caches {
    /// Cluster-wide caches. No watch has started yet.
    pub fn new(client: Client, stop: CancellationToken) -> Self {
        Caches {
            client: Some(client),
            shared: SharedCaches::until(&stop),
            stop,
            ..Caches::unwatched()
        }
    }

    /// Caches of the objects that concern one node.
    pub fn of_node(client: Client, stop: CancellationToken, node: &str) -> Self {
        Caches {
            node: Some(node.to_owned()),
            watch_scope: watch::Sender::new(WatchScope::Narrow),
            ..Caches::new(client, stop)
        }
    }

    /// Watches all contents if `all` is set: the label is missing where only drivers know the node.
    pub fn with_contents(self, all: bool) -> Self {
        Caches {
            contents_labelled: !all,
            ..self
        }
    }

    /// Watches optional kinds only while the API server serves them.
    pub fn serving(self, served: Served) -> Self {
        Caches { served, ..self }
    }

    /// The optional kinds that the API server serves.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// Counts the watch events in these metrics, and tells users of objects that are too large.
    pub fn reporting(self, metrics: Arc<Metrics>, events: Events) -> Self {
        Caches {
            reports: Reports {
                metrics: Some(metrics),
                events: Some(events),
            },
            ..self
        }
    }

    /// Caches that watch nothing. Tests fill them with [`Store::apply_write`].
    pub fn unwatched() -> Self {
        let stop = CancellationToken::new();
        Caches {
            client: None,
            shared: SharedCaches::until(&stop),
            stop,
            reports: Reports::default(),
            scope: PROCESS,
            node: None,
            served: Served::default(),
            contents_labelled: true,
            watch_scope: watch::Sender::default(),
            wide: Mutex::default(),
            term: Subscription::default(),
        }
    }

    /// Returns cluster-wide caches for work that one process does for all nodes. All concurrent
    /// users share the watches.
    pub fn wide(&self) -> Wide {
        let mut known = self.wide.lock();
        let shared = known.upgrade().unwrap_or_else(|| {
            let shared = SharedCaches::until(&self.stop);
            *known = Arc::downgrade(&shared);
            shared
        });
        Wide(Arc::new(Caches {
            client: self.client.clone(),
            stop: self.stop.clone(),
            reports: self.reports.clone(),
            scope: CLUSTER,
            served: self.served.clone(),
            shared,
            ..Caches::unwatched()
        }))
    }

    /// Returns the volumes of a driver with this handle. Most clusters rarely need this lookup, so
    /// the first call builds the index. That takes some milliseconds for a thousand volumes, and
    /// memory from then on.
    pub fn volumes_of(&self, driver: &str, handle: &str) -> Vec<Arc<PersistentVolume>> {
        let by_handle = &self.shared.by_handle;
        let by_handle = by_handle.get_or_init(|| {
            self.volumes().index(|volume: &PersistentVolume| {
                let keys = pv::csi(volume).map(|csi| handle_key(&csi.driver, &csi.volume_handle));
                keys.into_iter().collect()
            })
        });
        by_handle.get(&handle_key(driver, handle))
    }

    /// The current watch scope of the node's watches.
    pub fn watch_scope(&self) -> WatchScope {
        *self.watch_scope.borrow()
    }

    /// Widens or narrows the watches that a label narrows to the node.
    pub fn set_watch_scope(&self, watch_scope: WatchScope) {
        self.watch_scope.send_replace(watch_scope);
    }

    /// The failing watches with their kinds, including cluster-wide ones. Only kinds that every API
    /// server serves count. A missing kind stops the controllers that need it, and restarting this
    /// process would not help.
    pub fn troubles(&self) -> Vec<(&'static str, WatchError)> {
        let wide = self.wide.lock();
        let wide = wide.upgrade().map(|wide| wide.watches.troubles());
        let own = self.shared.watches.troubles();
        let all = own.into_iter().chain(wide.unwrap_or_default());
        all.filter(|(kind, _)| REQUIRED.contains(kind)).collect()
    }

    fn selectors(&self, narrow: Option<Narrow>) -> Selectors {
        let narrowed = self.node.as_deref().zip(narrow);
        narrowed.map_or_else(Selectors::default, |(node, narrow)| narrow(self, node))
    }

    fn begin<K: Resource>(&self, selectors: Selectors, form: Encoding<K>) -> Store<K> {
        let watch = Store::in_form(form);
        if let Some(client) = &self.client {
            let range = Range {
                selectors,
                watch_scope: self.watch_scope.subscribe(),
            };
            let (reports, stop) = (self.reports.clone(), self.shared.stop.clone());
            if let Some(metrics) = &reports.metrics {
                metrics.watch_cache(&K::kind(&()), self.scope, Box::new(watch.counter()));
            }
            let (client, served, watch) = (client.clone(), self.served.clone(), watch.clone());
            tokio::spawn(async move {
                let served = served.wait::<K>(|| watch.list_none());
                if stop.run_until_cancelled(served).await.is_some() {
                    watch.run_within(client, range, reports, stop).await;
                }
            });
        }
        watch
    }
}

#[cfg(test)]
mod tests;
