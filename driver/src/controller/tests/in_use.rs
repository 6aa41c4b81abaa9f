//! ControllerExpandVolume and ControllerModifyVolume, also of volumes in use.

use hostloop_proto::csi;

use super::bench::*;
use crate::controller::{Config, Result};
use crate::kernel::Kernel;
use crate::storage::{Provisioning, Settings};

/// A staged ext4 volume.
struct Staged {
    bench: Bench,
    id: String,
}

impl Staged {
    fn new() -> Staged {
        Staged::of(Bench::new(), Bench::request("a"))
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
        mount.super_options.iter().any(|o| o == "discard")
    }
}

#[test]
fn a_volume_grows_and_never_shrinks() {
    let bench = Bench::with(|plan| plan.options.max_volume_bytes = Some(64 << 20));
    let Staged { bench, id } = Staged::of(bench, Bench::request("a"));
    for (size, limit, expected) in [
        (16 * MI, 0, "Ok"),
        (16 * MI, 0, "Ok"),
        (8 * MI, 0, "Ok"),
        (8 * MI, 8 * MI, "OutOfRange"),
        (65 * MI, 0, "OutOfRange"),
        (i64::MAX, 0, "OutOfRange"),
        (0, 0, "capacity_range"),
        (-1, 0, "capacity_range.required_bytes"),
    ] {
        let expanded = bench.grow(&id, range(size, limit));
        if let Ok(bytes) = &expanded {
            assert_eq!(*bytes, 16 * MI, "{size} {limit}");
        }
        assert_eq!(answer(expanded), expected, "{size} {limit}");
        assert_eq!(bench.record(&id).capacity_bytes, 16 << 20);
    }
    assert_answer(bench.grow(&id, None), "capacity_range");
    for (id, expected) in
        [("", "volume_id"), ("none", "NotFound"), (&foreign(&id), "FailedPrecondition")]
    {
        assert_eq!(answer(bench.grow(id, range(1, 0))), expected, "{id}");
    }
    let raw = bench.grow_as(&id, range(32 * MI, 0), Some(block()));
    assert_answer(raw, "volume_capability");
    assert_eq!(bench.record(&id).capacity_bytes, 16 << 20);
}

#[test]
fn expansion_and_modification_can_be_switched_off() {
    type Change = fn(&mut Config);
    let off: [(Change, [&str; 2]); 2] = [
        (|c| c.expansion = false, ["Unimplemented", "Ok"]),
        (|c| c.modify = false, ["Ok", "Unimplemented"]),
    ];
    for (change, expected) in off {
        let bench = Bench::with(|plan| change(&mut plan.config));
        let id = bench.create("a");
        let answers = [
            answer(bench.grow(&id, range(16 * MI, 0))),
            answer(bench.modify(&id, "discard=false")),
        ];
        assert_eq!(answers, expected);
    }
}

#[test]
fn modification_changes_the_record_and_the_volume_in_use() {
    let volume = Staged::new();
    assert!(volume.direct_io() && volume.discards());
    let all = volume.modify("discard=false directIO=false readAheadKiB=64");
    all.unwrap();
    assert!(!volume.direct_io() && !volume.discards());
    let now = volume.settings();
    assert!(!now.discard && !now.direct_io);
    assert_eq!(now.read_ahead_kib, Some(64));
    let kernel = &volume.bench.kernel;
    assert!(kernel.take_effects().contains(&"loop.read-ahead"));

    // Absent parameters keep their values.
    volume.modify("directIO=true").unwrap();
    assert!(volume.direct_io() && !volume.discards());
    assert_eq!(kernel.take_effects(), ["loop.direct-io"]);
    assert_eq!(volume.settings().read_ahead_kib, Some(64));
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
fn a_volume_that_becomes_thick_stops_discarding() {
    let volume = Staged::new();
    volume.modify("provisioning=thick").unwrap();
    assert!(!volume.discards());
    assert_eq!(volume.settings().provisioning, Provisioning::Thick);
    assert_answer(volume.modify("discard=true"), "discard");
    volume.modify("provisioning=thin discard=true").unwrap();
    assert!(volume.discards());
}

#[test]
fn a_volume_without_room_to_become_thick_stays_thin() {
    // More than any filesystem has.
    let request =
        csi::CreateVolumeRequest { capacity_range: range(8 << 40, 0), ..Bench::request("a") };
    let volume = Staged::of(Bench::new(), request);
    let refused = volume.modify("provisioning=thick");
    assert_answer(refused, "ResourceExhausted");
    assert!(volume.discards(), "discard was not switched on again");
    assert_eq!(volume.settings().provisioning, Provisioning::Thin);
}

#[test]
fn a_mount_that_can_not_change_prevents_every_change() {
    let volume = Staged::new();
    let before = volume.settings();
    let kernel = &volume.bench.kernel;
    kernel.fail("remount", 1, libc::EOPNOTSUPP);
    let refused = volume.modify("provisioning=thick directIO=false");
    assert_answer(refused, "FailedPrecondition");
    assert_eq!(volume.settings(), before);
    assert_eq!(kernel.take_effects(), ["remount"]);
    // The setting is current already, so nothing changes.
    kernel.fail("remount", 1, libc::EOPNOTSUPP);
    volume.modify("discard=true").unwrap();
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
    for (parameters, expected) in [
        ("directIO=false x=y", r#"mutable_parameters["x"]"#),
        ("directIO=false readAheadKiB=-1", r#"mutable_parameters["readAheadKiB"]"#),
        ("directIO=false pool=other", r#"mutable_parameters["pool"]"#),
        ("provisioning=thick discard=true", "discard"),
        ("", "mutable_parameters"),
    ] {
        assert_eq!(answer(volume.modify(parameters)), expected, "{parameters}");
    }
    assert_eq!(volume.settings(), before);
    assert!(volume.bench.kernel.take_effects().is_empty());
    for (id, expected) in
        [("", "volume_id"), ("none", "NotFound"), (&foreign(&volume.id), "FailedPrecondition")]
    {
        let refused = volume.bench.modify(id, "discard=true");
        assert_eq!(answer(refused), expected, "{id}");
    }
    // The volume is looked up first.
    assert_eq!(answer(volume.bench.modify("none", "")), "NotFound");
}

#[test]
fn only_accepted_parameters_are_modified() {
    let accepted = ["discard", "theirs"].map(str::to_owned).to_vec();
    let bench = Bench::with(|plan| plan.config.mutable_parameters = accepted);
    let volume = Staged::of(bench, Bench::request("a"));
    volume.modify("discard=false theirs=x").unwrap();
    assert!(!volume.settings().discard);
    let refused = volume.modify("directIO=false");
    assert_answer(refused, r#"mutable_parameters["directIO"]"#);
}
