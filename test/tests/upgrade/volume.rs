//! The kinds of volumes.

use hostloop_test::cluster;
use hostloop_test::front::objects;
use serde_json::{Value, json};

use crate::site::{SPACE, Site};

/// The class of volumes in the pool with an image.
pub(crate) const BOUNDED: &str = "upgrade-bounded";

const SIZE: &str = "512Mi";

/// A kind of volume.
#[derive(Debug)]
pub(crate) struct Kind {
    /// The last part of its claims' names.
    pub(crate) name: &'static str,
    class: &'static str,
    /// True for a raw device.
    pub(crate) is_block: bool,
}

/// The kinds. A device in use can only be snapshotted in a pool with reflinks.
pub(crate) const KINDS: [Kind; 4] = [
    Kind {
        name: "ext4",
        class: "hostloop-ext4",
        is_block: false,
    },
    Kind {
        name: "xfs",
        class: "hostloop-xfs",
        is_block: false,
    },
    Kind {
        name: "block",
        class: BOUNDED,
        is_block: true,
    },
    Kind {
        name: "bounded",
        class: BOUNDED,
        is_block: false,
    },
];

/// A claim of a kind.
#[derive(Debug)]
pub(crate) struct Volume {
    /// The claim's name.
    pub(crate) claim: String,
    pub(crate) kind: &'static Kind,
}

impl Volume {
    /// The path in a pod of a file on the volume, or of the device.
    pub(crate) fn path(&self, file: &str) -> String {
        if self.kind.is_block {
            format!("/dev/{}", self.claim)
        } else {
            format!("/{}/{file}", self.claim)
        }
    }
}

impl Site {
    /// Creates a claim of each kind, named after its pod, with these changes.
    pub(crate) async fn volumes(&self, pod: &str, change: impl Fn(&Kind) -> Value) -> Vec<Volume> {
        let mut volumes = Vec::new();
        for kind in &KINDS {
            let claim = format!("{pod}-{}", kind.name);
            let mode = if kind.is_block { "Block" } else { "Filesystem" };
            let change = objects::with(json!({"spec": {"volumeMode": mode}}), change(kind));
            self.objects
                .create(objects::claim(SPACE, &claim, kind.class, SIZE, change))
                .await;
            volumes.push(Volume { claim, kind });
        }
        volumes
    }

    /// Runs a pod with these volumes on a node, and waits until it is ready.
    pub(crate) async fn run(&self, pod: &str, node: u32, command: &[&str], volumes: &[&Volume]) {
        let claims = |block: bool| {
            let of = volumes.iter().filter(|v| v.kind.is_block == block);
            of.map(|v| v.claim.as_str()).collect::<Vec<_>>()
        };
        let (files, devices) = (claims(false), claims(true));
        let there = json!({"nodeSelector": {"kubernetes.io/hostname": self.cluster.node(node)}});
        self.objects
            .create(cluster::pod(SPACE, pod, command, (&files, &devices), there))
            .await;
        self.cluster.pod_ready(SPACE, pod);
    }
}
