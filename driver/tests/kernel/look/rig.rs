//! Pools beneath a temporary directory, and loop devices and mounts that go with them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hostloop_driver::pool::{
    Access, AccessMode, Capability, NewVolume, PoolOptions, PoolSpec, Pools, Provisioning, Reserve,
    Settings, VolumeRecord,
};
use hostloop_driver::sys::linux::Linux;
use hostloop_driver::sys::{FsType, Kernel, LoopDevice, LoopSpec, file_id};

pub(crate) const MI: u64 = 1 << 20;

pub(crate) struct Rig {
    pub(crate) root: PathBuf,
    pub(crate) kernel: Arc<Linux>,
    pub(crate) specs: Vec<PoolSpec>,
    pub(crate) options: PoolOptions,
    _dir: tempfile::TempDir,
}

impl Rig {
    /// Pools as on the command line, with `@` for the temporary directory.
    pub(crate) fn new(pools: &[&str]) -> Rig {
        let kernel = Arc::new(Linux::new());
        let missing = kernel.missing();
        assert!(missing.is_empty(), "these tests need: {missing:?}");
        // Where direct I/O works: /tmp may be a tmpfs.
        let dir = tempfile::Builder::new()
            .prefix("hostloop-look-")
            .tempdir_in("/var/tmp")
            .unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = |word: &&str| word.replace('@', root.to_str().unwrap());
        let specs: Vec<PoolSpec> = pools.iter().map(|p| at(p).parse().unwrap()).collect();
        for spec in &specs {
            std::fs::create_dir_all(&spec.path).unwrap();
        }
        Rig {
            options: PoolOptions {
                node_id: None,
                state_dir: root.join("state"),
                overcommit: 1.0,
                reserve: Reserve::Percent(5.0),
                max_volume_bytes: None,
                max_freeze: Duration::from_secs(10),
            },
            root,
            kernel,
            specs,
            _dir: dir,
        }
    }

    pub(crate) fn open(&self) -> Arc<Pools> {
        Pools::open(&self.specs, self.options.clone(), self.kernel.clone()).unwrap()
    }

    /// Attaches a file; the device is detached by whoever says so, or when the rig goes.
    pub(crate) fn attach(&self, file: &Path) -> LoopDevice {
        let backing = File::options().read(true).write(true).open(file).unwrap();
        let spec = LoopSpec {
            backing: &backing,
            label: "test",
            read_only: false,
            direct_io: true,
            autoclear: false,
            minor: None,
        };
        self.kernel.loop_attach(&spec).unwrap()
    }

    /// How many loop devices are over a file.
    pub(crate) fn loops(&self, file: &File) -> usize {
        self.kernel.loops_of(file_id(file).unwrap()).unwrap().len()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Whatever is below our own directory is ours.
        let mounts = self.kernel.mounts().unwrap_or_default().entries;
        for mount in mounts.iter().rev() {
            if mount.mount_point.starts_with(&self.root) {
                let _ = self.kernel.unmount(&mount.mount_point);
            }
        }
        for l in self.kernel.loops().unwrap_or_default() {
            if Path::new(&l.backing_path).starts_with(&self.root) {
                let _ = self.kernel.loop_release(&l);
            }
        }
    }
}

/// A volume of this name in the first pool.
pub(crate) fn volume(pools: &Pools, name: &str, bytes: u64) -> Arc<VolumeRecord> {
    let access = Access::Mount {
        fs: FsType::Ext4,
        flags: Vec::new(),
        group: None,
    };
    let new = NewVolume {
        name: name.to_owned(),
        capacity_bytes: bytes,
        capabilities: vec![Capability {
            access,
            mode: AccessMode::SingleNodeWriter,
        }],
        parameters: BTreeMap::new(),
        mutable_parameters: BTreeMap::new(),
        settings: Settings {
            provisioning: Provisioning::Thin,
            discard: true,
            direct_io: true,
            read_ahead_kib: None,
        },
        mkfs_options: Vec::new(),
        source: None,
        inline: None,
    };
    let pool = pools.named(None).unwrap();
    pools.create_volume(&pool, new).unwrap()
}
