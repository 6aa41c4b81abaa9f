//! Nodes with the layouts of distributions: kubelet's directory elsewhere, a read-only root, and a
//! `/dev` in which no new device appears by itself. On each, the distribution's overlay serves a
//! volume's life. Then `kubectl hostloop install` recognises the distribution and does the same.

use std::path::Path;

use hostloop_test::cluster::{Cluster, Node, Options, Stock};
use hostloop_test::machine::{self, root, text};
use hostloop_test::plugin::{Plugin, assert_has};
use hostloop_test::scratch::Scratch;
use hostloop_test::{deployed, walk};

/// A distribution.
struct Layout {
    /// The name of its overlay, and of the cluster's option.
    name: &'static str,
    nodes: u32,
    /// What `install` calls it; none if its sign is in the version of kubelet, which is not built
    /// for this test.
    known_as: Option<&'static str>,
    kubelet_dir: &'static str,
    /// The pool of the overlay, as `install` names it.
    pool: &'static str,
}

/// One node at the usual places.
const USUAL: Layout = Layout {
    name: "",
    nodes: 1,
    known_as: None,
    kubelet_dir: "/var/lib/kubelet",
    pool: "default=/var/lib/hostloop",
};

#[tokio::test(flavor = "multi_thread")]
async fn kind() {
    let (known_as, pool) = (Some("kind"), "default=/var/lib/hostloop,image=20Gi");
    lives_in(&Layout {
        name: "kind",
        nodes: 2,
        known_as,
        pool,
        ..USUAL
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn minikube() {
    let (known_as, pool) = (Some("minikube"), "default=/data/hostloop,image=20Gi");
    lives_in(&Layout {
        name: "minikube",
        known_as,
        pool,
        ..USUAL
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k3s() {
    lives_in(&Layout {
        name: "k3s",
        known_as: Some("k3s"),
        ..USUAL
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k0s() {
    lives_in(&Layout {
        name: "k0s",
        kubelet_dir: "/var/lib/k0s/kubelet",
        ..USUAL
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn microk8s() {
    let kubelet_dir = "/var/snap/microk8s/common/var/lib/kubelet";
    lives_in(&Layout {
        name: "microk8s",
        known_as: Some("MicroK8s"),
        kubelet_dir,
        ..USUAL
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn talos() {
    let (known_as, pool) = (Some("Talos"), "default=/var/mnt/hostloop");
    lives_in(&Layout {
        name: "talos",
        known_as,
        pool,
        ..USUAL
    })
    .await;
}

async fn lives_in(layout: &Layout) {
    machine::require();
    let options = Options {
        nodes: layout.nodes,
        layout: Some(layout.name),
        ..Options::default()
    };
    let cluster = Cluster::up(&options);
    assert_eq!(cluster.kubelet_dir(), Path::new(layout.kubelet_dir));
    let nodes = cluster.all_nodes();
    nodes.iter().for_each(has_a_static_dev);
    if layout.name == "talos" {
        has_a_read_only_root(&cluster.on(1));
    }
    let stock = Stock::take(&cluster, &[]);
    let scratch = Scratch::new();
    cluster.load(&deployed::tested_image(scratch.path().join("hostloop.tar")));

    let overlay = root().join("deploy/overlays").join(layout.name);
    cluster.create_crds();
    cluster.kubectl(&["apply", "-k", text(&overlay)]);
    for workload in ["daemonset/hostloop", "deployment/hostloop-controller"] {
        let rollout = [
            "rollout",
            "status",
            "--namespace=hostloop",
            "--timeout=300s",
            workload,
        ];
        cluster.kubectl(&rollout);
    }
    let steps = walk::walk(&cluster).await;
    cluster.kubectl(&["delete", "-k", text(&overlay), "--timeout=300s"]);

    let plugin = Plugin::of(&cluster);
    let kubelet_dir = ["--kubelet-dir", layout.kubelet_dir];
    let unknown: &[&str] = if layout.known_as.is_none() {
        &kubelet_dir
    } else {
        &[]
    };
    let known_as = layout
        .known_as
        .map_or(String::new(), |name| format!(", {name}, "));
    let words = [&known_as, layout.kubelet_dir, layout.pool];
    plugin.succeeds(&[&["install"][..], unknown].concat(), &words);
    let checked = plugin.succeeds(&["check", "--live"], &["All of it was deleted"]);
    if layout.pool.contains(",image=") {
        assert_has(
            &checked,
            &["Snapshots and clones share blocks in all pools"],
        );
    }
    plugin.uninstalls_with_data().await;
    stock.assert_nothing_left(&cluster).await;
    println!(
        "{}: its overlay, {} steps ({}), install, check, uninstall, and no data left",
        layout.name,
        steps.len(),
        steps.join(", ")
    );
}

/// The names of the host-path driver, for scripts that look for them. A snapshot controller is all
/// that such a script brings itself. Then the client installs under a name of its own choice.
#[tokio::test(flavor = "multi_thread")]
async fn csi_hostpath() {
    machine::require();
    let options = Options {
        nodes: 2,
        layout: Some("kind"),
        ..Options::default()
    };
    let cluster = Cluster::up(&options);
    let stock = Stock::take(&cluster, &[]);
    let scratch = Scratch::new();
    cluster.load(&deployed::tested_image(scratch.path().join("hostloop.tar")));
    cluster.create_crds();
    let components = ["image-pool", "snapshot-controller", "csi-hostpath"];
    let arguments: Vec<&str> = components
        .iter()
        .flat_map(|name| ["--component", name])
        .collect();
    let manifest = deployed::render(&arguments);
    cluster.apply(&manifest);
    for workload in ["statefulset/csi-hostpathplugin", "daemonset/hostloop"] {
        let rollout = ["rollout", "status", "--timeout=300s", workload];
        cluster.kubectl(&rollout);
    }
    let ready = [
        "get",
        "statefulsets",
        "--selector=app.kubernetes.io/instance=hostpath.csi.k8s.io",
        "--output=jsonpath={.items[*].status.readyReplicas}",
    ];
    assert_eq!(cluster.kubectl(&ready), "1");
    let steps = walk::walk_in(&cluster, "csi-hostpath-sc", "csi-hostpath-snapclass").await;
    cluster.delete(&manifest);
    cluster
        .until_no_pods("app.kubernetes.io/part-of=hostloop")
        .await;
    for node in cluster.all_nodes() {
        node.remove_data(&deployed::DATA_AS_HOST_PATH).await;
    }
    installs_under_another_name(&cluster).await;
    stock.assert_nothing_left(&cluster).await;
    println!("csi-hostpath: {} steps ({})", steps.len(), steps.join(", "));
}

/// The client gives the driver any name, and overlooks none that is installed.
async fn installs_under_another_name(cluster: &Cluster) {
    let name = "d.example.com";
    let plugin = Plugin::named(cluster, name);
    let next = "kubectl hostloop check --live --driver-name d.example.com";
    plugin.succeeds(&["install", "--snapshot-controller", "yes"], &[name, next]);
    plugin.succeeds(&["check", "--live"], &["All of it was deleted"]);
    let usual = Plugin::of(cluster);
    for command in [&["install"][..], &["uninstall", "--yes"]] {
        usual.fails(command, &["hostloop is installed as driver d.example.com"]);
    }
    plugin.uninstalls_with_data().await;
}

fn has_a_read_only_root(node: &Node) {
    for folder in ["/", "/etc", "/usr", "/opt"] {
        let file = format!("{folder}/hostloop-layout");
        let written = node.try_run(&["touch", &file]);
        assert!(
            written.is_err_and(|why| why.contains("Read-only")),
            "{folder} can be written to"
        );
    }
}

/// `/dev` is the one that `scripts/cluster` made: the kernel adds no device nodes to it.
fn has_a_static_dev(node: &Node) {
    let mounts = node.mounts();
    let dev = mounts.iter().find(|mount| mount.at == Path::new("/dev"));
    assert!(dev.is_some_and(|dev| dev.source == "own-dev"), "{mounts:?}");
}
