//! `status` and `fsck` on the machine's own kernel. They need root and loop devices.

use std::path::Path;

use hostloop_driver::kernel::LoopDevice;
use hostloop_driver::kernel::linux::Linux;

use crate::tools::open_rw;

mod fsck;
mod status;

type Site = crate::testkit::Site<Linux>;

/// An open pool.
fn site(spec: &str) -> Site {
    let mut site: Site = crate::testkit::Rig::site(&[spec]);
    site.open();
    site
}

/// Attaches a file, until it is detached or the site is dropped.
fn attach(site: &Site, file: &Path) -> LoopDevice {
    site.attach_file(&open_rw(file))
}
