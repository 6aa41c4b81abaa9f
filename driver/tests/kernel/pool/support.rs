//! Filesystems and pools that are gone when the test is over.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use hostloop_driver::pool::{
    Access, AccessMode, Capability, NewVolume, Pool, PoolOptions, PoolSpec, Pools, Provisioning,
    Reserve, Result, Settings,
};
use hostloop_driver::sys::linux::Linux;
use hostloop_driver::sys::{FsType, Kernel};
use tempfile::TempDir;

use crate::tools::release;
pub(crate) use crate::tools::{arg, run};

pub(crate) const MI: u64 = 1 << 20;

/// A sparse file on a loop device: a disk.
pub(crate) struct Disk {
    pub(crate) device: PathBuf,
    _dir: TempDir,
}

impl Disk {
    pub(crate) fn new(bytes: u64) -> Disk {
        let dir = TempDir::with_prefix("hostloop-pool-disk-").unwrap();
        let image = dir.path().join("disk");
        File::create_new(&image).unwrap().set_len(bytes).unwrap();
        let device = run("losetup", &["--find", "--show", arg(&image)]).into();
        Disk { device, _dir: dir }
    }

    pub(crate) fn mkfs(self, fs: &str, options: &[&str]) -> Disk {
        let force = if fs == "ext4" { "-F" } else { "-f" };
        let args = [&["-q", force], options, &[arg(&self.device)]].concat();
        run(&format!("mkfs.{fs}"), &args);
        self
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        release("losetup", &["-d", arg(&self.device)]);
    }
}

/// A loop device over a file, made by hand.
pub(crate) struct Loop {
    pub(crate) device: PathBuf,
}

impl Loop {
    pub(crate) fn over(file: &Path) -> Loop {
        let args = [
            "--find",
            "--show",
            "--direct-io=on",
            "-b",
            "4096",
            arg(file),
        ];
        Loop {
            device: run("losetup", &args).into(),
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        release("losetup", &["-d", arg(&self.device)]);
    }
}

/// A filesystem of its own, to make pools in.
pub(crate) struct Ground {
    pub(crate) at: PathBuf,
    _disk: Disk,
    _dir: TempDir,
}

impl Ground {
    pub(crate) fn new(fs: &str, bytes: u64, options: &[&str]) -> Ground {
        let disk = Disk::new(bytes).mkfs(fs, options);
        let dir = TempDir::with_prefix("hostloop-pool-").unwrap();
        let at = dir.path().join("at");
        std::fs::create_dir(&at).unwrap();
        run("mount", &["-t", fs, arg(&disk.device), arg(&at)]);
        Ground {
            at,
            _disk: disk,
            _dir: dir,
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        release("umount", &[arg(&self.at)]);
    }
}

/// Configured pools and the process that has them open.
pub(crate) struct World {
    opened: Option<Arc<Pools>>,
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) specs: Vec<PoolSpec>,
    pub(crate) options: PoolOptions,
    pub(crate) dir: TempDir,
}

impl World {
    pub(crate) fn new(specs: &[&str]) -> World {
        let dir = TempDir::with_prefix("hostloop-pool-state-").unwrap();
        let spec = |spec: &&str| spec.replace("DIR", arg(dir.path())).parse().unwrap();
        World {
            specs: specs.iter().map(spec).collect(),
            options: PoolOptions {
                node_id: None,
                state_dir: dir.path().join("state"),
                overcommit: 1.0,
                reserve: Reserve::Bytes(0),
                max_volume_bytes: None,
                max_freeze: Duration::from_secs(10),
            },
            kernel: Arc::new(Linux::new()),
            opened: None,
            dir,
        }
    }

    pub(crate) fn at(name: &str, path: &Path) -> World {
        World::new(&[&format!("{name}={}", arg(path))])
    }

    pub(crate) fn try_open(&self) -> Result<Arc<Pools>> {
        Pools::open(&self.specs, self.options.clone(), self.kernel.clone())
    }

    /// As a process does that starts again.
    pub(crate) fn open(&mut self) -> &Pools {
        self.opened = None;
        self.opened = Some(self.try_open().unwrap());
        self.pools()
    }

    /// As a process does that dies.
    pub(crate) fn die(&mut self) {
        self.opened = None;
    }

    pub(crate) fn pools(&self) -> &Pools {
        self.opened.as_ref().unwrap()
    }

    pub(crate) fn pool(&self) -> Arc<Pool> {
        self.pools().named(None).unwrap()
    }

    /// Why the first pool is missing.
    pub(crate) fn why_missing(&self) -> String {
        self.pools().slots().remove(0).state.unwrap_err()
    }

    /// Entries of the first pool, those on their way in or out too.
    pub(crate) fn entries(&self) -> Vec<String> {
        let root = self.pool().root().to_path_buf();
        let dirs = ["volumes", "snapshots", "groups", "incoming", "trash"];
        let list = |dir: &&str| std::fs::read_dir(root.join(dir)).unwrap();
        let all = dirs.iter().flat_map(list);
        all.map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Whether or not the test got as far as that.
        self.opened = None;
        for spec in &self.specs {
            let at = self.options.state_dir.join("pools").join(&spec.name);
            while Command::new("mountpoint")
                .arg("-q")
                .arg(&at)
                .status()
                .unwrap()
                .success()
            {
                release("umount", &[arg(&at)]);
            }
        }
    }
}

pub(crate) fn new(name: &str, bytes: u64, provisioning: Provisioning) -> NewVolume {
    NewVolume {
        name: name.to_owned(),
        capacity_bytes: bytes,
        capabilities: vec![mounted()],
        parameters: BTreeMap::new(),
        mutable_parameters: BTreeMap::new(),
        settings: Settings {
            provisioning,
            discard: false,
            direct_io: true,
            read_ahead_kib: None,
        },
        mkfs_options: Vec::new(),
        source: None,
        inline: None,
    }
}

pub(crate) fn mounted() -> Capability {
    Capability {
        access: Access::Mount {
            fs: FsType::Ext4,
            flags: Vec::new(),
            group: None,
        },
        mode: AccessMode::SingleNodeWriter,
    }
}

/// A loop device over a file, by its node's name; none or several fail the test.
pub(crate) fn loop_of(file: &Path) -> Vec<String> {
    let output = run("losetup", &["-n", "-O", "NAME", "-j", arg(file)]);
    output.lines().map(|l| l.trim().to_owned()).collect()
}

pub(crate) fn open_rw(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}
