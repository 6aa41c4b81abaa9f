//! `kubectl hostloop explore` on a real cluster: the careless writer of the examples loses records that
//! it has acknowledged, the careful one does not, and nothing but the kept snapshot is left.
//!
//! `EXPLORE_CUTS` is the number of cuts of each writer, 100 without it.

use std::path::PathBuf;
use std::process::Stdio;

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{Cluster, Options, Stock, check, wait_for};
use hostloop_test::machine::{self, text};
use hostloop_test::plugin::{Plugin, assert_has};
use hostloop_test::scratch::Scratch;
use hostloop_test::{deployed, walk};
use serde_json::Value;

/// The label of what an exploration keeps.
const KEPT: &str = "hostloop.csi.dev/kept-cut";
/// The label of all that an exploration makes.
const LABEL: &str = "hostloop.csi.dev/exploration";
/// What an exploration makes in a namespace.
const KINDS: &str = "jobs,pvc,volumesnapshots";

fn example(name: &str) -> PathBuf {
    machine::root().join(format!("deploy/examples/explore/{name}.yaml"))
}

fn cuts() -> String {
    std::env::var("EXPLORE_CUTS").unwrap_or_else(|_| "100".to_owned())
}

/// Starts a writer of the examples, and waits until it has acknowledged a record.
async fn started(cluster: &Cluster, writer: &str) {
    cluster.kubectl(&["apply", "-f", text(&example(writer))]);
    cluster.pod_ready("default", writer);
    let look = ["test", "-s", "/data/acknowledged"];
    wait_for("a record", PATIENCE, async || {
        cluster.try_exec("default", writer, &look)
    })
    .await;
}

fn ended(cluster: &Cluster, writer: &str) {
    let file = example(writer);
    cluster.kubectl(&["delete", "--timeout=300s", "-f", text(&file)]);
}

/// What explorations have in the cluster and do not keep.
fn left(cluster: &Cluster) -> String {
    let selector = format!("{LABEL},!{KEPT}");
    let list = ["--output=name", "-l", &selector];
    let in_namespace = cluster.kubectl(&[&["get", KINDS], &list[..]].concat());
    let of_cluster = cluster.kubectl(&[&["get", "volumesnapshotcontents"], &list[..]].concat());
    in_namespace + &of_cluster
}

/// The node has no cut that is not kept.
fn no_cuts(cluster: &Cluster) {
    let list = ["hostloop", "cuts", "list", "--json"];
    let cuts = cluster.exec("hostloop", "daemonset/hostloop", &list);
    let cuts: Value = serde_json::from_str(&cuts).expect("JSON");
    assert_eq!(cuts["cuts"].as_array().map(Vec::len), Some(0), "{cuts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_careless_writer_loses_records_and_the_careful_one_none() {
    machine::require();
    let scratch = Scratch::new();
    let cluster = Cluster::up(&Options::one_node().apart("explore"));
    let stock = Stock::take(&cluster, &[]);
    cluster.load(&deployed::tested_image(scratch.path().join("hostloop.tar")));
    let plugin = Plugin::of(&cluster);
    // Cuts share blocks, which an XFS in an image can on any machine.
    let named = format!("default={},image=12Gi", text(&scratch.dir("pool")));
    let kubelet_dir = text(cluster.kubelet_dir());
    let install = ["install", "--pool", &named, "--kubelet-dir", kubelet_dir];
    plugin.succeeds(&install, &["hostloop is installed"]);
    let (cuts, job) = (cuts(), example("check"));
    let (cuts, job) = (["--cuts", &cuts], ["--check", text(&job)]);

    // Without the flag the driver refuses, and says which one it is.
    started(&cluster, "careful").await;
    let careful = ["explore", "careful", "--every", "50ms", "--timeout", "10m"];
    let careful = [&careful[..], &cuts, &job].concat();
    plugin.fails(&careful, &["no cut was taken", "--enable-faults"]);
    plugin.succeeds(
        &[&install[..], &["--faults"]].concat(),
        &["hostloop is installed"],
    );
    let said = plugin.succeeds(&careful, &[", all passed", "Exploration of claim"]);
    assert_has(&said, &[&format!("checked      {}", cuts[1])]);
    assert_eq!(left(&cluster), "");
    no_cuts(&cluster);
    ended(&cluster, "careful");
    walk::until_no_volume(&cluster).await;

    careless(&cluster, &plugin, &cuts, &job, &scratch).await;
    killed(&cluster, &plugin, &job).await;
    ended(&cluster, "careless");
    walk::until_no_volume(&cluster).await;
    plugin.uninstalls_with_data().await;
    stock.assert_nothing_left(&cluster).await;
}

/// The first cut that fails is kept, and shows the loss again.
async fn careless(
    cluster: &Cluster,
    plugin: &Plugin<'_>,
    cuts: &[&str],
    job: &[&str],
    scratch: &Scratch,
) {
    started(cluster, "careless").await;
    let explore = ["explore", "careless", "--every", "50ms", "--timeout", "10m"];
    let explore = [&explore[..], cuts, job, &["--fail-fast", "-o", "json"]].concat();
    let out = plugin
        .command(&explore)
        .output()
        .expect("the plugin can be run");
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success(), "{stderr}");
    assert_has(&stderr, &["have lost what the check looks for"]);
    let report: Value = serde_json::from_slice(&out.stdout).expect("a report");
    let cut = &report["cuts"][0];
    assert_eq!(cut["result"], "failed", "{report}");
    let timeline = report["timeline"].as_array().expect("all cuts");
    let mut same = timeline.iter().filter(|one| one["number"] == cut["number"]);
    assert!(same.any(|one| one["result"] == "failed"), "{report}");
    let log = cut["log"].to_string();
    assert_has(&log, &["records were acknowledged"]);
    let kept = cluster.kubectl(&["get", "volumesnapshots", "-l", KEPT, "--output=name"]);
    let name = cut["snapshot"].as_str().expect("a name");
    assert_has(&kept, &[name]);
    assert_eq!(left(cluster), "");
    no_cuts(cluster);

    let claim = scratch.file("again.json", &cut["again"].to_string());
    cluster.kubectl(&["apply", "-f", text(&claim)]);
    // The Job of the check, as a person runs it: without an exploration, its claim has a name.
    let check_yaml = std::fs::read_to_string(example("check")).expect("the example is there");
    let again = check_yaml
        .replace("$(CLAIM)", name)
        .replace("\n  template:\n", "\n  backoffLimit: 0\n  template:\n");
    let again = again.replace("containers:\n", "restartPolicy: Never\n      containers:\n");
    cluster.apply(&again);
    wait_for("the end of the check", PATIENCE, async || {
        let state = [
            "get",
            "job",
            "check",
            "--output=jsonpath={.status.conditions[*].type}",
        ];
        let state = cluster.kubectl(&state);
        check(state.contains("Failed"), || state)
    })
    .await;
    cluster.delete(&again);
    cluster.kubectl(&["delete", "--timeout=300s", "-f", text(&claim)]);
    cluster.kubectl(&["delete", "volumesnapshots", "-l", KEPT, "--timeout=300s"]);
}

/// A client that is killed leaves objects and cuts, and a clean-up deletes them.
async fn killed(cluster: &Cluster, plugin: &Plugin<'_>, job: &[&str]) {
    let explore = ["explore", "careless", "--cuts", "20", "--every", "50ms"];
    let mut command = plugin.command(&[&explore[..], job].concat());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut client = command.spawn().expect("the plugin can be run");
    wait_for("the first check", PATIENCE, async || {
        let jobs = cluster.kubectl(&["get", "jobs", "-l", LABEL, "--output=name"]);
        check(!jobs.is_empty(), || "no Job".to_owned())
    })
    .await;
    client.kill().expect("it runs");
    client.wait().expect("it has ended");
    assert_ne!(left(cluster), "");
    plugin.succeeds(&["explore", "--clean-up"], &["deleted"]);
    assert_eq!(left(cluster), "");
    no_cuts(cluster);
    // What had failed by then is kept.
    cluster.kubectl(&["delete", "volumesnapshots", "-l", KEPT, "--timeout=300s"]);
}
