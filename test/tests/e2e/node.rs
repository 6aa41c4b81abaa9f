//! One node's own processes stop and start under running pods, and its pods are evicted.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hostloop_test::PATIENCE;
use hostloop_test::deployed::NAMESPACE;
use hostloop_test::front::objects;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::nodes::assert_one_volume_each;
use crate::nodes_gone::{processes, send, signal, stop};
use crate::objects::{assert_text, handle_of, name, restarts, text};
use crate::site::Site;
use crate::snapshots::{content_of, ready};
use crate::space::{Space, inline_volumes, on_node, staged_as, there};
use crate::world::{World, check};

/// A pod that appends to a file, and ends at the first failed write: a restart shows a disturbance.
/// It also appends to a file in its container, which shows how long the machine itself pauses.
pub(crate) struct Writer<'a, 'w> {
    space: &'a Space<'w>,
}

impl<'a, 'w> Writer<'a, 'w> {
    /// Runs the pod `writer` with the new claim `data` of a class.
    pub(crate) fn start(space: &'a Space<'w>, class: &str) -> Writer<'a, 'w> {
        space.claim("data", class, json!({}));
        let script = "set -e; while :; do date +%s%N >> /beats; sleep 0.2; done & \
                      while :; do date +%s%N >> /data/log; sleep 0.05; done";
        space.run_script("writer", &["data"], script);
        let begun = "until [ -s /data/log ] && [ -s /beats ]; do sleep 0.1; done";
        space.sh("writer", begun);
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
        // Gaps are no longer than on a busy machine, and than the machine itself stood still.
        let [gap, pause] = ["/data/log", "/beats"].map(|file| self.longest_gap(file));
        assert!(gap < 10 + pause, "a gap of {gap} s, and one of {pause} s");
    }

    /// The longest time between two lines of a file of times, in whole seconds.
    fn longest_gap(&self, file: &str) -> u64 {
        let gaps = "awk 'NR > 1 && $1 - last > max { max = $1 - last } { last = $1 } \
                    END { print int(max / 1e9) }'";
        let gap = self.space.sh("writer", &format!("{gaps} {file}"));
        gap.parse().unwrap_or_else(|_| panic!("awk: {gap:?}"))
    }
}

/// The mounts of the driver's pools and of this pod's volume. Other tests have volumes on the node,
/// too.
fn mounts(site: &Site<'_>, pod: &Value) -> Vec<String> {
    let in_pod = site.mounts_with(text(pod, "/metadata/uid"));
    let device = &in_pod.first().expect("the pod has a volume").source;
    let pools = site.world.plugin_dir();
    let mut all = site.mounts();
    all.retain(|m| m.on_loop() && (m.source == *device || m.at.starts_with(&pools)));
    all.iter()
        .map(|m| format!("{} at {}", m.source, m.at.display()))
        .collect()
}

/// The driver's pod is deleted and replaced while a pod writes. No volume is mounted again, the pod
/// is not disturbed, and its volume can be deleted afterwards.
pub(crate) fn pods_notice_nothing_of_a_new_driver(world: &World) {
    let site = world.site(1);
    let _alone = site.alone();
    let space = Space::new(world, "new-driver");
    let class = space.class("here", on_node(site.name()));
    let writer = Writer::start(&space, &class);
    let volume = space.volume("data");
    let pod = space.pod_now("writer");
    let before = mounts(&site, &pod);
    let old = site.driver_ready();
    let new = site.restart_driver();
    assert_ne!(name(&old), name(&new));
    writer.assert_unharmed();
    assert_eq!(mounts(&site, &pod), before, "nothing is mounted again");

    // The same after SIGKILL of the driver's container.
    signal(&site, Signal::SIGKILL);
    let restarted = |pod: &Value| restarts(pod) > Some(0);
    world.until_is("restarted", ("Pod", NAMESPACE, name(&new)), restarted);
    site.driver_ready();
    writer.assert_unharmed();
    assert_eq!(mounts(&site, &pod), before, "nothing is mounted again");

    space.delete_pod("writer");
    space.delete_claim("data");
    world.gone("PersistentVolume", "", name(&volume));
    space.end();
}

/// The driver ends amid calls, with its pod and by SIGKILL, while volumes are made and snapshots
/// are taken of one in use. All calls succeed in the end, each once, and the pod still writes.
pub(crate) fn a_new_driver_finishes_what_the_last_one_began(world: &World) {
    let site = world.site(1);
    let _alone = site.alone();
    let space = Space::new(world, "in-flight");
    let class = space.class("here", on_node(site.name()));
    let writer = Writer::start(&space, &class);
    let mut volumes = vec![space.volume("data")];
    let mut taken = BTreeSet::new();
    // In this order: kubelet delays the second restart of a container.
    for end in ["replaced", "killed"] {
        for named in ended_amid_calls(&space, &site, &class, end) {
            volumes.push(space.volume(&named));
            ready(&space, "VolumeSnapshot", &named);
            let content = content_of(&space, &named);
            taken.insert(text(&content, "/status/snapshotHandle").to_owned());
        }
        writer.assert_writes();
    }
    site.driver_ready();
    assert_one_volume_each(world, &space, &volumes);
    assert_eq!(taken.len() + 1, volumes.len());
    world.until("no other snapshot in the pool", || {
        let there = std::fs::read_dir(site.pool().join("snapshots")).expect("the pool is mounted");
        let there = there.map(|entry| entry.expect("its name").file_name());
        let there: BTreeSet<_> = there
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        check(there == taken, || format!("{there:?}, not {taken:?}"))
    });
    for named in world.list("VolumeSnapshot", &space.name) {
        world.delete("VolumeSnapshot", &space.name, name(&named));
    }
    space.end();
}

/// Makes claims and snapshots, and ends the driver amid the calls for them: its pod is `replaced`, or
/// it is `killed`. Returns the names of the claims, which are those of the snapshots, too.
fn ended_amid_calls(space: &Space<'_>, site: &Site<'_>, class: &str, end: &str) -> Vec<String> {
    const AT_ONCE: usize = 6;
    let world = space.world;
    let since = Instant::now();
    let mut names: Vec<String> = Vec::new();
    loop {
        let pod = site.driver_ready();
        let driver = processes(site);
        let first = names.len();
        names.extend((first..first + AT_ONCE).map(|i| format!("{end}-{i}")));
        for named in &names[first..] {
            space.create(objects::snapshot(&space.name, named, "hostloop", "data"));
            space.sized(named, class, "64Mi");
        }
        match end {
            "replaced" => world.delete("Pod", NAMESPACE, name(&pod)),
            _ => send(&driver, Signal::SIGKILL),
        }
        let open = unfinished(space, end);
        println!("    {open} of {} calls were not finished", 2 * AT_ONCE);
        if open > 0 {
            return names;
        }
        // On a busy machine, all calls may have ended by then.
        assert!(since.elapsed() < PATIENCE, "no call was in flight");
        if end == "replaced" {
            world.gone("Pod", NAMESPACE, name(&pod));
        } else {
            let again = |now: &Value| restarts(now) > restarts(&pod);
            world.until_is("restarted", ("Pod", NAMESPACE, name(&pod)), again);
        }
    }
}

/// The number of claims and snapshots with this prefix that are not bound or ready.
fn unfinished(space: &Space<'_>, prefix: &str) -> usize {
    let ours = |object: &&Value| name(object).starts_with(prefix);
    let claims = space.world.list("PersistentVolumeClaim", &space.name);
    let claims = claims.iter().filter(ours);
    let pending = claims
        .filter(|claim| text(claim, "/status/phase") != "Bound")
        .count();
    let snapshots = space.world.list("VolumeSnapshot", &space.name);
    let snapshots = snapshots.iter().filter(ours);
    pending
        + snapshots
            .filter(|one| one["status"]["readyToUse"] != true)
            .count()
}

/// Kubelet stops and starts, also amid a call: the driver registers again, the call is repeated,
/// and pods' volumes work as before.
pub(crate) fn kubelet_is_restarted(world: &World) {
    let site = world.site(2);
    let _alone = site.alone();
    let space = Space::new(world, "kubelet");
    let class = space.class("here", on_node(site.name()));
    let writer = Writer::start(&space, &class);
    space.volume("data");
    // The calls of several volumes take long enough to stop the driver amid them.
    let claims = ["called", "called-2", "called-3", "called-4"];
    for claim in claims {
        space.claim(claim, &class, json!({}));
    }
    let folders = claims.map(|claim| site.staging(handle_of(&space.volume(claim))));
    let driver = processes(&site);
    let pod = stopped_amid_calls(&space, &site, &driver, &claims, &folders);
    world.cluster().stop(&site.kubelet());
    let uid = text(&pod, "/metadata/uid");
    let published = || site.mounts_with(uid).len();
    let answered = published();
    assert!(answered < claims.len(), "no call was in flight");
    send(&driver, Signal::SIGCONT);
    // Kubelet asks for the registration again within this time.
    std::thread::sleep(Duration::from_secs(3));
    println!("    {answered} of {} volumes were published", claims.len());
    world.cluster().start(&site.kubelet());
    world.until("kubelet", || space.try_sh("writer", "true"));
    writer.assert_unharmed();
    space.ready("called");
    space.sh("called", "echo x > /called/x");
    assert_eq!(published(), claims.len());
    site.driver_ready();
    space.claim("more", "hostloop-xfs", json!({}));
    space.run_with("pod", &["more"], there(site.name()));
    space.sh("pod", "echo x > /more/x");
    space.volume("more");
    space.end();
}

/// Stops the driver while kubelet calls it for the pod `called` with these claims, which are staged
/// in these folders. Returns the pod.
fn stopped_amid_calls(
    space: &Space<'_>,
    site: &Site<'_>,
    driver: &[Pid],
    claims: &[&str],
    folders: &[PathBuf],
) -> Value {
    let since = Instant::now();
    loop {
        let pod = space.pod("called", claims);
        // Kubelet makes a volume's folder just before it calls the driver.
        while !folders.iter().any(|folder| folder.exists()) {
            assert!(since.elapsed() < PATIENCE, "{}", space.events());
            std::thread::sleep(Duration::from_millis(1));
        }
        stop(space.world, driver);
        if site.mounts_with(text(&pod, "/metadata/uid")).len() < claims.len() {
            return pod;
        }
        // On a busy machine, all calls may have ended by then.
        send(driver, Signal::SIGCONT);
        space.delete_pod("called");
        space.world.until("the end of the staging", || {
            let left = folders.iter().find(|folder| folder.exists());
            left.map_or(Ok(()), |folder| Err(folder.display().to_string()))
        });
    }
}

/// `kubectl drain` evicts all pods of a node. The volumes are unstaged there. A pod that is
/// replaced waits for the node if its volume is there, and moves if it has none or an inline one.
pub(crate) fn a_drained_node_gets_its_pod_back(world: &World) {
    let site = world.site(2);
    let _alone = site.alone();
    let space = Space::new(world, "drain");
    let class = space.class("here", on_node(site.name()));
    space.claim("data", &class, json!({}));
    let kept = space.stateful_set("kept", &["data"], json!({}));
    let volume = space.volume("data");
    let mut moves = inline_volumes(&[("ext4", json!({"size": "64Mi"}))]);
    moves["affinity"] = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 100, "preference": {"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [site.name()]}]}}]}});
    let moved = space.stateful_set("moved", &[], moves);
    for pod in [&kept, &moved] {
        assert_text(pod, "/spec/nodeName", site.name());
    }
    space.sh("kept-0", "echo kept > /data/file && sync");

    let drain = [
        "drain",
        site.name(),
        "--ignore-daemonsets",
        "--delete-emptydir-data",
    ];
    let timeout = format!("--timeout={}s", PATIENCE.as_secs());
    world
        .cluster()
        .kubectl(&[&drain[..], &[&*timeout]].concat());
    space.off_node(&volume);
    let uids = [&kept, &moved].map(|pod| text(pod, "/metadata/uid"));
    let handle = handle_of(&volume);
    let staged = staged_as(handle);
    world.until("nothing left on the node", || {
        let mut left = site.mounts();
        left.retain(|m| {
            uids.iter()
                .chain([&&*staged])
                .any(|word| m.at.to_string_lossy().contains(*word))
        });
        let is_left = !left.is_empty() || site.staging(handle).exists();
        check(!is_left, || format!("{left:?}"))
    });
    space.successor("moved-0", &moved);
    let moved = space.ready("moved-0");
    assert_text(&moved, "/spec/nodeName", world.site(1).name());
    let kept = space.successor("kept-0", &kept);
    assert_text(&kept, "/status/phase", "Pending");
    space.event(
        "kept-0",
        "FailedScheduling",
        "didn't match PersistentVolume's node affinity",
    );

    world.cluster().kubectl(&["uncordon", site.name()]);
    let kept = space.ready("kept-0");
    assert_text(&kept, "/spec/nodeName", site.name());
    assert_eq!(space.sh("kept-0", "cat /data/file"), "kept");
    space.end();
}
