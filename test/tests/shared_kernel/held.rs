//! A node that still has a volume keeps it, also if Kubernetes detaches the volume by force.

use std::time::Duration;

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{check, wait_for};
use hostloop_test::{loop_devices, machine};
use serde_json::json;

use crate::site::{NAMESPACE, Site};

/// What the driver says of such a node.
const HELD: &str = "still has the volume mounted or bound";

/// Kubelet of a node dies, and its containers go on. Kubernetes detaches the volumes by force, and the
/// pod that should have them next waits, until the node's container ends, too.
pub(crate) async fn a_node_that_has_a_volume_keeps_it(site: &Site) {
    let [user, other] = site.users();
    site.claim("kept", "xfs", "ReadWriteOnce", json!({}));
    let block = json!({"volumeMode": "Block"});
    site.claim("raw", "ext4", "ReadWriteOnce", block);
    let (files, devices) = (["kept"], ["raw"]);
    site.run("first", 1, &files, &devices);
    site.stop("first");
    site.run("second", user, &files, &devices);
    site.sh("second", "echo second > /kept/file && sync");
    // The pod never opens its device: its node has it bound, and nothing else shows that.
    let minor = site.context("raw", "minor");
    let (raw, name) = (image(&minor), site.cluster.node(user));

    site.cluster.kill(&format!("kubelet-{user}"));
    let force = ["delete", "pod", "-n", NAMESPACE, "second", "--force"];
    site.cluster
        .kubectl(&[&force[..], &["--grace-period=0"]].concat());
    site.taint(user, "=nodeshutdown:NoExecute");
    site.pod("third", other, &files, &devices);
    for claim in ["kept", "raw"] {
        wait_for("the refusal of the detach", PATIENCE, async || {
            let said = site.attachments(claim, "{.status.detachError.message}");
            let is_refused = said
                .iter()
                .any(|(node, text)| *node == name && text.contains(HELD));
            check(is_refused, || format!("{said:?}"))
        })
        .await;
    }
    let new = other_devices(site);
    assert!(!new.contains(&minor), "{minor} is the volume's: {new:?}");
    assert_eq!(image(&minor), raw);
    // Kubernetes tries again and again. Nothing of that lets the next pod in.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(site.field("pod/third", "{.status.phase}"), "Pending");
    assert_eq!(image(&minor), raw);

    site.cluster.kill(&format!("node-{user}"));
    site.cluster.pod_ready(NAMESPACE, "third");
    assert_eq!(site.sh("third", "cat /kept/file"), "second\n");
    site.cluster.start(&format!("node-{user}"));
    site.taint(user, "-");
    site.ready(user).await;
    site.stop("third");
    site.run("fourth", user, &files, &devices);
    assert_eq!(site.sh("fourth", "cat /kept/file"), "second\n");
    site.stop("fourth");
    site.delete_claims(&["kept", "raw"]);
}

/// The file behind a loop device, as the kernel names it.
fn image(minor: &str) -> String {
    let file = format!("/sys/block/loop{minor}/loop/backing_file");
    let read = std::fs::read_to_string(&file);
    read.unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Attaches thirty other files, and returns the numbers of their devices.
fn other_devices(site: &Site) -> Vec<String> {
    let attached: Vec<_> = (0..30)
        .map(|n| {
            let file = site.scratch.path().join(format!("other-{n}"));
            let made = std::fs::File::create(&file).and_then(|file| file.set_len(1 << 20));
            made.expect("it can be written");
            loop_devices::attach(&file, &[])
        })
        .collect();
    let devices: Vec<&str> = attached
        .iter()
        .map(|(device, _)| machine::text(device))
        .collect();
    machine::run("losetup", &[&["--detach"][..], &devices].concat());
    let numbers = devices
        .iter()
        .map(|device| device.trim_start_matches("/dev/loop").to_owned());
    numbers.collect()
}
