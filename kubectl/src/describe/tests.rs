use hostloop_fake_api::FakeApi;
use hostloop_report::status::{Report, VolumeFault, VolumeUser};
use serde_json::{Value, json};

use super::*;
use crate::claim_objects::tests::cluster_with_claim;
use crate::test_objects::{cluster_of, has, lacks, node_pod, plain};
use crate::volume_objects::inline_volumes;

const PODS: &str = "/api/v1/namespaces/hostloop/pods";

fn target() -> Target {
    Target::Claim("data".to_owned())
}

/// A node pod on `n1`, with calls in its log about an ID, and one on `n2`.
fn with_node_pods(api: &FakeApi, about: &str) {
    api.set(PODS, node_pod("hostloop-a", "n1"));
    api.set(PODS, node_pod("hostloop-b", "n2"));
    let time = "2026-01-02T03:04:05Z";
    let call = |about: &str, code: &str, rest: &str| {
        format!(
            "{time} {time}  INFO hostloop::call: call method=\"NodeStageVolume\" \
             about=\"{about}\" code={code} ms=1.5{rest}\n"
        )
    };
    let log = [
        call(about, "OK", ""),
        call("vol-2", "OK", ""),
        call(about, "Internal", " error=\"no \u{1b} room\""),
    ];
    api.answer(&format!("{PODS}/hostloop-a/log"), 200, log.concat());
    api.hide(&format!("{PODS}/hostloop-a/exec"), 403);
}

/// A snapshot of the claim, with this status.
fn put_snapshot(api: &FakeApi, status: &Value) {
    api.set(
        "/apis/snapshot.storage.k8s.io/v1/namespaces/demo/volumesnapshots/s",
        json!({
            "metadata": {"name": "s", "namespace": "demo", "uid": "uid-s"},
            "spec": {"source": {"persistentVolumeClaimName": "data"}},
            "status": status,
        }),
    );
}

fn on_node() -> Report {
    serde_saphyr::from_str(include_str!("tests/report.yaml")).unwrap()
}

/// Puts a report in place of those of the nodes: the protocol of exec needs a real server.
pub(super) fn put_report(facts: &mut Facts, cluster: &Cluster, report: &Report) {
    for node in &mut facts.nodes {
        node.report = Ok(report.clone());
    }
    facts.report = joined(
        &facts.target,
        &facts.objects,
        &facts.nodes,
        cluster,
        facts.now_ns,
    );
}

fn shown(facts: &Facts) -> String {
    plain(&render::text(facts, None)).join("\n")
}

#[tokio::test]
async fn everything_about_a_claim() {
    let api = cluster_with_claim();
    with_node_pods(&api, "vol-1");
    let cluster = cluster_of(&api);
    let mut facts = gather(&target(), &cluster).await.unwrap();
    assert_eq!(facts.nodes.len(), 1, "the volume's node alone is asked");
    let text = shown(&facts);
    assert!(
        text.contains("node n1: you may not create pods/exec"),
        "{text}"
    );

    put_report(&mut facts, &cluster, &on_node());
    let text = shown(&facts);
    has(
        &text,
        &[
            "Claim demo/data\n  state   published",
            "size    1 GiB, 4 KiB on disk",
            "PersistentVolume       pv         Bound,policy-Delete   uid-pv",
            "VolumeAttachment       a          attached-to-n1        uid-a",
            "Pod                    web        Running-on-n1         uid-web",
            "VolumeSnapshot         s          ready                 uid-s",
            "VolumeSnapshotContent  content-s  snap-1,policy-Delete  uid-content",
            "Record on node n1",
            "image         /p/volumes/vol-1/image",
            "pool          default (directory, open, xfs)",
            "allocation    thick",
            "staged        as mount at /k/stage",
            "/dev/loop3  1GiB   4096  direct  rw    volume  vol-1",
            "/dev/loop3  ext4  rw    vol-1   /k/stage",
            "2026-01-02T03:04:05Z  NodeStageVolume  OK        1.5",
            "2026-01-02T03:04:05Z  NodeStageVolume  Internal  1.5  no \\u{1b} room",
            "History",
            "Reason: m",
        ],
    );
    lacks(&text, &["secret", "vol-2", "loop4", "Not known", "  fault"]);
}

#[tokio::test]
async fn the_nodes_that_use_a_volume() {
    let api = cluster_with_claim();
    with_node_pods(&api, "vol-1");
    let cluster = cluster_of(&api);
    let mut facts = gather(&target(), &cluster).await.unwrap();
    let mut report = on_node();
    report.volumes[0].reach = Some("kernel".into());
    report.volumes[0].users = ["n1", "n2"]
        .map(|node| VolumeUser {
            node: node.to_owned(),
            published: node == "n2",
            pins: true,
        })
        .into();
    facts.nodes[0].report = Ok(report);
    let text = shown(&facts);
    has(
        &text,
        &[
            "reach         kernel",
            "staged        as mount at /k/stage, for all nodes that use it",
            "Used by\n  NODE  ATTACHED  IN-USE  HAS-THE-POOL\n  n1    no        yes     yes\n  n2    yes       \
             yes     no",
        ],
    );
}

#[tokio::test]
async fn the_fault_of_a_volume() {
    let api = cluster_with_claim();
    with_node_pods(&api, "vol-1");
    let cluster = cluster_of(&api);
    for (state, expected) in [
        ("active", "fault         gone,for=600s, for "),
        ("waiting", "gone,for=600s, once a pod uses the volume"),
        ("stopped", "delete the pods that use the volume"),
        ("over", "fault         gone,for=600s, over"),
    ] {
        let mut facts = gather(&target(), &cluster).await.unwrap();
        let mut report = on_node();
        report.volumes[0].fault = Some(VolumeFault {
            name: "gone".to_owned(),
            fault: "gone,for=600s".to_owned(),
            since_ns: 1,
            state: state.into(),
        });
        put_report(&mut facts, &cluster, &report);
        let text = shown(&facts);
        has(&text, &[expected]);
        let is_marked = text.contains("  state   published, fault gone\n");
        assert_eq!(is_marked, state != "over", "{text}");
    }
}

#[tokio::test]
async fn claims_that_cant_be_described() {
    let path = "/api/v1/namespaces/demo/persistentvolumeclaims/data";
    let missing = FakeApi::default();
    let refused = FakeApi::default();
    refused.hide(path, 403);
    let theirs = cluster_with_claim();
    theirs.set(
        "/api/v1/persistentvolumes/pv",
        json!({
            "metadata": {"name": "pv"},
            "spec": {"csi": {"driver": "theirs", "volumeHandle": "h"}},
        }),
    );
    let broken = FakeApi::default();
    broken.answer(
        path,
        500,
        json!({"status": "Failure", "message": "no etcd", "code": 500}),
    );
    for (api, error) in [
        (
            missing,
            "claim data does not exist in namespace demo; `kubectl hostloop status -A` shows those \
             of all namespaces, and other kinds are named as snapshot/NAME, group/NAME or pod/NAME",
        ),
        (
            refused,
            "claim data in namespace demo: you may not get persistentvolumeclaims in namespace \
             demo; ask for this right, or choose another --context",
        ),
        (
            theirs,
            "claim data is not of driver hostloop.csi.dev; set --driver-name if hostloop has \
             another name",
        ),
        (
            broken,
            "get persistentvolumeclaims demo/data: no etcd (HTTP 500)",
        ),
    ] {
        let failed = gather(&target(), &cluster_of(&api)).await.err().unwrap();
        assert_eq!(failed.to_string(), error);
    }
}

#[tokio::test]
async fn everything_about_a_snapshot() {
    let api = cluster_with_claim();
    with_node_pods(&api, "vol-1");
    let status = json!({"boundVolumeSnapshotContentName": "content-s", "restoreSize": "1Gi",
        "creationTime": "2026-01-02T03:04:05Z"});
    put_snapshot(&api, &status);
    let facts = gather(&Target::Snapshot("s".to_owned()), &cluster_of(&api))
        .await
        .unwrap();
    let text = shown(&facts);
    has(
        &text,
        &[
            "Snapshot demo/s\n  ready  yes",
            "of     data",
            "size   1 GiB",
            "ID     snap-1",
            "VolumeSnapshot         s          ready                 uid-s",
            "VolumeSnapshotContent  content-s  snap-1,policy-Delete  uid-content",
            "2026-01-02T03:04:05Z  snapshot/s  the point in time that it shows",
        ],
    );
    assert!(
        !text.contains("uid-claim") && !text.contains("Last calls"),
        "{text}"
    );
}

/// A cluster with a pod that has a claim and two inline volumes, and its node pod.
fn cluster_with_inline_volumes() -> (FakeApi, Vec<String>) {
    let api = cluster_with_claim();
    let inline = |name: &str| json!({"name": name, "csi": {"driver": "hostloop.csi.dev"}});
    let path = "/api/v1/namespaces/demo/pods/job";
    let pod = json!({
        "metadata": {"uid": "uid-job"},
        "spec": {"nodeName": "n1", "containers": [], "volumes": [
            {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
            inline("scratch"), inline("cache"),
        ]},
        "status": {"phase": "Running"},
    });
    let handles = inline_volumes(
        &serde_json::from_value(pod.clone()).unwrap(),
        "hostloop.csi.dev",
    );
    api.set(path, pod);
    let handles: Vec<String> = handles.into_iter().map(|(_, handle)| handle).collect();
    with_node_pods(&api, &handles[0]);
    (api, handles)
}

#[tokio::test]
async fn everything_about_inline_volumes() {
    let (api, handles) = cluster_with_inline_volumes();
    let cluster = cluster_of(&api);
    let both = Target::Inline("job".to_owned(), None);
    let one = Target::Inline("job".to_owned(), Some("scratch".to_owned()));
    for (target, has_cache) in [(both, true), (one, false)] {
        let mut facts = gather(&target, &cluster).await.unwrap();
        assert_eq!(facts.nodes.len(), 1, "the pod's node alone is asked");
        let mut report = on_node();
        report.volumes[0].inline = Some(handles[0].clone());
        put_report(&mut facts, &cluster, &report);
        let text = shown(&facts);
        has(
            &text,
            &[
                "Inline volume scratch of pod demo/job\n  state  published\n  node   n1",
                "Pod   job   Running-on-n1  uid-job",
                "image         /p/volumes/vol-1/image",
                "/dev/loop3  ext4  rw    vol-1   /k/stage",
                "NodeStageVolume  Internal",
            ],
        );
        assert_eq!(text.contains("Inline volume cache"), has_cache, "{text}");
        lacks(&text, &["Claim", "vol-2", "Not known"]);
    }
}

#[tokio::test]
async fn pods_without_such_an_inline_volume() {
    let (api, _) = cluster_with_inline_volumes();
    for (pod, volume, error) in [
        (
            "web",
            None,
            "pod web has no inline volume of driver hostloop.csi.dev; describe its claims by their \
             own names",
        ),
        (
            "job",
            Some("d"),
            "pod job has no inline volume d of driver hostloop.csi.dev; describe its claims by \
             their own names",
        ),
        (
            "gone",
            None,
            "pod gone does not exist in namespace demo; `kubectl hostloop status -A` shows those \
             of all namespaces",
        ),
    ] {
        let target = Target::Inline(pod.to_owned(), volume.map(str::to_owned));
        let failed = gather(&target, &cluster_of(&api)).await.err().unwrap();
        assert_eq!(failed.to_string(), error);
    }
}

#[tokio::test]
async fn everything_about_a_group() {
    let api = cluster_with_claim();
    with_node_pods(&api, "vol-1");
    api.put(json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
        "metadata": {"name": "g", "namespace": "demo", "uid": "uid-g"},
        "spec": {"source": {}}, "status": {"readyToUse": true},
    }));
    let status =
        json!({"boundVolumeSnapshotContentName": "content-s", "volumeGroupSnapshotName": "g"});
    put_snapshot(&api, &status);
    let target = Target::Group("g".to_owned());
    let facts = gather(&target, &cluster_of(&api)).await.unwrap();
    let text = shown(&facts);
    has(
        &text,
        &[
            "Group demo/g\n  ready      yes\n  snapshots  1\n\nSnapshot demo/s",
            "group  g",
            "VolumeGroupSnapshot",
            "uid-g",
        ],
    );
    lacks(&text, &["uid-claim", "Snapshot demo/other"]);
}

#[test]
fn the_newest_calls() {
    let line = |n: usize| {
        format!(
            "2026-01-02T03:04:05Z  INFO hostloop::call: call method=\"M{n}\" about=\"a\" code=OK ms=1"
        )
    };
    let lines: Vec<String> = (0..50).map(line).collect();
    let other = "2026-01-02T03:04:05Z  INFO h: other".to_owned();
    let calls = newest(lines.iter().chain([&other]).map(String::as_str));
    let methods: Vec<_> = calls.iter().map(|call| call.method.as_str()).collect();
    assert_eq!(methods.len(), CALLS);
    assert_eq!((methods[0], methods[CALLS - 1]), ("M30", "M49"));
}
