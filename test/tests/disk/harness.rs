//! The harness itself: it removes everything that it makes, and sees what is there.

use hostloop_proto::csi;
use hostloop_test::data;
use hostloop_test::driver::DriverSpec;
use hostloop_test::leaks::{Leaks, mount_points};
use hostloop_test::loops;
use hostloop_test::machine::{self, text};
use hostloop_test::namespace::Namespace;
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;

#[test]
fn a_scratch_takes_down_every_kind_of_pool() {
    machine::require();
    for kind in PoolKind::ALL {
        let scratch = Scratch::new();
        let path = scratch.path().to_path_buf();
        let pool = PoolFixture::new(&scratch, kind, 4 * GIB);
        let devices = loops::beneath(&path);
        assert_eq!(devices.len(), 1, "{kind:?}: {devices:?}");
        let device = &devices[0];
        assert!(device.direct_io && device.sector == 4096, "{device:?}");
        if let Some(mount) = pool.mount() {
            data::write(&mount.join("file"), 1);
        }
        drop(scratch);
        assert_eq!(loops::beneath(&path), [], "{kind:?}");
        assert!(!path.exists(), "{kind:?}: the files are gone");
    }
}

#[test]
fn mounts_of_a_namespace_are_seen_through_it_alone() {
    machine::require();
    let scratch = Scratch::new();
    let inside = scratch.dir("inside");
    let namespace = Namespace::new(&scratch);
    let handle = format!("--mount={}", text(&namespace.handle()));
    machine::run("nsenter", &[&handle, "--", "mount", "-t", "tmpfs", "t", text(&inside)]);
    let view = namespace.view(&inside.join("file"));
    let sum = data::write(&view, 7);
    assert_eq!(data::read(&view), sum);
    assert!(!inside.join("file").exists(), "it is not seen outside");
    let mounts = mount_points(&namespace.mountinfo(), scratch.path());
    assert_eq!(mounts, [inside]);
}

/// A driver serves on every kind of pool, again after a stop and after a kill, in its own mount
/// namespace or in this one.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_comes_and_goes_on_every_kind_of_pool() {
    machine::require();
    for kind in PoolKind::ALL {
        let scratch = Scratch::new();
        let pool = PoolFixture::new(&scratch, kind, 4 * GIB);
        let start = || DriverSpec::new(&scratch, &[&pool]).start();
        let driver = start();
        let leaks = Leaks::before(&scratch, &[&pool], &driver);
        let ready = driver.csi().await.ok(csi::ProbeRequest {}).await.ready;
        assert_eq!(ready, Some(true), "{kind:?}");
        driver.stop();
        start().kill();
        let namespace = Namespace::new(&scratch);
        let spec = DriverSpec::new(&scratch, &[&pool]);
        let driver = spec.inside(&namespace).start();
        driver.csi().await.ok(csi::ProbeRequest {}).await;
        drop(namespace);
        driver.stop();
        let driver = start();
        leaks.assert_none(&[&pool], &driver);
        driver.stop();
    }
}
