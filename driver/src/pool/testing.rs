//! A pool in a temporary directory over the kernel in memory, for the tests of this module.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::sys::model::Model;
use crate::sys::{FileId, FsType, LoopDevice, LoopSpec};

pub(super) const MI: u64 = 1 << 20;

/// Pools "a", "b"… beside each other, and the kernel they are on.
pub(super) struct Fixture {
    pub(super) dir: TempDir,
    pub(super) kernel: Arc<Model>,
    pub(super) specs: Vec<PoolSpec>,
    pub(super) options: PoolOptions,
    opened: Option<Arc<Pools>>,
}

impl Fixture {
    pub(super) fn new(pools: &[&str]) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let spec = |name: &&str| PoolSpec {
            name: (*name).to_owned(),
            path: dir.path().join(name),
            image_bytes: None,
            preallocate: false,
            wipe: false,
            capacity_bytes: None,
            inline: false,
        };
        let mut fixture = Fixture {
            specs: pools.iter().map(spec).collect(),
            options: PoolOptions {
                node_id: None,
                state_dir: dir.path().join("state"),
                overcommit: 1.0,
                reserve: Reserve::Bytes(0),
                max_volume_bytes: None,
                max_freeze: Duration::from_secs(5),
            },
            kernel: Arc::new(Model::new()),
            dir,
            opened: None,
        };
        fixture.open();
        fixture
    }

    pub(super) fn try_open(&self) -> Result<Arc<Pools>> {
        Pools::open(&self.specs, self.options.clone(), self.kernel.clone())
    }

    /// As a process that starts again does.
    pub(super) fn open(&mut self) -> &Pools {
        self.opened = None;
        self.opened = Some(self.try_open().unwrap());
        self.pools()
    }

    pub(super) fn close(&mut self) {
        self.opened = None;
    }

    pub(super) fn pools(&self) -> &Pools {
        self.opened.as_ref().unwrap()
    }

    pub(super) fn pool(&self, name: &str) -> Arc<Pool> {
        self.pools().named(Some(name)).unwrap()
    }

    /// A file in the first pool.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.specs[0].path.join(path)
    }

    pub(super) fn make(&self, name: &str) -> Arc<VolumeRecord> {
        let pool = self.pools().named(None).unwrap();
        self.pools().create_volume(&pool, new(name)).unwrap()
    }

    pub(super) fn image_of(&self, volume: &VolumeRecord) -> FileId {
        let image = self.pools().open_image(volume, false).unwrap();
        crate::sys::file_id(&image).unwrap()
    }

    pub(super) fn attach(&self, volume: &VolumeRecord) -> LoopDevice {
        let image = self.pools().open_image(volume, true).unwrap();
        let spec = LoopSpec {
            backing: &image,
            label: "",
            read_only: false,
            direct_io: true,
            autoclear: false,
            minor: None,
        };
        self.kernel.loop_attach(&spec).unwrap()
    }

    /// Nothing that is on its way in or out, and the entries of the shelves of the first pool.
    pub(super) fn entries(&self) -> Vec<String> {
        let list = |dir: &str| {
            let entries = std::fs::read_dir(self.path(dir)).unwrap();
            let name = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name();
            let names = entries.map(|e| format!("{dir}/{}", name(e).to_string_lossy()));
            names.collect::<Vec<_>>()
        };
        let dirs = ["volumes", "snapshots", "groups", "incoming", "trash"];
        let mut all: Vec<String> = dirs.iter().flat_map(|dir| list(dir)).collect();
        all.sort();
        all
    }
}

/// A thin ext4 volume of 4 MiB.
pub(super) fn new(name: &str) -> NewVolume {
    NewVolume {
        name: name.to_owned(),
        capacity_bytes: 4 * MI,
        capabilities: vec![mounted()],
        parameters: BTreeMap::new(),
        mutable_parameters: BTreeMap::new(),
        settings: Settings {
            provisioning: Provisioning::Thin,
            discard: false,
            direct_io: true,
            read_ahead_kib: None,
        },
        mkfs_options: Vec::new(),
        source: None,
        inline: None,
    }
}

pub(super) fn mounted() -> Capability {
    Capability {
        access: Access::Mount {
            fs: FsType::Ext4,
            flags: Vec::new(),
            group: None,
        },
        mode: AccessMode::SingleNodeWriter,
    }
}

pub(super) fn raw() -> Capability {
    Capability {
        access: Access::Block,
        mode: AccessMode::SingleNodeWriter,
    }
}
