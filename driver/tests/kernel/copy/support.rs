//! Loop devices, filesystems and mounts that are gone when the test is over.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::tools::release;
pub(crate) use crate::tools::{arg, run};

/// A sparse file.
pub(crate) fn sparse(path: &Path, len: u64) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    let file = options.open(path).unwrap();
    file.set_len(len).unwrap();
    file
}

/// An attached loop device.
pub(crate) struct Loop {
    /// `/dev/loopN`.
    pub(crate) device: PathBuf,
}

impl Loop {
    pub(crate) fn attach(file: &Path) -> Loop {
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

    pub(crate) fn open(&self) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).open(&self.device).unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        release("losetup", &["-d", arg(&self.device)]);
    }
}

/// A mounted filesystem.
pub(crate) struct Mount {
    pub(crate) at: PathBuf,
}

impl Mount {
    pub(crate) fn new(fs: &str, device: &Path, at: &Path, options: &str) -> Mount {
        std::fs::create_dir_all(at).unwrap();
        run("mount", &["-t", fs, "-o", options, arg(device), arg(at)]);
        // Beneath a shared root, what is mounted over it would appear over its binds as well.
        run("mount", &["--make-private", arg(at)]);
        Mount {
            at: at.to_path_buf(),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        release("umount", &[arg(&self.at)]);
    }
}

pub(crate) fn mkfs(fs: &str, device: &Path, options: &[&str]) {
    let force = if fs == "ext4" { "-F" } else { "-f" };
    let args = [&["-q", force], options, &[arg(device)]].concat();
    run(&format!("mkfs.{fs}"), &args);
}

/// A filesystem to keep images in. Fields are dropped in order.
pub(crate) struct Pool {
    mount: Mount,
    _device: Loop,
    _dir: TempDir,
    pub(crate) reflinks: bool,
}

impl Pool {
    /// `fs` may be `btrfs+C`: files in it are not copied on write; or `btrfs+z`: they are
    /// compressed.
    pub(crate) fn new(fs: &str, bytes: u64) -> Pool {
        let dir = TempDir::with_prefix("hostloop-copy-").unwrap();
        let image = dir.path().join("pool");
        sparse(&image, bytes);
        let device = Loop::attach(&image);
        let (name, variant) = fs.split_once('+').unwrap_or((fs, ""));
        mkfs(name, &device.device, &[]);
        let options = match variant {
            "z" => "compress-force=zstd",
            _ => "defaults",
        };
        let mount = Mount::new(name, &device.device, &dir.path().join("at"), options);
        if variant == "C" {
            run("chattr", &["+C", arg(&mount.at)]);
        }
        Pool {
            mount,
            _device: device,
            _dir: dir,
            reflinks: fs != "ext4",
        }
    }

    /// Takes all the space that is left, until the file is dropped.
    pub(crate) fn fill(&self) -> File {
        let file = sparse(&self.path("filler"), 0);
        std::fs::remove_file(self.path("filler")).unwrap();
        let mut step = 64 << 20;
        let mut at = 0;
        while step >= 4096 {
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, step) {
                Ok(()) => at += step,
                Err(_) => step /= 2,
            }
        }
        file.sync_all().unwrap();
        file
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.mount.at.join(name)
    }
}

/// Random numbers that are the same at every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
