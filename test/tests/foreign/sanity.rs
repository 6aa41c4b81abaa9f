//! csi-sanity before the Go host-path driver, behind `hostloop proxy` and without it.

use std::process::Stdio;

use hostloop_test::child;
use hostloop_test::driver::NODE;
use hostloop_test::host_path::HostPath;
use hostloop_test::machine::{self, text};
use hostloop_test::pools::GIB;
use hostloop_test::process::Process;
use hostloop_test::scratch::Scratch;
use hostloop_test::tools::csi_sanity;
use serde_json::Value;

/// What csi-sanity says of a driver.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// The name of each spec and how it ended, sorted.
    specs: Vec<(String, String)>,
    /// How many volumes, snapshots and files the driver still has.
    left: usize,
}

impl Outcome {
    fn passed(&self) -> usize {
        let states = self.specs.iter().map(|(_, state)| state);
        states.filter(|state| *state == "passed").count()
    }
}

/// Not each spec passes before that driver. Those that do, pass behind the proxy, too.
#[tokio::test(flavor = "multi_thread")]
async fn csi_sanity_finds_no_proxy_before_the_host_path_driver() {
    machine::require();
    let past = sanity(false).await;
    let through = sanity(true).await;
    let (passed, all) = (past.passed(), past.specs.len());
    println!("csi-sanity before the host-path driver: {passed} of {all} specs pass");
    // Those of volumes alone are more.
    assert!(passed > 40, "{past:?}");
    assert_eq!(through, past);
}

/// Runs csi-sanity against a driver of its own.
async fn sanity(behind_proxy: bool) -> Outcome {
    let scratch = Scratch::new();
    let socket = scratch.path().join("csi.sock");
    let driver = HostPath::start(scratch.path(), &socket, NODE).await;
    let front = scratch.path().join("proxy.sock");
    let mut proxy = None;
    if behind_proxy {
        let endpoint = driver.endpoint();
        proxy = Some(Process::proxy(scratch.path(), &endpoint, &front, None).await);
    }
    let endpoint = if behind_proxy { &front } else { &socket };
    let specs = specs(&scratch, &format!("unix://{}", text(endpoint)));
    if let Some(proxy) = proxy {
        proxy.stop();
    }
    Outcome {
        specs,
        left: driver.left().len(),
    }
}

/// How each spec ends before the driver at this endpoint.
fn specs(scratch: &Scratch, endpoint: &str) -> Vec<(String, String)> {
    let path = |name: &str| scratch.path().join(name);
    let report = path("report.json");
    let output = child::command(csi_sanity())
        .arg(format!("--csi.endpoint={endpoint}"))
        .arg(format!("--csi.mountdir={}", text(&path("mount"))))
        .arg(format!("--csi.stagingdir={}", text(&path("staging"))))
        .arg(format!("--csi.testvolumesize={GIB}"))
        // The same order both times.
        .args(["--ginkgo.seed=1", "--ginkgo.no-color"])
        .arg(format!("--ginkgo.json-report={}", text(&report)))
        .stdin(Stdio::null())
        .output()
        .expect("csi-sanity starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let report = std::fs::read_to_string(&report).unwrap_or_else(|e| panic!("{e}: {said}"));
    let report: Value = serde_json::from_str(&report).expect("ginkgo writes JSON");
    let reports = report[0]["SpecReports"].as_array();
    let reports = reports.unwrap_or_else(|| panic!("no specs: {said}"));
    let mut specs: Vec<_> = reports.iter().map(spec).collect();
    specs.sort();
    specs
}

/// The name of a spec, and how it ended.
fn spec(report: &Value) -> (String, String) {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let groups = report["ContainerHierarchyTexts"].as_array();
    let mut names: Vec<String> = groups.into_iter().flatten().map(word).collect();
    names.push(word(&report["LeafNodeText"]));
    (names.join(" "), word(&report["State"]))
}
