//! Device mapper over raw block volumes, as LVM and dm-crypt in a pod use it.

use std::path::Path;

use hostloop_driver::kernel::loop_path;
use hostloop_driver::node::Error;
use hostloop_driver::storage::Access;

use super::Rig;
use crate::testkit::*;
use crate::tools::{arg, not_run, run};

/// A linear mapping over a device. Dropping it removes it.
struct Mapped(String);

impl Mapped {
    fn over(device: &Path, bytes: u64) -> Mapped {
        let name = format!("hostloop-test-{}", std::process::id());
        let table = format!("0 {} linear {} 0", bytes / 512, arg(device));
        // Without udev, nothing would confirm the mapping's node.
        run(
            "dmsetup",
            &["create", "--noudevsync", &name, "--table", &table],
        );
        Mapped(name)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        run("dmsetup", &["remove", "--noudevsync", &self.0]);
    }
}

#[test]
fn a_mapped_block_volume_stays_staged_until_the_mapping_is_gone() {
    if !Path::new("/dev/mapper/control").exists() {
        return not_run(
            "device mapper over a block volume",
            "this kernel has no device mapper",
        );
    }
    let rig = Rig::new();
    let id = rig.staged(Access::Block, "a", &block());
    rig.publish(id, "a", "p", &block(), false).unwrap();
    let device = rig.device(id);
    let mapped = Mapped::over(&loop_path(device.minor), device.size_bytes);
    rig.unpublish(id, "p").unwrap();
    for _ in 0..2 {
        refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
        assert_eq!(
            rig.device(id).minor,
            device.minor,
            "its bytes are still in use"
        );
    }
    // The pod, or a person, gives it back.
    drop(mapped);
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}
