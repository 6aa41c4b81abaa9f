//! The health RPCs, with facts from real files and the fake kernel.

use hostloop_proto::csi;
use hostloop_proto::csi::VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};
use tonic::Code;

use super::bench::*;
use crate::controller::Result;
use crate::diagnose::health;
use crate::kernel::{Kernel, file_id};

fn of(bench: &Bench, id: &str) -> Result<Vec<(i32, String)>> {
    let request = csi::ControllerGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        ..Default::default()
    };
    let response = bench.controller.controller_get_volume_health(request)?;
    let health = response.volume_health.unwrap();
    assert_eq!(health.volume_id, id);
    let entries = health.health_statuses.into_iter();
    Ok(entries.map(|e| (e.status, e.reason)).collect())
}

fn ill(bench: &Bench) -> Vec<String> {
    let request = csi::ControllerListVolumeHealthRequest::default();
    let response = bench
        .controller
        .controller_list_volume_health(request)
        .unwrap();
    response.entries.into_iter().map(|e| e.volume_id).collect()
}

fn said(conditions: &[(csi::VolumeHealthErrorType, &str)]) -> Vec<(i32, String)> {
    let one = |(status, reason): &(csi::VolumeHealthErrorType, &str)| {
        (*status as i32, reason.to_string())
    };
    conditions.iter().map(one).collect()
}

fn minor(bench: &Bench, id: &str) -> u32 {
    let image = bench.controller.pools.open_image(&bench.record(id), false);
    let loops = bench.kernel.loops_of(file_id(image.unwrap()).unwrap());
    loops.unwrap()[0].minor
}

#[test]
fn sound_volumes_are_left_out() {
    let bench = Bench::new();
    let (a, b) = (bench.create("a"), bench.create("b"));
    bench.stage(&b, mount(""));
    assert_eq!(of(&bench, &a).unwrap(), []);
    assert_eq!(of(&bench, &b).unwrap(), []);
    assert!(ill(&bench).is_empty());
    assert!(health::storage(&bench.controller.pools).is_empty());
    assert_field(of(&bench, ""), "volume_id");
    assert_code(of(&bench, "none"), Code::NotFound);
    assert_code(of(&bench, &foreign(&a)), Code::FailedPrecondition);
}

#[test]
fn ill_volumes_are_told() {
    let bench = Bench::new();
    let names = [
        "gone",
        "deleted",
        "short",
        "lost",
        "read-only",
        "errors",
        "buffered",
        "sound",
    ];
    let ids: Vec<String> = names.iter().map(|name| bench.create(name)).collect();
    for id in &ids[1..] {
        bench.stage(id, mount(""));
    }
    let [gone, deleted, short, lost, read_only, errors, buffered, _] = &ids[..] else {
        unreachable!("eight names")
    };
    let image = |id: &str| bench.entry(id).join("image");
    let kernel = &bench.kernel;
    let lost_minor = minor(&bench, lost);
    let mounted = kernel.mounts().unwrap();
    let at = &mounted.of_loop(lost_minor).next().unwrap().mount_point;
    kernel.unmount(at).unwrap();
    kernel.turn_read_only(minor(&bench, read_only));
    kernel.set_fs_errors(minor(&bench, errors), Some("3 errors"));
    let file = bench
        .controller
        .pools
        .open_image(&bench.record(buffered), false);
    kernel.set_direct_io(file_id(file.unwrap()).unwrap(), false);
    std::fs::remove_file(image(gone)).unwrap();
    std::fs::remove_file(image(deleted)).unwrap();
    let file = std::fs::File::options()
        .write(true)
        .open(image(short))
        .unwrap();
    file.set_len(4096).unwrap();

    let table: [(&String, &[(csi::VolumeHealthErrorType, &str)]); 7] = [
        (gone, &[(DataLoss, "ImageMissing")]),
        (deleted, &[(DataLoss, "ImageDeleted")]),
        (short, &[(DataLoss, "ImageTruncated")]),
        (lost, &[(Inaccessible, "LoopDeviceLost")]),
        (read_only, &[(Inaccessible, "FilesystemReadOnly")]),
        (errors, &[(Degraded, "FilesystemErrors")]),
        (buffered, &[(Degraded, "DirectIOLost")]),
    ];
    for (id, expected) in table {
        assert_eq!(
            of(&bench, id).unwrap(),
            said(expected),
            "{}",
            bench.record(id).name
        );
    }
    assert_eq!(ill(&bench), ids[..7]);

    // Pages contain only volumes with a problem.
    let page = |token: &str| {
        let request = csi::ControllerListVolumeHealthRequest {
            max_entries: 3,
            starting_token: token.to_owned(),
            ..Default::default()
        };
        let response = bench
            .controller
            .controller_list_volume_health(request)
            .unwrap();
        let ids: Vec<String> = response.entries.into_iter().map(|e| e.volume_id).collect();
        (ids, response.next_token)
    };
    let (first, token) = page("");
    let (second, token) = page(&token);
    let (third, end) = page(&token);
    assert_eq!([first, second, third].concat(), ids[..7]);
    assert!(end.is_empty());
    let request = csi::ControllerListVolumeHealthRequest {
        starting_token: "x".to_owned(),
        ..Default::default()
    };
    let bad = bench.controller.controller_list_volume_health(request);
    assert_code(bad, Code::Aborted);
}

#[test]
fn a_volume_whose_record_can_not_be_read_is_told_too() {
    let bench = Bench::new();
    let (a, b) = (bench.create("a"), bench.create("b"));
    let record = bench.entry(&a).join("volume.json");
    let bench = bench.restart(|_| std::fs::write(record, "{").unwrap());
    assert_eq!(
        of(&bench, &a).unwrap(),
        said(&[(Inaccessible, "RecordUnreadable")])
    );
    assert_eq!(ill(&bench), [a]);
    assert_eq!(bench.volume_ids(), [b]);
}
