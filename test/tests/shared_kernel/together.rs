//! Several nodes use a volume at once.

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{check, wait_for};
use hostloop_test::machine::text;
use serde_json::json;

use crate::site::{NAMESPACE, Site};

/// A pod on each node.
const PODS: [(&str, u32); 3] = [("a", 1), ("b", 2), ("c", 3)];

/// How often each node adds one, under a lock.
const ADDS: u32 = 50;

/// A pod on each node has the same filesystem and the same device.
fn start(site: &Site) {
    site.claim("files", "xfs", "ReadWriteMany", json!({}));
    let block = json!({"volumeMode": "Block"});
    site.claim("disk", "ext4", "ReadWriteMany", block);
    for (pod, node) in PODS {
        site.run(pod, node, &["files"], &["disk"]);
    }
}

fn stop(site: &Site) {
    for (pod, _) in PODS {
        site.stop(pod);
    }
    site.delete_claims(&["files", "disk"]);
}

/// What one node writes, the others read: files, locks and blocks. The client shows all nodes.
pub(crate) async fn three_nodes_use_one_volume(site: &Site) {
    start(site);
    for (writer, _) in PODS {
        site.sh(writer, &format!("echo {writer} > /files/from-{writer}"));
        for (reader, _) in PODS {
            assert_eq!(
                site.sh(reader, &format!("cat /files/from-{writer}")),
                format!("{writer}\n")
            );
        }
    }
    locks_hold_on_all_nodes(site);
    for (writer, _) in PODS {
        site.sh(
            writer,
            "dd if=/dev/urandom of=/dev/disk bs=4096 count=64 conv=fsync",
        );
        let sum = |pod: &str| site.sh(pod, "dd if=/dev/disk bs=4096 count=64 | sha256sum");
        let written = sum(writer);
        for (reader, _) in PODS {
            assert_eq!(sum(reader), written, "{writer} wrote, {reader} read");
        }
    }

    let nodes = PODS.map(|(_, node)| site.cluster.node(node));
    let users = nodes.join(",");
    let plugin = site.plugin();
    plugin.succeeds(&["status", "-n", NAMESPACE], &["USED-BY", &users]);
    plugin.succeeds(
        &["describe", "files", "-n", NAMESPACE],
        &["Used by", "HAS-THE-POOL", "for all nodes that use it"],
    );
    plugin.succeeds(&["check"], &["Nodes share kernel kernel"]);
    let events = site.cluster.kubectl(&[
        "get",
        "events",
        "-n",
        NAMESPACE,
        "--field-selector=reason=AllPodsOnOneNode",
        "-o",
        "name",
    ]);
    assert_eq!(events, "");
    stop(site);
}

/// The tests' pods have no program for locks, so the nodes take them where kubelet has the filesystem.
fn locks_hold_on_all_nodes(site: &Site) {
    site.sh("a", "echo 0 > /files/sum");
    let add = "n=$(cat $0/sum) && echo $((n + 1)) >$0/sum";
    std::thread::scope(|scope| {
        for (pod, node) in PODS {
            scope.spawn(move || {
                let (node, path) = (site.cluster.on(node), site.path(pod, "files"));
                let lock = path.join("lock");
                let command = ["flock", text(&lock), "sh", "-c", add, text(&path)];
                for _ in 0..ADDS {
                    let added = node.try_run(&command);
                    assert!(added.is_ok(), "{added:?}");
                }
            });
        }
    });
    let sum = ADDS * u32::try_from(PODS.len()).expect("there are three");
    assert_eq!(site.sh("b", "cat /files/sum"), format!("{sum}\n"));
}

/// The owner makes copies beside their source, and each node can use them.
pub(crate) async fn copies_are_used_on_any_node(site: &Site) {
    start(site);
    site.sh("b", "echo before > /files/state && sync");
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": "files", "namespace": NAMESPACE},
        "spec": {
            "volumeSnapshotClassName": "hostloop",
            "source": {"persistentVolumeClaimName": "files"},
        },
    });
    site.cluster.apply(&snapshot.to_string());
    wait_for("the snapshot", PATIENCE, async || {
        let ready = site.field("volumesnapshot/files", "{.status.readyToUse}");
        check(ready == "true", || ready)
    })
    .await;
    site.sh("c", "echo after > /files/state && sync");
    let from = |kind: &str, group: Option<&str>| json!({"dataSource": {"kind": kind, "name": "files", "apiGroup": group}});
    let of_snapshot = from("VolumeSnapshot", Some("snapshot.storage.k8s.io"));
    site.claim("restored", "xfs", "ReadWriteMany", of_snapshot);
    let of_claim = from("PersistentVolumeClaim", None);
    site.claim("cloned", "xfs", "ReadWriteOnce", of_claim);
    for (claim, node, state) in [
        ("restored", 3, "before\n"),
        ("restored", 2, "before\n"),
        ("cloned", 2, "after\n"),
        ("cloned", 3, "after\n"),
    ] {
        site.run("copy", node, &[claim], &[]);
        let line = format!("cat /{claim}/state");
        assert_eq!(site.sh("copy", &line), state, "{claim} on node {node}");
        site.stop("copy");
    }
    let delete = ["delete", "-n", NAMESPACE, "volumesnapshot/files"];
    site.cluster.kubectl(&delete);
    site.delete_claims(&["restored", "cloned"]);
    stop(site);
}

/// A fault would be one of all nodes, so none begins, and an event at the claim says why.
pub(crate) async fn faults_are_refused_by_name(site: &Site) {
    let plugin = site.plugin();
    plugin.succeeds(
        &["install", "--shared", "--faults"],
        &["hostloop is installed"],
    );
    start(site);
    let set = ["fault", "set", "files", "gone", "-n", NAMESPACE];
    plugin.fails(&set, &["refused"]);
    let refused = ["get", "events", "-n", NAMESPACE, "-o"];
    let message = "jsonpath={.items[?(@.reason==\"FaultRefused\")].message}";
    let said = site.cluster.kubectl(&[&refused[..], &[message]].concat());
    assert!(said.contains("reach=kernel"), "{said}");
    site.sh("c", "echo on > /files/state && sync");
    assert_eq!(site.sh("a", "cat /files/state"), "on\n");
    stop(site);
}

/// One growth is enough for all nodes.
pub(crate) async fn growth_shows_on_all_nodes(site: &Site) {
    start(site);
    let mib = |pod: &str| -> u64 {
        let df = site.sh(pod, "df -Pm /files");
        let size = df
            .lines()
            .nth(1)
            .and_then(|line| line.split_whitespace().nth(1));
        size.and_then(|size| size.parse().ok())
            .unwrap_or_else(|| panic!("{df}"))
    };
    let before = mib("a");
    let size = r#"{"spec": {"resources": {"requests": {"storage": "1Gi"}}}}"#;
    for claim in ["files", "disk"] {
        site.cluster
            .kubectl(&["patch", "pvc", "-n", NAMESPACE, claim, "--patch", size]);
    }
    wait_for("the new size on all nodes", PATIENCE, async || {
        let sizes = PODS.map(|(pod, _)| mib(pod));
        let has_grown = sizes.iter().all(|size| *size >= before + 400);
        check(has_grown, || format!("{sizes:?}, and {before} before"))
    })
    .await;
    for (pod, _) in PODS {
        let bytes = "blockdev --getsize64 /dev/disk";
        let grown = format!("{}\n", 1_u64 << 30);
        site.until("the new size of the device", pod, bytes, &grown)
            .await;
    }
    stop(site);
}
