//! Facts for tests.

use serde::de::DeserializeOwned;
use serde_json::json;

use super::policies;
use crate::check::facts::{ClockOffset, Fact, Facts, Machine, Right, ServedKinds, Server, Unknown};
use crate::check::line::{Line, Mark};
use crate::manifests::Version;
pub(in crate::check) use crate::test_objects::read as object;
use hostloop_report::machine::{DirectIoReport, FilesystemReport, MachineReport};
use hostloop_report::node_faults::NodeFaults;
use hostloop_report::status::PoolReport;

use crate::test_objects::{objects, of_kind};
use crate::volume_objects::VolumeObjects;

pub(in crate::check) const DRIVER: &str = "hostloop.csi.dev";

pub(in crate::check) fn marks(lines: &[Line]) -> Vec<Mark> {
    lines.iter().map(|line| line.mark).collect()
}

/// Two nodes, `n1` and `n2`, and nothing that is wrong. The time is the beginning of 2026.
pub(in crate::check) fn good() -> Facts {
    let yaml = include_str!("testing/good.yaml").replace("VERSION", env!("CARGO_PKG_VERSION"));
    let all = objects(&yaml);
    let policies = policies::POLICIES.map(|name| {
        object(json!({"metadata": {"name": name, "generation": 1},
            "status": {"observedGeneration": 1}}))
    });
    let bindings = policies::POLICIES.map(|name| {
        object(json!({"metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]}}))
    });
    Facts {
        driver: DRIVER.to_owned(),
        namespace: "hostloop".to_owned(),
        now: "2026-01-01T00:00:00Z".parse().expect("a time"),
        server: Ok(Server {
            version: "v1.36.0".to_owned(),
            number: Version {
                major: 1,
                minor: 36,
            },
            ahead_seconds: Some(0),
        }),
        served: Ok(served()),
        csi_driver: Ok(of_kind(&all, "CSIDriver").pop()),
        classes: Ok(of_kind(&all, "StorageClass")),
        snapshot_classes: Ok(of_kind(&all, "VolumeSnapshotClass")),
        daemon_sets: Ok(of_kind(&all, "DaemonSet")),
        deployments: Ok(of_kind(&all, "Deployment")),
        pods: Ok(vec![node_pod("n1"), node_pod("n2")]),
        nodes: Ok(Vec::new()),
        csi_nodes: Ok(vec![csi_node("n1"), csi_node("n2")]),
        kernels: Ok(None),
        status_periods: Default::default(),
        machines: ["n1", "n2"].map(|node| (node.to_owned(), machine())).into(),
        rights: vec![Right {
            account: "hostloop".to_owned(),
            what: "get nodes".to_owned(),
            allowed: Ok(true),
        }],
        policies: Ok(policies.into()),
        bindings: Ok(bindings.into()),
        enforced: Ok(true),
        lease: Ok(of_kind(&all, "Lease").pop()),
        snapshot_lease: Ok(None),
        objects: Ok(VolumeObjects {
            has_all_volumes: true,
            ..VolumeObjects::default()
        }),
        reports: Vec::new(),
    }
}

/// What a person without any right knows.
pub(super) fn forbidden() -> Facts {
    fn no<T>() -> Fact<T> {
        Err(Unknown::Forbidden("list anything".to_owned()))
    }
    Facts {
        server: no(),
        served: no(),
        csi_driver: no(),
        classes: no(),
        snapshot_classes: no(),
        daemon_sets: no(),
        deployments: no(),
        pods: no(),
        nodes: no(),
        csi_nodes: no(),
        kernels: no(),
        machines: Default::default(),
        rights: Vec::new(),
        policies: no(),
        bindings: no(),
        enforced: no(),
        lease: no(),
        snapshot_lease: no(),
        objects: no(),
        ..good()
    }
}

fn served() -> ServedKinds {
    let mut served = ServedKinds::default();
    for (group, resources) in [
        ("storage.k8s.io", &["volumeattributesclasses"][..]),
        (
            "admissionregistration.k8s.io",
            &["mutatingadmissionpolicies"],
        ),
        (
            "snapshot.storage.k8s.io",
            &[
                "volumesnapshots",
                "volumesnapshotcontents",
                "volumesnapshotclasses",
            ],
        ),
        (
            "groupsnapshot.storage.k8s.io",
            &[
                "volumegroupsnapshots",
                "volumegroupsnapshotcontents",
                "volumegroupsnapshotclasses",
            ],
        ),
    ] {
        resources
            .iter()
            .for_each(|resource| served.add(group, resource, "v1"));
    }
    served
}

/// A ready pod of the DaemonSet.
pub(in crate::check) fn node_pod<T: DeserializeOwned>(node: &str) -> T {
    object(json!({
        "metadata": {
            "name": format!("hostloop-{node}"), "namespace": "hostloop",
            "labels": {"app.kubernetes.io/name": "hostloop"},
            "ownerReferences":
                [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "hostloop", "uid": "u"}],
        },
        "spec": {"nodeName": node, "containers": [{
            "name": "hostloop",
            "image": concat!("hostloop.csi.dev/hostloop:", env!("CARGO_PKG_VERSION")),
            "args": ["run", "--plugin-registration-path=$(KUBELET_DIR)/plugins_registry"],
            "env": [{"name": "KUBELET_DIR", "value": "/var/lib/kubelet"}],
        }]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "hostloop", "state": {"running": {}}}],
        },
    }))
}

fn csi_node<T: DeserializeOwned>(node: &str) -> T {
    object(json!({"metadata": {"name": node},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": node}]}}))
}

/// A machine with one pool, `default` in `/p`.
pub(super) fn machine() -> Machine {
    Machine {
        pools: Ok(vec![PoolReport {
            name: "default".to_owned(),
            kind: "directory".into(),
            path: "/p".into(),
            state: "open".into(),
            why: None,
            fault: None,
            pid: Some(1),
            id: Some("id".to_owned()),
            root: Some("/p".into()),
            fs: Some("xfs".to_owned()),
            reflinks: Some(true),
            size_bytes: Some(100 << 30),
            free_bytes: Some(50 << 30),
            available_bytes: Some(50 << 30),
            promised_bytes: Some(0),
            held_bytes: Some(0),
            volumes: 0,
            snapshots: 0,
            cuts: None,
            deleted_bases: Some(0),
            deleted_base_bytes: Some(0),
        }]),
        report: Ok(MachineReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now_ns: 0,
            missing: Vec::new(),
            filesystems: vec![FilesystemReport {
                name: "ext4".to_owned(),
                missing: None,
            }],
            direct_io: vec![DirectIoReport {
                root: "/p".into(),
                missing: None,
            }],
            leftover_loops: Vec::new(),
        }),
        faults: Ok(NodeFaults::default()),
        clock: Some(ClockOffset {
            seconds: 0,
            error: Default::default(),
        }),
    }
}
