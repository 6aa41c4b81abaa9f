//! The node's own processes stop and start under running pods.

use std::time::Duration;

use hostloop_test::leaks::Mounted;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::nodes_gone::signal;
use crate::objects::name;
use crate::site::Site;
use crate::space::{Space, there};
use crate::world::World;

/// Writes until a write fails, and then ends: a restarted pod was disturbed.
const WRITER: &str = "set -e; while :; do date +%s%N >> /data/log; sleep 0.05; done";

struct Writer<'a, 'w> {
    space: &'a Space<'w>,
}

impl Writer<'_, '_> {
    fn lines(&self) -> u64 {
        let printed = self.space.sh("writer", "wc -l < /data/log");
        printed
            .parse()
            .unwrap_or_else(|_| panic!("wc: {printed:?}"))
    }

    /// The pod still writes, and has never stopped.
    fn assert_unharmed(&self) {
        let before = self.lines();
        self.space.world.until("more lines", || match self.lines() {
            now if now > before => Ok(()),
            now => Err(now.to_string()),
        });
        let pod = self.space.pod_now("writer");
        let restarts = pod.pointer("/status/containerStatuses/0/restartCount");
        assert_eq!(restarts, Some(&json!(0)), "{}", pod["status"]);
        // Gaps are no longer than on a busy machine.
        let gaps = "awk 'NR > 1 && $1 - last > max { max = $1 - last } { last = $1 } END { print int(max / 1e9) }' /data/log";
        let gap = self.space.sh("writer", gaps);
        assert!(gap.parse::<u64>().is_ok_and(|s| s < 10), "a gap of {gap} s");
    }
}

fn mounts(site: &Site<'_>) -> Vec<String> {
    let ours = site.mounts().into_iter().filter(Mounted::on_loop);
    ours.map(|m| format!("{} at {}", m.source, m.at.display()))
        .collect()
}

/// The driver's pod is deleted and replaced while a pod writes. No volume is mounted again, the pod
/// is not disturbed, and its volume can be deleted afterwards.
pub(crate) fn pods_notice_nothing_of_a_new_driver(world: &World) {
    let space = Space::new(world, "new-driver");
    space.claim("data", "hostloop-ext4", json!({}));
    space.script("writer", &["data"], WRITER);
    space.ready("writer");
    space.sh("writer", "until [ -s /data/log ]; do sleep 0.1; done");
    let writer = Writer { space: &space };
    let volume = space.volume("data");
    let site = world.home(&volume);
    let before = mounts(&site);
    let old = site.driver_ready();
    let new = site.restart_driver();
    assert_ne!(name(&old), name(&new));
    writer.assert_unharmed();
    assert_eq!(mounts(&site), before, "nothing is mounted anew");

    // The same after SIGKILL of the driver's container.
    signal(&site, Signal::SIGKILL);
    world.until("the container's successor", || {
        let pod = world.get("Pod", crate::world::NAMESPACE, name(&new));
        match pod
            .pointer("/status/containerStatuses/0/restartCount")
            .and_then(Value::as_u64)
        {
            Some(n) if n > 0 => Ok(()),
            _ => Err(pod["status"].to_string()),
        }
    });
    site.driver_ready();
    writer.assert_unharmed();
    assert_eq!(mounts(&site), before, "nothing is mounted anew");

    space.delete_pod("writer");
    space.delete_claim("data");
    world.gone("PersistentVolume", "", name(&volume));
    space.end();
}

/// Kubelet stops and starts: the driver registers again, and pods' volumes work as before.
pub(crate) fn kubelet_is_restarted(world: &World) {
    let space = Space::new(world, "kubelet");
    space.claim("data", "hostloop-ext4", json!({}));
    space.script("writer", &["data"], WRITER);
    space.ready("writer");
    space.sh("writer", "until [ -s /data/log ]; do sleep 0.1; done");
    let site = world.home(&space.volume("data"));
    world.cluster().stop(&site.kubelet());
    // Kubelet asks for the registration again within this time.
    std::thread::sleep(Duration::from_secs(3));
    world.cluster().start(&site.kubelet());
    world.until("kubelet", || space.try_sh("writer", "true"));
    Writer { space: &space }.assert_unharmed();
    site.driver_ready();
    space.claim("more", "hostloop-xfs", json!({}));
    space.pod_with("pod", &["more"], there(site.name()));
    space.ready("pod");
    space.sh("pod", "echo x > /more/x");
    for claim in ["data", "more"] {
        space.volume(claim);
    }
    space.end();
}
