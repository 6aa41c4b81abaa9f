//! `status` and `fsck` on the machine's own kernel. They need root and loop devices.

use std::fs::File;
use std::path::Path;

use hostloop_driver::kernel::LoopDevice;
use hostloop_driver::kernel::linux::Linux;

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
    site.attach_file(&File::options().read(true).write(true).open(file).unwrap())
}
