//! The cluster all tests share, with the driver deployed in it.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hostloop_test::PATIENCE;
pub(crate) use hostloop_test::cluster::check;
use hostloop_test::cluster::{Audit, Cluster, Options, Stock};
use hostloop_test::deployed::{DRIVER, NAMESPACE};
use hostloop_test::front::fields::has_condition;
use hostloop_test::front::objects::Objects;
use hostloop_test::leaks::{files_in, mounted, mountinfo};
use hostloop_test::machine::{self, text as path_text};
use hostloop_test::{deployed, loop_devices};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::objects::name;
use crate::site::Site;

/// The topology key of the driver's nodes.
pub(crate) const TOPOLOGY: &str = "topology.hostloop.csi.dev/node";

const PACE: Duration = Duration::from_millis(200);

/// Limits each pool with an image, which is a sparse file. The manifest's default is a plain
/// directory. The size is small because a pool never promises more than its host's disk has free,
/// less the reserve. The tests set a small reserve, because 5 % of a large disk may be all that is
/// free.
const BOUNDED: &str = ",image=12Gi";

/// The namespace of the controllers' secrets. The component grants access to these secrets only.
pub(crate) const CONTROLLER_SECRETS: &str = "controller-secrets";

/// The cluster, with the driver in it.
pub(crate) struct World {
    cluster: Cluster,
    pub(crate) objects: Objects,
    runtime: Runtime,
    /// The directory of the pools, on each node: `plain` is the pool of the shipped manifest,
    /// `bounded` is the one with the image.
    pool_dir: PathBuf,
    /// True once the pools are bounded.
    bounded: AtomicBool,
    stock: Stock,
    /// The audit log before these tests.
    asked: Audit,
    /// A lock for each node: see [`Site::alone`].
    pub(crate) turns: Vec<Mutex<()>>,
}

impl World {
    /// Starts the cluster and deploys the driver without attachment.
    pub(crate) fn up() -> World {
        machine::require();
        let cluster = Cluster::up(&Options::two_nodes().apart("e2e"));
        let runtime = Runtime::new().expect("threads can be had");
        let objects = runtime.block_on(Objects::connect(&cluster.kubeconfig()));
        let pool_dir = PathBuf::from(format!("/var/tmp/hostloop-e2e-{}", cluster.name()));
        let stock = Stock::take(&cluster, &[]);
        let asked = cluster.audit();
        let turns = (0..cluster.nodes()).map(|_| Mutex::default()).collect();
        let world = World {
            cluster,
            objects,
            runtime,
            pool_dir,
            bounded: AtomicBool::new(false),
            stock,
            asked,
            turns,
        };
        world.cluster.load(&deployed::tested_image(
            machine::root().join("target/e2e/hostloop.tar"),
        ));
        world.cluster.create_crds();
        // A cluster that was already running keeps its pools, and settings of `deploy_limited` that
        // the manifest does not have.
        let bounded = world.find("DaemonSet", NAMESPACE, "hostloop").is_some();
        world.bounded.store(bounded, Ordering::Relaxed);
        if bounded {
            world.set_env("daemonset/hostloop", &["HOSTLOOP_ATTACH_LIMIT-"]);
        }
        world.deploy(&[]);
        world
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The requests to the API server since these tests began.
    pub(crate) fn audit(&self) -> Audit {
        self.cluster.audit().since(&self.asked)
    }

    /// Runs a future to completion.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// The directory of the driver's socket and state, on each node.
    pub(crate) fn plugin_dir(&self) -> PathBuf {
        self.cluster.kubelet_dir().join("plugins").join(DRIVER)
    }

    /// Calls `look` until it has a value; panics with the last state on a timeout.
    pub(crate) fn until<T>(&self, what: &str, look: impl FnMut() -> Result<T, String>) -> T {
        until(what, PATIENCE, look)
    }

    /// True if the pools are bounded by an image.
    pub(crate) fn is_bounded(&self) -> bool {
        self.bounded.load(Ordering::Relaxed)
    }

    /// Replaces the plain pools by bounded ones. The pools must be empty.
    pub(crate) fn deploy_bounded(&self) {
        if self.is_bounded() {
            return;
        }
        self.remove("DaemonSet", NAMESPACE, "hostloop");
        for site in self.sites() {
            // Until then, its driver may still run and know its pools.
            self.until("the end of the driver's pod", || {
                let left = site.driver_pods();
                check(left.is_empty(), || format!("{left:?}"))
            });
            // The driver refuses to replace a registered pool by another.
            let known = site.plugin_dir().join("pools.json");
            std::fs::remove_file(&known).unwrap_or_else(|e| panic!("{}: {e}", known.display()));
        }
        self.bounded.store(true, Ordering::Relaxed);
        self.deploy(&[]);
    }

    /// The pool's directory on each node.
    fn pool_at(&self) -> PathBuf {
        let bounded = self.is_bounded();
        self.pool_dir
            .join(if bounded { "bounded" } else { "plain" })
    }

    /// The root of the pool's records, as the driver names it. The driver mounts a pool's image
    /// beneath its state directory.
    pub(crate) fn pool_root(&self) -> PathBuf {
        if self.is_bounded() {
            self.plugin_dir().join("pools/default")
        } else {
            self.pool_at()
        }
    }

    /// Deploys the driver again, with attachment, and with claims placed by the API server.
    pub(crate) fn deploy_attached(&self) {
        if !self.attaches(true) {
            self.deploy(&["attach", "place-claims"]);
        }
    }

    /// [`World::deploy_attached`], then takes away some controllers, and all but two volumes of
    /// each node.
    pub(crate) fn deploy_limited(&self) {
        self.deploy_attached();
        let fewer = "CONTROLLERS=*,-resizer,-placement";
        self.set_env("daemonset/hostloop", &[fewer, "HOSTLOOP_ATTACH_LIMIT=2"]);
        self.set_env("deployment/hostloop-controller", &[fewer]);
        self.drivers_ready();
    }

    /// Sets variables of a workload of the driver.
    pub(crate) fn set_env(&self, workload: &str, settings: &[&str]) {
        let set = ["set", "env", "-n", NAMESPACE, workload];
        self.cluster.kubectl(&[&set, settings].concat());
    }

    /// True if a CSIDriver exists with this value of `attachRequired`.
    pub(crate) fn attaches(&self, required: bool) -> bool {
        let there = self.find("CSIDriver", "", DRIVER);
        there.is_some_and(|d| d.pointer("/spec/attachRequired") == Some(&json!(required)))
    }

    /// Applies the manifest, with the snapshot controller and further components, and waits until
    /// kubelet knows the driver.
    fn deploy(&self, components: &[&str]) {
        // The field is immutable: a new value needs a new CSIDriver.
        if self.attaches(!components.contains(&"attach")) {
            self.remove("CSIDriver", "", DRIVER);
        }
        let manifest = self.manifest(components);
        self.cluster.apply(&manifest);
        // A cluster that was already running may have an older image of the same name.
        for site in self.sites() {
            if site.driver_pod().is_some() {
                site.restart_driver();
            }
        }
        if let Some(pod) = self.controller_pod() {
            self.remove("Pod", NAMESPACE, name(&pod));
        }
        self.drivers_ready();
    }

    fn manifest(&self, components: &[&str]) -> String {
        let pool = self.pool_at();
        let mut args = vec![
            "--overlay",
            "snapshot-controller",
            "--pool-dir",
            path_text(&pool),
        ];
        if self.is_bounded() {
            args.extend(["--pool-options", BOUNDED]);
        }
        args.extend(["--kubelet-dir", path_text(self.cluster.kubelet_dir())]);
        for component in [&CONTROLLER_SECRETS].into_iter().chain(components) {
            args.extend(["--component", component]);
        }
        let manifest = deployed::render(&args);
        if !self.is_bounded() {
            return manifest;
        }
        let options = "- name: POOL_OPTIONS";
        assert!(
            manifest.contains(options),
            "the DaemonSet has options of its pool"
        );
        let reserve = "- name: HOSTLOOP_RESERVE\n          value: 64Mi";
        manifest.replacen(options, &format!("{reserve}\n        {options}"), 1)
    }

    /// The log of the driver's current pods.
    pub(crate) fn driver_log(&self) -> String {
        let both = "-l=app.kubernetes.io/name in (hostloop, hostloop-controller)";
        self.cluster.logs(NAMESPACE, both)
    }

    /// Panics if a test left an object, a mount, a loop device or a file.
    pub(crate) fn assert_clean(&self) {
        let sites = self.sites();
        let pools: Vec<_> = sites.iter().map(|s| (s.pool(), s.pool_id())).collect();
        self.until("a clean cluster", || {
            let mut left = self.stock.left(&self.cluster)?;
            let files = pools.iter().flat_map(|(pool, _)| files_in(pool));
            left.extend(files.map(|file| format!("file {}", file.display())));
            // Devices are matched by name. They are attached in a container, and after its end the
            // path of their file no longer starts at the root.
            let devices = loop_devices::all().into_iter().map(|l| l.backing);
            left.extend(devices.filter(|file| pools.iter().any(|(_, id)| file.contains(id))));
            // The pool's own image stays as long as the pool.
            let pool = self.plugin_dir().join("pools/default");
            let image = self.pool_dir.join("bounded");
            left.retain(|line| !line.contains(path_text(&image)));
            left.retain(|line| !line.contains(&format!(" at {} on ", pool.display())));
            check(left.is_empty(), || left.join("\n  "))
        });
    }

    /// Removes everything, and checks that it is gone.
    pub(crate) fn down(self) {
        if std::env::var_os("HOSTLOOP_CLUSTER").is_some() {
            return;
        }
        let mut sites = self.sites();
        sites.retain(|_| self.is_bounded());
        let image = |site: Site<'_>| {
            let image = std::fs::metadata(site.path(&self.pool_at().join("default.pool")));
            image.expect("each node's pool has an image").ino()
        };
        let images: Vec<u64> = sites.into_iter().map(image).collect();
        let name = self.cluster.name().to_owned();
        let kubelet_dir = self.cluster.kubelet_dir().to_path_buf();
        let manifest = self.manifest(&[]);
        self.cluster.delete(&manifest);
        drop(self.cluster);
        // A device that another program has open for a moment is detached after it.
        until("the end of the pools' devices", PATIENCE, || {
            let mut devices = loop_devices::all();
            devices.retain(|l| {
                images.contains(&l.backing_inode) && l.backing.ends_with("default.pool")
            });
            check(devices.is_empty(), || format!("{devices:?}"))
        });
        // The directories of the other nodes disappear with those nodes.
        std::fs::remove_dir_all(&self.pool_dir).expect("the test's own folder can be removed");
        until("the end of the mounts", PATIENCE, || {
            let mut left = mounted(&mountinfo("self"));
            left.retain(|m| m.at.starts_with(&kubelet_dir) || path_text(&m.at).contains(&name));
            check(left.is_empty(), || format!("{left:?}"))
        });
    }
}

/// Calls `look` until it has a value; panics with the last state on a timeout.
pub(crate) fn until<T>(
    what: &str,
    patience: Duration,
    mut look: impl FnMut() -> Result<T, String>,
) -> T {
    let started = Instant::now();
    loop {
        match look() {
            Ok(value) => return value,
            Err(seen) => assert!(
                started.elapsed() < patience,
                "{what}: not there after {patience:?}; seen last: {seen}"
            ),
        }
        std::thread::sleep(PACE);
    }
}

/// True if a pod is ready.
pub(crate) fn is_ready(pod: &Value) -> bool {
    has_condition(pod, "Ready")
}
