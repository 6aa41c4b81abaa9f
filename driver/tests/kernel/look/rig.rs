//! Pools beneath a temporary directory on the machine's kernel.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use hostloop_driver::kernel::LoopDevice;
use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::storage::{NewVolume, Pools, Reserve, VolumeRecord};

pub(crate) use crate::testkit::MI;
use crate::testkit::{self, Site};

pub(crate) type Rig = Site<Linux>;

/// Pools as on the command line, with `DIR` for the temporary directory.
pub(crate) fn rig(pools: &[&str]) -> Rig {
    let mut site = Rig::new(pools);
    site.options.reserve = Reserve::Percent(5.0);
    for spec in &site.specs {
        std::fs::create_dir_all(&spec.path).unwrap();
    }
    site
}

/// Attaches a file, until it is detached or the rig is dropped.
pub(crate) fn attach(rig: &Rig, file: &Path) -> LoopDevice {
    rig.attach_file(&File::options().read(true).write(true).open(file).unwrap())
}

/// A volume of this name in the first pool.
pub(crate) fn volume(pools: &Pools, name: &str, bytes: u64) -> Arc<VolumeRecord> {
    let mut new = NewVolume { capacity_bytes: bytes, ..testkit::new(name) };
    new.settings.discard = true;
    pools.create_volume(&pools.named(None).unwrap(), new).unwrap()
}
