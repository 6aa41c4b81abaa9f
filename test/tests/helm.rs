//! The Helm chart on a real cluster: installed, tested by its own test, used, upgraded under a
//! running pod, and removed. Meanwhile its pods serve the metrics that alerts and dashboard name.

use std::collections::BTreeSet;
use std::path::Path;

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{Cluster, Options, Stock, check, wait_for};
use hostloop_test::machine::{self, root, text};
use hostloop_test::plugin::{Plugin, assert_has};
use hostloop_test::scratch::Scratch;
use hostloop_test::{deployed, queries, tools, walk};
use serde_json::json;

/// Metrics that exist only after something has failed. Unit tests show them.
const AFTER_FAILURES: [&str; 4] = [
    "controller_persistentvolumeclaim_provision_failed_total",
    "hostloop_storage_health_abnormal",
    "hostloop_volume_health_abnormal",
    "workqueue_retries_total",
];

/// The file with the chart's values.
const VALUES: &str = "values.yaml";

/// A pod with a volume of the default class, a snapshot, and a pod with a restored volume.
fn users() -> String {
    let original = walk::claim_and_pod("original", &[]);
    let restored = walk::claim_and_pod("restored", &[walk::FROM_SNAPSHOT]);
    [&*original, walk::SNAPSHOT, &*restored].join("---\n")
}

struct Site {
    cluster: Cluster,
    scratch: Scratch,
}

impl Site {
    /// Runs helm on the release, or returns its error.
    fn helm(&self, verb: &str, args: &[&str]) -> Result<String, String> {
        let kubeconfig = self.cluster.kubeconfig();
        let usual = [
            verb,
            "hostloop",
            "--namespace=hostloop",
            "--kubeconfig",
            text(&kubeconfig),
        ];
        tools::run_helm(&[&usual, args].concat())
    }

    /// Installs or upgrades the chart, and waits until its pods are ready.
    fn apply(&self, verb: &str, args: &[&str]) {
        let chart = root().join("deploy/chart/hostloop");
        let values = self.scratch.path().join(VALUES);
        let usual = [
            text(&chart),
            "--values",
            text(&values),
            "--wait",
            "--timeout",
            "5m",
        ];
        self.helm(verb, &[&usual, args].concat())
            .unwrap_or_else(|why| panic!("{why}"));
    }

    fn get(&self, path: &str, args: &[&str]) -> String {
        let output = format!("jsonpath={{{path}}}");
        self.cluster
            .kubectl(&[&["get"], args, &["-o", &output]].concat())
    }

    /// The names of all samples that the release's pods serve.
    fn served(&self) -> BTreeSet<String> {
        let pods = [
            "pods",
            "--namespace=hostloop",
            "--selector=app.kubernetes.io/part-of=hostloop",
        ];
        let mut served = BTreeSet::new();
        for pod in self
            .get(".items[*].metadata.name", &pods)
            .split_whitespace()
        {
            let path = format!("/api/v1/namespaces/hostloop/pods/{pod}:9809/proxy/metrics");
            let metrics = self.cluster.kubectl(&["get", "--raw", &path]);
            let samples = metrics.lines().filter(|line| !line.starts_with('#'));
            let names = samples.filter_map(|line| line.split(['{', ' ']).next());
            served.extend(names.map(str::to_owned));
        }
        served
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_installed_used_upgraded_and_removed() {
    machine::require();
    let cluster = Cluster::up(&Options::one_node());
    let scratch = Scratch::new();
    cluster.load(&deployed::tested_image(scratch.path().join("hostloop.tar")));
    let stock = Stock::take(&cluster, &[]);
    let pool = scratch.path().join("pool");
    let chosen = json!({
        "kubeletDir": text(cluster.kubelet_dir()),
        "pools": [{"name": "default", "path": text(&pool)}],
        "snapshotController": true,
        "classes": {"hostloop-ext4": {"default": true}},
    });
    scratch.file(VALUES, &chosen.to_string());
    let site = Site { cluster, scratch };
    let cluster = &site.cluster;

    site.apply("install", &["--create-namespace"]);
    let said = site.helm("test", &[]).unwrap_or_else(|why| panic!("{why}"));
    assert!(said.contains("Succeeded"), "{said}");

    // The definitions came with the release, and the default class is used.
    let users = users();
    cluster.apply(&users);
    cluster.pod_ready("default", "restored");
    let class = site.get(".spec.storageClassName", &["pvc", "restored"]);
    assert_eq!(class, "hostloop-ext4");

    let named = queries::named();
    wait_for("the metrics that queries name", PATIENCE, async || {
        let served = site.served();
        let missing: Vec<_> = named
            .iter()
            .filter(|(metric, _)| !AFTER_FAILURES.contains(&metric.as_str()))
            .filter(|(metric, _)| !served.contains(*metric))
            .collect();
        check(missing.is_empty(), || format!("{missing:?} of {served:?}"))
    })
    .await;
    println!(
        "{} metrics are named by queries and served",
        named.len() - AFTER_FAILURES.len()
    );

    // A new driver replaces the old one, and the pod does not notice.
    let container = ".status.containerStatuses[0].containerID";
    let before = site.get(container, &["pod", "original"]);
    site.apply("upgrade", &["--set", "args.node={--reserve=6%}"]);
    let args = site.get(
        ".spec.template.spec.containers[0].args",
        &["ds", "hostloop", "-nhostloop"],
    );
    assert!(args.contains("--reserve=6%"), "{args}");
    assert_eq!(site.get(container, &["pod", "original"]), before);
    let write = "echo written >/data/file && cat /data/file";
    assert_eq!(
        cluster.exec("default", "original", &["sh", "-c", write]),
        "written\n"
    );

    // A mistake changes nothing.
    let chart = root().join("deploy/chart/hostloop");
    let mistake = site.helm("upgrade", &[text(&chart), "--set", "kubletDir=/x"]);
    assert!(mistake.is_err_and(|why| why.contains("additional properties 'kubletDir'")));

    cluster.delete(&users);
    stock.assert_nothing_left(cluster).await;
    site.helm("uninstall", &["--wait"])
        .unwrap_or_else(|why| panic!("{why}"));
    let kinds = "csidrivers,storageclasses,clusterroles,clusterrolebindings,\
                 validatingadmissionpolicies,validatingadmissionpolicybindings,flowschemas,\
                 volumesnapshotclasses,volumegroupsnapshotclasses,volumeattributesclasses";
    let left = cluster.kubectl(&["get", kinds, "--output=name"]);
    let left: Vec<_> = left
        .lines()
        .filter(|line| line.contains("hostloop"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let definitions = cluster.kubectl(&["get", "crds", "--output=name"]);
    assert_eq!(
        definitions
            .lines()
            .filter(|line| line.contains("snapshot"))
            .count(),
        6
    );

    // No other snapshot controller is there.
    for choice in ["auto", "true"] {
        install_by_the_action(&site, &pool, choice);
        let env = ".spec.template.spec.containers[0].env[?(@.name=='SNAPSHOT_CONTROLLER')].value";
        let deployment = ["deployment", "hostloop-controller", "--namespace=hostloop"];
        assert_eq!(site.get(env, &deployment), ",snapshot-controller");
        let classes = "volumesnapshotclass,volumegroupsnapshotclass";
        let ours = [
            "get",
            classes,
            "-l",
            "app.kubernetes.io/name=hostloop",
            "--output=name",
        ];
        assert_eq!(cluster.kubectl(&ours).lines().count(), 2);
    }
    cluster.apply(&users);
    cluster.pod_ready("default", "restored");
    cluster.delete(&users);
    stock.assert_nothing_left(cluster).await;
    let said = Plugin::of(cluster).uninstalls_all();
    for kind in [
        "volumesnapshotclasses.snapshot",
        "volumegroupsnapshotclasses.groupsnapshot",
    ] {
        assert_has(&said, &[&format!("{kind}.storage.k8s.io removed")]);
    }
}

/// Installs the driver with the script of the GitHub action.
fn install_by_the_action(site: &Site, pool: &Path, snapshot_controller: &str) {
    let kubeconfig = format!("KUBECONFIG={}", text(&site.cluster.kubeconfig()));
    let script = root().join("deploy/action/install");
    let default = format!("default={}", text(pool));
    let further = [
        "--default-class",
        "true",
        "--snapshot-controller",
        snapshot_controller,
        "--",
        "--kubelet-dir",
        text(site.cluster.kubelet_dir()),
    ];
    let client = Plugin::of(&site.cluster).program();
    let args = [
        &kubeconfig,
        text(&script),
        "--client",
        text(&client),
        "--pool",
        &default,
    ];
    let said = machine::run("env", &[&args[..], &further].concat());
    assert!(said.contains("hostloop is installed"), "{said}");
}
