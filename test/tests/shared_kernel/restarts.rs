//! Nodes end while others use their volumes, and return.

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{check, wait_for};
use hostloop_test::{loop_devices, machine};
use serde_json::json;

use crate::site::{NAMESPACE, NODES, Site};

/// Appends numbers in the background of a pod.
const WRITE: &str = "(n=0; while :; do n=$((n + 1)); echo $n >> /going/numbers; sync /going/numbers; \
                     sleep 0.05; done) >/dev/null 2>&1 &";

const LENGTH: &str = "wc -l </going/numbers";

/// A claim of node 1, with pods on both other nodes.
fn start(site: &Site) {
    site.claim("going", "xfs", "ReadWriteMany", json!({}));
    site.run("maker", 1, &["going"], &[]);
    site.stop("maker");
    let [writer, reader] = site.users();
    site.run("writer", writer, &["going"], &[]);
    site.run("reader", reader, &["going"], &[]);
}

fn stop(site: &Site) {
    site.stop("writer");
    site.stop("reader");
    site.delete_claims(&["going"]);
}

fn length(site: &Site) -> u64 {
    let said = site.sh("reader", LENGTH);
    said.trim().parse().unwrap_or_else(|_| panic!("{said:?}"))
}

/// Waits until the file grows for the reader.
async fn grows(site: &Site) {
    let before = length(site);
    wait_for("more numbers", PATIENCE, async || {
        let now = length(site);
        check(now > before + 20, || format!("{now}, and {before} before"))
    })
    .await;
}

/// The node with the pool ends and returns. The others read and write meanwhile, and the device stays.
pub(crate) async fn users_go_on_without_the_owner(site: &Site) {
    start(site);
    site.sh("writer", WRITE);
    grows(site).await;
    let device = ["minor", "diskseq"].map(|key| site.context("going", key));
    site.cluster.kill("node-1");
    grows(site).await;
    site.start(1).await;
    grows(site).await;
    let [_, reader] = site.users();
    site.stop("reader");
    site.run("reader", reader, &["going"], &[]);
    grows(site).await;
    let now = ["minor", "diskseq"].map(|key| site.context("going", key));
    assert_eq!(now, device);
    // The owner takes part again.
    site.run("maker", 1, &["going"], &[]);
    let odd = "awk '$1 != NR { print NR \": \" $0; exit }' /going/numbers";
    assert_eq!(site.sh("maker", odd), "");
    site.stop("maker");
    stop(site);
}

/// All nodes end, and the kernel has no device of the volume any more, as after a reboot. The owner makes
/// another one, and the attachments say so, before any pod gets the volume.
pub(crate) async fn volumes_return_after_all_nodes_have_ended(site: &Site) {
    start(site);
    site.sh("writer", "echo kept > /going/file && sync");
    let handle = site.cluster.handle(NAMESPACE, "going");
    let before = site.context("going", "diskseq");
    for node in 1..=NODES {
        site.cluster.kill(&format!("node-{node}"));
    }
    no_devices_of(&handle).await;
    for node in 1..=NODES {
        site.cluster.start(&format!("node-{node}"));
    }
    for node in 1..=NODES {
        site.ready(node).await;
    }
    for pod in ["writer", "reader"] {
        let line = "cat /going/file";
        site.until("the volume in its pod", pod, line, "kept\n")
            .await;
    }
    assert_ne!(site.context("going", "diskseq"), before);
    stop(site);
}

/// Detaches all loop devices over the image of a volume, and those over them.
async fn no_devices_of(handle: &str) {
    wait_for("the end of the devices", PATIENCE, async || {
        let all = loop_devices::all();
        let own = all.iter().filter(|device| device.backing.contains(handle));
        let own: Vec<u32> = own.map(|device| device.minor).collect();
        // Once a node has ended, the kernel shows the paths of its device nodes beneath /dev.
        let is_over = |path: &str| own.iter().any(|n| path.ends_with(&format!("/loop{n}")));
        let over = all.iter().filter(|device| is_over(&device.backing));
        let minors = over.map(|device| device.minor).chain(own.iter().copied());
        let devices: Vec<String> = minors.map(|n| format!("/dev/loop{n}")).collect();
        for device in &devices {
            machine::try_run("losetup", &["--detach", device])?;
        }
        check(devices.is_empty(), || format!("{devices:?}"))
    })
    .await;
}
