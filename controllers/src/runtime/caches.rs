//! The watches all loops share, one per kind. Each begins when a loop first asks for it.

use std::fmt;
use std::sync::OnceLock;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, StorageClass, VolumeAttachment, VolumeAttributesClass,
};
use kube::Client;
use kube::runtime::watcher;
use tokio_util::sync::CancellationToken;

use super::kube::Resource;
use super::watch::{Trouble, Watch};
use crate::snapshots::{
    VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshot,
    VolumeSnapshotClass, VolumeSnapshotContent,
};

/// The watches.
pub struct Caches {
    /// Without one nothing is watched: tests fill the watches themselves.
    client: Option<Client>,
    stop: CancellationToken,
    watches: Watches,
}

macro_rules! watches {
    ($($(#[$doc:meta])* $name:ident: $kind:ty;)+) => {
        #[derive(Default)]
        struct Watches { $($name: OnceLock<Watch<$kind>>,)+ }

        impl Caches {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> Watch<$kind> {
                    self.watches.$name.get_or_init(|| self.begin()).clone()
                }
            )+

            /// Those that do not get on, with their kinds.
            pub fn troubles(&self) -> Vec<(&'static str, Trouble)> {
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
    claims: PersistentVolumeClaim;
    /// PersistentVolumes.
    volumes: PersistentVolume;
    /// Pods.
    pods: Pod;
    /// Nodes.
    nodes: Node;
    /// CSIDrivers.
    csi_drivers: CSIDriver;
    /// CSINodes.
    csi_nodes: CSINode;
    /// StorageClasses.
    classes: StorageClass;
    /// VolumeAttachments.
    attachments: VolumeAttachment;
    /// VolumeAttributesClasses.
    attributes_classes: VolumeAttributesClass;
    /// VolumeSnapshots.
    snapshots: VolumeSnapshot;
    /// VolumeSnapshotContents.
    contents: VolumeSnapshotContent;
    /// VolumeSnapshotClasses.
    snapshot_classes: VolumeSnapshotClass;
    /// VolumeGroupSnapshots.
    groups: VolumeGroupSnapshot;
    /// VolumeGroupSnapshotContents.
    group_contents: VolumeGroupSnapshotContent;
    /// VolumeGroupSnapshotClasses.
    group_classes: VolumeGroupSnapshotClass;
}

impl fmt::Debug for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Caches")
    }
}

impl Caches {
    /// None has begun yet.
    pub fn new(client: Client, stop: CancellationToken) -> Self {
        Caches {
            client: Some(client),
            stop,
            watches: Watches::default(),
        }
    }

    /// Caches that watch nothing; for tests, which fill them by [`Watch::wrote`].
    pub fn unwatched() -> Self {
        let stop = CancellationToken::new();
        Caches {
            client: None,
            stop,
            watches: Watches::default(),
        }
    }

    fn begin<K: Resource>(&self) -> Watch<K> {
        let watch = Watch::new();
        if let Some(client) = &self.client {
            let api = K::everywhere(client.clone());
            let running = watch
                .clone()
                .run(api, watcher::Config::default(), self.stop.clone());
            tokio::spawn(running);
        }
        watch
    }
}
