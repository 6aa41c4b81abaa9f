//! The health RPCs, with facts from real files and the fake kernel.

use hostloop_proto::csi;
use hostloop_proto::csi::VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};

use super::bench::*;
use crate::controller::Result;
use crate::kernel::Mounts;

/// The IDs on a page of the list of unhealthy volumes, and the token of the next page.
fn page(bench: &Bench, max_entries: i32, token: &str) -> Result<(Vec<String>, String)> {
    let request = csi::ControllerListVolumeHealthRequest {
        max_entries,
        starting_token: token.to_owned(),
        ..Default::default()
    };
    let response = bench.controller.controller_list_volume_health(request)?;
    let ids = response.entries.into_iter().map(|e| e.volume_id);
    Ok((ids.collect(), response.next_token))
}

fn unhealthy(bench: &Bench) -> Vec<String> {
    page(bench, 0, "").unwrap().0
}

#[test]
fn unhealthy_volumes_are_reported() {
    let bench = Bench::new();
    let table = [
        ("gone", DataLoss, "ImageMissing"),
        ("deleted", DataLoss, "ImageDeleted"),
        ("short", DataLoss, "ImageTruncated"),
        ("lost", Inaccessible, "LoopDeviceLost"),
        ("read-only", Inaccessible, "FilesystemReadOnly"),
        ("errors", Degraded, "FilesystemErrors"),
        ("buffered", Degraded, "DirectIOLost"),
    ];
    let ids = table.map(|(name, ..)| bench.create(name));
    let [gone, deleted, short, lost, read_only, errors, buffered] = &ids;
    let healthy = bench.create("healthy");
    for id in ids[1..].iter().chain([&healthy]) {
        bench.stage(id);
    }
    let image = |id: &str| bench.entry(id).join("image");
    let minor = |id: &str| bench.device(id).minor;
    let kernel = &bench.kernel;
    let mounted = kernel.mounts().unwrap();
    let at = &mounted.of_loop(minor(lost)).next().unwrap().mount_point;
    kernel.unmount(at).unwrap();
    kernel.turn_read_only(minor(read_only));
    kernel.set_fs_errors(minor(errors), Some("3 errors"));
    kernel.set_direct_io(bench.image(buffered), false);
    std::fs::remove_file(image(gone)).unwrap();
    std::fs::remove_file(image(deleted)).unwrap();
    let file = std::fs::File::options().write(true).open(image(short));
    file.unwrap().set_len(4096).unwrap();

    for (id, (name, problem, reason)) in ids.iter().zip(table) {
        let expected = [(problem, reason.to_owned())];
        assert_eq!(bench.health(id).unwrap(), expected, "{name}");
    }
    assert_eq!(unhealthy(&bench), ids);

    // Pages contain only volumes with a problem.
    let (first, token) = page(&bench, 3, "").unwrap();
    let (second, token) = page(&bench, 3, &token).unwrap();
    let (third, end) = page(&bench, 3, &token).unwrap();
    assert_eq!([first, second, third].concat(), ids);
    assert!(end.is_empty());
    assert_answer(page(&bench, 3, "x"), "Aborted");
}

#[test]
fn a_volume_with_an_unreadable_record_is_reported() {
    let bench = Bench::new();
    let (a, b) = (bench.create("a"), bench.create("b"));
    let record = bench.entry(&a).join("volume.json");
    let bench = bench.restart(|_| std::fs::write(record, "{").unwrap());
    let unreadable = [(Inaccessible, "RecordUnreadable".to_owned())];
    assert_eq!(bench.health(&a).unwrap(), unreadable);
    assert_eq!(unhealthy(&bench), [a]);
    assert_eq!(bench.volume_ids(), [b]);
}
