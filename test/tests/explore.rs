//! `kubectl hostloop explore` on a real cluster: the careless writers of the examples lose what they have
//! acknowledged, the careful ones do not, and nothing but the kept snapshot is left.
//!
//! `EXPLORE_CUTS` is the number of cuts of each writer. Without it, it is 100, and 50 with PostgreSQL, which takes
//! longer to start after each.

use std::path::PathBuf;
use std::process::Stdio;

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{Cluster, Options, Stock, check, wait_for};
use hostloop_test::machine::{self, text};
use hostloop_test::plugin::{Plugin, assert_has};
use hostloop_test::scratch::Scratch;
use hostloop_test::{deployed, tools, walk};
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

/// How a writer of the examples is explored.
struct Exploration {
    writer: String,
    check: PathBuf,
    cuts: String,
}

impl Exploration {
    /// With the check of this name, and with `EXPLORE_CUTS` or this number of cuts.
    fn of(writer: &str, check: &str, cuts: u32) -> Exploration {
        Exploration {
            writer: writer.to_owned(),
            check: example(check),
            cuts: std::env::var("EXPLORE_CUTS").unwrap_or_else(|_| cuts.to_string()),
        }
    }

    fn arguments(&self) -> Vec<&str> {
        vec![
            "explore",
            &self.writer,
            "--check",
            text(&self.check),
            "--cuts",
            &self.cuts,
            "--every",
            "50ms",
            "--timeout",
            "10m",
        ]
    }
}

/// A cluster of a test.
struct Site {
    cluster: Cluster,
    stock: Stock,
    scratch: Scratch,
}

impl Site {
    /// A cluster without hostloop. The name is for kubelet's root.
    fn up(name: &str) -> Site {
        machine::require();
        let cluster = Cluster::up(&Options::one_node().apart(name));
        let stock = Stock::take(&cluster, &[]);
        let scratch = Scratch::new();
        cluster.load(&deployed::tested_image(scratch.path().join("hostloop.tar")));
        Site {
            cluster,
            stock,
            scratch,
        }
    }

    fn plugin(&self) -> Plugin<'_> {
        Plugin::of(&self.cluster)
    }

    /// Installs hostloop with these flags. Cuts share blocks, which an XFS in an image can on any machine.
    fn install(&self, flags: &[&str]) {
        let pool = format!("default={},image=12Gi", text(&self.scratch.dir("pool")));
        let kubelet_dir = text(self.cluster.kubelet_dir());
        let install = ["install", "--pool", &pool, "--kubelet-dir", kubelet_dir];
        let install = [&install[..], flags].concat();
        self.plugin().succeeds(&install, &["hostloop is installed"]);
    }

    /// Starts a writer of the examples, and waits until it has acknowledged something.
    async fn start(&self, writer: &str) {
        self.cluster
            .kubectl(&["apply", "-f", text(&example(writer))]);
        self.cluster.pod_ready("default", writer);
        let look = ["test", "-s", "/data/acknowledged"];
        wait_for("the first acknowledgement", PATIENCE, async || {
            self.cluster.try_exec("default", writer, &look)
        })
        .await;
    }

    /// Deletes a writer and its volume.
    async fn stop(&self, writer: &str) {
        let file = example(writer);
        self.cluster
            .kubectl(&["delete", "--timeout=300s", "-f", text(&file)]);
        walk::until_no_volume(&self.cluster).await;
    }

    /// What explorations have in the cluster and do not keep.
    fn left(&self) -> String {
        let selector = format!("{LABEL},!{KEPT}");
        let list = ["--output=name", "-l", &selector];
        let in_namespace = [&["get", KINDS], &list[..]].concat();
        let of_cluster = [&["get", "volumesnapshotcontents"], &list[..]].concat();
        self.cluster.kubectl(&in_namespace) + &self.cluster.kubectl(&of_cluster)
    }

    /// Explorations have left nothing that they do not keep, also on the node.
    fn assert_nothing_left(&self) {
        assert_eq!(self.left(), "");
        let list = ["hostloop", "cuts", "list", "--json"];
        let cuts = self.cluster.exec("hostloop", "daemonset/hostloop", &list);
        let cuts: Value = serde_json::from_str(&cuts).expect("JSON");
        assert_eq!(cuts["cuts"].as_array().map(Vec::len), Some(0), "{cuts}");
    }

    fn delete_kept(&self) {
        self.cluster
            .kubectl(&["delete", "volumesnapshots", "-l", KEPT, "--timeout=300s"]);
    }

    async fn end(self) {
        self.plugin().uninstalls_with_data().await;
        self.stock.assert_nothing_left(&self.cluster).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_careless_writer_loses_records_and_the_careful_one_none() {
    let site = Site::up("explore");
    site.install(&[]);
    let careful = Exploration::of("careful", "check", 100);
    let careless = Exploration::of("careless", "check", 100);

    // Without the flag the driver refuses, and says which one it is.
    site.start("careful").await;
    let words = ["no cut was taken", "--enable-faults"];
    site.plugin().fails(&careful.arguments(), &words);
    site.install(&["--faults"]);
    loses_nothing(&site, &careful);
    site.stop("careful").await;

    site.start("careless").await;
    let cut = loses(&site, &careless);
    assert_has(&cut["log"].to_string(), &["records were acknowledged"]);
    shows_the_loss_again(&site, &cut).await;
    site.delete_kept();
    killed(&site, careless).await;
    site.stop("careless").await;
    site.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_loses_transactions_only_without_syncs() {
    a_database("sqlite", "full", 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_loses_transactions_only_without_syncs() {
    a_database("postgresql", "on", 50).await;
}

/// The example of a database that does not sync loses transactions, and the other one none.
async fn a_database(name: &str, with_syncs: &str, cuts: u32) {
    let site = Site::up(&format!("explore-{name}"));
    let images = tools::database_images();
    site.cluster.load(&images.join(format!("{name}.tar")));
    site.install(&["--faults"]);
    let check = format!("{name}-check");
    let careless = Exploration::of(&format!("{name}-off"), &check, cuts);
    let careful = Exploration::of(&format!("{name}-{with_syncs}"), &check, cuts);

    site.start(&careless.writer).await;
    loses(&site, &careless);
    site.delete_kept();
    site.stop(&careless.writer).await;

    site.start(&careful.writer).await;
    loses_nothing(&site, &careful);
    site.stop(&careful.writer).await;
    site.end().await;
}

/// Each cut of a careful writer passes.
fn loses_nothing(site: &Site, exploration: &Exploration) {
    let words = [", all passed", "Exploration of claim"];
    let said = site.plugin().succeeds(&exploration.arguments(), &words);
    let checked = format!("checked      {}", exploration.cuts);
    assert_has(&said, &[&checked]);
    site.assert_nothing_left();
}

/// A cut of a careless writer fails. It is in the report, and its snapshot is kept. Returns its row.
fn loses(site: &Site, exploration: &Exploration) -> Value {
    let mut arguments = exploration.arguments();
    arguments.extend(["--fail-fast", "-o", "json"]);
    let out = site
        .plugin()
        .command(&arguments)
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
    let kept = site
        .cluster
        .kubectl(&["get", "volumesnapshots", "-l", KEPT, "--output=name"]);
    assert_has(&kept, &[cut["snapshot"].as_str().expect("a name")]);
    site.assert_nothing_left();
    cut.clone()
}

/// The claim that the report has for a cut fails the check again.
async fn shows_the_loss_again(site: &Site, cut: &Value) {
    let name = cut["snapshot"].as_str().expect("a name");
    let claim = site.scratch.file("again.json", &cut["again"].to_string());
    site.cluster.kubectl(&["apply", "-f", text(&claim)]);
    // The Job of the check, as a person runs it: without an exploration, its claim has a name.
    let check_yaml = std::fs::read_to_string(example("check")).expect("the example is there");
    let again = check_yaml
        .replace("$(CLAIM)", name)
        .replace("\n  template:\n", "\n  backoffLimit: 0\n  template:\n");
    site.cluster.apply(&again);
    wait_for("the end of the check", PATIENCE, async || {
        let state = [
            "get",
            "job",
            "check",
            "--output=jsonpath={.status.conditions[*].type}",
        ];
        let state = site.cluster.kubectl(&state);
        check(state.contains("Failed"), || state)
    })
    .await;
    site.cluster.delete(&again);
    site.cluster
        .kubectl(&["delete", "--timeout=300s", "-f", text(&claim)]);
}

/// A client that is killed leaves objects and cuts, and a clean-up deletes them.
async fn killed(site: &Site, exploration: Exploration) {
    let short = Exploration {
        cuts: "20".to_owned(),
        ..exploration
    };
    let mut command = site.plugin().command(&short.arguments());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut client = command.spawn().expect("the plugin can be run");
    wait_for("the first check", PATIENCE, async || {
        let jobs = ["get", "jobs", "-l", LABEL, "--output=name"];
        let jobs = site.cluster.kubectl(&jobs);
        check(!jobs.is_empty(), || "no Job".to_owned())
    })
    .await;
    client.kill().expect("it runs");
    client.wait().expect("it has ended");
    assert_ne!(site.left(), "");
    site.plugin()
        .succeeds(&["explore", "--clean-up"], &["deleted"]);
    site.assert_nothing_left();
    // What had failed by then is kept.
    site.delete_kept();
}
