//! The node's own processes stop and start under running pods.

use std::time::Duration;

use hostloop_test::leaks::Mounted;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::nodes_gone::signal;
use crate::objects::{name, restarts};
use crate::site::Site;
use crate::space::{Space, there};
use crate::world::{NAMESPACE, World, check};

/// A pod that appends to a file, and ends at the first failed write: a restart shows a disturbance.
pub(crate) struct Writer<'a, 'w> {
    space: &'a Space<'w>,
}

impl<'a, 'w> Writer<'a, 'w> {
    /// Runs the pod `writer` with the new claim `data` of a class.
    pub(crate) fn start(space: &'a Space<'w>, class: &str) -> Writer<'a, 'w> {
        space.claim("data", class, json!({}));
        let script = "set -e; while :; do date +%s%N >> /data/log; sleep 0.05; done";
        space.run_script("writer", &["data"], script);
        space.sh("writer", "until [ -s /data/log ]; do sleep 0.1; done");
        Writer { space }
    }

    fn lines(&self) -> u64 {
        let printed = self.space.sh("writer", "wc -l < /data/log");
        let lines = printed.parse();
        lines.unwrap_or_else(|_| panic!("wc: {printed:?}"))
    }

    /// The pod still writes, and has never stopped.
    pub(crate) fn assert_writes(&self) {
        let before = self.lines();
        self.space.world.until("more lines", || {
            let now = self.lines();
            check(now > before, || now.to_string())
        });
        let pod = self.space.pod_now("writer");
        assert_eq!(restarts(&pod), Some(0), "{}", pod["status"]);
    }

    /// [`Writer::assert_writes`], also without a long pause.
    fn assert_unharmed(&self) {
        self.assert_writes();
        // Gaps are no longer than on a busy machine.
        let gaps = "awk 'NR > 1 && $1 - last > max { max = $1 - last } { last = $1 } END { print int(max / 1e9) }' /data/log";
        let gap = self.space.sh("writer", gaps);
        assert!(gap.parse::<u64>().is_ok_and(|s| s < 10), "a gap of {gap} s");
    }
}

fn mounts(site: &Site<'_>) -> Vec<String> {
    let ours = site.mounts().into_iter().filter(Mounted::on_loop);
    ours.map(|m| format!("{} at {}", m.source, m.at.display())).collect()
}

/// The driver's pod is deleted and replaced while a pod writes. No volume is mounted again, the pod
/// is not disturbed, and its volume can be deleted afterwards.
pub(crate) fn pods_notice_nothing_of_a_new_driver(world: &World) {
    let space = Space::new(world, "new-driver");
    let writer = Writer::start(&space, "hostloop-ext4");
    let volume = space.volume("data");
    let site = world.home(&volume);
    let before = mounts(&site);
    let old = site.driver_ready();
    let new = site.restart_driver();
    assert_ne!(name(&old), name(&new));
    writer.assert_unharmed();
    assert_eq!(mounts(&site), before, "nothing is mounted again");

    // The same after SIGKILL of the driver's container.
    signal(&site, Signal::SIGKILL);
    let restarted = |pod: &Value| restarts(pod) > Some(0);
    world.until_is("restarted", ("Pod", NAMESPACE, name(&new)), restarted);
    site.driver_ready();
    writer.assert_unharmed();
    assert_eq!(mounts(&site), before, "nothing is mounted again");

    space.delete_pod("writer");
    space.delete_claim("data");
    world.gone("PersistentVolume", "", name(&volume));
    space.end();
}

/// Kubelet stops and starts: the driver registers again, and pods' volumes work as before.
pub(crate) fn kubelet_is_restarted(world: &World) {
    let space = Space::new(world, "kubelet");
    let writer = Writer::start(&space, "hostloop-ext4");
    let site = world.home(&space.volume("data"));
    world.cluster().stop(&site.kubelet());
    // Kubelet asks for the registration again within this time.
    std::thread::sleep(Duration::from_secs(3));
    world.cluster().start(&site.kubelet());
    world.until("kubelet", || space.try_sh("writer", "true"));
    writer.assert_unharmed();
    site.driver_ready();
    space.claim("more", "hostloop-xfs", json!({}));
    space.run_with("pod", &["more"], there(site.name()));
    space.sh("pod", "echo x > /more/x");
    for claim in ["data", "more"] {
        space.volume(claim);
    }
    space.end();
}
