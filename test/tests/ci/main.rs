//! The recipes for CI outside GitHub, typed as the pages print them: on nodes like kind's, with the
//! files of a release in a folder in place of its page, and without a registry.
//!
//! docs/ci-examples are workflows of GitHub. Of them, what a failed test prints is typed here.

mod recipe;
mod site;

use std::time::Instant;

use hostloop_test::deployed;
use hostloop_test::machine::root;
use hostloop_test::plugin::{Plugin, assert_has};

use crate::site::{Site, VERSION};

/// Finds the client that the recipe has downloaded.
const WITH_CLIENT: &str = "export PATH=$PWD/target/image:$PATH\n";

/// The download of docs/releasing.md, and then the recipe of docs/start.md, to the end of a claim.
#[tokio::test(flavor = "multi_thread")]
async fn the_recipe_is_typed_as_printed() {
    let site = Site::up();
    let work = site.scratch.dir("work");
    let variables = [("RELEASE", &*site.release), ("VERSION", VERSION)];
    let started = Instant::now();
    let download = recipe::block("docs/releasing.md", "## In CI");
    site.shell.types(&work, &variables, &download);

    let steps = recipe::block("docs/start.md", "## CI");
    let said = site.shell.types(&work, &[], &steps);
    let pool = "default=/var/lib/hostloop,image=20Gi";
    let shares = "Snapshots and clones share blocks in all pools";
    assert_has(&said, &[", kind, ", pool, "ready after", shares]);
    let load = format!(
        "load image-archive target/image/hostloop.tar --name {}",
        site.cluster.name()
    );
    assert_eq!(site.calls_of_kind(), ["create cluster --wait 3m", &*load]);
    site.uses_the_default_class().await;
    println!(
        "from the download to the end of a claim: {:.1?}",
        started.elapsed()
    );
    site.pulled_nothing();

    // What the workflows print when a test fails.
    for (file, step) in [
        ("database-operator.yml", "Why a volume was not made"),
        ("backup-tool.yml", "What is wrong"),
        ("database-crash.yml", "What is wrong"),
    ] {
        let lines = format!("{WITH_CLIENT}{}", recipe::run_of(file, step));
        let said = site.shell.types(&work, &[], &lines);
        assert_has(&said, &[shares, &site.cluster.node(1)]);
    }
    Plugin::of(&site.cluster).uninstalls_with_data().await;
    site.ends().await;
}

/// The action's scripts and the client, as deploy/README.md has them for elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn the_scripts_of_the_action_do_the_same() {
    let site = Site::up();
    let to = site.scratch.path().join("fetched");
    let printed = recipe::lines("deploy/README.md", "./deploy/action/fetch --from URL");
    let lines = recipe::with(
        &printed,
        &[
            // First: what follows has such a path, too.
            ("/tmp/hostloop", &to.display().to_string()),
            (" URL ", &format!(" {} ", site.release)),
            ("--version 0.2.0", &format!("--version {VERSION}")),
        ],
    );
    let said = site.shell.types(&root(), &[], &lines);
    assert_has(&said, &["ready after", "image=20Gi"]);
    site.uses_the_default_class().await;
    site.pulled_nothing();
    Plugin::of(&site.cluster).uninstalls_with_data().await;

    // The manifest of a release, which names the image by its digest.
    let work = site.scratch.dir("work");
    let manifest = site.manifest_with_a_digest();
    std::fs::write(work.join("install.yaml"), &manifest).expect("it can be written");
    let without = recipe::inline("docs/releasing.md", "sed 's/@sha256");
    site.shell.types(&work, &[], &without);
    for workload in ["daemonset/hostloop", "deployment/hostloop-controller"] {
        let rollout = ["rollout", "status", "--namespace=hostloop", workload];
        site.cluster
            .kubectl(&[&rollout[..], &["--timeout=300s"]].concat());
    }
    site.uses("hostloop-ext4").await;
    site.pulled_nothing();
    site.cluster.delete(&manifest);
    for node in site.cluster.all_nodes() {
        node.remove_data(&deployed::DATA).await;
    }
    site.ends().await;
}
