//! A volume can't harm its node.

use std::path::Path;

use hostloop_driver::kernel::Mounts;
use hostloop_driver::storage::Source;

use super::Rig;
use crate::testkit::*;
use crate::tools::{arg, run};

/// The author of a filesystem chooses the error policy in its superblock.
#[test]
fn a_superblock_can_not_have_the_node_panic() {
    let rig = Rig::new();
    let id = rig.staged(ext4(), "a", &mount("ext4"));
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
    let image = rig.root().join(format!("pool/volumes/{id}/image"));
    run("tune2fs", &["-e", "panic", arg(&image)]);
    let remounts = |at: &Path| {
        let table = rig.kernel.mounts().unwrap();
        let options = &table.at(at).unwrap().super_options;
        let policy: Vec<_> = options
            .iter()
            .filter(|o| o.starts_with("errors="))
            .collect();
        assert_eq!(policy, ["errors=remount-ro"], "{}", at.display());
    };
    rig.stage(id, "a", &mount("ext4")).unwrap();
    remounts(&rig.staging("a"));
    let copy = rig.create(copy_of(Source::Volume(id), ext4(), 24 * MI));
    rig.stage(copy, "b", &mount("ext4")).unwrap();
    remounts(&rig.staging("b"));
    for (id, at) in [(id, "a"), (copy, "b")] {
        rig.unstage(id, at).unwrap();
    }
}
