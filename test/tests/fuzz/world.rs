//! The CSI services over the model kernel, and their invariants.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hostloop_driver::controller::{self, Controller};
use hostloop_driver::csi::capability::CapabilityRules;
use hostloop_driver::kernel::{LoopDevices, Mounts};
use hostloop_driver::node::{self, Node};
use hostloop_driver::storage::{self, PoolOptions, PoolSpec, Pools, Reserve};
use hostloop_fake_kernel::Model;
use hostloop_proto::csi;
use hostloop_test::client::new_volume;
use hostloop_test::pools::MIB;
use hostloop_test::requests;
use tonic::{Code, Status};

/// The services of one node with two pools, in a temporary directory.
pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) kernel: Arc<Model>,
    pub(crate) controller: Controller,
    pub(crate) node: Node,
}

impl World {
    pub(crate) fn new() -> World {
        // Prefer memory: on disk, fsync takes most of a sequence's time.
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() {
            tempfile::tempdir_in(memory)
        } else {
            tempfile::tempdir()
        };
        let dir = dir.expect("a temporary directory");
        for name in ["default", "other", "state", "stage", "pods"] {
            std::fs::create_dir(dir.path().join(name)).expect("a directory");
        }
        let kernel = Arc::new(Model::new());
        let (controller, node) = start(dir.path(), kernel.clone()).expect("pools that open");
        World {
            dir,
            kernel,
            controller,
            node,
        }
    }

    /// Simulates a restart. The old process must release the pools first.
    pub(crate) fn restart(self) -> World {
        let World {
            dir,
            kernel,
            controller,
            node,
        } = self;
        drop((controller, node));
        let (controller, node) = start(dir.path(), kernel.clone()).expect("pools that open again");
        World {
            dir,
            kernel,
            controller,
            node,
        }
    }

    /// Creates three volumes, a snapshot of the first and a group of the others; returns their IDs.
    pub(crate) fn create_some(&self) -> Vec<String> {
        let create = |name: &str| {
            let made = self.controller.create_volume(new_volume(name, 8 * MIB));
            requests::id_of(made.expect("a volume"))
        };
        let volumes: Vec<String> = ["a", "b", "c"].map(create).into();
        let snapshot = self
            .controller
            .create_snapshot(requests::snapshot("s", &volumes[0]));
        let snapshot = snapshot.expect("a snapshot").snapshot.expect("a snapshot");
        let group = csi::CreateVolumeGroupSnapshotRequest {
            name: "g".to_owned(),
            source_volume_ids: volumes[1..].to_vec(),
            ..Default::default()
        };
        let group = self.controller.create_volume_group_snapshot(group);
        let group = group.expect("a group").group_snapshot.expect("a group");
        let mut ids = volumes;
        ids.push(snapshot.snapshot_id);
        ids.push(group.group_snapshot_id);
        ids
    }

    /// Paths for staging and targets, as kubelet may send them.
    pub(crate) fn paths(dir: &Path) -> Vec<PathBuf> {
        let paths = [
            "stage/a", "stage/b", "stage/c", "pods/a", "pods/b", "pods/c",
        ];
        paths.map(|path| dir.join(path)).into()
    }

    /// Checks that an error has a code of the specification. INTERNAL is only for an unsuitable
    /// path, such as the mount point of something else.
    pub(crate) fn check(&self, request: &str, error: Option<Status>) {
        let Some(error) = error else { return };
        let fine = match error.code() {
            Code::Internal => error
                .message()
                .starts_with(&self.dir.path().display().to_string()),
            code => !matches!(code, Code::Unknown | Code::DataLoss),
        };
        assert!(fine, "{request}\nanswers {error}");
    }

    /// Removes everything with an orchestrator's calls, then checks that nothing is left.
    pub(crate) fn remove_everything(&self, ids: &[String]) {
        let c = &self.controller;
        let paths = World::paths(self.dir.path());
        let at = |kind: &'static str| {
            let ids = ids.iter().filter(move |id| id.starts_with(kind));
            ids.flat_map(|id| paths.iter().map(move |path| (id, path)))
        };
        for (id, path) in at("vol-").chain(at("csi-")) {
            let unpublish = self
                .node
                .node_unpublish_volume(requests::unpublish(id, path));
            self.check(
                &format!("unpublishing {id} at {path:?}"),
                unpublish.err().map(Status::from),
            );
        }
        for (id, path) in at("vol-") {
            let unstage = self.node.node_unstage_volume(requests::unstage(id, path));
            self.check(
                &format!("unstaging {id} at {path:?}"),
                unstage.err().map(Status::from),
            );
        }
        for volume in c.list_volumes(Default::default()).expect("a list").entries {
            let volume_id = volume.volume.expect("a volume").volume_id;
            let unpublish = c.controller_unpublish_volume(csi::ControllerUnpublishVolumeRequest {
                volume_id,
                ..Default::default()
            });
            unpublish.unwrap_or_else(|e| panic!("unpublishing from the node: {e}"));
        }
        for group in c.pools.groups() {
            let members = group.snapshots.iter().map(ToString::to_string).collect();
            let delete = c.delete_volume_group_snapshot(csi::DeleteVolumeGroupSnapshotRequest {
                group_snapshot_id: group.id.to_string(),
                snapshot_ids: members,
                ..Default::default()
            });
            delete.unwrap_or_else(|e| panic!("deleting group {}: {e}", group.id));
        }
        for snapshot in c.pools.snapshots() {
            let delete = c.delete_snapshot(requests::delete_snapshot(&snapshot.id.to_string()));
            delete.unwrap_or_else(|e| panic!("deleting snapshot {}: {e}", snapshot.id));
        }
        for volume in c.pools.volumes() {
            let delete = c.delete_volume(requests::delete(&volume.id.to_string()));
            delete.unwrap_or_else(|e| panic!("deleting volume {}: {e}", volume.id));
        }
        self.check_empty();
    }

    /// Checks that no volume leaves a loop device, a mount or a file.
    fn check_empty(&self) {
        assert_eq!(self.kernel.loops().expect("the loop table"), vec![]);
        let mounts = self.kernel.mounts().expect("the mount table");
        let ours = mounts
            .entries
            .iter()
            .filter(|m| m.mount_point.starts_with(self.dir.path()));
        assert_eq!(ours.map(|m| &m.mount_point).next(), None, "a mount is left");
        for pool in ["default", "other"] {
            for area in ["volumes", "snapshots", "groups", "incoming", "trash"] {
                let area = self.dir.path().join(pool).join(area);
                let entries = std::fs::read_dir(&area).expect("a directory of the pool");
                let left: Vec<_> = entries.map(|e| e.expect("an entry").file_name()).collect();
                assert!(left.is_empty(), "{}: {left:?} is left", area.display());
            }
        }
    }
}

/// Opens the pools in `dir` and creates the services over them.
pub(crate) fn start(dir: &Path, kernel: Arc<Model>) -> storage::Result<(Controller, Node)> {
    let specs = ["default", "other"].map(|name| PoolSpec {
        name: name.to_owned(),
        path: dir.join(name),
        image_bytes: None,
        preallocate: false,
        wipe: false,
        capacity_bytes: Some(1 << 30),
        inline: true,
    });
    let options = PoolOptions {
        state_dir: dir.join("state"),
        node_id: None,
        overcommit: 1.0,
        reserve: Reserve::Bytes(0),
        max_volume_bytes: None,
        max_freeze: Duration::from_secs(300),
        max_snapshot_bytes_per_namespace: None,
    };
    let pools = Pools::open(&specs, options, kernel)?;
    let capabilities = CapabilityRules {
        mount_group: true,
        ..Default::default()
    };
    let controller = controller::Config {
        topology: [("t/node".to_owned(), "n1".to_owned())].into(),
        capabilities: capabilities.clone(),
        ..controller::Config::new("n1")
    };
    let node = node::Config {
        topology: [("t/node".to_owned(), "n1".to_owned())].into(),
        capabilities,
        ..node::Config::new("n1")
    };
    Ok((
        Controller::new(pools.clone(), controller),
        Node::new(pools, node),
    ))
}
