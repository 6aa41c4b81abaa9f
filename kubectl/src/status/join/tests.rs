use std::time::Duration;

use hostloop_api_objects::labels::NODE_LABEL;
use serde_json::{Value, json};

use super::*;
use crate::node_pods::NodeError;
use crate::status::report::{SnapshotRow, VolumeRow};
use crate::test_objects::{self, has, read};

const DRIVER: &str = "hostloop.csi.dev";

fn on_node(id: &str, inline: Option<&str>) -> Value {
    json!({
        "id": id, "name": "n", "inline": inline, "pool": "default", "size_bytes": 2_u64 << 30,
        "allocated_bytes": 4096, "provisioning": "thin", "format": "xfs", "source": null,
        "published_nodes": [], "staged_at": "/k/stage", "staged_as": "mount",
        "loops": ["/dev/loop3"], "direct_io": true, "frozen_since_ns": null,
        "mounts": ["/k/stage"], "created_ns": 1,
    })
}

fn snapshot_on_node(id: &str) -> Value {
    json!({
        "id": id, "name": "n", "pool": "default", "source": "vol-a", "source_exists": true,
        "size_bytes": 2_u64 << 30, "allocated_bytes": 8192, "group": null, "created_ns": 5,
    })
}

fn node(name: &str, pool: Value, volumes: &[Value], snapshots: &[Value]) -> NodeReport {
    let report = json!({
        "pools": [pool], "volumes": volumes, "snapshots": snapshots, "groups": [], "loops": [],
        "mounts": [], "orphans": [],
    });
    let (node, pod) = (name.to_owned(), format!("hostloop-{name}"));
    NodeReport {
        node,
        pod,
        report: Ok(read(report)),
        took: Duration::ZERO,
    }
}

fn pool(state: &str, why: Option<&str>) -> Value {
    json!({
        "name": "default", "kind": "directory", "path": "/p", "state": state, "why": why,
        "pid": null, "id": null, "root": null, "fs": "xfs", "reflinks": true, "size_bytes": 10,
        "free_bytes": 5, "promised_bytes": 3, "volumes": 1, "snapshots": 1,
    })
}

fn silent(name: &str) -> NodeReport {
    let late = NodeError::Late {
        pod: "hostloop-x".to_owned(),
        deadline: Duration::from_secs(20),
    };
    let (node, pod) = (name.to_owned(), "hostloop-x".to_owned());
    NodeReport {
        node,
        pod,
        report: Err(late),
        took: Duration::ZERO,
    }
}

fn objects() -> VolumeObjects {
    test_objects::cluster(&test_objects::objects(include_str!("tests/objects.yaml")))
}

fn nodes() -> Vec<NodeReport> {
    let handle = inline_handle();
    vec![
        node(
            "n1",
            pool("open", None),
            &[
                on_node("vol-a", None),
                on_node("vol-i", Some(&handle)),
                on_node("vol-x", None),
            ],
            &[snapshot_on_node("snap-a"), snapshot_on_node("snap-x")],
        ),
        silent("n2"),
    ]
}

/// Kubelet's handle for the volume `scratch` of the pod.
fn inline_handle() -> String {
    let pod = &objects().pods[0];
    crate::volume_objects::inline_volumes(pod, DRIVER)[0]
        .1
        .clone()
}

fn joined(objects: &VolumeObjects, nodes: &[NodeReport], namespace: Option<&str>) -> ClusterReport {
    join(&ClusterFacts {
        objects,
        nodes,
        driver: DRIVER,
        namespace,
        failed_calls: &FailedCalls::default(),
        now_ns: 0,
    })
}

fn word(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or("-")
}

/// A row in a few words.
fn volume_line(row: &VolumeRow) -> String {
    let inline = row.inline.as_ref().map(|_| " inline").unwrap_or_default();
    let stuck = row
        .stuck
        .as_ref()
        .map(|stuck| format!(" STUCK {}", stuck.why));
    format!(
        "{}/{}{inline} {} {} {} [{}] {}{}",
        word(&row.namespace),
        word(&row.claim),
        word(&row.node),
        word(&row.handle),
        row.size_bytes.unwrap_or(0) >> 30,
        row.pods.join(","),
        row.state.as_str(),
        stuck.unwrap_or_default(),
    )
}

#[track_caller]
fn expect_volumes(rows: &[VolumeRow], expected: &[&str]) {
    assert_eq!(rows.iter().map(volume_line).collect::<Vec<_>>(), expected);
}

#[test]
fn volumes_of_a_namespace() {
    let report = joined(&objects(), &nodes(), Some("demo"));
    expect_volumes(
        &report.volumes,
        &[
            "demo/logs n1 vol-b 1 [] Bound STUCK node n1 does not have volume vol-b",
            "demo/data n1 vol-a 2 [web] staged",
            "demo/new - - 1 [] Pending",
            "demo/- inline n1 vol-i 2 [web] published",
        ],
    );
    let data = &report.volumes[1];
    assert_eq!(
        (
            data.used_bytes,
            data.filesystem.as_deref(),
            &data.loops,
            data.pool.as_deref()
        ),
        (
            Some(4096),
            Some("xfs"),
            &vec!["/dev/loop3".to_owned()],
            Some("default")
        )
    );
}

#[test]
fn inline_volumes_of_ended_pods_are_shown_while_the_node_has_them() {
    let mut objects = objects();
    objects.pods[0].status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
    let inline = |nodes: &[NodeReport]| {
        let report = joined(&objects, nodes, Some("demo"));
        report
            .volumes
            .iter()
            .filter_map(VolumeRow::inline_name)
            .collect::<Vec<_>>()
    };
    assert_eq!(inline(&nodes()), ["pod/web/scratch"]);
    assert_eq!(inline(&[]), [""; 0]);
}

#[test]
fn volumes_of_the_whole_cluster() {
    let report = joined(&objects(), &nodes(), None);
    expect_volumes(
        &report.volumes[2..],
        &[
            "demo/new - - 1 [] Pending",
            "other/c n2 vol-c 1 [] Bound",
            "-/- n1 vol-x 2 [] unclaimed",
            "demo/- inline n1 vol-i 2 [web] published",
        ],
    );
}

#[test]
fn without_reports_the_objects_remain() {
    let report = joined(&objects(), &[silent("n1"), silent("n2")], Some("demo"));
    expect_volumes(
        &report.volumes,
        &[
            "demo/data n1 vol-a 1 [web] published",
            "demo/logs n1 vol-b 1 [] Bound",
            "demo/new - - 1 [] Pending",
            "demo/- inline n1 - 0 [web] published",
        ],
    );
    assert!(report.pools.is_empty());
    assert_eq!(
        report.nodes[0].problem.as_deref(),
        Some("no answer from pod hostloop-x within 20 s")
    );
}

#[test]
fn without_claims_their_volumes_remain() {
    let objects = VolumeObjects {
        claims: Vec::new(),
        ..objects()
    };
    let report = joined(&objects, &nodes(), Some("demo"));
    expect_volumes(
        &report.volumes,
        &[
            "demo/data n1 vol-a 2 [] staged",
            "demo/logs n1 vol-b 1 [] Bound",
            "demo/- inline n1 vol-i 2 [web] published",
        ],
    );
}

#[test]
fn a_missing_pool_explains_its_volumes() {
    let lost = node("n1", pool("missing", Some("not mounted")), &[], &[]);
    let report = joined(&objects(), &[lost], Some("demo"));
    let stuck = report.volumes[0].stuck.as_ref().unwrap();
    assert_eq!(
        stuck.why,
        "node n1 does not have it: pool default is missing: not mounted"
    );
    let yaml = serde_saphyr::to_string(&report.pools).unwrap();
    has(
        &yaml,
        &["node: n1\n", "name: default\n", "why: not mounted\n"],
    );
}

#[test]
fn calls_that_fail_explain_what_no_object_does() {
    let mut failed_calls = FailedCalls::default();
    for id in ["vol-a", "vol-x", "vol-unreported"] {
        failed_calls.take(&json!({
            "kind": "call", "name": "NodeStageVolume", "code": "INTERNAL", "t": 1,
            "request": {"volume_id": id},
        }));
    }
    let report = join(&ClusterFacts {
        objects: &objects(),
        nodes: &nodes(),
        driver: DRIVER,
        namespace: None,
        failed_calls: &failed_calls,
        now_ns: 0,
    });
    let stuck: Vec<String> = report
        .volumes
        .iter()
        .filter(|row| row.claim.as_deref() != Some("logs"))
        .filter(|row| row.stuck.is_some())
        .map(volume_line)
        .collect();
    assert_eq!(
        stuck,
        [
            "-/- - vol-unreported 0 [] unclaimed STUCK NodeStageVolume failed with INTERNAL",
            "-/- n1 vol-x 2 [] unclaimed STUCK NodeStageVolume failed with INTERNAL",
        ]
    );
}

fn snapshot_line(row: &SnapshotRow) -> String {
    format!(
        "{} of {} {} {} {} {:?}",
        word(&row.name),
        word(&row.source),
        word(&row.node),
        word(&row.handle),
        row.size_bytes.unwrap_or(0) >> 30,
        row.ready,
    )
}

#[test]
fn snapshots() {
    for (namespace, expected) in [
        (
            Some("demo"),
            vec![
                "asked of logs - - 0 None",
                "s of data n1 snap-a 2 Some(true)",
            ],
        ),
        (
            None,
            vec![
                "asked of logs - - 0 None",
                "s of data n1 snap-a 2 Some(true)",
                "- of vol-a n9 snap-left 1 Some(true)",
                "- of vol-a n1 snap-x 2 None",
            ],
        ),
    ] {
        let report = joined(&objects(), &nodes(), namespace);
        let lines: Vec<String> = report.snapshots.iter().map(snapshot_line).collect();
        assert_eq!(lines, expected, "{namespace:?}");
    }
}

#[test]
fn a_power_cut_is_one_by_what_its_node_reports() {
    let mut cut = snapshot_on_node("snap-cut");
    cut["consistency"] = json!("powercut");
    let mut frozen = snapshot_on_node("snap-frozen");
    frozen["consistency"] = json!("frozen");
    let earlier = snapshot_on_node("snap-earlier");
    let nodes = [node("n1", pool("open", None), &[], &[cut, frozen, earlier])];
    let report = joined(&objects(), &nodes, None);
    let mut cuts = report.snapshots.iter().filter(|row| row.is_powercut());
    assert_eq!(cuts.next().map(|row| word(&row.handle)), Some("snap-cut"));
    assert!(cuts.next().is_none());
}

/// A cut that has become a snapshot is one, whatever its node says of it.
#[test]
fn cuts_of_explorations_are_no_snapshots() {
    let cut = |id: &str| {
        let mut cut = snapshot_on_node(id);
        cut["cut"] = json!({"exploration": "exploration-1", "number": 7, "expires_ns": 9});
        cut
    };
    let nodes = [node(
        "n1",
        pool("open", None),
        &[],
        &[cut("snap-a"), cut("snap-cut")],
    )];
    let report = joined(&objects(), &nodes, None);
    let handles: Vec<&str> = report
        .snapshots
        .iter()
        .map(|row| word(&row.handle))
        .collect();
    assert!(handles.contains(&"snap-a"), "{handles:?}");
    assert!(!handles.contains(&"snap-cut"), "{handles:?}");
}

#[test]
fn the_node_of_a_volume() {
    let of = |expression: Value, labels: Value| {
        let volume = read(json!({
            "metadata": {"name": "pv", "labels": labels},
            "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [expression]},
            ]}}},
        }));
        volumes::node_of(&volume)
    };
    let label = || json!({NODE_LABEL: "by-label"});
    for (key, operator, values, node) in [
        ("topology.hostloop.csi.dev/node", "In", vec!["n1"], "n1"),
        ("kubernetes.io/hostname", "In", vec!["n2"], "n2"),
        ("t/node", "In", vec!["n1", "n2"], "by-label"),
        ("t/node", "NotIn", vec!["n1"], "by-label"),
        ("topology.kubernetes.io/zone", "In", vec!["z"], "by-label"),
    ] {
        let expression = json!({"key": key, "operator": operator, "values": values});
        assert_eq!(
            of(expression, label()).as_deref(),
            Some(node),
            "{key} {operator} {values:?}"
        );
    }
}

/// The affinity of a shared volume names all nodes that can use it.
#[test]
fn the_node_of_a_volume_is_the_one_with_its_pool() {
    for (reach, label, expected) in [
        (json!(null), json!(null), Some("n2")),
        (json!(null), json!("n1"), Some("n2")),
        (json!({"reach": "kernel"}), json!("n1"), Some("n1")),
        (json!({"reach": "kernel"}), json!(null), Some("n2")),
    ] {
        let term = |node: &str| {
            json!({"matchExpressions": [
                {"key": "topology.hostloop.csi.dev/node", "operator": "In", "values": [node]}]})
        };
        let labels = match &label {
            Value::Null => json!({}),
            node => json!({NODE_LABEL: node}),
        };
        let volume = json!({"metadata": {"name": "v", "labels": labels}, "spec": {
            "csi": {"driver": DRIVER, "volumeHandle": "h", "volumeAttributes": reach},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term("n2"), term("n1")]}}}});
        assert_eq!(
            node_of(&read(volume)).as_deref(),
            expected,
            "{reach} {label}"
        );
    }
}
