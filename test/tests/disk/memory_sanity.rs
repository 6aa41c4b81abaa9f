//! csi-sanity against the driver that keeps its volumes in memory: what the controllers are tested
//! with must itself be what the specification says.

use std::process::{Command, Stdio};

use hostloop_test::machine::text;
use hostloop_test::memory::{MemoryDriver, Options};
use hostloop_test::scratch::Scratch;
use hostloop_test::tools::csi_sanity;

#[test]
fn the_memory_driver_passes_csi_sanity() {
    let scratch = Scratch::new();
    let options = Options {
        attach_limit: 16,
        known_mutable: Some(["speed".to_owned()].into()),
        ..Options::default()
    };
    let driver = MemoryDriver::start(scratch.path().join("csi.sock"), options);
    let mutable = scratch.file("mutable.yaml", "speed: \"9\"\n");
    let output = Command::new(csi_sanity())
        .arg(format!("--csi.endpoint={}", driver.endpoint()))
        .arg(format!(
            "--csi.mountdir={}",
            text(&scratch.path().join("mount"))
        ))
        .arg(format!(
            "--csi.stagingdir={}",
            text(&scratch.path().join("staging"))
        ))
        .arg(format!(
            "--csi.testvolumemutableparameters={}",
            text(&mutable)
        ))
        .args(["--csi.testnodevolumeattachlimit", "--ginkgo.no-color"])
        .stdin(Stdio::null())
        .output()
        .expect("csi-sanity starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let closing = said.lines().rev().find(|line| line.contains(" Passed | "));
    println!("csi-sanity on the memory driver: {closing:?}");
    assert!(output.status.success(), "{said}");
    let closing = closing.expect("csi-sanity says what it ran");
    assert!(closing.contains("| 0 Failed |"), "{said}");
    // Snapshots with a place: csi-sanity compares those by more than their content.
    assert!(closing.contains("| 1 Skipped"), "{said}");
    driver.assert_nothing_left();
}
