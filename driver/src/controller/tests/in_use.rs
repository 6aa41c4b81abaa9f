//! ControllerModifyVolume of volumes in use.

use hostloop_proto::csi;

use super::bench::*;
use crate::controller::Result;
use crate::kernel::Mounts;
use crate::storage::{Provisioning, Settings};

/// A staged ext4 volume.
struct Staged {
    bench: Bench,
    id: String,
}

impl Staged {
    fn new() -> Staged {
        Staged::of(Bench::new(), create_request("a"))
    }

    fn of(bench: Bench, request: csi::CreateVolumeRequest) -> Staged {
        let id = bench.created(request);
        bench.stage(&id);
        Staged { bench, id }
    }

    fn modify(&self, parameters: &str) -> Result<()> {
        self.bench.modify(&self.id, parameters)
    }

    fn settings(&self) -> Settings {
        self.bench.record(&self.id).settings.clone()
    }

    fn direct_io(&self) -> bool {
        self.bench.device(&self.id).direct_io
    }

    /// True if the mounted filesystem discards freed space.
    fn discards(&self) -> bool {
        let minor = self.bench.device(&self.id).minor;
        let mounts = self.bench.kernel.mounts().unwrap();
        let mount = mounts.of_loop(minor).next().unwrap();
        mount.super_options.has("discard")
    }
}

#[test]
fn a_silent_device_makes_modification_unavailable() {
    let volume = Staged::new();
    let before = volume.settings();
    let minor = volume.bench.device(&volume.id).minor;
    let parameters = "directIO=false discard=false";
    volume.bench.kernel.set_silent(minor, true);
    assert_answer(volume.modify(parameters), "Unavailable");
    assert_eq!(volume.settings(), before);
    volume.bench.kernel.set_silent(minor, false);
    volume.modify(parameters).unwrap();
    assert!(!volume.discards());
}

#[test]
fn a_volume_without_room_to_become_thick_stays_thin() {
    let bench = Bench::new();
    // More than the filesystem has, and less than the pool promises, however full the disk is.
    let free = bench
        .node
        .pools
        .named(None)
        .unwrap()
        .usage()
        .unwrap()
        .free_bytes as i64;
    let request = csi::CreateVolumeRequest {
        capacity_range: range(4 * free, 0),
        ..create_request("a")
    };
    let volume = Staged::of(bench, request);
    let refused = volume.modify("provisioning=thick");
    assert_answer(refused, "InvalidArgument");
    assert!(volume.discards(), "discard was not switched on again");
    assert_eq!(volume.settings().provisioning, Provisioning::Thin);
}

#[test]
fn a_repeated_call_finishes_an_interrupted_one() {
    let volume = Staged::new();
    let kernel = &volume.bench.kernel;
    kernel.fail("loop.direct-io", 1, libc::EIO);
    assert_answer(volume.modify("directIO=false"), "Internal");
    assert!(volume.direct_io() && !volume.settings().direct_io);
    volume.modify("directIO=false").unwrap();
    assert!(!volume.direct_io());
}

#[test]
fn invalid_modifications_change_nothing() {
    let volume = Staged::new();
    let before = volume.settings();
    assert_answer(
        volume.modify("directIO=false provisioning=thick discard=true"),
        "discard",
    );
    assert_answer(volume.modify(""), "mutable_parameters");
    // The volume is looked up first.
    assert_answer(volume.bench.modify("none", ""), "NotFound");
    assert_eq!(volume.settings(), before);
    assert!(volume.bench.kernel.take_effects().is_empty());
}

#[test]
fn only_accepted_parameters_are_modified() {
    let accepted = ["discard", "theirs"].map(str::to_owned).to_vec();
    let bench = Bench::with(|plan| plan.config.mutable_parameters = accepted);
    let volume = Staged::of(bench, create_request("a"));
    volume.modify("discard=false theirs=x").unwrap();
    assert!(!volume.settings().discard);
    let refused = volume.modify("directIO=false");
    assert_answer(refused, r#"mutable_parameters["directIO"]"#);
}
