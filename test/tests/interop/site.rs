//! A control plane, the driver as a process of the machine, and the controllers between them.

use std::path::{Path, PathBuf};

use hostloop_test::PATIENCE;
use hostloop_test::client::Csi;
use hostloop_test::cluster::{Cluster, Options, Stock};
use hostloop_test::deployed::DRIVER;
use hostloop_test::driver::{Driver, DriverSpec, NODE};
use hostloop_test::front::fields::{is_bound, text};
use hostloop_test::front::objects::{self, Objects, Place};
use hostloop_test::front::wait;
use hostloop_test::leaks::Leaks;
use hostloop_test::machine;
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::process::{Process, common};
use hostloop_test::scratch::Scratch;
use serde_json::{Value, json};

/// The namespace of the claims.
pub(crate) const NAMESPACE: &str = "default";

/// The name of all classes but those of attributes.
pub(crate) const CLASS: &str = "interop";

/// The programs that have a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Upstream's sidecar.
    Theirs,
    /// Hostloop's controllers.
    Ours,
    /// Both at the same time, each as if it were alone.
    Both,
}

/// The roles: upstream's programs. Hostloop's controllers have the same names without the prefix.
pub(crate) const ROLES: [&str; 5] = [
    "csi-provisioner",
    "csi-attacher",
    "csi-resizer",
    "csi-snapshotter",
    "snapshot-controller",
];

/// A control plane with the driver. The fields are dropped in order: each needs later ones.
pub(crate) struct Site {
    /// The programs in front of the driver.
    pub(crate) processes: Vec<Process>,
    /// The driver, as kubelet sees it.
    pub(crate) csi: Csi,
    /// The objects of the cluster.
    pub(crate) objects: Objects,
    cast: [Who; ROLES.len()],
    stock: Stock,
    leaks: Leaks,
    /// `hostloop proxy` between the programs and the driver.
    proxy: Option<Process>,
    driver: Driver,
    pool: PoolFixture,
    cluster: Cluster,
    /// The files of the driver, of its pool and of the programs.
    pub(crate) scratch: Scratch,
}

impl Site {
    /// Starts the control plane, the driver and the controllers.
    pub(crate) async fn up(cast: [Who; ROLES.len()]) -> Site {
        let mut site = Site::without_programs(cast).await;
        site.start();
        site
    }

    /// [`Site::up`] with `hostloop proxy` before the driver, which has these rules of faults.
    pub(crate) async fn up_behind_proxy(cast: [Who; ROLES.len()], rules: &str) -> Site {
        let mut site = Site::without_programs(cast).await;
        let rules = site.scratch.file("rules.yaml", rules);
        let (driver, socket) = (site.driver.endpoint(), site.proxy_socket());
        let proxy = Process::proxy(site.scratch.path(), &driver, &socket, Some(&rules));
        site.proxy = Some(proxy.await);
        site.start();
        site
    }

    async fn without_programs(cast: [Who; ROLES.len()]) -> Site {
        machine::require();
        let cluster = Cluster::up(&Options::default());
        cluster.create_crds();
        cluster.apply(&surroundings().to_string());

        let scratch = Scratch::new();
        let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 8 * GIB);
        let driver = DriverSpec::new(&scratch, &[&pool]).start();
        let csi = driver.csi().await;
        Site {
            processes: Vec::new(),
            cast,
            csi,
            objects: Objects::connect(&cluster.kubeconfig()).await,
            stock: Stock::take(&cluster, &[pool.root()]),
            leaks: Leaks::before(&scratch, &[&pool], &driver),
            proxy: None,
            driver,
            pool,
            cluster,
            scratch,
        }
    }

    fn proxy_socket(&self) -> PathBuf {
        self.scratch.path().join("proxy.sock")
    }

    /// What the programs take for the driver.
    fn endpoint(&self) -> String {
        match &self.proxy {
            Some(_) => format!("unix://{}", machine::text(&self.proxy_socket())),
            None => self.driver.endpoint(),
        }
    }

    /// The log of the proxy.
    pub(crate) fn proxy_log(&self) -> String {
        self.proxy.as_ref().map(Process::log).unwrap_or_default()
    }

    /// The filesystem of the pool.
    pub(crate) fn pool_mount(&self) -> &Path {
        self.pool.mount().expect("the pool is a directory")
    }

    fn start(&mut self) {
        let dir = self.scratch.path();
        let kubeconfig = self.cluster.kubeconfig();
        let common = common(&self.endpoint(), &kubeconfig);
        let with = |more: String| [&common[..], &[more]].concat();
        let mut ours = Vec::new();
        for (program, who) in ROLES.into_iter().zip(self.cast) {
            if who != Who::Theirs {
                ours.push(program.trim_start_matches("csi-"));
            }
            if who == Who::Ours {
                continue;
            }
            let args = match program {
                // It calls no driver.
                "snapshot-controller" => common[1..].to_vec(),
                // After a conflict, it leaves its finalizer on a snapshot until it looks again.
                "csi-provisioner" => [
                    &with("--extra-create-metadata".to_owned())[..],
                    &["--snapshot-orphan-sweep-interval=10s".to_owned()],
                ]
                .concat(),
                "csi-snapshotter" => with("--extra-create-metadata".to_owned()),
                _ => common.clone(),
            };
            self.processes.push(Process::sidecar(dir, program, &args));
        }
        if !ours.is_empty() {
            let args = with(format!("--controllers={}", ours.join(",")));
            self.processes.push(Process::controllers(dir, &args));
        }
    }

    /// Creates a claim of 320 MiB with this change, and returns its reference.
    pub(crate) async fn claim(&self, name: &str, change: Value) -> Place {
        let claim = objects::claim(NAMESPACE, name, CLASS, "320Mi", change);
        self.objects.create(claim).await;
        at("PersistentVolumeClaim", name)
    }

    /// Waits until a claim is bound, and returns its volume.
    pub(crate) async fn bound(&self, claim: &Place) -> Value {
        let claim = self.until(claim, "bound", is_bound).await;
        let volume = at("PersistentVolume", text(&claim["spec"]["volumeName"]));
        self.until(&volume, "bound", is_bound).await
    }

    /// Waits until an object satisfies `is`, and returns it. On a timeout the test fails with the
    /// object, its events and the ends of all logs.
    pub(crate) async fn until(&self, at: &Place, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        match self.objects.until(at, PATIENCE, is).await {
            Some(object) => object,
            None => self.fail(at, what).await,
        }
    }

    /// Waits until an object is gone.
    pub(crate) async fn until_gone(&self, at: &Place) {
        if !self.objects.until_gone(at, PATIENCE).await {
            self.fail(at, "gone").await;
        }
    }

    /// Waits for an event of this reason about an object.
    pub(crate) async fn until_event(&self, at: &Place, reason: &str) {
        let ask = || async {
            let events = self.objects.events(at).await;
            events.iter().any(|e| e.1 == reason).then_some(())
        };
        if wait::until(PATIENCE, ask).await.is_none() {
            self.fail(at, &format!("reported by {reason}")).await;
        }
    }

    /// Deletes an object and waits until it is gone.
    pub(crate) async fn delete(&self, at: &Place) {
        self.objects.delete(at).await;
        self.until_gone(at).await;
    }

    async fn fail(&self, at: &Place, what: &str) -> ! {
        let object = self.objects.describe(at).await;
        let tails: Vec<_> = self.processes.iter().map(Process::tail).collect();
        panic!(
            "{at} is not {what} after {PATIENCE:?}:\n{object}\n{}",
            tails.join("\n")
        );
    }

    /// Stops everything. The test has deleted its objects, so nothing may be left in the cluster,
    /// the pool or the kernel.
    pub(crate) async fn down(self) {
        self.stock.assert_nothing_left(&self.cluster).await;
        assert_eq!(self.csi.volume_ids().await, Vec::<String>::new());
        assert_eq!(self.csi.snapshot_ids().await, Vec::<String>::new());
        for process in self.processes.into_iter().chain(self.proxy) {
            process.stop();
        }
        self.leaks.assert_none(&[&self.pool], &self.driver);
        drop(self.csi);
        self.driver.stop();
        self.cluster.delete(&surroundings().to_string());
    }
}

/// The reference of an object.
pub(crate) fn at(kind: &str, name: &str) -> Place {
    Place::of(kind, NAMESPACE, name)
}

/// The objects of an administrator and of kubelet: the classes, the node, and what kubelet writes
/// when the driver registers.
fn surroundings() -> Value {
    let key = format!("topology.{DRIVER}/node");
    let class = |kind: &str| objects::snapshot_class(kind, CLASS, DRIVER, json!({}));
    let attributes =
        |name: &str, parameters: Value| objects::attributes_class(name, DRIVER, parameters);
    let storage = |fs: &str| json!({"mountOptions": ["noatime"], "parameters": {"csi.storage.k8s.io/fstype": fs}});
    let labels = json!({"metadata": {"labels": {&key: NODE}}});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        objects::csi_driver(DRIVER, json!({"attachRequired": true, "podInfoOnMount": true})),
        objects::with(objects::named("Node", NODE), labels),
        {
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": NODE},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": NODE, "topologyKeys": [key]}]},
        },
        objects::class(CLASS, DRIVER, storage("xfs")),
        objects::class("ext4", DRIVER, storage("ext4")),
        objects::class("btrfs", DRIVER, storage("btrfs")),
        attributes("direct", json!({"directIO": "true"})),
        attributes("buffered", json!({"directIO": "false"})),
        attributes("thick", json!({"provisioning": "thick"})),
        class("VolumeSnapshotClass"),
        class("VolumeGroupSnapshotClass"),
    ]})
}
