//! Nodes that share a kernel, and the calls of controllers and kubelets for volumes that all of them
//! may use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop_driver::controller::{self, Controller};
use hostloop_driver::kernel::{FileId, LoopInfo, file_id, loops_of};
use hostloop_driver::node::{self, Node, Result};
use hostloop_driver::reach::kernels::Kernels;
use hostloop_driver::reach::pins;
use hostloop_driver::storage::{
    Access, NewVolume, Pools, Reach, VolumeHandle, VolumeId, VolumeRecord,
};
use hostloop_fake_kernel::Model;
use hostloop_proto::csi;
use hostloop_report::hex;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::{Rig, Site, TestKernel, map, new_volume, text};

/// What the owner of a volume says of its device.
pub(crate) type Context = BTreeMap<String, String>;

/// The list of the nodes that share the kernel of a test.
pub(crate) struct SharedBy {
    dir: TempDir,
}

impl SharedBy {
    pub(crate) fn nodes(names: &[&str]) -> SharedBy {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("kernel"), names.join(" ")).unwrap();
        SharedBy { dir }
    }

    fn kernels(&self) -> Kernels {
        Kernels::at(Some(self.dir.path().to_path_buf()))
    }
}

/// A node that shares the kernel. Fields are dropped in order: the services before the site.
pub(crate) struct SharedNode<K: TestKernel = Model> {
    services: Option<(Arc<Node>, Controller)>,
    name: String,
    kernels: Kernels,
    change: fn(&mut Node),
    pub(crate) site: Site<K>,
}

impl<K: TestKernel> SharedNode<K> {
    /// A site with an empty pool, which is not open yet.
    pub(crate) fn site() -> Site<K> {
        let site: Site<K> = Rig::site(&["default=DIR/pool"]);
        std::fs::create_dir_all(&site.options.state_dir).unwrap();
        site
    }

    /// Starts the driver of a node over a site. `change` is done to each new service.
    pub(crate) fn start(
        name: &str,
        site: Site<K>,
        by: &SharedBy,
        change: fn(&mut Node),
    ) -> SharedNode<K> {
        let mut node = SharedNode {
            services: None,
            name: name.to_owned(),
            kernels: by.kernels(),
            change,
            site,
        };
        node.restart();
        node
    }

    /// Ends the driver's process. Mounts and loop devices stay.
    pub(crate) fn die(&mut self) {
        self.services = None;
    }

    /// Starts the driver again. As in its upkeep, the marker comes first.
    pub(crate) fn restart(&mut self) {
        self.die();
        let pools = self.site.start();
        pools.complete().expect("the pools open");
        let topology = map(&[("t/node", self.name.as_str())]);
        let mut node = Node::new(
            pools.clone(),
            node::Config {
                topology: topology.clone().into(),
                kernels: self.kernels.clone(),
                ..node::Config::new(&self.name)
            },
        );
        (self.change)(&mut node);
        let node = Arc::new(node);
        let config = controller::Config {
            topology: topology.into(),
            attach: true,
            kernels: self.kernels.clone(),
            ..controller::Config::new(&self.name)
        };
        let controller = Controller::new(pools, config).with_anchors(node.clone());
        node.keep_marker().unwrap();
        self.services = Some((node, controller));
    }

    /// Starts the driver again without the list of the nodes that share the kernel.
    pub(crate) fn stop_sharing(&mut self) {
        self.kernels = Kernels::default();
        self.restart();
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.services.as_ref().expect("the driver runs").0
    }

    pub(crate) fn controller(&self) -> &Controller {
        &self.services.as_ref().expect("the driver runs").1
    }

    pub(crate) fn pools(&self) -> &Arc<Pools> {
        &self.node().pools
    }

    /// Creates a volume that all nodes of the kernel may use.
    pub(crate) fn create(&self, access: Access, bytes: u64) -> VolumeId {
        let new = NewVolume {
            reach: Reach::Kernel,
            ..new_volume(access, bytes)
        };
        let pool = self.pools().named(None).unwrap();
        self.pools().create_volume(&pool, new).unwrap().id
    }

    pub(crate) fn record(&self, id: VolumeId) -> Arc<VolumeRecord> {
        self.pools().volume(&VolumeHandle::Id(id)).unwrap()
    }

    pub(crate) fn image(&self, id: VolumeId) -> FileId {
        let image = self.pools().open_image(&self.record(id), false);
        file_id(image.unwrap()).unwrap()
    }

    /// The loop devices over the image of a volume of this node.
    pub(crate) fn loops(&self, id: VolumeId) -> Vec<LoopInfo> {
        loops_of(&*self.site.kernel, self.image(id)).unwrap()
    }

    /// The only loop device over the image of a volume of this node.
    pub(crate) fn device(&self, id: VolumeId) -> LoopInfo {
        let mut loops = self.loops(id);
        assert_eq!(loops.len(), 1, "{loops:?}");
        loops.remove(0)
    }

    /// Number of pins over a loop device.
    pub(crate) fn pins_over(&self, minor: u32) -> usize {
        let loops = self.site.kernel.loops().unwrap();
        let pins = pins::of(&loops);
        pins.iter().filter(|pin| pin.over == minor).count()
    }

    /// The path at which the owner stages a volume for all nodes.
    pub(crate) fn anchor(&self, id: VolumeId) -> PathBuf {
        let state_dir = self.site.options.state_dir.canonicalize().unwrap();
        let digest = hex(&Sha256::digest(id.to_string()));
        let of_kubelet = format!("plugins/kubernetes.io/csi/hostloop.csi.dev/{digest}/globalmount");
        state_dir.join(format!("shared/{id}")).join(of_kubelet)
    }

    /// The mount point of this node's marker.
    pub(crate) fn alive(&self) -> PathBuf {
        let state_dir = self.site.options.state_dir.canonicalize().unwrap();
        state_dir.join("kernel/alive")
    }

    /// Mount points beneath the node's directory, the marker's aside.
    pub(crate) fn mounted(&self) -> Vec<PathBuf> {
        let table = self.site.kernel.mounts().unwrap();
        let points = table.entries.iter().map(|e| e.mount_point.to_path_buf());
        let root = self.site.root().canonicalize().unwrap();
        let alive = self.alive();
        points
            .filter(|path| path.starts_with(&root) && *path != alive)
            .collect()
    }

    /// Unmounts everything on the node but its marker. The driver does not learn of it.
    pub(crate) fn unmount_all(&self) {
        for path in self.mounted().iter().rev() {
            self.site.kernel.unmount(path).unwrap();
        }
    }

    /// The staging directory, which kubelet creates.
    pub(crate) fn staging(&self) -> PathBuf {
        let path = self.site.root().join("stage/volume");
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Where a pod finds the volume.
    pub(crate) fn target(&self) -> PathBuf {
        self.site.root().join("pods/volume")
    }

    /// ControllerPublishVolume, which the owner answers for all nodes.
    pub(crate) fn attach(
        &self,
        id: VolumeId,
        node: &str,
        capability: &csi::VolumeCapability,
    ) -> Result<Context> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: id.to_string(),
            node_id: node.to_owned(),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        };
        let response = self.controller().controller_publish_volume(request)?;
        Ok(response.publish_context)
    }

    /// ControllerUnpublishVolume.
    pub(crate) fn detach(&self, id: VolumeId, node: &str) -> Result<()> {
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: id.to_string(),
            node_id: node.to_owned(),
            ..Default::default()
        };
        let answer = self.controller().controller_unpublish_volume(request);
        answer.map(drop)
    }

    pub(crate) fn stage(
        &self,
        id: VolumeId,
        context: &Context,
        capability: &csi::VolumeCapability,
    ) -> Result<()> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: id.to_string(),
            publish_context: context.clone(),
            staging_target_path: text(&self.staging()),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        };
        self.node().node_stage_volume(request).map(drop)
    }

    pub(crate) fn publish(
        &self,
        id: VolumeId,
        context: &Context,
        capability: &csi::VolumeCapability,
        readonly: bool,
    ) -> Result<()> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: id.to_string(),
            publish_context: context.clone(),
            staging_target_path: text(&self.staging()),
            target_path: text(&self.target()),
            volume_capability: Some(capability.clone()),
            readonly,
            ..Default::default()
        };
        self.node().node_publish_volume(request).map(drop)
    }

    pub(crate) fn unpublish(&self, id: VolumeId) -> Result<()> {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: id.to_string(),
            target_path: text(&self.target()),
        };
        self.node().node_unpublish_volume(request).map(drop)
    }

    pub(crate) fn unstage(&self, id: VolumeId) -> Result<()> {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: id.to_string(),
            staging_target_path: text(&self.staging()),
        };
        self.node().node_unstage_volume(request).map(drop)
    }

    /// Stages and publishes a volume, as for a pod.
    pub(crate) fn use_it(
        &self,
        id: VolumeId,
        context: &Context,
        capability: &csi::VolumeCapability,
    ) -> Result<()> {
        self.stage(id, context, capability)?;
        self.publish(id, context, capability, false)
    }

    /// Ends the use of a pod.
    pub(crate) fn end_use(&self, id: VolumeId) -> Result<()> {
        self.unpublish(id)?;
        self.unstage(id)
    }

    /// NodeExpandVolume; the size that it answers.
    pub(crate) fn expand(&self, id: VolumeId, at: &Path, bytes: u64) -> Result<u64> {
        let request = csi::NodeExpandVolumeRequest {
            volume_id: id.to_string(),
            volume_path: text(at),
            capacity_range: Some(csi::CapacityRange {
                required_bytes: i64::try_from(bytes).unwrap(),
                limit_bytes: 0,
            }),
            ..Default::default()
        };
        let response = self.node().node_expand_volume(request)?;
        Ok(u64::try_from(response.capacity_bytes).unwrap())
    }

    pub(crate) fn stats(&self, id: VolumeId, at: &Path) -> Result<Vec<csi::VolumeUsage>> {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: id.to_string(),
            volume_path: text(at),
            ..Default::default()
        };
        Ok(self.node().node_get_volume_stats(request)?.usage)
    }

    /// The reasons of the problems that NodeGetVolumeHealth finds at a target.
    pub(crate) fn reasons(&self, id: VolumeId, target: &Path) -> Result<Vec<String>> {
        let request = csi::NodeGetVolumeHealthRequest {
            volume_id: id.to_string(),
            volume_publish_path: text(target),
            ..Default::default()
        };
        let response = self.node().node_get_volume_health(request)?;
        let entries = response.volume_health.unwrap().health_statuses;
        Ok(entries.into_iter().map(|entry| entry.reason).collect())
    }
}
