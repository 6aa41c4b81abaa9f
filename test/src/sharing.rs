//! Two nodes that share this machine's kernel, without a cluster. Each has its own driver, pool, files and
//! mounts, as a container of kind has.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hostloop_proto::csi;
use parking_lot::Mutex;

use crate::PATIENCE;
use crate::client::{Csi, map, new_volume};
use crate::driver::{Driver, DriverSpec};
use crate::leaks::{files_in, mount_points};
use crate::loop_devices::{self, Loop};
use crate::machine::{self, text};
use crate::namespace::Namespace;
use crate::pools::{GIB, PoolFixture, PoolKind, state_dir};
use crate::requests;
use crate::scratch::Scratch;

/// What a publish context has.
pub type Context = BTreeMap<String, String>;

/// The owner of shared volumes, and another node that uses them.
pub struct Sharing {
    /// It ends first: it uses devices of the owner.
    pub user: SharingNode,
    pub owner: SharingNode,
}

/// A node of the kernel. Its driver may be killed and started again.
pub struct SharingNode {
    /// The node's ID.
    pub name: String,
    driver: Mutex<Option<Driver>>,
    /// `None` once the node's container has ended.
    namespace: Option<Namespace>,
    pool: PoolFixture,
    /// The loop devices of the pool, before the driver attaches any.
    devices: Vec<Loop>,
    scratch: Scratch,
    /// The directory that says which nodes share a kernel; `None` for a node that does not.
    kernels: Option<PathBuf>,
}

impl Sharing {
    /// Starts both nodes.
    pub fn up() -> Sharing {
        machine::require();
        // Other tests of this machine see the markers of these nodes.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let of_test = format!("{}-{number}", std::process::id());
        let [user, owner] = ["user", "owner"].map(|role| format!("{role}-{of_test}"));
        let list = format!("{owner} {user}\n");
        let [user, owner] = [user, owner].map(|name| {
            let mut node = SharingNode::new(name);
            let kernels = node.scratch.dir("kernels");
            std::fs::write(kernels.join(format!("kernel-{of_test}")), &list)
                .expect("the list of nodes can be written");
            node.kernels = Some(kernels);
            node
        });
        let nodes = Sharing { user, owner };
        for node in [&nodes.user, &nodes.owner] {
            node.start();
            node.wait_for_marker();
        }
        nodes
    }

    /// What the nodes still have of volumes, a line each: files, mounts and loop devices. Both nodes run.
    pub fn left(&self) -> Vec<String> {
        let nodes = [&self.user, &self.owner];
        nodes.iter().flat_map(|node| node.left()).collect()
    }

    /// Ends both nodes as `docker stop` ends those of kind.
    pub fn stop(&mut self) {
        for node in [&mut self.user, &mut self.owner] {
            let driver = node.driver.get_mut().take();
            driver.expect("the driver runs").stop();
            node.namespace = None;
        }
    }

    /// What the ended nodes have left in the kernel, a line each.
    pub fn left_after_the_end(&self) -> Vec<String> {
        let nodes = [&self.user, &self.owner];
        nodes.iter().flat_map(|node| node.new_devices()).collect()
    }
}

/// After a failure, pins would keep the devices of the owner's volumes after both nodes have ended. They
/// can be found as long as the nodes are there.
impl Drop for Sharing {
    fn drop(&mut self) {
        for node in [&self.user, &self.owner] {
            node.kill();
        }
        loop_devices::detach(&loop_devices::beneath(self.owner.scratch.path()));
    }
}

impl SharingNode {
    /// Starts a node like the others that shares its kernel with none.
    pub fn alone() -> SharingNode {
        machine::require();
        let node = SharingNode::new("alone".to_owned());
        node.start();
        node
    }

    fn new(name: String) -> SharingNode {
        let scratch = Scratch::new();
        let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 16 * GIB);
        let state = state_dir(&scratch);
        std::fs::create_dir_all(&state).expect("a state directory can be made");
        let namespace = Namespace::new(&scratch);
        // As kubelet's directory, where a pod may mount something for its node.
        let inside = format!("--mount={}", text(&namespace.handle()));
        let at = text(&state);
        let mounts: [&[&str]; 2] = [&["--bind", at, at], &["--make-shared", at]];
        for args in mounts {
            machine::run(
                "nsenter",
                &[&[inside.as_str(), "--", "mount"][..], args].concat(),
            );
        }
        SharingNode {
            name,
            driver: Mutex::new(None),
            namespace: Some(namespace),
            pool,
            devices: loop_devices::beneath(scratch.path()),
            scratch,
            kernels: None,
        }
    }

    fn namespace(&self) -> &Namespace {
        self.namespace.as_ref().expect("the container runs")
    }

    /// Starts the driver, and waits until it serves.
    pub fn start(&self) {
        let mut spec = DriverSpec::new(&self.scratch, &[&self.pool])
            .node(&self.name)
            .inside(self.namespace());
        if let Some(kernels) = &self.kernels {
            spec = spec.args(["--kernels", text(kernels)]);
        }
        *self.driver.lock() = Some(spec.start());
    }

    /// Waits until the others can see that the node is there.
    fn wait_for_marker(&self) {
        let end = Instant::now() + PATIENCE;
        while !self.new_devices().iter().any(|device| is_marker(device)) {
            assert!(Instant::now() < end, "{} has no marker", self.name);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the driver. It fails if the driver has ended by itself.
    pub fn kill_running(&self) {
        let mut driver = self.driver.lock();
        let running = driver.as_mut().expect("the driver was started");
        let ended = running.ended();
        assert!(
            ended.is_none(),
            "the driver of {} ended by itself: {ended:?}\n{}",
            self.name,
            running.tail()
        );
        running.kill();
    }

    /// Kills the driver if it runs.
    fn kill(&self) {
        if let Some(driver) = self.driver.lock().as_mut() {
            driver.kill();
        }
    }

    /// A client of the driver, also after the driver was started again.
    pub async fn csi(&self) -> Csi {
        let socket = self
            .driver
            .lock()
            .as_ref()
            .map(|driver| driver.socket().to_path_buf());
        Csi::connect(&socket.expect("the driver runs")).await
    }

    /// The path in this node at which a volume is published.
    pub fn target(&self, volume: &str) -> PathBuf {
        self.scratch.dir(&format!("pods/{volume}")).join("mount")
    }

    /// The path in this node at which a volume is staged.
    pub fn staging(&self, volume: &str) -> PathBuf {
        self.scratch.dir(&format!("staging/{volume}"))
    }

    /// The path of this test for what a pod of the node has of a published volume.
    pub fn in_pod(&self, volume: &str) -> PathBuf {
        self.namespace().view(&self.target(volume))
    }

    /// ControllerPublishVolume to this node. The owner answers it.
    pub fn attach(
        &self,
        id: &str,
        capability: &csi::VolumeCapability,
    ) -> csi::ControllerPublishVolumeRequest {
        csi::ControllerPublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: self.name.clone(),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        }
    }

    /// ControllerUnpublishVolume from this node. The owner answers it.
    pub fn detach(&self, id: &str) -> csi::ControllerUnpublishVolumeRequest {
        csi::ControllerUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: self.name.clone(),
            ..Default::default()
        }
    }

    /// NodeStageVolume, at a path named after the volume.
    pub fn stage(
        &self,
        volume: &str,
        id: &str,
        context: &Context,
        capability: &csi::VolumeCapability,
    ) -> csi::NodeStageVolumeRequest {
        csi::NodeStageVolumeRequest {
            publish_context: context.clone(),
            volume_capability: Some(capability.clone()),
            ..requests::stage(id, self.staging(volume))
        }
    }

    /// NodePublishVolume, at a path named after the volume.
    pub fn publish(
        &self,
        volume: &str,
        id: &str,
        context: &Context,
        capability: &csi::VolumeCapability,
    ) -> csi::NodePublishVolumeRequest {
        csi::NodePublishVolumeRequest {
            publish_context: context.clone(),
            volume_capability: Some(capability.clone()),
            ..requests::publish(id, self.staging(volume), self.target(volume))
        }
    }

    /// NodeUnpublishVolume.
    pub fn unpublish(&self, volume: &str, id: &str) -> csi::NodeUnpublishVolumeRequest {
        requests::unpublish(id, self.target(volume))
    }

    /// NodeUnstageVolume.
    pub fn unstage(&self, volume: &str, id: &str) -> csi::NodeUnstageVolumeRequest {
        requests::unstage(id, self.staging(volume))
    }

    /// The files, mounts and loop devices of volumes. The pool, and the marker of a node that runs, stay.
    fn left(&self) -> Vec<String> {
        let state = state_dir(&self.scratch);
        let anchors = std::fs::read_dir(state.join("shared"));
        let anchors = anchors.into_iter().flatten().flatten();
        let files = files_in(self.pool.root()).into_iter();
        let files = files.chain(anchors.map(|entry| entry.path()));
        let stays = [&state, &state.join("kernel/alive")];
        let mounts = mount_points(&self.namespace().mountinfo(), self.scratch.path());
        let mounts = mounts
            .into_iter()
            .filter(|at| !stays.contains(&at) && self.pool.mount() != Some(at.as_path()));
        let mut left: Vec<String> = files
            .map(|file| format!("file {}", file.display()))
            .chain(mounts.map(|at| format!("mount at {} of {}", at.display(), self.name)))
            .collect();
        let devices = self.new_devices();
        let (markers, others): (Vec<_>, Vec<_>) =
            devices.into_iter().partition(|device| is_marker(device));
        left.extend(others);
        if markers.len() != 1 {
            left.push(format!("{} has markers {markers:?}", self.name));
        }
        left
    }

    /// The loop devices over files of this node, and those over them, without those of its pool.
    fn new_devices(&self) -> Vec<String> {
        let devices = loop_devices::beneath(self.scratch.path()).into_iter();
        devices
            .filter(|device| !self.devices.contains(device))
            .map(|device| format!("/dev/loop{} over {}", device.minor, device.backing))
            .collect()
    }
}

/// True for a line about the marker of a node.
fn is_marker(device: &str) -> bool {
    device.contains("/marker,")
}

/// CreateVolume of one that all nodes of the kernel may use.
pub fn shared_volume(
    name: &str,
    bytes: u64,
    capability: &csi::VolumeCapability,
) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        volume_capabilities: vec![capability.clone()],
        parameters: map(&[("reach", "kernel")]),
        ..new_volume(name, bytes)
    }
}
