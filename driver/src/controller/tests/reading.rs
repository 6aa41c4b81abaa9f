//! RPCs that change nothing: ListVolumes, ValidateVolumeCapabilities, GetCapacity.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;

use super::bench::*;
use crate::kernel::FsType;

#[test]
fn published_nodes_are_listed_if_attaching_is_on() {
    for attach in [true, false] {
        let bench = Bench::with(|plan| plan.config.attach = attach);
        bench.create("a");
        let request = csi::ListVolumesRequest::default();
        let response = bench.controller.list_volumes(request).unwrap();
        assert_eq!(response.entries[0].status.is_some(), attach);
    }
}

type Validate = csi::ValidateVolumeCapabilitiesRequest;

#[test]
fn capabilities_are_confirmed_or_the_message_says_why_not() {
    let bench = Bench::new();
    let parameters = "pool=default csi.storage.k8s.io/pv/name=x";
    let mut request = create_request_with("a", parameters);
    request.mutable_parameters = pairs("discard=false");
    let id = bench.created(request);
    fn caps<const N: usize>(r: &mut Validate, capabilities: [csi::VolumeCapability; N]) {
        r.volume_capabilities = capabilities.to_vec();
    }
    // With an empty message, the request is confirmed.
    type Change = fn(&mut Validate);
    let cases: [(Change, &str); 14] = [
        (|_| {}, ""),
        (|r| caps(r, [mount("ext4")]), ""),
        // One node can honor every access mode.
        (|r| caps(r, [mount_as("", Mode::MultiNodeMultiWriter)]), ""),
        (|r| caps(r, [mount("xfs")]), "made as ext4"),
        (|r| caps(r, [block()]), "made as ext4"),
        (|r| caps(r, [mount(""), block()]), "block device"),
        (|r| caps(r, [mount("ntfs")]), "fs_type"),
        (
            |r| r.volume_context = pairs("storage.kubernetes.io/csiProvisionerIdentity=x"),
            "",
        ),
        (|r| r.volume_context = pairs("other=x"), "volume_context"),
        (|r| r.parameters = pairs("pool=default"), ""),
        (|r| r.parameters = pairs("pool=other"), "parameters"),
        (|r| r.mutable_parameters = pairs("discard=false"), ""),
        (
            |r| r.mutable_parameters = pairs("discard=true"),
            "mutable_parameters",
        ),
        (
            |r| r.mutable_parameters = pairs("x=y"),
            "mutable_parameters",
        ),
    ];
    for (change, expected) in cases {
        let mut request = Validate {
            volume_id: id.clone(),
            volume_capabilities: vec![mount("")],
            ..Default::default()
        };
        change(&mut request);
        let answer = bench
            .controller
            .validate_volume_capabilities(request.clone());
        let answer = answer.unwrap();
        assert!(answer.message.contains(expected), "{request:?}: {answer:?}");
        assert_eq!(
            answer.message.is_empty(),
            expected.is_empty(),
            "{request:?}"
        );
        let confirmed = answer.confirmed;
        let confirmed = confirmed.map(|c| (c.volume_capabilities, c.parameters));
        let all = (request.volume_capabilities, request.parameters);
        assert_eq!(confirmed, expected.is_empty().then_some(all), "{expected}");
    }
}

#[test]
fn capacity_is_the_space_that_can_be_promised() {
    let bench = Bench::with(|plan| {
        plan.capacity_bytes = Some(4 << 30);
        plan.options.max_volume_bytes = Some(1 << 30);
    });
    bench.kernel.set_absent(FsType::Btrfs);
    // A volume that can't be created here has no capacity here.
    let (raw, none) = ((4 * GI, GI, 4096), (0, 0, 4096));
    let (ext4, xfs) = ((4 * GI, GI, MI), (4 * GI, GI, 300 * MI));
    let btrfs = (0, 0, 110 * MI);
    type Change = fn(&mut csi::GetCapacityRequest);
    let cases: [(Change, (i64, i64, i64)); 12] = [
        (|_| {}, raw),
        (|r| r.volume_capabilities = vec![mount("")], ext4),
        (|r| r.volume_capabilities = vec![mount("xfs")], xfs),
        (|r| r.volume_capabilities = vec![mount("btrfs")], btrfs),
        (|r| r.accessible_topology = Some(place("t/node=n1")), raw),
        (|r| r.accessible_topology = Some(place("t/node=n2")), none),
        (|r| r.parameters = pairs("pool=other"), raw),
        (|r| r.parameters = pairs("pool=elsewhere"), none),
        // A class names its filesystem in the parameters.
        (|r| r.parameters = fs("ext4"), ext4),
        (|r| r.parameters = fs(""), raw),
        (|r| r.parameters = fs("xfs"), xfs),
        (|r| r.parameters = fs("btrfs"), btrfs),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        assert_eq!(bench.capacity(change).unwrap(), expected, "case {number}");
    }
    let field = r#"parameters["csi.storage.k8s.io/fstype"]"#;
    assert_answer(bench.capacity(|r| r.parameters = fs("ntfs")), field);
    let thick = bench.capacity(|r| r.parameters = pairs("provisioning=thick"));
    let (available, largest, _) = thick.unwrap();
    assert!(available > 0 && largest > 0);
    // Reserved space is not available.
    let request = csi::CreateVolumeRequest {
        capacity_range: range(GI, 0),
        ..create_request("a")
    };
    bench.created(request);
    assert_eq!(bench.capacity(|_| {}).unwrap(), (3 * GI, GI, 4096));
    let full = Bench::with(|plan| plan.options.overcommit = 0.0);
    assert_eq!(full.capacity(|_| {}).unwrap(), none);
    // Space below the minimum size of a volume counts as none.
    let least = 300 * MI;
    for (space, expected) in [
        (least, (least, least, least)),
        (least - 4096, (0, 0, least)),
    ] {
        let bench = Bench::with(|plan| plan.capacity_bytes = Some(space as u64));
        let got = bench.capacity(|r| r.volume_capabilities = vec![mount("xfs")]);
        assert_eq!(got.unwrap(), expected);
    }
}

/// The parameters of a class that names this filesystem.
fn fs(name: &str) -> std::collections::BTreeMap<String, String> {
    pairs(&format!("csi.storage.k8s.io/fstype={name}"))
}
