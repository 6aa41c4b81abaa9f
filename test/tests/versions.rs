//! Older versions of Kubernetes than that of the other tests: `kubectl hostloop` installs, a volume
//! lives, fails, loses power and is backed up, and what an older API server lacks is left out and named.

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{Cluster, Options, Stock, check, wait_for};
use hostloop_test::leaks::files_in;
use hostloop_test::machine::{self, text};
use hostloop_test::plugin::{Plugin, assert_has};
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;
use hostloop_test::{changed_blocks, deployed, walk};

/// The optional kinds, with the first minor version that serves each.
const OPTIONAL: [(&str, u32); 2] = [
    ("VolumeAttributesClass v1", 34),
    ("MutatingAdmissionPolicy v1", 36),
];

/// The first minor version that takes all objects as they are.
const WHOLE: u32 = 34;

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_1_30() {
    lives_on("1.30", 30).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_1_33() {
    lives_on("1.33", 33).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_1_36() {
    lives_on("1.36", 36).await;
}

async fn lives_on(version: &'static str, minor: u32) {
    machine::require();
    let scratch = Scratch::new();
    let options = Options {
        version: Some(version),
        ..Options::one_node()
    };
    let cluster = Cluster::up(&options.apart(&minor.to_string()));
    let kubelet_dir = text(cluster.kubelet_dir());
    let served = cluster.kubectl(&["get", "--raw", "/version"]);
    let number = served
        .lines()
        .find_map(|line| line.trim().strip_prefix("\"gitVersion\": "));
    let number = number
        .unwrap_or_else(|| panic!("{served}"))
        .trim_matches([',', '"'])
        .to_owned();
    assert!(number.starts_with(&format!("v{version}.")), "{number}");
    let stock = Stock::take(&cluster, &[]);
    cluster.load(&deployed::tested_image(scratch.path().join("hostloop.tar")));
    let plugin = Plugin::of(&cluster);

    // Backups take snapshots of a block device in use, which needs a pool with reflinks.
    let fixture = PoolFixture::new(&scratch, PoolKind::Xfs, 16 * GIB);
    fixture.share_mounts();
    let (named, pool) = (fixture.argument(), fixture.root());
    let install = ["install", "--pool", &named, "--kubelet-dir", kubelet_dir];
    let said = plugin.succeeds(&install, &[&number, "hostloop is installed"]);
    // Three classes, and a field of the CSIDriver.
    let left_out = said
        .lines()
        .filter(|line| line.contains("left out: "))
        .count();
    assert_eq!(left_out, if minor < WHOLE { 4 } else { 0 }, "{said}");
    takes_the_manifests(&cluster, minor, kubelet_dir);

    let checked = plugin.succeeds(&["check"], &[&number]);
    for (kind, since) in OPTIONAL {
        let state = if minor < since {
            "is left out"
        } else {
            "is served"
        };
        assert_has(&checked, &[&format!("{kind} {state}")]);
    }
    let steps = walk::walk(&cluster).await;
    plugin.succeeds(&["check", "--live"], &["All of it was deleted"]);
    wait_for("an empty pool", PATIENCE, async || {
        match &files_in(pool)[..] {
            [] => Ok(()),
            left => Err(format!("{left:?}")),
        }
    })
    .await;

    a_lost_label_comes_back(&cluster, &plugin).await;

    let log = cluster.logs("hostloop", "-l=app.kubernetes.io/name=hostloop");
    let off = log
        .lines()
        .filter(|line| line.contains("the API server lacks kinds"))
        .count();
    assert_eq!(off, usize::from(minor < OPTIONAL[0].1), "{log}");
    // The API server says so for a moment after a definition is new.
    let is_new = |line: &&str| line.contains("storage is (re)initializing");
    let mut failed = log.lines().filter(|line| line.contains("watching failed"));
    assert!(failed.all(|line| is_new(&line)), "{log}");
    let more = [&install[..], &["--faults", "--snapshot-metadata"]].concat();
    plugin.succeeds(&more, &["hostloop is installed"]);
    faults_begin_and_end(&cluster, &plugin).await;
    changed_blocks::sample(&cluster, &plugin, pool, scratch.path());
    walk::until_no_volume(&cluster).await;
    plugin.uninstalls_all();
    stock.assert_nothing_left(&cluster).await;
    println!(
        "Kubernetes {number}: installed without {left_out} things, {} steps ({}), checked, \
         uninstalled",
        steps.len(),
        steps.join(", ")
    );
}

/// A person removes the topology label of the node.
async fn a_lost_label_comes_back(cluster: &Cluster, plugin: &Plugin<'_>) {
    const LABEL: &str = "topology.hostloop.csi.dev/node";
    let removed = format!("{LABEL}-");
    // The driver looks once a minute, and may look in between.
    wait_for("a check without the label", PATIENCE, async || {
        cluster.try_kubectl(&["label", "nodes", "--all", &removed])?;
        let (said, succeeds) = plugin.run(&["check"]);
        check(
            !succeeds && said.contains("has lost its topology label"),
            || said,
        )
    })
    .await;
    let labelled = ["get", "nodes", "-l", LABEL, "--output=name"];
    wait_for("the label", PATIENCE, async || {
        match &*cluster.kubectl(&labelled) {
            "" => Err("no node has it".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    wait_for("the registration", PATIENCE, async || {
        let (said, succeeds) = plugin.run(&["check"]);
        check(succeeds, || said)
    })
    .await;
}

/// A pod with a claim, which comes again with the same claim.
const DATABASE: &str = "\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: busybox:1
          command: [sleep, '1000000']
          volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec:
        storageClassName: hostloop-ext4
        accessModes: [ReadWriteOnce]
        resources: {requests: {storage: 512Mi}}
";

/// A volume fails and loses power as a person asks for it by the client, and its next pod finds what
/// was synced.
async fn faults_begin_and_end(cluster: &Cluster, plugin: &Plugin<'_>) {
    cluster.apply(DATABASE);
    let rollout = ["rollout", "status", "statefulset/db", "--timeout=300s"];
    cluster.kubectl(&rollout);
    let write = "echo synced >/data/file && sync /data/file";
    cluster.exec("default", "db-0", &["sh", "-c", write]);

    let set = ["fault", "set", "data-db-0", "gone", "--for", "5m"];
    plugin.succeeds(&set, &["gone,for=300s", "injected"]);
    plugin.succeeds(
        &["fault", "list", "-A", "-l", "app=db"],
        &["data-db-0", "injected"],
    );
    let names = plugin.succeeds(&["fault", "list", "-o", "name"], &[]);
    assert_eq!(names, "persistentvolumeclaim/data-db-0\n");
    // Devices have blocks of 4 KiB. A smaller read would come from memory.
    let direct = "dd if=/data/file of=/dev/null bs=4k iflag=direct";
    let read = cluster.try_exec("default", "db-0", &["sh", "-c", direct]);
    assert!(read.is_err(), "{read:?}");
    plugin.fails(
        &["fault", "set", "data-db-0", "frozen", "--for", "1h"],
        &["is longer than 300 s"],
    );
    // The kernel may have written meanwhile, and the filesystem has stopped then.
    let ended = "The fault gone,for=300s has ended";
    plugin.succeeds(&["fault", "clear", "data-db-0"], &[ended]);

    let crash = ["powercut", "-l", "app=db", "--delete-pods"];
    let steps = ["The power of 1 claim is cut", "1 pod deleted", "healed"];
    plugin.succeeds(&crash, &steps);
    let found = wait_for("the next pod", PATIENCE, async || {
        cluster.try_exec("default", "db-0", &["cat", "/data/file"])
    });
    assert_eq!(found.await, "synced\n");

    cluster.delete(DATABASE);
    cluster.kubectl(&["delete", "pvc", "data-db-0", "--timeout=300s"]);
    walk::until_no_volume(cluster).await;
}

/// The API server takes each object of the manifests that are for its version, with every field: of
/// the overlay, and of a release. Older servers refuse the release's manifest for newer ones.
fn takes_the_manifests(cluster: &Cluster, minor: u32, kubelet_dir: &str) {
    let manifest = Scratch::new();
    let takes = |args: &[&str], apply: &[&str]| {
        let file = manifest.file("manifest.yaml", &deployed::render(args));
        let try_it = [
            "apply",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            text(&file),
        ];
        cluster.try_kubectl(&[&try_it[..], apply].concat())
    };
    let older: &[&str] = if minor < WHOLE {
        &["--component", "kubernetes-1.30"]
    } else {
        &[]
    };
    let overlay = [
        "--overlay",
        "snapshot-controller",
        "--kubelet-dir",
        kubelet_dir,
    ];
    takes(&[&overlay[..], older].concat(), &[]).unwrap_or_else(|why| panic!("{why}"));
    // The plugin has applied other values of the same fields.
    let as_released = ["--server-side", "--force-conflicts"];
    takes(&[&["--release"][..], older].concat(), &as_released)
        .unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(takes(&["--release"], &as_released).is_ok(), minor >= WHOLE);
}
