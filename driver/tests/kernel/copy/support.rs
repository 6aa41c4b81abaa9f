//! A separate filesystem to copy in, and random numbers.

use std::fs::File;
use std::path::PathBuf;

use hostloop_driver::kernel::extents::{self, ByteRange};
use hostloop_driver::kernel::file::{Copied, Pace};
use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::storage::Provisioning;
use hostloop_driver::storage::copy_image::{self, NewImage};
use tempfile::TempDir;

pub(crate) use crate::testkit::collect;
use crate::tools::fill;
pub(crate) use crate::tools::{Loop, Mount, arg, mkfs, run, sparse};

/// A filesystem for images. Fields are dropped in order.
pub(crate) struct Pool {
    mount: Mount,
    _device: Loop,
    _dir: TempDir,
    pub(crate) reflinks: bool,
}

impl Pool {
    /// `fs` may be `btrfs+C`, where files are not copied on write, or `btrfs+z`, where they are
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

    /// Takes all remaining space, until the file is dropped.
    pub(crate) fn fill(&self) -> File {
        let file = sparse(&self.path("filler"), 0);
        std::fs::remove_file(self.path("filler")).unwrap();
        fill(&file, 0);
        file
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.mount.at.join(name)
    }

    /// A thin copy of this length.
    pub(crate) fn thin(&self, len: u64, thick_source: bool) -> NewImage {
        NewImage {
            len,
            provisioning: Provisioning::Thin,
            reflinks: self.reflinks,
            thick_source,
        }
    }
}

/// Copies an image at rest.
pub(crate) fn populate(from: &File, to: &File, want: &NewImage) -> Copied {
    let kernel = Linux::new();
    let copied = copy_image::copy(&kernel, from, to, want, None, Pace::Fast, &|| false).unwrap();
    copy_image::finish(&kernel, to, want, copied).unwrap();
    copied
}

/// The ranges from `offset` on that `extents` reports as changed.
pub(crate) fn changed(base: &File, target: &File, offset: u64, shares: bool) -> Vec<ByteRange> {
    let length = target.metadata().unwrap().len() - offset;
    let span = ByteRange { offset, length };
    collect(|emit| extents::changed(base, target, span, shares, emit))
}

/// Random numbers that are the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
