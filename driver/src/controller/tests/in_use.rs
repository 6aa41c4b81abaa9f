//! ControllerExpandVolume and ControllerModifyVolume, also of volumes in use.

use hostloop_proto::csi;
use tonic::Code;

use super::bench::*;
use crate::controller::Result;
use crate::kernel::{Kernel, LoopInfo, file_id};
use crate::storage::{Provisioning, Settings};

fn expand(bench: &Bench, id: &str, range: Option<csi::CapacityRange>) -> Result<i64> {
    let request = csi::ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        capacity_range: range,
        ..Default::default()
    };
    let response = bench.controller.controller_expand_volume(request)?;
    assert!(response.node_expansion_required);
    Ok(response.capacity_bytes)
}

fn modify(bench: &Bench, id: &str, parameters: &[(&str, &str)]) -> Result<()> {
    let request = csi::ControllerModifyVolumeRequest {
        volume_id: id.to_owned(),
        mutable_parameters: map(parameters),
        ..Default::default()
    };
    bench.controller.controller_modify_volume(request).map(drop)
}

fn settings(bench: &Bench, id: &str) -> Settings {
    bench.record(id).settings.clone()
}

fn device(bench: &Bench, id: &str) -> LoopInfo {
    let image = bench.controller.pools.open_image(&bench.record(id), false);
    let loops = bench.kernel.loops_of(file_id(image.unwrap()).unwrap());
    loops.unwrap().remove(0)
}

/// True if the filesystem of a staged volume discards freed space.
fn discards(bench: &Bench, id: &str) -> bool {
    let minor = device(bench, id).minor;
    let mounts = bench.kernel.mounts().unwrap();
    let mount = mounts.of_loop(minor).next().unwrap();
    mount.super_options.iter().any(|o| o == "discard")
}

#[test]
fn a_volume_grows_and_never_shrinks() {
    let bench = Bench::with(|plan| plan.options.max_volume_bytes = Some(64 << 20));
    let id = bench.create("a");
    bench.stage(&id, mount(""));
    assert_eq!(expand(&bench, &id, range(16 * MI, 0)).unwrap(), 16 * MI);
    assert_eq!(expand(&bench, &id, range(16 * MI, 0)).unwrap(), 16 * MI);
    assert_eq!(expand(&bench, &id, range(8 * MI, 0)).unwrap(), 16 * MI);
    assert_eq!(bench.record(&id).capacity_bytes, 16 << 20);
    assert_code(expand(&bench, &id, range(8 * MI, 8 * MI)), Code::OutOfRange);
    assert_code(expand(&bench, &id, range(65 * MI, 0)), Code::OutOfRange);
    assert_code(expand(&bench, &id, range(i64::MAX, 0)), Code::OutOfRange);
    assert_field(expand(&bench, &id, None), "capacity_range");
    assert_field(expand(&bench, &id, range(0, 0)), "capacity_range");
    assert_field(
        expand(&bench, &id, range(-1, 0)),
        "capacity_range.required_bytes",
    );
    assert_field(expand(&bench, "", range(1, 0)), "volume_id");
    assert_code(expand(&bench, "none", range(1, 0)), Code::NotFound);
    assert_code(
        expand(&bench, &foreign(&id), range(1, 0)),
        Code::FailedPrecondition,
    );
    let request = csi::ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: range(32 * MI, 0),
        volume_capability: Some(block()),
        ..Default::default()
    };
    assert_field(
        bench.controller.controller_expand_volume(request),
        "volume_capability",
    );
    assert_eq!(bench.record(&id).capacity_bytes, 16 << 20);
}

#[test]
fn expansion_can_be_switched_off() {
    for change in [
        (|c| c.expansion = false) as fn(&mut crate::controller::Config),
        |c| c.controller_expansion = false,
    ] {
        let bench = Bench::with(|plan| change(&mut plan.config));
        let id = bench.create("a");
        assert_code(expand(&bench, &id, range(16 * MI, 0)), Code::Unimplemented);
    }
}

#[test]
fn settings_change_in_the_record_and_in_what_is_in_use() {
    let bench = Bench::new();
    let id = bench.create("a");
    bench.stage(&id, mount(""));
    assert!(device(&bench, &id).direct_io && discards(&bench, &id));

    modify(
        &bench,
        &id,
        &[
            ("discard", "false"),
            ("directIO", "false"),
            ("readAheadKiB", "64"),
        ],
    )
    .unwrap();
    assert!(!device(&bench, &id).direct_io && !discards(&bench, &id));
    let now = settings(&bench, &id);
    assert_eq!(
        (now.discard, now.direct_io, now.read_ahead_kib),
        (false, false, Some(64))
    );
    assert!(bench.kernel.take_effects().contains(&"loop.read-ahead"));

    // Absent parameters keep their values.
    modify(&bench, &id, &[("directIO", "true")]).unwrap();
    assert!(device(&bench, &id).direct_io && !discards(&bench, &id));
    assert_eq!(bench.kernel.take_effects(), ["loop.direct-io"]);
    assert_eq!(settings(&bench, &id).read_ahead_kib, Some(64));
}

#[test]
fn a_device_that_says_nothing_is_not_passed_over() {
    let bench = Bench::new();
    let id = bench.create("a");
    bench.stage(&id, mount(""));
    let before = settings(&bench, &id);
    let device = device(&bench, &id);
    bench.kernel.set_silent(device.minor, true);
    let parameters = [("directIO", "false"), ("discard", "false")];
    assert_code(modify(&bench, &id, &parameters), Code::Unavailable);
    assert_eq!(settings(&bench, &id), before);
    bench.kernel.set_silent(device.minor, false);
    modify(&bench, &id, &parameters).unwrap();
    assert!(!discards(&bench, &id));
}

#[test]
fn a_thick_volume_stops_giving_space_back_before_it_takes_it() {
    let bench = Bench::new();
    let id = bench.create("a");
    bench.stage(&id, mount(""));
    modify(&bench, &id, &[("provisioning", "thick")]).unwrap();
    assert!(!discards(&bench, &id));
    assert_eq!(settings(&bench, &id).provisioning, Provisioning::Thick);
    assert_field(modify(&bench, &id, &[("discard", "true")]), "discard");
    modify(
        &bench,
        &id,
        &[("provisioning", "thin"), ("discard", "true")],
    )
    .unwrap();
    assert!(discards(&bench, &id));
}

#[test]
fn a_volume_that_can_not_become_thick_stays_as_it_is() {
    let bench = Bench::new();
    // More than any filesystem has.
    let request = csi::CreateVolumeRequest {
        capacity_range: range(8 << 40, 0),
        ..Bench::request("a")
    };
    let id = bench.try_create(request).unwrap().volume_id;
    bench.stage(&id, mount(""));
    let refused = modify(&bench, &id, &[("provisioning", "thick")]);
    assert_code(refused, Code::ResourceExhausted);
    assert!(
        discards(&bench, &id),
        "what was switched off for it is on again"
    );
    assert_eq!(settings(&bench, &id).provisioning, Provisioning::Thin);
}

#[test]
fn a_mount_that_can_not_change_keeps_everything_as_it_is() {
    let bench = Bench::new();
    let id = bench.create("a");
    bench.stage(&id, mount(""));
    let before = settings(&bench, &id);
    bench.kernel.fail("remount", 1, libc::EOPNOTSUPP);
    let parameters = [("provisioning", "thick"), ("directIO", "false")];
    assert_code(modify(&bench, &id, &parameters), Code::FailedPrecondition);
    assert_eq!(settings(&bench, &id), before);
    assert_eq!(bench.kernel.take_effects(), ["remount"]);
    // The setting is current already, so nothing changes.
    bench.kernel.fail("remount", 1, libc::EOPNOTSUPP);
    modify(&bench, &id, &[("discard", "true")]).unwrap();
}

#[test]
fn a_call_that_was_cut_short_is_finished_by_the_next() {
    let bench = Bench::new();
    let id = bench.create("a");
    bench.stage(&id, mount(""));
    bench.kernel.fail("loop.direct-io", 1, libc::EIO);
    assert_code(
        modify(&bench, &id, &[("directIO", "false")]),
        Code::Internal,
    );
    assert!(device(&bench, &id).direct_io && !settings(&bench, &id).direct_io);
    modify(&bench, &id, &[("directIO", "false")]).unwrap();
    assert!(!device(&bench, &id).direct_io);
}

#[test]
fn everything_is_checked_before_anything_is_changed() {
    let bench = Bench::new();
    let id = bench.create("a");
    bench.stage(&id, mount(""));
    let before = settings(&bench, &id);
    for (parameters, refused) in [
        (
            &[("directIO", "false"), ("x", "y")][..],
            "mutable_parameters[\"x\"]",
        ),
        (
            &[("directIO", "false"), ("readAheadKiB", "-1")],
            "mutable_parameters[\"readAheadKiB\"]",
        ),
        (
            &[("directIO", "false"), ("pool", "other")],
            "mutable_parameters[\"pool\"]",
        ),
        (&[("provisioning", "thick"), ("discard", "true")], "discard"),
        (&[], "mutable_parameters"),
    ] {
        assert_eq!(field(modify(&bench, &id, parameters)), refused);
    }
    assert_eq!(settings(&bench, &id), before);
    assert!(bench.kernel.take_effects().is_empty());
    assert_field(modify(&bench, "", &[("discard", "true")]), "volume_id");
    assert_code(modify(&bench, "none", &[]), Code::NotFound);
    assert_code(
        modify(&bench, &foreign(&id), &[("discard", "true")]),
        Code::FailedPrecondition,
    );
}

#[test]
fn only_accepted_parameters_are_modified() {
    let bench = Bench::with(|plan| {
        plan.config.mutable_parameters = vec!["discard".to_owned(), "theirs".to_owned()];
    });
    let id = bench.create("a");
    modify(&bench, &id, &[("discard", "false"), ("theirs", "x")]).unwrap();
    assert!(!settings(&bench, &id).discard);
    assert_code(
        modify(&bench, &id, &[("directIO", "false")]),
        Code::InvalidArgument,
    );
    let off = Bench::with(|plan| plan.config.modify = false);
    let id = off.create("a");
    assert_code(
        modify(&off, &id, &[("discard", "false")]),
        Code::Unimplemented,
    );
}
