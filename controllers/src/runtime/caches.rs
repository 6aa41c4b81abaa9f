//! The watches all loops share, one per kind. Each begins when a loop first asks for it.
//!
//! Where every node has loops of its own, a node's watches show what concerns it: what a hundred
//! nodes do must not be told to each of them. Claims, volumes and contents are narrowed by a label
//! that somebody has to write, and so can be widened for when nobody does; pods and nodes by fields
//! of their own. Attachments have neither.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, StorageClass, VolumeAttachment, VolumeAttributesClass,
};
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Metrics;
use super::kube::Resource;
use super::scope::{MANAGED_BY, NODE_LABEL, node_label};
use super::watch::{Range, Selectors, Trouble, Watch, Width};
use crate::snapshots::{
    VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshot,
    VolumeSnapshotClass, VolumeSnapshotContent,
};

/// The watches.
pub struct Caches {
    /// Without one nothing is watched: tests fill the watches themselves.
    client: Option<Client>,
    stop: CancellationToken,
    /// Counts what is told.
    metrics: Option<Arc<Metrics>>,
    /// Whose objects are watched, if not everybody's.
    node: Option<String>,
    /// It can be told of all contents whose they are.
    contents_told: bool,
    width: watch::Sender<Width>,
    /// Those that are for a time beside these.
    others: Mutex<Vec<Weak<Caches>>>,
    watches: Watches,
}

/// How a kind is narrowed to a node.
type Narrow = fn(&Caches, &str) -> Selectors;

macro_rules! narrow {
    () => {
        None
    };
    ($narrow:ident) => {
        Some($narrow as Narrow)
    };
}

macro_rules! watches {
    ($($(#[$doc:meta])* $name:ident: $kind:ty $(, $narrow:ident)?;)+) => {
        #[derive(Default)]
        struct Watches { $($name: OnceLock<Watch<$kind>>,)+ }

        impl Caches {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> Watch<$kind> {
                    let begin = || self.begin(self.selectors(narrow!($($narrow)?)));
                    self.watches.$name.get_or_init(begin).clone()
                }
            )+

            fn own_troubles(&self) -> Vec<(&'static str, Trouble)> {
                let mut troubles = Vec::new();
                $(
                    if let Some(trouble) = self.watches.$name.get().and_then(Watch::trouble) {
                        troubles.push((stringify!($name), trouble));
                    }
                )+
                troubles
            }

            /// Those that have not seen everything yet.
            pub fn unsynced(&self) -> Vec<&'static str> {
                let mut unsynced = Vec::new();
                $(
                    if self.watches.$name.get().is_some_and(|watch| !watch.is_synced()) {
                        unsynced.push(stringify!($name));
                    }
                )+
                unsynced
            }
        }
    };
}

watches! {
    /// PersistentVolumeClaims.
    claims: PersistentVolumeClaim, by_label;
    /// PersistentVolumes.
    volumes: PersistentVolume, by_label;
    /// Pods.
    pods: Pod, by_place;
    /// Nodes.
    nodes: Node, by_name;
    /// CSIDrivers.
    csi_drivers: CSIDriver;
    /// CSINodes.
    csi_nodes: CSINode, by_name;
    /// StorageClasses.
    classes: StorageClass;
    /// VolumeAttachments.
    attachments: VolumeAttachment;
    /// VolumeAttributesClasses.
    attributes_classes: VolumeAttributesClass;
    /// VolumeSnapshots.
    snapshots: VolumeSnapshot;
    /// VolumeSnapshotContents.
    contents: VolumeSnapshotContent, by_manager;
    /// VolumeSnapshotClasses.
    snapshot_classes: VolumeSnapshotClass;
    /// VolumeGroupSnapshots.
    groups: VolumeGroupSnapshot;
    /// VolumeGroupSnapshotContents.
    group_contents: VolumeGroupSnapshotContent, by_manager;
    /// VolumeGroupSnapshotClasses.
    group_classes: VolumeGroupSnapshotClass;
}

impl fmt::Debug for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Caches")
    }
}

fn by_label(_: &Caches, node: &str) -> Selectors {
    Selectors::by_label(NODE_LABEL, node_label(node))
}

fn by_manager(caches: &Caches, node: &str) -> Selectors {
    match caches.contents_told {
        true => Selectors::by_label(MANAGED_BY, node_label(node)),
        false => Selectors::default(),
    }
}

fn by_place(_: &Caches, node: &str) -> Selectors {
    Selectors::by_field("spec.nodeName", node.to_owned())
}

fn by_name(_: &Caches, node: &str) -> Selectors {
    Selectors::by_field("metadata.name", node.to_owned())
}

impl Caches {
    /// Of the whole cluster. None has begun yet.
    pub fn new(client: Client, stop: CancellationToken) -> Self {
        Caches {
            client: Some(client),
            stop,
            ..Caches::unwatched()
        }
    }

    /// Of what concerns a node.
    pub fn of_node(client: Client, stop: CancellationToken, node: &str) -> Self {
        Caches {
            node: Some(node.to_owned()),
            width: watch::Sender::new(Width::Narrow),
            ..Caches::new(client, stop)
        }
    }

    /// With all contents, if only drivers can tell of some whose they are.
    pub fn with_contents(self, all: bool) -> Self {
        Caches {
            contents_told: !all,
            ..self
        }
    }

    /// Counts what the watches are told.
    pub fn counted(self, metrics: Arc<Metrics>) -> Self {
        Caches {
            metrics: Some(metrics),
            ..self
        }
    }

    /// Caches that watch nothing; for tests, which fill them by [`Watch::wrote`].
    pub fn unwatched() -> Self {
        Caches {
            client: None,
            stop: CancellationToken::new(),
            metrics: None,
            node: None,
            contents_told: true,
            width: watch::Sender::default(),
            others: Mutex::default(),
            watches: Watches::default(),
        }
    }

    /// How wide a node's watches are.
    pub fn width(&self) -> Width {
        *self.width.borrow()
    }

    /// Has a node's watches made wider or narrower, where somebody's labels narrow them.
    pub fn set_width(&self, width: Width) {
        self.width.send_replace(width);
    }

    /// Has the troubles of others told with these, as long as they last.
    pub fn also(&self, others: &Arc<Caches>) {
        let mut all = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(others));
    }

    /// Watches that do not get on, with their kinds.
    pub fn troubles(&self) -> Vec<(&'static str, Trouble)> {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let others = others.iter().filter_map(Weak::upgrade);
        let of_others = others
            .filter(|others| !others.stop.is_cancelled())
            .flat_map(|others| others.own_troubles());
        self.own_troubles().into_iter().chain(of_others).collect()
    }

    fn selectors(&self, narrow: Option<Narrow>) -> Selectors {
        let narrowed = self.node.as_deref().zip(narrow);
        narrowed.map_or_else(Selectors::default, |(node, narrow)| narrow(self, node))
    }

    fn begin<K: Resource>(&self, selectors: Selectors) -> Watch<K> {
        let watch = Watch::new();
        if let Some(client) = &self.client {
            let api = K::everywhere(client.clone());
            let range = Range {
                selectors,
                width: self.width.subscribe(),
            };
            let (metrics, stop) = (self.metrics.clone(), self.stop.clone());
            tokio::spawn(watch.clone().run_within(api, range, metrics, stop));
        }
        watch
    }
}

#[cfg(test)]
mod tests;
