//! The page of `kubectl hostloop ui` in a browser, on a cluster. The tests in the browser are in
//! `kubectl/ui/test/live`.

use std::path::Path;

use hostloop_test::child;
use hostloop_test::cluster::{Cluster, Options, Stock};
use hostloop_test::machine::{self, not_run, root, text, try_run};
use hostloop_test::plugin::Plugin;
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;
use hostloop_test::{deployed, walk};

/// The oldest Node.js that the page's tools run on.
const NODE: u32 = 20;
/// The namespace of the objects that the browser's tests create.
const NAMESPACE: &str = "page";

/// Why this machine can't run the page's tests.
fn missing() -> Option<String> {
    let version = match try_run("node", &["--version"]) {
        Ok(version) => version,
        Err(why) => return Some(format!("Node.js {NODE} is needed: {why}")),
    };
    if major(&version).is_none_or(|major| major < NODE) {
        return Some(format!(
            "Node.js {version} is too old: install version {NODE} or newer"
        ));
    }
    let tools = ["npm", "chromium"];
    let tool = tools
        .into_iter()
        .find(|tool| machine::which(tool).is_none())?;
    Some(format!("{tool} is not installed"))
}

/// The first number of a version such as `v20.1.0`.
fn major(version: &str) -> Option<u32> {
    version
        .trim_start_matches('v')
        .split('.')
        .next()?
        .parse()
        .ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_in_a_browser() {
    if let Some(why) = missing() {
        not_run("the page on a cluster", &why);
        return;
    }
    machine::require();
    let scratch = Scratch::new();
    // Images share blocks, as in most pools.
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 4 * GIB);
    // The container gets the pool as a mount that passes further mounts on.
    pool.share_mounts();
    let cluster = Cluster::up(&Options::one_node().apart("page"));
    let stock = Stock::take(&cluster, &[]);
    cluster.load(&deployed::tested_image(scratch.path().join("hostloop.tar")));
    let plugin = Plugin::of(&cluster);
    let kubelet_dir = text(cluster.kubelet_dir());
    let install = [
        "install",
        "--pool",
        &pool.argument(),
        "--kubelet-dir",
        kubelet_dir,
    ];
    plugin.succeeds(&install, &["ready after"]);
    cluster.kubectl(&["create", "namespace", NAMESPACE]);
    let (_, viewer) = cluster.account_with("view", NAMESPACE, "viewer", scratch.path());

    run_tests(&cluster, &plugin, &viewer);

    cluster.kubectl(&[
        "delete",
        "clusterrolebinding",
        &format!("{NAMESPACE}-viewer"),
    ]);
    cluster.kubectl(&["delete", "namespace", NAMESPACE, "--timeout=300s"]);
    walk::until_no_volume(&cluster).await;
    plugin.uninstalls_all();
    stock.assert_nothing_left(&cluster).await;
}

/// Runs the tests in the browser. Their pictures stay in `target`.
fn run_tests(cluster: &Cluster, plugin: &Plugin, viewer: &Path) {
    let script = root().join("scripts/cluster");
    let kubectl = format!("{} kubectl --name {} --", text(&script), cluster.name());
    let status = child::command(root().join("scripts/ui"))
        .args([
            "--no-unit",
            "--live",
            "--screenshots",
            text(&root().join("target/screenshots")),
        ])
        .env("HOSTLOOP_LIVE_KUBECTL", kubectl)
        .env("HOSTLOOP_LIVE_ADMIN", cluster.kubeconfig())
        .env("HOSTLOOP_LIVE_VIEWER", viewer)
        .env("HOSTLOOP_LIVE_PLUGIN", plugin.program())
        .status()
        .expect("scripts/ui can be run");
    assert!(
        status.success(),
        "the tests in the browser failed: {status}"
    );
}

#[test]
fn versions_of_node() {
    for (version, expected) in [
        ("v20.1.0", Some(20)),
        ("v8.0.0\n", Some(8)),
        ("22", Some(22)),
        ("", None),
        ("vx.1", None),
    ] {
        assert_eq!(major(version), expected, "{version:?}");
    }
}
