//! The expectations of `check` on a cluster where all of them are met.

use hostloop_test::cluster::Cluster;
use hostloop_test::plugin::{Plugin, assert_has};

/// The version of the program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How the line of each expectation begins.
fn expectations(cluster: &Cluster) -> Vec<String> {
    let node = cluster.node(1);
    let served = cluster.kubectl(&["get", "--raw", "/version"]);
    let served: serde_json::Value = serde_json::from_str(&served).expect("JSON");
    let version = served["gitVersion"].as_str().expect("a version");
    let get = |words: &str| cluster.kubectl(&words.split(' ').collect::<Vec<_>>());
    let leader = get("get lease -n hostloop hostloop-hostloop-csi-dev -o \
                      jsonpath={.spec.holderIdentity}");
    let image = get("get daemonset -n hostloop hostloop -o \
                     jsonpath={.spec.template.spec.containers[0].image}");
    let kubelet_dir = cluster.kubelet_dir().display();
    [
        format!("Kubernetes {version} is new enough"),
        "VolumeAttributesClass v1 is served".to_owned(),
        "MutatingAdmissionPolicy v1 is served".to_owned(),
        "This machine's clock agrees with the API server's".to_owned(),
        "The snapshot kinds are served: v1".to_owned(),
        "The group snapshot kinds are served: v1, v1beta2".to_owned(),
        "One snapshot controller runs: hostloop/hostloop-controller".to_owned(),
        "The driver has a VolumeSnapshotClass: hostloop".to_owned(),
        "CSIDriver hostloop.csi.dev has the fields that the driver needs".to_owned(),
        "Volumes are not attached, by CSIDriver and driver".to_owned(),
        "The driver's StorageClasses: hostloop-btrfs, hostloop-ext4, hostloop-thick, hostloop-xfs"
            .to_owned(),
        "One StorageClass is the default: hostloop-ext4".to_owned(),
        "Account hostloop has its ".to_owned(),
        "Account hostloop-controller has its ".to_owned(),
        "12 admission policies are in force".to_owned(),
        "The API server rejects a write that they deny (a dry run)".to_owned(),
        format!("The pods are ready: {node}"),
        format!("All pods run the image {image}"),
        format!("The pods run version {VERSION}, as this program"),
        format!("Kubelet has registered the driver: {node}"),
        format!("Kubelet's directory is right: {kubelet_dir}"),
        format!("Loop devices can be used: {node}"),
        "Filesystems can be made and mounted: ext4, xfs, btrfs".to_owned(),
        format!("Clocks agree with the API server's: {node}"),
        format!("Pools are open: default on {node}"),
        "Snapshots and clones share blocks in all pools".to_owned(),
        "Direct I/O works in all pools".to_owned(),
        "Pools have room: ".to_owned(),
        format!(
            "Volumes and pools have no faults on request, because the drivers run without \
             --enable-faults: {node}"
        ),
        format!("The leader is {leader}"),
        "No claim is stuck (1 of the driver)".to_owned(),
    ]
    .into()
}

/// How the lines of the live check begin: for a claim of the default class.
const LIVE: [&str; 4] = [
    "Claim default/hostloop-check-",
    "A snapshot was taken (",
    "A volume restored from it has the data (",
    "All of it was deleted, and no volume is left (",
];

/// All expectations are met, and none is skipped. One claim of the driver exists.
pub(crate) fn all_pass(cluster: &Cluster, plugin: &Plugin<'_>) {
    let mut expected = expectations(cluster);
    assert_ticked(&plugin.succeeds(&["check"], &[]), &expected);

    let said = plugin.succeeds(&["check", "--live"], &[]);
    expected.extend(LIVE.map(str::to_owned));
    assert_ticked(&said, &expected);
    let written = format!(
        " of class hostloop-ext4 got a volume on {}, and a pod wrote to it (",
        cluster.node(1)
    );
    assert_has(&said, &[&written]);
}

/// The lines with marks are these, in this order, each with a tick. A warning names each loop
/// device of a test that runs beside this one.
#[track_caller]
fn assert_ticked(said: &str, expected: &[String]) {
    let (others, lines): (Vec<&str>, Vec<&str>) = said
        .lines()
        .filter(|line| line.starts_with("  "))
        .filter(|line| !line.contains("If the cluster of that file is gone for good"))
        .partition(|line| line.contains("/hostloop-test-"));
    for (line, expected) in lines.iter().zip(expected) {
        assert!(
            line.starts_with(&format!("  ✓ {expected}")),
            "{line:?}, not {expected:?}: {said}"
        );
    }
    assert_eq!(lines.len(), expected.len(), "{said}");
    let warnings = match others.len() {
        0 => String::new(),
        1 => ", 1 warning".to_owned(),
        more => format!(", {more} warnings"),
    };
    let summary = format!("{} passed{warnings}", expected.len());
    assert!(said.lines().any(|line| line == summary), "{said}");
}
