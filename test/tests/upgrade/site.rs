//! The cluster, and the version of hostloop that is deployed in it.

use std::path::{Path, PathBuf};

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{Cluster, Options, wait_for};
use hostloop_test::deployed::{DRIVER, NAMESPACE};
use hostloop_test::front::fields::name;
use hostloop_test::front::objects::{self, Objects, Place};
use hostloop_test::machine::{root, text};
use hostloop_test::{deployed, tools};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::flow::NOW;
use crate::volume::BOUNDED;

/// The namespace of the pods with volumes.
pub(crate) const SPACE: &str = "upgrade";

/// The pool in the manifests of this version.
const POOL: &str = "value: default=$(POOL_DIR)$(POOL_OPTIONS)";
/// The argument with the pool in earlier versions.
const POOL_ARGUMENT: &str = "- --pool=default=$(POOL_DIR)$(POOL_OPTIONS)";

/// Of a large disk, 5 % may be all that is free.
const RESERVE: &str = "64Mi";

/// A version of hostloop: its image and its manifests.
pub(crate) struct Release {
    /// A word for it.
    pub(crate) name: &'static str,
    image: String,
    /// The checkout with its manifests.
    tree: PathBuf,
}

impl Release {
    pub(crate) fn last() -> Release {
        let image = format!("{DRIVER}/hostloop:last-release");
        Release {
            name: "last",
            image,
            tree: tools::last_release().join("tree"),
        }
    }

    /// The version under test.
    pub(crate) fn this() -> Release {
        let image = format!("{DRIVER}/hostloop:{}", env!("CARGO_PKG_VERSION"));
        Release {
            name: "this",
            image,
            tree: root(),
        }
    }
}

/// The cluster.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    pub(crate) objects: Objects,
    /// On each node, a directory of this name has the pools. On the first one it is this directory.
    pool_dir: TempDir,
}

impl Site {
    /// Starts a cluster with the images of both versions.
    pub(crate) async fn up() -> Site {
        let cluster = Cluster::up(&Options::two_nodes().apart("upgrade"));
        // Each node has a /var of its own.
        let pool_dir = tempfile::Builder::new()
            .prefix("hostloop-upgrade-")
            .tempdir_in("/var/tmp");
        let pool_dir = pool_dir.expect("a directory can be made in /var/tmp");
        let objects = Objects::connect(&cluster.kubeconfig()).await;
        let site = Site {
            cluster,
            objects,
            pool_dir,
        };
        for node in site.cluster.all_nodes() {
            for pool in ["plain", "bounded"] {
                let dir = node.path(&site.pool_dir.path().join(pool));
                std::fs::create_dir_all(dir).expect("a pool's directory can be made");
            }
        }
        site.cluster.load(&tools::last_release().join("image.tar"));
        site.cluster.load(&deployed::tested_image(
            site.pool_dir.path().join("hostloop.tar"),
        ));
        site.objects.namespace(SPACE).await;
        site
    }

    /// The directory of the driver's state, on each node.
    fn state_dir(&self) -> PathBuf {
        self.cluster.kubelet_dir().join("plugins").join(DRIVER)
    }

    /// The pools: one in a directory, one in an image.
    fn pool_list(dir: &str) -> [String; 2] {
        [
            format!("default={dir}/plain"),
            format!("bounded={dir}/bounded,image=6Gi"),
        ]
    }

    /// The roots of the pools of all nodes, as this machine sees them.
    pub(crate) fn pools(&self) -> Vec<PathBuf> {
        let roots = [
            self.pool_dir.path().join("plain"),
            self.state_dir().join("pools/bounded"),
        ];
        let nodes = self.cluster.all_nodes();
        nodes
            .iter()
            .flat_map(|node| roots.iter().map(|root| node.path(root)))
            .collect()
    }

    fn manifest(&self, release: &Release) -> String {
        let dirs = [self.cluster.kubelet_dir(), self.pool_dir.path()].map(text);
        let manifest = deployed::render_in(
            &release.tree,
            &[
                "--overlay",
                "snapshot-controller",
                "--kubelet-dir",
                dirs[0],
                "--pool-dir",
                dirs[1],
                "--image",
                &release.image,
            ],
        );
        let pools = Site::pool_list("$(POOL_DIR)");
        if manifest.contains(POOL) {
            let variables = format!(
                "value: {}\n        - name: HOSTLOOP_RESERVE\n          value: {RESERVE}",
                pools.join(";")
            );
            return manifest.replacen(POOL, &variables, 1);
        }
        assert!(
            manifest.contains(POOL_ARGUMENT),
            "{}: the DaemonSet has a pool",
            release.name
        );
        let [first, second] = pools.map(|pool| format!("- --pool={pool}\n        "));
        let arguments = format!("{first}{second}- --reserve={RESERVE}");
        manifest.replacen(POOL_ARGUMENT, &arguments, 1)
    }

    /// Applies the definitions and the manifest of a version, and waits until all of its pods are
    /// ready. None of them may restart meanwhile.
    pub(crate) async fn install(&self, release: &Release) {
        let apply = |flag: &str, path: &Path| {
            self.cluster
                .kubectl(&["apply", "--server-side", flag, text(path)]);
        };
        apply("-k", &release.tree.join("deploy/crds"));
        let defined = [
            "wait",
            "--for=condition=Established",
            "--timeout=300s",
            "crd",
            "--all",
        ];
        self.cluster.kubectl(&defined);
        let file = self.pool_dir.path().join("hostloop.yaml");
        std::fs::write(&file, self.manifest(release)).expect("the manifest can be written");
        apply("-f", &file);
        let wanted = self.cluster.nodes() as usize + 1;
        wait_for(
            &format!("{wanted} ready pods of {}", release.image),
            PATIENCE,
            async || {
                let pods = self.objects.list("Pod", NAMESPACE).await;
                let container = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
                let serves = |pod: &Value| {
                    let container = container(pod);
                    pod["spec"]["containers"][0]["image"] == release.image
                        && container["ready"] == true
                        && container["restartCount"] == 0
                };
                if pods.len() == wanted && pods.iter().all(serves) {
                    return Ok(());
                }
                let seen = pods.iter().map(|pod| {
                    let container = container(pod);
                    let [state, last] = ["state", "lastState"].map(|field| &container[field]);
                    format!("{}: {state}, before: {last}", pod["metadata"]["name"])
                });
                Err(seen.collect::<Vec<_>>().join("\n"))
            },
        )
        .await;
    }

    /// Creates the classes that no version has.
    pub(crate) async fn create_classes(&self) {
        let bounded = json!({
            "volumeBindingMode": "WaitForFirstConsumer",
            "parameters": {"pool": "bounded", "csi.storage.k8s.io/fstype": "xfs"}});
        self.objects
            .create(objects::class(BOUNDED, DRIVER, bounded))
            .await;
        self.objects
            .create(objects::class(NOW, DRIVER, json!({})))
            .await;
    }

    /// `hostloop fsck` finds nothing on any node.
    pub(crate) async fn assert_sound(&self) {
        // The containers of earlier versions do not have them in their environment.
        let pools = Site::pool_list(text(self.pool_dir.path())).join(";");
        let state_dir = self.state_dir();
        let fsck = [
            "hostloop",
            "fsck",
            "--statedir",
            text(&state_dir),
            "--reserve",
            RESERVE,
            "--pool",
            &pools,
        ];
        let pods = self.objects.list("Pod", NAMESPACE).await;
        let is_node =
            |pod: &&Value| pod["metadata"]["labels"]["app.kubernetes.io/name"] == "hostloop";
        for pod in pods.iter().filter(is_node) {
            let pod = name(pod);
            // The volumes of ended pods and deleted claims go in the background.
            wait_for("a sound node", PATIENCE, async || {
                self.cluster.try_exec(NAMESPACE, pod, &fsck)
            })
            .await;
        }
    }

    /// An object of the pods' namespace.
    pub(crate) async fn get(&self, kind: &str, name: &str) -> Value {
        let found = self.objects.get(&Place::of(kind, SPACE, name)).await;
        found.unwrap_or_else(|| panic!("there is no {kind} {name}"))
    }

    /// What stays the same about a running pod that nothing disturbs.
    pub(crate) async fn identity(&self, pod: &str) -> Value {
        let pod = self.get("Pod", pod).await;
        let container = &pod["status"]["containerStatuses"][0];
        assert_eq!(container["restartCount"], 0, "{}", pod["status"]);
        json!({"uid": pod["metadata"]["uid"], "phase": pod["status"]["phase"],
            "container": container["containerID"], "state": container["state"]})
    }

    /// Runs a script in a pod and returns its output, without the last newline.
    pub(crate) fn sh(&self, pod: &str, script: &str) -> String {
        self.cluster
            .exec(SPACE, pod, &["sh", "-c", script])
            .trim_end()
            .to_owned()
    }

    /// Deletes a pod, and waits until it is gone.
    pub(crate) fn remove_pod(&self, pod: &str) {
        self.cluster
            .kubectl(&["delete", "pod", "-n", SPACE, pod, "--timeout=300s"]);
    }

    /// Deletes the pods, their volumes and snapshots.
    pub(crate) fn delete_everything(&self) {
        let all = |kind: &str| {
            self.cluster
                .kubectl(&["delete", kind, "-n", SPACE, "--all", "--timeout=300s"]);
        };
        for kind in ["pod", "volumegroupsnapshot", "volumesnapshot", "pvc"] {
            all(kind);
        }
    }

    /// Removes the driver from the cluster, and then the cluster.
    pub(crate) fn remove(self, release: &Release) {
        self.cluster.delete(&self.manifest(release));
        drop(self.cluster);
        drop(self.pool_dir);
    }
}
