//! `kubectl hostloop` on a cluster, from the first command to the last, as a person types them.

use std::thread::scope;
use std::time::Instant;

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{Cluster, Options, Stock, check, wait_for};
use hostloop_test::driver::binary;
use hostloop_test::machine::{self, text};
use hostloop_test::plugin::{Plugin, assert_has};
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;
use hostloop_test::{changed_blocks, deployed, fault_table, walk};
use serde_json::Value;

mod checks;
mod completion;
mod page;
mod rights;
mod shown;
mod tables;

/// The events of the node have the calls of the claim's life in order, and their steps.
#[track_caller]
fn assert_life(cluster: &Cluster) {
    let uid = cluster.kubectl(&["get", "pvc", "claim", "-o", "jsonpath={.metadata.uid}"]);
    let command = ["hostloop", "events", "--json"];
    let events = cluster.exec("hostloop", "daemonset/hostloop", &command);
    let events: Vec<Value> = events
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let events: Vec<&Value> = events
        .iter()
        .filter(|event| event["trace"] == *uid)
        .collect();
    let calls = events
        .iter()
        .filter(|event| event["kind"] == "call" && event["us"].is_u64());
    let calls: Vec<&&Value> = calls.collect();
    let mut names: Vec<&str> = calls
        .iter()
        .map(|call| call["name"].as_str().expect("text"))
        .collect();
    // Kubernetes repeats a call that is answered late.
    names.dedup();
    assert_eq!(names, shown::CALLS, "{events:#?}");
    let logs = cluster.logs("hostloop", "daemonset/hostloop");
    for (name, step) in shown::CALLS
        .into_iter()
        .zip(["mkfs", "loop attach", "bind mount"])
    {
        let has_step = |call: &Value| {
            events
                .iter()
                .any(|e| e["parent"] == call["id"] && e["name"] == step)
        };
        let mut of_name = calls.iter().filter(|call| call["name"] == name);
        let call = of_name.find(|call| has_step(call));
        let call = call.unwrap_or_else(|| panic!("{step} is not a step of {name}: {events:#?}"));
        let ms = call["us"].as_f64().expect("a number") / 1e3;
        let about = call["about"].as_str().expect("text");
        let of_calls = logs.lines().filter(|line| {
            line.contains("hostloop::call") && line.contains(name) && line.contains(about)
        });
        let logged: Vec<f64> = of_calls
            .filter_map(|line| line.split(" ms=").nth(1)?.split(' ').next()?.parse().ok())
            .collect();
        assert!(
            logged.iter().any(|logged| (ms - logged).abs() < 5.0),
            "{name}: {ms} ms, and in the log {logged:?}"
        );
    }
    let work = events
        .iter()
        .any(|e| e["kind"] == "work" && e["name"] == "provisioner");
    assert!(work, "the provisioner's work is missing: {events:#?}");
}

/// A volume is attached, on a cluster without the snapshot API. The audit log has the attachment,
/// which ends with the volume's pod.
async fn attaches_without_snapshots(cluster: &Cluster, plugin: &Plugin<'_>) {
    let definitions = cluster.kubectl(&["get", "crd", "-o", "name"]);
    assert!(
        !definitions.contains("snapshot.storage.k8s.io"),
        "{definitions}"
    );
    let lines = [
        "  ✓ Volumes are attached, by CSIDriver and driver",
        "  - Snapshots are left out: the server does not serve snapshot.storage.k8s.io/v1",
        "  ✓ No StorageClass is the default",
        "  - The snapshot is left out: the server does not serve snapshots",
        "  ✓ Another pod read the data (",
        "  ✓ All of it was deleted",
    ];
    let said = plugin.succeeds(&["check", "--live"], &lines);
    assert!(!said.contains("  × "), "{said}");
    // The API server writes its log a little after its answer.
    wait_for("the attachment in the audit log", PATIENCE, async || {
        let audit = cluster.audit();
        let mut requests = audit
            .of("system:serviceaccount:hostloop:hostloop")
            .into_iter();
        let attached = requests.any(|request| {
            request.resource == "volumeattachments/status" && (200..300).contains(&request.code)
        });
        check(attached, || "the driver reported no attachment".to_owned())
    })
    .await;

    let words = ["attachRequired: true, which is immutable", "add --attach"];
    plugin.fails(&["install", "--default-class"], &words);
    cluster.kubectl(&["delete", "csidriver", "hostloop.csi.dev"]);
}

/// Waits until no pod of hostloop has its image.
async fn until_image_is_missed(cluster: &Cluster) {
    let reasons = "jsonpath={range .items[*]}\
        {.status.containerStatuses[*].state.waiting.reason}{\"\\n\"}{end}";
    wait_for("the reason of each pod", PATIENCE, async || {
        let said = cluster.try_kubectl(&["get", "pods", "-n", "hostloop", "-o", reasons])?;
        let is_missed = |line: &str| line.contains("ErrImageNeverPull");
        // The one of the node, and the controller's.
        check(
            said.lines().count() >= 2 && said.lines().all(is_missed),
            || said,
        )
    })
    .await;
}

/// Runs the commands with kubectl that README.md shows below these words, and returns what they
/// print.
fn paste(cluster: &Cluster, words: &str) -> String {
    let readme = std::fs::read_to_string(machine::root().join("README.md")).expect("it is there");
    let (_, below) = readme
        .split_once(words)
        .unwrap_or_else(|| panic!("no {words}"));
    let block = below
        .split("```")
        .nth(1)
        .expect("a block")
        .strip_prefix("console");
    let commands = block
        .expect("commands")
        .lines()
        .filter_map(|line| line.strip_prefix("kubectl "));
    let mut printed = String::new();
    for command in commands {
        let words = command
            .split_whitespace()
            .take_while(|word| !word.starts_with('#'));
        let words: Vec<String> = words
            .map(|word| {
                if word.starts_with("deploy/") {
                    text(&machine::root().join(word)).to_owned()
                } else {
                    // A shell would take the quotes away.
                    word.replace('\'', "")
                }
            })
            .collect();
        printed += &cluster.kubectl(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    printed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_by_the_plugin() {
    machine::require();
    let scratch = Scratch::new();
    let cluster = Cluster::up(&Options::one_node().apart("plugin"));
    let kubelet_dir = text(cluster.kubelet_dir());
    let stock = Stock::take(&cluster, &[]);
    let plugin = Plugin::of(&cluster);
    // Images share blocks, and the container gets the pool as a mount that passes mounts on.
    let fixture = PoolFixture::new(&scratch, PoolKind::Xfs, 16 * GIB);
    fixture.share_mounts();
    let pool = fixture.argument();
    let install = ["install", "--pool", &pool, "--kubelet-dir", kubelet_dir];

    // What will be applied, without any change.
    let applied = [
        "kind: DaemonSet",
        "kind: CustomResourceDefinition",
        kubelet_dir,
    ];
    plugin.succeeds(&[&install[..], &["--dry-run"]].concat(), &applied);

    // Without the image, the reason and the remedy are said.
    let attach = [&install[..], &["--attach", "--snapshot-controller", "no"]].concat();
    let remedy = ["ErrImageNeverPull", "ctr --namespace k8s.io images import"];
    plugin.fails(&[&attach[..], &["--timeout", "1s"]].concat(), &[]);
    until_image_is_missed(&cluster).await;
    plugin.fails(&[&attach[..], &["--timeout", "5s"]].concat(), &remedy);
    plugin.fails(
        &["load", text(&binary())],
        &["does not know this cluster's distribution"],
    );

    cluster.load(&deployed::tested_image(scratch.path().join("hostloop.tar")));
    plugin.succeeds(&attach, &["no snapshot controller", "ready after"]);
    attaches_without_snapshots(&cluster, &plugin).await;

    let node = format!("{}: ready after", cluster.node(1));
    let words = [
        &*node,
        "hostloop is the cluster's snapshot controller",
        "Next: ",
    ];
    plugin.succeeds(&[&install[..], &["--default-class"]].concat(), &words);
    let said = plugin.succeeds(&["install"], &["0 created, 0 changed"]);
    assert!(said.contains(&pool), "the pool stays: {said}");

    // A volume in use: it is shown, and it keeps hostloop in the cluster.
    let example = machine::root().join("deploy/examples/claim.yaml");
    let watch = shown::Watch::start(&plugin, scratch.path()).await;
    cluster.kubectl(&["apply", "-f", text(&example)]);
    cluster.pod_ready("default", "claim");
    watch.until_row("claim", "published").await;
    watch.interrupt();
    checks::all_pass(&cluster, &plugin);
    let claim = shown::InUse::of(&cluster, &plugin, fixture.root());
    claim.is_in_status();
    claim.is_described();
    claim.is_in_logs();
    rights::each_missing_right_is_named(&cluster, &plugin, scratch.path());
    assert_life(&cluster);
    let status = cluster.exec("hostloop", "daemonset/hostloop", &["hostloop", "status"]);
    assert_has(&status, &[fixture.name.as_str(), "hostloop-"]);

    // As the first minutes of README.md go on.
    let started = Instant::now();
    let said = paste(
        &cluster,
        "**A volume, its snapshot, and a larger volume restored from it**",
    );
    println!("the block of README.md: {:.1?}", started.elapsed());
    let met = ["pod/claim condition met", "pod/snapshot condition met"];
    assert_has(&said, &met);
    // A pod that has only started has printed nothing yet when the last command looks.
    wait_for("what the first pod had written", PATIENCE, async || {
        let log = cluster.try_kubectl(&["logs", "snapshot"])?;
        check(log.contains("begun on "), || log)
    })
    .await;
    plugin.fails(
        &["uninstall", "--yes"],
        &["of claim default/claim", "Delete the pods, claims"],
    );

    let restored = machine::root().join("deploy/examples/snapshot.yaml");
    cluster.kubectl(&[
        "delete",
        "--timeout=300s",
        "-f",
        text(&restored),
        "-f",
        text(&example),
    ]);
    walk::until_no_volume(&cluster).await;

    // Faults, some of each, and changed blocks: the steps `failures` and `snapshot-metadata` have all of
    // them.
    let more = [&install[..], &["--faults", "--snapshot-metadata"]].concat();
    plugin.succeeds(&more, &["ready after"]);
    scope(|threads| {
        threads.spawn(|| fault_table::sample(&cluster, &plugin));
        changed_blocks::sample(&cluster, &plugin, fixture.root(), scratch.path());
    });
    walk::until_no_volume(&cluster).await;
    let removed = ["objects of components that are not asked for removed: "];
    plugin.succeeds(&install, &removed);
    let left = cluster.kubectl(&["get", "daemonsets", "--namespace", "hostloop", "-o", "name"]);
    assert_eq!(left, "daemonset.apps/hostloop\n");
    plugin.succeeds(
        &["uninstall", "--yes", "--data"],
        &["removed", "--crds", kubelet_dir],
    );
    let removed = [
        "is not installed",
        "volumesnapshots.snapshot.storage.k8s.io removed",
    ];
    plugin.succeeds(&["uninstall", "--yes", "--crds"], &removed);
    wait_for("the end of the namespace", PATIENCE, async || {
        let get = [
            "get",
            "namespace",
            "hostloop",
            "--ignore-not-found",
            "-o",
            "name",
        ];
        let there = cluster.try_kubectl(&get)?;
        check(there.is_empty(), || there)
    })
    .await;
    let label = "app.kubernetes.io/name=hostloop";
    for kind in [
        "storageclass",
        "csidriver",
        "clusterrole",
        "validatingadmissionpolicy",
    ] {
        assert_eq!(
            cluster.kubectl(&["get", kind, "-l", label, "-o", "name"]),
            "",
            "{kind}"
        );
    }
    stock.assert_nothing_left(&cluster).await;
}
