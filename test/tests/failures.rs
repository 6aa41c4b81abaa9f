//! Faults on request, on a cluster: each fault of claims on each filesystem as docs/faults.md has it,
//! what else happens to a volume meanwhile, and the faults of a node's pools.

use std::time::Duration;

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{Cluster, Options, Stock, check, wait_for};
use hostloop_test::machine::{self, text};
use hostloop_test::plugin::Plugin;
use hostloop_test::scratch::Scratch;
use hostloop_test::{deployed, fault_table, walk};

/// The conditions of the node's storage, as its events say them.
const STORAGE: [&str; 5] = [
    "get",
    "events",
    "--all-namespaces",
    "--field-selector=involvedObject.kind=Node,reason=StorageConditionAbnormal",
    "--output=jsonpath={.items[*].message}",
];

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_is_as_the_table_says() {
    machine::require();
    let scratch = Scratch::new();
    let cluster = Cluster::up(&Options::one_node().apart("failures"));
    let stock = Stock::take(&cluster, &[]);
    cluster.load(&deployed::tested_image(scratch.path().join("hostloop.tar")));
    let plugin = Plugin::of(&cluster);
    // A filesystem of its own, which can be full.
    let pool = format!("default={},image=32Gi", text(&scratch.dir("pool")));
    let kubelet_dir = text(cluster.kubelet_dir());
    let install = [
        "install",
        "--faults",
        "--pool",
        &pool,
        "--kubelet-dir",
        kubelet_dir,
    ];
    plugin.succeeds(&install, &["hostloop is installed"]);
    plugin.succeeds(
        &["check"],
        &["Faults that can be asked for, of pool default on"],
    );

    cluster.apply(&fault_table::disk_classes());
    fault_table::all(&cluster, &plugin);
    fault_table::changes_under_faults(&cluster, &plugin);
    walk::until_no_volume(&cluster).await;
    cluster.delete(&fault_table::disk_classes());
    pools_fail(&cluster, &plugin).await;

    walk::until_no_volume(&cluster).await;
    plugin.uninstalls_with_data().await;
    stock.assert_nothing_left(&cluster).await;
}

/// A pool is full, missing and hanging, and works again after each.
async fn pools_fail(cluster: &Cluster, plugin: &Plugin<'_>) {
    let node = cluster.node(1);
    let set = |fault: &str| {
        let set = ["fault", "node", &node, "set", "default", fault];
        plugin.succeeds(&set, &["active", fault]);
    };
    let clear = || plugin.succeeds(&["fault", "node", &node, "clear"], &["default"]);
    plugin.fails(
        &["fault", "node", &node, "set", "other", "full"],
        &["no pool is named \"other\"; there are default"],
    );
    let data = walk::claim_and_pod("data", &["storageClassName: hostloop-xfs"]);
    let late = walk::claim_and_pod("late", &["storageClassName: hostloop-xfs"]);
    cluster.apply(&data);
    cluster.pod_ready("default", "data");
    let write = |name: &str| {
        let write = format!("dd if=/dev/zero of=/data/{name} bs=1M count=64 conv=fsync");
        cluster.try_exec("default", "data", &["sh", "-c", &write])
    };
    write("before").unwrap_or_else(|why| panic!("{why}"));

    set("full");
    let full = write("meanwhile").expect_err("no room is left");
    let words = ["No space left on device", "Input/output error", "I/O error"];
    assert!(words.iter().any(|word| full.contains(word)), "{full}");
    let in_pod = ["hostloop", "status"];
    let status = cluster.exec("hostloop", "daemonset/hostloop", &in_pod);
    assert!(status.contains("fault-full"), "{status}");
    wait_for("the event of the full pool", PATIENCE, async || {
        let said = cluster.try_kubectl(&STORAGE)?;
        check(said.contains("FaultInjected"), || said)
    })
    .await;
    // It may also find that there is no room.
    let (said, _) = plugin.run(&["check"]);
    assert!(said.contains("has the fault full"), "{said}");
    clear();
    // A write that failed has stopped the filesystem.
    cluster.kubectl(&["delete", "pod", "data", "--timeout=300s"]);
    fault_table::until_unstaged(cluster, "data");
    cluster.apply(&data);
    cluster.pod_ready("default", "data");
    write("after").unwrap_or_else(|why| panic!("{why}"));

    for (fault, why) in [
        ("missing", "it has the fault missing"),
        // Kubelet gives up on the call, and repeats it.
        ("hanging", ""),
    ] {
        set(fault);
        write("meanwhile").unwrap_or_else(|why| panic!("a pod keeps its volume: {why}"));
        cluster.apply(&late);
        if why.is_empty() {
            tokio::time::sleep(Duration::from_secs(5)).await;
        } else {
            wait_for("the reason of the claim", PATIENCE, async || {
                let said = cluster.try_kubectl(&["get", "events", "-o", "json"])?;
                // Or the scheduler knows already that there is no room.
                let is_said = [why, "did not have enough free storage"]
                    .iter()
                    .any(|words| said.contains(words));
                check(is_said, || format!("nothing says {why}"))
            })
            .await;
        }
        clear();
        cluster.pod_ready("default", "late");
        cluster.delete(&late);
    }
    // The container of the driver was not restarted for want of an answer.
    let restarts = [
        "get",
        "pods",
        "-n",
        "hostloop",
        "--output=jsonpath={.items[*].status.containerStatuses[*].restartCount}",
    ];
    let restarts = cluster.kubectl(&restarts);
    assert!(restarts.split(' ').all(|count| count == "0"), "{restarts}");
    cluster.delete(&data);
}
