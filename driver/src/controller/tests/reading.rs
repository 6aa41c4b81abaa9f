//! RPCs that change nothing: ListVolumes, ControllerGetVolume, ValidateVolumeCapabilities,
//! GetCapacity.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use super::bench::*;
use crate::controller::Result;
use crate::kernel::FsType;

#[test]
fn volumes_are_listed_in_pages() {
    let bench = Bench::new();
    let ids: Vec<String> = (0..5).map(|n| bench.create(&format!("v{n}"))).collect();
    let page = |max_entries, token: &str| {
        let request = csi::ListVolumesRequest {
            max_entries,
            starting_token: token.to_owned(),
        };
        let response = bench.controller.list_volumes(request)?;
        let id = |e: csi::list_volumes_response::Entry| e.volume.unwrap().volume_id;
        let entries: Vec<String> = response.entries.into_iter().map(id).collect();
        Ok((entries, response.next_token))
    };
    let (first, token) = page(2, "").unwrap();
    assert_eq!(first, ids[..2]);
    // The last volume of a page may be deleted before the next page is requested.
    bench.delete(&ids[1]).unwrap();
    let new = bench.create("new");
    let (rest, end) = page(0, &token).unwrap();
    assert_eq!(rest, [&ids[2..], &[new]].concat());
    assert!(end.is_empty());
    assert_code(page(0, "invalid-token"), Code::Aborted);
    assert_field(page(-1, ""), "max_entries");
}

#[test]
fn published_nodes_are_listed_where_there_is_attaching() {
    for attach in [true, false] {
        let bench = Bench::with(|plan| plan.config.attach = attach);
        bench.create("a");
        let request = csi::ListVolumesRequest::default();
        let response = bench.controller.list_volumes(request).unwrap();
        assert_eq!(response.entries[0].status.is_some(), attach);
    }
}

#[test]
fn a_volume_is_found_by_its_id() {
    let bench = Bench::new();
    let made = bench.try_create(Bench::request("a")).unwrap();
    let get = |id: &str| {
        let request = csi::ControllerGetVolumeRequest {
            volume_id: id.to_owned(),
        };
        bench.controller.controller_get_volume(request)
    };
    let response = get(&made.volume_id).unwrap();
    assert_eq!(response.volume, Some(made.clone()));
    assert!(response.status.is_some());
    assert_field(get(""), "volume_id");
    assert_code(get("none"), Code::NotFound);
    assert_code(get(&foreign(&made.volume_id)), Code::FailedPrecondition);
}

#[test]
fn capabilities_are_confirmed_or_not() {
    let bench = Bench::new();
    let id = bench
        .try_create(csi::CreateVolumeRequest {
            parameters: map(&[("pool", "default"), ("csi.storage.k8s.io/pv/name", "x")]),
            mutable_parameters: map(&[("discard", "false")]),
            ..Bench::request("a")
        })
        .unwrap()
        .volume_id;
    type Change = fn(&mut csi::ValidateVolumeCapabilitiesRequest);
    let cases: [(Change, Option<&str>); 14] = [
        (|_| {}, None),
        (|r| r.volume_capabilities = vec![mount("ext4")], None),
        // One node can honor every access mode.
        (
            |r| r.volume_capabilities = vec![mount_with("", Mode::MultiNodeMultiWriter)],
            None,
        ),
        (
            |r| r.volume_capabilities = vec![mount("xfs")],
            Some("made as ext4"),
        ),
        (
            |r| r.volume_capabilities = vec![block()],
            Some("made as ext4"),
        ),
        (
            |r| r.volume_capabilities = vec![mount(""), block()],
            Some("block device"),
        ),
        (
            |r| r.volume_capabilities = vec![mount("ntfs")],
            Some("fs_type"),
        ),
        (
            |r| {
                r.volume_context = map(&[("storage.kubernetes.io/csiProvisionerIdentity", "x")]);
            },
            None,
        ),
        (
            |r| r.volume_context = map(&[("other", "x")]),
            Some("volume_context"),
        ),
        (|r| r.parameters = map(&[("pool", "default")]), None),
        (
            |r| r.parameters = map(&[("pool", "other")]),
            Some("parameters"),
        ),
        (
            |r| r.mutable_parameters = map(&[("discard", "false")]),
            None,
        ),
        (
            |r| r.mutable_parameters = map(&[("discard", "true")]),
            Some("mutable_parameters"),
        ),
        (
            |r| r.mutable_parameters = map(&[("x", "y")]),
            Some("mutable_parameters"),
        ),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let mut request = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: id.clone(),
            volume_capabilities: vec![mount("")],
            ..Default::default()
        };
        change(&mut request);
        let answer = bench
            .controller
            .validate_volume_capabilities(request.clone());
        let answer = answer.unwrap();
        match expected {
            None => {
                let confirmed = answer.confirmed.unwrap();
                assert_eq!(confirmed.volume_capabilities, request.volume_capabilities);
                assert_eq!(confirmed.parameters, request.parameters);
                assert!(answer.message.is_empty());
            }
            Some(word) => {
                assert!(answer.confirmed.is_none(), "case {number}");
                assert!(
                    answer.message.contains(word),
                    "case {number}: {}",
                    answer.message
                );
            }
        }
    }
}

#[test]
fn incomplete_requests_to_validate_are_refused() {
    let bench = Bench::new();
    let id = bench.create("a");
    let validate = |id: &str, volume_capabilities| {
        let request = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: id.to_owned(),
            volume_capabilities,
            ..Default::default()
        };
        bench.controller.validate_volume_capabilities(request)
    };
    assert_field(validate("", vec![mount("")]), "volume_id");
    assert_field(validate(&id, vec![]), "volume_capabilities");
    let no_type = csi::VolumeCapability {
        access_type: None,
        ..mount("")
    };
    assert_field(
        validate(&id, vec![no_type]),
        "volume_capabilities[0].access_type",
    );
    let no_mode = csi::VolumeCapability {
        access_mode: None,
        ..mount("")
    };
    assert_field(
        validate(&id, vec![no_mode]),
        "volume_capabilities[0].access_mode",
    );
    assert_code(validate("none", vec![mount("")]), Code::NotFound);
}

fn capacity(
    bench: &Bench,
    change: impl FnOnce(&mut csi::GetCapacityRequest),
) -> Result<(i64, i64, i64)> {
    let mut request = csi::GetCapacityRequest::default();
    change(&mut request);
    let answer = bench.controller.get_capacity(request)?;
    let size = |s: Option<i64>| s.unwrap();
    Ok((
        answer.available_capacity,
        size(answer.maximum_volume_size),
        size(answer.minimum_volume_size),
    ))
}

#[test]
fn capacity_is_what_can_be_promised() {
    let bench = Bench::with(|plan| {
        plan.capacity_bytes = Some(4 << 30);
        plan.options.max_volume_bytes = Some(1 << 30);
    });
    bench.kernel.set_absent(FsType::Btrfs);
    let of_all = capacity(&bench, |_| {}).unwrap();
    assert_eq!(of_all, (4 << 30, 1 << 30, 4096));
    let of_fs = |fs: &'static str| {
        capacity(&bench, |r| r.volume_capabilities = vec![mount(fs)])
            .unwrap()
            .2
    };
    assert_eq!((of_fs(""), of_fs("xfs")), (MI, 300 * MI));
    // A volume that can't be created here has no capacity here.
    let here_or_not = |change: &dyn Fn(&mut csi::GetCapacityRequest)| {
        let (available, largest, _) = capacity(&bench, change).unwrap();
        assert_eq!(available == 0, largest == 0);
        available > 0
    };
    assert!(here_or_not(&|r| r.accessible_topology = Some(here())));
    assert!(!here_or_not(&|r| r.accessible_topology = Some(elsewhere())));
    assert!(here_or_not(&|r| r.parameters = map(&[("pool", "other")])));
    assert!(here_or_not(
        &|r| r.parameters = map(&[("provisioning", "thick")])
    ));
    assert!(!here_or_not(
        &|r| r.parameters = map(&[("pool", "elsewhere")])
    ));
    assert!(!here_or_not(
        &|r| r.volume_capabilities = vec![mount("btrfs")]
    ));
    // A class says all it has to say by its parameters.
    let fs = |fs: &str| map(&[("csi.storage.k8s.io/fstype", fs)]);
    assert!(here_or_not(&|r| r.parameters = fs("ext4")));
    assert!(here_or_not(&|r| r.parameters = fs("")));
    assert!(!here_or_not(&|r| r.parameters = fs("btrfs")));
    let of_class = capacity(&bench, |r| r.parameters = fs("xfs")).unwrap();
    assert_eq!(of_class.2, 300 * MI);
    // Reserved space is not available.
    let request = csi::CreateVolumeRequest {
        capacity_range: range(1 << 30, 0),
        ..Bench::request("a")
    };
    bench.try_create(request).unwrap();
    assert_eq!(capacity(&bench, |_| {}).unwrap(), (3 << 30, 1 << 30, 4096));
}

#[test]
fn requests_for_capacity_are_judged() {
    let bench = Bench::new();
    let bad = capacity(&bench, |r| r.parameters = map(&[("x", "y")]));
    assert_eq!(field(bad), "parameters[\"x\"]");
    let bad = capacity(&bench, |r| r.volume_capabilities = vec![mount("ntfs")]);
    assert_field(bad, "volume_capabilities[0].mount.fs_type");
    let no_such = map(&[("csi.storage.k8s.io/fstype", "ntfs")]);
    let bad = capacity(&bench, |r| r.parameters = no_such);
    assert_eq!(field(bad), "parameters[\"csi.storage.k8s.io/fstype\"]");
    let full = Bench::with(|plan| plan.options.overcommit = 0.0);
    assert_eq!(capacity(&full, |_| {}).unwrap(), (0, 0, 4096));
}
