//! csi-sanity, the specification's own tests, against the driver on every kind of pool: every
//! spec runs, none is skipped, and nothing is left behind. The driver that keeps its volumes in
//! memory must pass them, too, because the controllers are tested with it.

use std::process::Stdio;

use hostloop_test::child;
use hostloop_test::driver::DriverSpec;
use hostloop_test::leaks::Leaks;
use hostloop_test::machine::{self, text};
use hostloop_test::memory::{MemoryDriver, Options};
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::process::Process;
use hostloop_test::scratch::Scratch;
use hostloop_test::tools::csi_sanity;

/// The value of every secret that csi-sanity sends.
const SECRET: &str = "hush-4f1c9d";

/// The calls csi-sanity has secrets for.
const SECRETS: [&str; 13] = [
    "CreateVolumeSecret",
    "DeleteVolumeSecret",
    "ControllerPublishVolumeSecret",
    "ControllerUnpublishVolumeSecret",
    "ControllerValidateVolumeCapabilitiesSecret",
    "NodeStageVolumeSecret",
    "NodePublishVolumeSecret",
    "CreateSnapshotSecret",
    "DeleteSnapshotSecret",
    "ControllerExpandVolumeSecret",
    "ControllerModifyVolumeSecret",
    "ListSnapshotsSecret",
    "GetSnapshotSecret",
];

/// What ginkgo closes with when all specs of csi-sanity 5.6.0 pass.
const EVERYTHING: &str = "102 Passed | 0 Failed | 1 Pending | 0 Skipped";

/// Runs csi-sanity against the driver at this endpoint.
fn run(what: &str, scratch: &Scratch, endpoint: &str, more: &[String], expected: &str) {
    let dir = |name: &str| format!("--csi.{name}dir={}", text(&scratch.path().join(name)));
    let output = child::command(csi_sanity())
        .arg(format!("--csi.endpoint={endpoint}"))
        .args([dir("mount"), dir("staging")])
        .args(["--csi.testnodevolumeattachlimit", "--ginkgo.no-color"])
        .args(more)
        .stdin(Stdio::null())
        .output()
        .expect("csi-sanity starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let closing = said
        .lines()
        .rev()
        .find_map(|line| Some(line.split_once(" -- ")?.1));
    println!("csi-sanity on {what}: {closing:?}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(closing, Some(expected), "{said}{errors}");
    let status = output.status;
    assert!(status.success(), "csi-sanity ended with {status}");
}

fn mutable(scratch: &Scratch, parameter: &str) -> String {
    let mutable = scratch.file("mutable.yaml", parameter);
    format!("--csi.testvolumemutableparameters={}", text(&mutable))
}

/// Runs csi-sanity against a driver on this pool.
fn sanity(kind: PoolKind, driver_args: &[&str], sanity_args: &[&str], expected: &str) {
    machine::require();
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, kind, 40 * GIB);
    // The specs of the limit create seventeen volumes of 1 GiB at once, and write to none.
    let driver = DriverSpec::new(&scratch, &[&pool])
        .overcommitted()
        .args(["--attach-limit", "16"])
        .args(driver_args.iter().copied())
        .start();
    let leaks = Leaks::before(&scratch, &[&pool], &driver);
    let secrets: String = SECRETS
        .iter()
        .map(|s| format!("{s}:\n  password: {SECRET}\n"))
        .collect();
    let secrets = scratch.file("secrets.yaml", &secrets);
    let mut args = vec![
        format!("--csi.testvolumesize={GIB}"),
        format!("--csi.secrets={}", text(&secrets)),
        mutable(&scratch, "readAheadKiB: \"256\"\n"),
    ];
    args.extend(sanity_args.iter().map(|arg| (*arg).to_owned()));
    let what = format!("{} {driver_args:?} {sanity_args:?}", kind.name());
    run(&what, &scratch, &driver.endpoint(), &args, expected);
    leaks.assert_none(&[&pool], &driver);
    let log = driver.log();
    assert!(!log.contains(SECRET), "a secret is in the log:\n{log}");
    driver.stop();
}

#[test]
fn every_spec_on_an_ext4_pool() {
    sanity(PoolKind::Ext4, &[], &[], EVERYTHING);
}

#[test]
fn every_spec_on_an_xfs_pool() {
    sanity(PoolKind::Xfs, &[], &[], EVERYTHING);
}

#[test]
fn every_spec_on_a_btrfs_pool() {
    sanity(PoolKind::Btrfs, &[], &[], EVERYTHING);
}

#[test]
fn every_spec_on_an_image_pool() {
    sanity(PoolKind::Image, &[], &[], EVERYTHING);
}

#[test]
fn every_spec_on_a_block_device_pool() {
    sanity(PoolKind::Device, &[], &[], EVERYTHING);
}

#[test]
fn every_spec_but_publishing_without_attach() {
    let expected = "92 Passed | 0 Failed | 1 Pending | 10 Skipped";
    sanity(PoolKind::Xfs, &["--enable-attach=false"], &[], expected);
}

#[test]
fn every_spec_on_raw_block_volumes() {
    let block = ["--csi.testvolumeaccesstype=block"];
    sanity(PoolKind::Xfs, &[], &block, EVERYTHING);
}

#[test]
fn every_spec_but_one_on_the_memory_driver() {
    let scratch = Scratch::new();
    let driver = memory_driver(&scratch);
    memory_sanity("the memory driver", &scratch, &driver.endpoint(), &driver);
}

/// The proxy changes nothing that csi-sanity could see.
#[tokio::test(flavor = "multi_thread")]
async fn every_spec_but_one_on_the_memory_driver_behind_the_proxy() {
    let scratch = Scratch::new();
    let driver = memory_driver(&scratch);
    let socket = scratch.path().join("proxy.sock");
    let _proxy = Process::proxy(scratch.path(), &driver.endpoint(), &socket, None).await;
    let endpoint = format!("unix://{}", text(&socket));
    memory_sanity("the proxy", &scratch, &endpoint, &driver);
}

fn memory_driver(scratch: &Scratch) -> MemoryDriver {
    let options = Options {
        attach_limit: 16,
        known_mutable: Some(["speed".to_owned()].into()),
        ..Options::default()
    };
    MemoryDriver::start(scratch.path().join("csi.sock"), options)
}

/// Runs csi-sanity against the memory driver at an endpoint.
fn memory_sanity(what: &str, scratch: &Scratch, endpoint: &str, driver: &MemoryDriver) {
    let args = [mutable(scratch, "speed: \"9\"\n")];
    // Snapshots with a topology: csi-sanity compares those by more than their content.
    let expected = "101 Passed | 0 Failed | 1 Pending | 1 Skipped";
    run(what, scratch, endpoint, &args, expected);
    driver.assert_nothing_left();
}
