//! The health of volumes and storage where software reads it (KEP-1432): in the status of the claim, of
//! the pod and of the CSINode, on a cluster with the feature gate `CSIVolumeHealth`. Each begins with a
//! fault, and ends with it.

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{Cluster, Options, Stock, check, wait_for};
use hostloop_test::machine::{self, text};
use hostloop_test::plugin::Plugin;
use hostloop_test::scratch::Scratch;
use hostloop_test::{deployed, walk};

/// What an object says of the health: arguments of kubectl for the status and the reason of each
/// condition.
const CLAIM: [&str; 4] = [
    "get",
    "pvc",
    "data",
    "--output=jsonpath={range .status.healthStatus.healthConditions[*]}{.status} {.reason}{end}",
];
const POD: [&str; 4] = [
    "get",
    "pod",
    "data",
    "--output=jsonpath={range .status.volumeHealth[*].healthConditions[*]}{.status} {.reason}{end}",
];
const CSI_NODE: [&str; 3] = [
    "get",
    "csinodes",
    "--output=jsonpath={range .items[*].status.storageHealth[*].healthConditions[*]}{.status} \
     {.reason}{end}",
];

/// Waits until an object says this first, or nothing. Kubelet asks the driver each minute.
async fn says(cluster: &Cluster, object: &[&str], expected: &str) {
    let what = format!("{expected:?} of {object:?}");
    wait_for(&what, PATIENCE, async || {
        let found = cluster.kubectl(object);
        check(
            found.starts_with(expected) && found.is_empty() == expected.is_empty(),
            || found,
        )
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_shows_in_the_claim_the_pod_and_the_node() {
    machine::require();
    let scratch = Scratch::new();
    let options = Options {
        feature_gates: Some("CSIVolumeHealth=true"),
        ..Options::one_node()
    };
    let cluster = Cluster::up(&options.apart("health"));
    let stock = Stock::take(&cluster, &[]);
    cluster.load(&deployed::tested_image(scratch.path().join("hostloop.tar")));
    let plugin = Plugin::of(&cluster);
    let pool = scratch.dir("pool");
    let named = format!("default={}", text(&pool));
    let kubelet_dir = text(cluster.kubelet_dir());
    let install = [
        "install",
        "--faults",
        "--pool",
        &named,
        "--kubelet-dir",
        kubelet_dir,
    ];
    plugin.succeeds(&install, &["hostloop is installed"]);
    let data = walk::claim_and_pod("data", &["storageClassName: hostloop-ext4"]);
    cluster.apply(&data);
    cluster.pod_ready("default", "data");

    // Not `frozen`, which would block sync(2) of the other tests.
    let fault = "hostloop.csi.dev/fault";
    cluster.kubectl(&["annotate", "pvc", "data", &format!("{fault}=full,for=1h")]);
    says(&cluster, &CLAIM, "Degraded FaultInjected").await;
    says(&cluster, &POD, "Degraded FaultInjected").await;
    cluster.kubectl(&["annotate", "pvc", "data", &format!("{fault}-")]);
    says(&cluster, &CLAIM, "").await;
    says(&cluster, &POD, "").await;

    let handle = [
        "get",
        "pv",
        "--output=jsonpath={.items[0].spec.csi.volumeHandle}",
    ];
    let entry = pool.join("volumes").join(cluster.kubectl(&handle).trim());
    let (image, aside) = (entry.join("image"), entry.join("image.aside"));
    std::fs::rename(&image, &aside).expect("the volume has an image");
    says(&cluster, &POD, "DataLoss ImageMissing").await;
    std::fs::rename(&aside, &image).expect("the image is aside");
    says(&cluster, &POD, "").await;

    says(&cluster, &CSI_NODE, "").await;
    let (mark, aside) = (pool.join("pool.json"), pool.join("pool.json.aside"));
    std::fs::rename(&mark, &aside).expect("the pool has its mark");
    says(&cluster, &CSI_NODE, "StorageUnreachable PoolGone").await;
    says(&cluster, &POD, "Inaccessible PoolGone").await;
    std::fs::rename(&aside, &mark).expect("the mark is aside");
    says(&cluster, &CSI_NODE, "").await;
    says(&cluster, &POD, "").await;

    cluster.delete(&data);
    walk::until_no_volume(&cluster).await;
    plugin.uninstalls_all();
    stock.assert_nothing_left(&cluster).await;
}
