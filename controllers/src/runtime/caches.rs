//! The watches all loops share, one per kind. Each begins when a loop first asks for it.
//!
//! Where every node has loops of its own, a node's watches show what concerns it: what a hundred
//! nodes do must not be told to each of them. Claims, volumes and contents are narrowed by a label
//! that somebody has to write, and so can be widened for when nobody does; pods and nodes by fields
//! of their own. Attachments have neither. What one process does for all of them needs caches of the
//! whole cluster, which its parts share while there are any ([`Caches::wide`]).

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, StorageClass, VolumeAttachment, VolumeAttributesClass,
};
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Metrics;
use super::kube::Resource;
use super::scope::{MANAGED_BY, NODE_LABEL, node_label};
use super::watch::{Encoding, Index, Range, Selectors, Store, Subscription, WatchError, Width};
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
    /// Those of the whole cluster beside these, while somebody needs them.
    wide: Mutex<Weak<Shared>>,
    shared: Arc<Shared>,
    /// Who is told of changes here.
    term: Subscription,
}

/// What caches of the same objects share. The watches end with it.
struct Shared {
    watches: Watches,
    by_handle: OnceLock<Index<PersistentVolume>>,
    stop: CancellationToken,
    _ending: DropGuard,
}

impl Shared {
    fn until(stop: &CancellationToken) -> Arc<Self> {
        let stop = stop.child_token();
        Arc::new(Shared {
            watches: Watches::default(),
            by_handle: OnceLock::new(),
            _ending: stop.clone().drop_guard(),
            stop,
        })
    }
}

/// Caches of the whole cluster for one who needs them: when this is dropped, it is told of nothing
/// any more, and with the last such the watches end.
#[derive(Debug)]
#[must_use = "nothing is told when it is dropped"]
pub struct Wide(Arc<Caches>);

impl Wide {
    /// The caches.
    pub fn caches(&self) -> Arc<Caches> {
        self.0.clone()
    }
}

impl Drop for Wide {
    fn drop(&mut self) {
        self.0.leave();
    }
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

macro_rules! form {
    () => {
        Encoding::Open
    };
    (many) => {
        Encoding::packed()
    };
}

// A kind, how it is narrowed to a node, and whether there may be so many that they are packed.
macro_rules! watches {
    ($($(#[$doc:meta])* $name:ident: $kind:ty $(, $narrow:ident $(, $many:ident)?)?;)+) => {
        #[derive(Default)]
        struct Watches { $($name: OnceLock<Store<$kind>>,)+ }

        impl Caches {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> Store<$kind> {
                    let form = form!($($($many)?)?);
                    let begin = || self.begin(self.selectors(narrow!($($narrow)?)), form);
                    self.shared.watches.$name.get_or_init(begin).of_term(&self.term)
                }
            )+

            /// Those that have not seen everything yet.
            pub fn unsynced(&self) -> Vec<&'static str> {
                let (mut unsynced, watches) = (Vec::new(), &self.shared.watches);
                $(
                    if watches.$name.get().is_some_and(|watch| !watch.is_synced()) {
                        unsynced.push(stringify!($name));
                    }
                )+
                unsynced
            }

            fn leave(&self) {
                $(
                    if let Some(watch) = self.shared.watches.$name.get() {
                        watch.leave(&self.term);
                    }
                )+
            }
        }

        impl Watches {
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
    /// PersistentVolumeClaims.
    claims: PersistentVolumeClaim, by_label, many;
    /// PersistentVolumes.
    volumes: PersistentVolume, by_label, many;
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

/// Kinds that every API server serves and that most loops need.
const REQUIRED: [&str; 6] = [
    "claims",
    "volumes",
    "nodes",
    "csi_nodes",
    "classes",
    "attachments",
];

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
            shared: Shared::until(&stop),
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

    /// Caches that watch nothing; for tests, which fill them by [`Store::apply_write`].
    pub fn unwatched() -> Self {
        let stop = CancellationToken::new();
        Caches {
            client: None,
            shared: Shared::until(&stop),
            stop,
            metrics: None,
            node: None,
            contents_told: true,
            width: watch::Sender::default(),
            wide: Mutex::default(),
            term: Subscription::default(),
        }
    }

    /// Those of the whole cluster, beside these: for work that one process does for all. Whoever
    /// asks while another has them shares its watches.
    pub fn wide(&self) -> Wide {
        let mut known = self.wide.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = known.upgrade().unwrap_or_else(|| {
            let shared = Shared::until(&self.stop);
            *known = Arc::downgrade(&shared);
            shared
        });
        Wide(Arc::new(Caches {
            client: self.client.clone(),
            stop: self.stop.clone(),
            metrics: self.metrics.clone(),
            shared,
            ..Caches::unwatched()
        }))
    }

    /// The volumes of a driver that have this handle. Most clusters have work only now and then that
    /// asks for that: volumes are put in order by it when it is first asked, which takes time then
    /// (some milliseconds for a thousand of them), and memory from then on.
    pub fn volumes_of(&self, driver: &str, handle: &str) -> Vec<Arc<PersistentVolume>> {
        let at = |driver: &str, handle: &str| format!("{driver}/{handle}");
        let keys = move |volume: &PersistentVolume| {
            let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
            let keys = csi.map(|csi| at(&csi.driver, &csi.volume_handle));
            keys.into_iter().collect()
        };
        let by_handle = &self.shared.by_handle;
        let by_handle = by_handle.get_or_init(|| self.volumes().index(keys));
        by_handle.get(&at(driver, handle))
    }

    /// How wide a node's watches are.
    pub fn width(&self) -> Width {
        *self.width.borrow()
    }

    /// Has a node's watches made wider or narrower, where somebody's labels narrow them.
    pub fn set_width(&self, width: Width) {
        self.width.send_replace(width);
    }

    /// The failing watches with their kinds, including cluster-wide ones. Only kinds that every API
    /// server serves count. A missing kind stops the loops that need it, and restarting this
    /// process would not help.
    pub fn troubles(&self) -> Vec<(&'static str, WatchError)> {
        let wide = self.wide.lock().unwrap_or_else(PoisonError::into_inner);
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
                width: self.width.subscribe(),
            };
            let (metrics, stop) = (self.metrics.clone(), self.shared.stop.clone());
            tokio::spawn(
                watch
                    .clone()
                    .run_within(client.clone(), range, metrics, stop),
            );
        }
        watch
    }
}

#[cfg(test)]
mod tests;
