//! The controller and node services over the pools of a [`Site`], called as an orchestrator does.

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostloop_driver::controller::{self, Controller, MetadataBlocks};
use hostloop_driver::csi::capability::CapabilityRules;
use hostloop_driver::csi::identity::Identity;
use hostloop_driver::grpc::Server;
use hostloop_driver::kernel::{FileId, FsType, LoopInfo, MountEntry, file_id, loop_path, loops_of};
use hostloop_driver::node::{self, Node, Result};
use hostloop_driver::storage::{
    Access, Format, FreezeIntent, NewVolume, Pools, Publication, VolumeHandle, VolumeId,
    VolumeRecord,
};
use hostloop_fake_kernel::Model;
use hostloop_proto::csi::{self, volume_capability::access_mode::Mode};

use super::{
    PATIENCE, Site, TestKernel, block, ext4, inline, loops_beneath, map, mount, mount_as,
    new_filesystem, new_volume, rdev, text,
};

/// How the services are configured.
#[derive(Clone)]
pub(crate) struct Configs {
    pub(crate) controller: controller::Config,
    pub(crate) node: node::Config,
}

impl Default for Configs {
    /// Everything switched on.
    fn default() -> Configs {
        let controller = controller::Config {
            topology: map(&[("t/node", "n1")]).into(),
            metadata_blocks: MetadataBlocks::Fixed(4096),
            faults: true,
            ..controller::Config::new("n1")
        };
        let node = node::Config {
            capabilities: CapabilityRules {
                mount_group: true,
                ..Default::default()
            },
            ..node::Config::new("n1")
        };
        Configs { controller, node }
    }
}

impl Configs {
    /// The services over these pools, with the locks of RPCs.
    pub(crate) fn server(self, pools: &Arc<Pools>) -> Server {
        let identity = Identity {
            name: "hostloop.csi.dev".into(),
            vendor_version: "0".into(),
            topology: true,
            expansion: true,
            snapshot_metadata: true,
        };
        let controller = Controller::new(pools.clone(), self.controller);
        let node = Node::new(pools.clone(), self.node);
        Server::new(identity, Arc::new(controller), Arc::new(node))
    }
}

/// The services of one node. Fields are dropped in order: the services before the site.
pub(crate) struct Rig<K: TestKernel = Model> {
    pub(crate) controller: Controller,
    pub(crate) node: Node,
    configs: Configs,
    site: Site<K>,
}

impl<K: TestKernel> Deref for Rig<K> {
    type Target = Site<K>;

    fn deref(&self) -> &Site<K> {
        &self.site
    }
}

impl<K: TestKernel> DerefMut for Rig<K> {
    fn deref_mut(&mut self) -> &mut Site<K> {
        &mut self.site
    }
}

impl<K: TestKernel> Rig<K> {
    /// One pool in a directory.
    pub(crate) fn new() -> Rig<K> {
        Rig::over(Rig::site(&["default=DIR/pool"]), Configs::default())
    }

    /// One pool on a filesystem of its own.
    pub(crate) fn on(fs: FsType, bytes: u64) -> Rig<K> {
        let site: Site<K> = Rig::site(&["default=DIR/pool"]);
        new_filesystem(&*site.kernel, &site.path(""), fs, bytes);
        Rig::over(site, Configs::default())
    }

    /// A site with empty pools that promise much more than they have. They are not open yet.
    pub(crate) fn site(specs: &[&str]) -> Site<K> {
        let mut site = Site::new(specs);
        site.options.overcommit = 1000.0;
        for spec in &site.specs {
            std::fs::create_dir_all(&spec.path).unwrap();
        }
        for name in ["stage", "pods"] {
            std::fs::create_dir(site.root().join(name)).unwrap();
        }
        site
    }

    /// The services over a site.
    pub(crate) fn over(site: Site<K>, configs: Configs) -> Rig<K> {
        let pools = site.start();
        pools.complete().expect("the pools open");
        Rig {
            controller: Controller::new(pools.clone(), configs.controller.clone()),
            node: Node::new(pools, configs.node.clone()),
            configs,
            site,
        }
    }

    /// Ends the driver's process: no pool is open until [`Rig::restart`].
    pub(crate) fn die(&mut self) {
        let options = self.site.options.clone();
        let none = Pools::open(&[], options, self.kernel.clone()).unwrap();
        self.node.pools = none.clone();
        self.controller.pools = none;
    }

    /// Starts the driver again after its process died; pools may be missing.
    pub(crate) fn restart(&mut self) {
        self.die();
        let pools = self.site.start();
        self.controller = Controller::new(pools.clone(), self.configs.controller.clone());
        self.node = Node::new(pools, self.configs.node.clone());
    }

    /// The rig after a restart of the driver.
    pub(crate) fn restarted(mut self) -> Rig<K> {
        self.restart();
        self.node.pools.complete().expect("the pools open again");
        self
    }

    pub(crate) fn create(&self, new: NewVolume) -> VolumeId {
        let pool = self.node.pools.named(None).unwrap();
        self.node.pools.create_volume(&pool, new).unwrap().id
    }

    pub(crate) fn volume(&self, access: Access, bytes: u64) -> VolumeId {
        self.create(new_volume(access, bytes))
    }

    /// Creates a volume as earlier versions did: NodeStageVolume makes its filesystem.
    pub(crate) fn unformatted(&self, new: NewVolume) -> VolumeId {
        let options = new.mkfs_options.clone();
        let id = self.create(NewVolume {
            mkfs_options: Vec::new(),
            ..new
        });
        let image = self.open_image(id);
        let bytes = image.metadata().unwrap().len();
        image.set_len(0).unwrap();
        image.set_len(bytes).unwrap();
        self.update(id, |record| {
            record.format = Format::None;
            record.mkfs_options = options.into();
        });
        id
    }

    /// Stages and publishes a filesystem volume at "a" and "p". Stages a raw block volume at "b",
    /// and publishes it at "q", and read-only at "r".
    pub(crate) fn both_in_use(&self) -> [VolumeId; 2] {
        let id = self.staged(ext4(), "a", &mount("ext4"));
        let raw = self.staged(Access::Block, "b", &block());
        self.publish(id, "a", "p", &mount("ext4"), false).unwrap();
        self.publish(raw, "b", "q", &block(), false).unwrap();
        self.publish(raw, "b", "r", &block(), true).unwrap();
        [id, raw]
    }

    /// Ends all use of the volumes of [`Rig::both_in_use`], with each call twice.
    pub(crate) fn end_use(&self, [id, raw]: [VolumeId; 2], what: &str) {
        for _ in 0..2 {
            for (id, target) in [(id, "p"), (raw, "q"), (raw, "r")] {
                let ended = self.while_held(|| self.unpublish(id, target));
                ended.unwrap_or_else(|e| panic!("{what}: unpublish {target}: {e}"));
                assert!(!self.target(target).exists(), "{what}: {target}");
            }
            for (id, at) in [(id, "a"), (raw, "b")] {
                let ended = self.while_held(|| self.unstage(id, at));
                ended.unwrap_or_else(|e| panic!("{what}: unstage {at}: {e}"));
            }
        }
        self.assert_nothing_left(what);
    }

    /// Creates and stages a volume of 16 MiB.
    pub(crate) fn staged(
        &self,
        access: Access,
        at: &str,
        capability: &csi::VolumeCapability,
    ) -> VolumeId {
        let id = self.volume(access, 16 << 20);
        self.stage(id, at, capability).unwrap();
        id
    }

    pub(crate) fn record(&self, id: impl ToString) -> Arc<VolumeRecord> {
        let handle: VolumeHandle = id.to_string().parse().unwrap();
        self.node.pools.volume(&handle).unwrap()
    }

    /// Changes a volume's record.
    pub(crate) fn update(&self, id: VolumeId, change: impl FnOnce(&mut VolumeRecord)) {
        self.node.pools.update_volume(&id, change).unwrap();
    }

    /// Publishes a volume to the node in its record, as ControllerPublishVolume does.
    pub(crate) fn publish_to_node(&self, id: VolumeId, readonly: bool) {
        self.update(id, |record| {
            let capability = record.capabilities[0].clone();
            let publication = Publication {
                capability,
                readonly,
            };
            record.publications.insert("n1".to_owned(), publication);
        });
    }

    /// Records that a copy froze the volume's filesystem, and freezes it at a staging path.
    pub(crate) fn freeze(&self, id: VolumeId, at: &str) -> FreezeIntent {
        let intent = FreezeIntent { since_ns: 1 };
        self.update(id, |r| r.freeze = Some(intent));
        let root = File::open(self.staging(at)).unwrap();
        self.kernel.freeze(&root).unwrap();
        intent
    }

    pub(crate) fn open_image(&self, id: impl ToString) -> File {
        let pools = &self.node.pools;
        pools.open_image(&self.record(id), true).unwrap()
    }

    pub(crate) fn image(&self, id: impl ToString) -> FileId {
        let image = self.node.pools.open_image(&self.record(id), false);
        file_id(image.unwrap()).unwrap()
    }

    /// The loop devices over a volume's image.
    pub(crate) fn loops(&self, id: impl ToString) -> Vec<LoopInfo> {
        loops_of(&*self.kernel, self.image(id)).unwrap()
    }

    /// The only loop device over a volume's image.
    pub(crate) fn device(&self, id: impl ToString) -> LoopInfo {
        let mut loops = self.loops(id);
        assert_eq!(loops.len(), 1, "{loops:?}");
        loops.remove(0)
    }

    /// All loop devices over files beneath the rig, and over these devices, except those of pools.
    /// On the fake kernel, all loop devices.
    pub(crate) fn devices(&self) -> Vec<LoopInfo> {
        if !K::SHARED {
            return self.kernel.loops().unwrap();
        }
        let mut loops = loops_beneath(self.kernel.loops().unwrap(), self.root());
        for spec in &self.specs {
            let pool = spec.path.with_extension("img");
            loops.retain(|l| Path::new(&l.backing_path) != pool);
        }
        loops
    }

    /// Read-only loop devices, and those of other programs, over a volume's loop device.
    pub(crate) fn devices_over(&self, id: impl ToString) -> Vec<LoopInfo> {
        let below = rdev(self.device(id).minor);
        let mut loops = self.kernel.loops().unwrap();
        loops.retain(|l| l.backing_rdev == below);
        loops
    }

    /// A staging directory, which kubelet creates.
    pub(crate) fn staging(&self, name: impl ToString) -> PathBuf {
        let path = self.root().join("stage").join(name.to_string());
        // It also exists if the filesystem at it has shut down.
        if path
            .symlink_metadata()
            .is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
        {
            std::fs::create_dir_all(&path).unwrap();
        }
        path
    }

    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.root().join("pods").join(name)
    }

    pub(crate) fn stage(
        &self,
        id: impl ToString,
        at: &str,
        capability: &csi::VolumeCapability,
    ) -> Result<()> {
        self.stage_at(id, &self.staging(at), capability)
    }

    pub(crate) fn stage_at(
        &self,
        id: impl ToString,
        at: &Path,
        capability: &csi::VolumeCapability,
    ) -> Result<()> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: id.to_string(),
            staging_target_path: text(at),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        };
        self.node.node_stage_volume(request).map(drop)
    }

    pub(crate) fn unstage(&self, id: impl ToString, at: &str) -> Result<()> {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: id.to_string(),
            staging_target_path: text(&self.staging(at)),
        };
        self.node.node_unstage_volume(request).map(drop)
    }

    /// Unstages a volume, also while another program has its device open.
    #[track_caller]
    pub(crate) fn unstage_patiently(&self, id: impl ToString, at: &str) {
        let id = id.to_string();
        self.while_held(|| self.unstage(&id, at)).unwrap();
    }

    /// Repeats a call for as long as another program has the volume's device open: the driver gives up
    /// after two seconds, and kubelet calls again.
    fn while_held(&self, call: impl Fn() -> Result<()>) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            match call() {
                Err(node::Error::FailedPrecondition(why))
                    if K::SHARED && why.contains("still held open") && Instant::now() < end => {}
                answer => return answer,
            }
        }
    }

    pub(crate) fn publish(
        &self,
        id: impl ToString,
        from: &str,
        to: &str,
        capability: &csi::VolumeCapability,
        readonly: bool,
    ) -> Result<()> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: id.to_string(),
            staging_target_path: text(&self.staging(from)),
            target_path: text(&self.target(to)),
            volume_capability: Some(capability.clone()),
            readonly,
            ..Default::default()
        };
        self.node.node_publish_volume(request).map(drop)
    }

    /// Publishes the inline volume with this number.
    pub(crate) fn publish_inline(
        &self,
        number: usize,
        to: &str,
        attributes: &[(&str, &str)],
        readonly: bool,
    ) -> Result<()> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: inline(number),
            target_path: text(&self.target(to)),
            volume_capability: Some(mount_as("ext4", Mode::SingleNodeWriter)),
            volume_context: map(attributes),
            readonly,
            ..Default::default()
        };
        self.node.node_publish_volume(request).map(drop)
    }

    pub(crate) fn unpublish(&self, id: impl ToString, to: &str) -> Result<()> {
        self.unpublish_at(id, &self.target(to))
    }

    pub(crate) fn unpublish_at(&self, id: impl ToString, target: &Path) -> Result<()> {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: id.to_string(),
            target_path: text(target),
        };
        self.node.node_unpublish_volume(request).map(drop)
    }

    pub(crate) fn expand(&self, id: impl ToString, at: &Path, bytes: u64) -> Result<u64> {
        let request = csi::NodeExpandVolumeRequest {
            volume_id: id.to_string(),
            volume_path: text(at),
            capacity_range: Some(csi::CapacityRange {
                required_bytes: bytes as i64,
                limit_bytes: 0,
            }),
            ..Default::default()
        };
        let done = self.node.node_expand_volume(request)?;
        Ok(done.capacity_bytes as u64)
    }

    pub(crate) fn stats(&self, id: impl ToString, at: &Path) -> Result<Vec<csi::VolumeUsage>> {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: id.to_string(),
            volume_path: text(at),
            ..Default::default()
        };
        Ok(self.node.node_get_volume_stats(request)?.usage)
    }

    /// The size of the ext4 of a volume that is staged at "a".
    pub(crate) fn ext4_bytes(&self, id: VolumeId) -> u64 {
        let device = loop_path(self.device(id).minor);
        let at = self.staging("a");
        self.kernel.fs_size(&at, &device, FsType::Ext4).unwrap()
    }

    /// The reasons of a block volume's problems, and of those at a target.
    pub(crate) fn reasons_at(&self, id: impl ToString, target: &Path) -> Vec<String> {
        let request = csi::NodeGetVolumeHealthRequest {
            volume_id: id.to_string(),
            volume_publish_path: text(target),
            ..Default::default()
        };
        let health = self
            .node
            .node_get_volume_health(request)
            .unwrap()
            .volume_health
            .unwrap();
        health
            .health_statuses
            .into_iter()
            .map(|entry| entry.reason)
            .collect()
    }

    /// The problems that the node service knows of a volume: the type and the reason of each.
    pub(crate) fn node_health(
        &self,
        id: &str,
    ) -> Result<Vec<(csi::VolumeHealthErrorType, String)>> {
        let request = csi::NodeGetVolumeHealthRequest {
            volume_id: id.to_owned(),
            ..Default::default()
        };
        let health = self
            .node
            .node_get_volume_health(request)?
            .volume_health
            .unwrap();
        Ok(health
            .health_statuses
            .into_iter()
            .map(|e| (e.status(), e.reason))
            .collect())
    }

    /// Mount points beneath the rig except those of pools, in the kernel's order.
    pub(crate) fn mounted(&self) -> Vec<PathBuf> {
        let table = self.kernel.mounts().unwrap();
        let points = table.entries.iter().map(|e| e.mount_point.to_path_buf());
        let pool = |p: &PathBuf| self.specs.iter().any(|spec| spec.path == *p);
        let ours = points.filter(|p| p.starts_with(self.root()) && !pool(p));
        ours.collect()
    }

    /// The mount at a target.
    pub(crate) fn mount_at(&self, target: &str) -> MountEntry {
        let table = self.kernel.mounts().unwrap();
        table.at(&self.target(target)).expect("a mount").clone()
    }

    /// Waits until the volume's device is gone: a listing or a child of another test can hold it
    /// for a moment.
    #[track_caller]
    pub(crate) fn assert_detached(&self, id: impl ToString) {
        let id = id.to_string();
        assert_eq!(self.settled(0, || self.loops(&id)), []);
    }

    /// Like [`Rig::assert_detached`], for all but this number of devices.
    #[track_caller]
    pub(crate) fn assert_devices(&self, count: usize) {
        let devices = self.settled(count, || self.devices());
        assert_eq!(devices.len(), count, "{devices:?}");
    }

    /// Detaches a device, and waits until it is gone: another program can hold it for a moment.
    #[track_caller]
    pub(crate) fn release(&self, device: &LoopInfo) {
        self.kernel.loop_release(device).unwrap();
        let left = self.settled(0, || {
            let now = self.kernel.loop_info(device.minor).unwrap();
            now.into_iter().filter(|now| now.is_same(device)).collect()
        });
        assert_eq!(left, []);
    }

    /// Calls `list` until it returns no more than this, for a while. Returns what was last.
    fn settled(&self, count: usize, list: impl Fn() -> Vec<LoopInfo>) -> Vec<LoopInfo> {
        let end = Instant::now() + PATIENCE;
        loop {
            let listed = list();
            if !K::SHARED || listed.len() <= count || Instant::now() > end {
                return listed;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Checks that only records and images are left.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self, after: &str) {
        assert_eq!(self.mounted(), [] as [PathBuf; 0], "{after}");
        let left: Vec<_> = std::fs::read_dir(self.root().join("pods"))
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert!(left.is_empty(), "{after}: {left:?}");
        assert_eq!(self.settled(0, || self.devices()), [], "{after}");
    }

    /// Checks that only the volume's record and image are left.
    #[track_caller]
    pub(crate) fn assert_clean(&self, id: impl ToString) {
        self.assert_clean_after(id, "the end");
    }

    #[track_caller]
    pub(crate) fn assert_clean_after(&self, id: impl ToString, after: &str) {
        self.assert_nothing_left(after);
        assert_eq!(self.record(id).stage, None, "{after}");
    }
}
