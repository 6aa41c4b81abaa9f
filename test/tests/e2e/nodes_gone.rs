//! Nodes that disappear and return, slow drivers.

use hostloop_test::deployed::{DRIVER, NAMESPACE};
use hostloop_test::front::objects::{Place, attachment_name};
use hostloop_test::machine;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::attached::record;
use crate::nodes::assert_one_volume_each;
use crate::objects::{assert_text, handle_of, name, text};
use crate::site::Site;
use crate::space::{Space, on_node, there};
use crate::world::{World, check};

const SELECTED: &str = "/metadata/annotations/volume.kubernetes.io~1selected-node";

/// Sends a signal to the driver's processes on a node.
pub(crate) fn signal(site: &Site<'_>, signal: Signal) {
    send(&processes(site), signal);
}

/// Sends SIGSTOP to these processes, and waits until none of their threads runs any more: one that
/// is in a system call stops at its end.
pub(crate) fn stop(world: &World, processes: &[Pid]) {
    send(processes, Signal::SIGSTOP);
    world.until("the stop of the driver's processes", || {
        let running: Vec<String> = processes.iter().copied().flat_map(running).collect();
        check(running.is_empty(), || running.join("; "))
    });
}

/// The threads of a process that have neither stopped nor ended, as the kernel describes them.
fn running(process: Pid) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let states = threads.filter_map(|at| std::fs::read_to_string(at.path().join("stat")).ok());
    let is_stopped = |state: &str| {
        let after_name = state.rsplit_once(") ");
        after_name.is_some_and(|(_, state)| state.starts_with(['T', 'Z', 'X']))
    };
    states.filter(|state| !is_stopped(state)).collect()
}

/// Sends a signal to these processes.
pub(crate) fn send(processes: &[Pid], signal: Signal) {
    for process in processes {
        // The process may have ended already.
        let _ = kill(*process, signal);
    }
}

/// The driver's processes on a node, from the cgroup of its container.
pub(crate) fn processes(site: &Site<'_>) -> Vec<Pid> {
    let pod = site.driver_pod().expect("the driver is there");
    let id = text(&pod, "/status/containerStatuses/0/containerID");
    let id = id.rsplit('/').next().unwrap_or_default();
    assert!(!id.is_empty(), "the container has an ID");
    let pattern = format!("*/{id}/cgroup.procs");
    let found = machine::found(&["/sys/fs/cgroup", "-path", &pattern]);
    let first = found.lines().next().expect("the container has a cgroup");
    let processes = std::fs::read_to_string(first).expect("it can be read");
    let parse = |line: &str| Pid::from_raw(line.parse().expect("a process ID"));
    processes.lines().map(parse).collect()
}

/// Claims move to another node while the driver of the first node hangs. In the end each claim has
/// one volume, and no volume is left on the first node.
pub(crate) fn claims_are_moved_from_a_slow_node(world: &World) {
    const CLAIMS: usize = 12;
    world.drivers_ready();
    let space = Space::new(world, "slow");
    let (slow, quick) = (world.site(1), world.site(2));
    let driver = processes(&slow);
    let names: Vec<String> = (0..CLAIMS).map(|i| format!("c{i}")).collect();
    for (i, claim) in names.iter().enumerate() {
        // The first half may be in progress when the driver stops; the second half can't be.
        if i == CLAIMS / 2 {
            stop(world, &driver);
        }
        space.selected(claim, slow.name(), "512Mi");
    }
    let moved = || {
        let selected = json!({"volume.kubernetes.io/selected-node": quick.name()});
        json!({"metadata": {"annotations": selected}})
    };
    for claim in &names {
        // A claim that already has a volume stays.
        if text(&space.claim_now(claim), "/status/phase") != "Bound" {
            space.patch_claim(claim, moved());
        }
    }
    // Only the other node's driver can make these now.
    for claim in &names[CLAIMS / 2..] {
        space.volume(claim);
    }
    send(&driver, Signal::SIGCONT);
    let volumes: Vec<Value> = names.iter().map(|claim| space.volume(claim)).collect();
    assert_one_volume_each(world, &space, &volumes);
    let moved = volumes.iter().map(|v| world.home(v));
    let moved = moved.filter(|home| home.name() == quick.name()).count();
    println!("    {moved} of {CLAIMS} claims were moved");
    assert!(moved > 0, "no claim was moved");
    world.drivers_ready();
    space.end();
}

/// A node is down and gets the out-of-service taint: Kubernetes deletes its pods, and the leader
/// releases the attachments that the driver there would remove. When the node is back and the taint
/// is removed, the pod's successor has its data.
pub(crate) fn an_out_of_service_node_gives_up_its_pods(world: &World) {
    const TAINT: &str = "node.kubernetes.io/out-of-service";
    let site = world.site(2);
    let space = Space::new(world, "out-of-service");
    space.selected("data", site.name(), "512Mi");
    let volume = space.volume("data");
    let lost = space.stateful_set("pod", &["data"], json!({}));
    space.sh("pod-0", "echo kept > /data/file && sync");
    let attachment = attachment_name(handle_of(&volume), DRIVER, site.name());
    let first = world.get("VolumeAttachment", "", &attachment);

    world.cluster().stop(&site.kubelet());
    signal(&site, Signal::SIGKILL);
    report_down(&site);
    let taint = |change: &str| {
        world
            .cluster()
            .kubectl(&["taint", "nodes", site.name(), &format!("{TAINT}{change}")]);
    };
    taint("=nodeshutdown:NoExecute");
    let next = space.successor("pod-0", &lost);
    assert_text(&next, "/status/phase", "Pending");
    world.until("the end of the attachment", || {
        let now = world.find("VolumeAttachment", "", &attachment);
        match now.filter(|now| now["metadata"]["uid"] == first["metadata"]["uid"]) {
            None => Ok(()),
            Some(now) => Err(now.to_string()),
        }
    });

    world.cluster().start(&site.kubelet());
    site.driver_ready();
    assert_text(&space.pod_now("pod-0"), "/status/phase", "Pending");
    taint("-");
    let next = space.ready("pod-0");
    assert_text(&next, "/spec/nodeName", site.name());
    assert_eq!(space.sh("pod-0", "cat /data/file"), "kept");
    world.get("VolumeAttachment", "", &attachment);
    let uid = text(&lost, "/metadata/uid");
    world.until("nothing left of the lost pod", || {
        let mut left = site.mounts();
        left.retain(|m| m.at.to_string_lossy().contains(uid));
        check(left.is_empty(), || format!("{left:?}"))
    });
    space.end();
}

/// Reports a node as not ready, as Kubernetes does after 50 seconds without its kubelet.
fn report_down(site: &Site<'_>) {
    let world = site.world;
    let mut conditions = world.get("Node", "", site.name())["status"]["conditions"].clone();
    let all = conditions.as_array_mut().into_iter().flatten();
    for ready in all.filter(|condition| condition["type"] == "Ready") {
        ready["status"] = json!("Unknown");
    }
    let node = Place::of("Node", "", site.name());
    let status = json!({"status": {"conditions": conditions}});
    world.wait(world.objects.merge_status(&node, status));
}

/// The volumes on the node that disappears.
struct Doomed {
    /// Has data that is needed again.
    kept: Value,
    /// Is waiting for deletion.
    released: Value,
}

/// A node is deleted. Once it is known to be gone, the leader does the cleanup that only the node
/// could do. A volume with a claim stays, and is usable again when the node returns.
pub(crate) fn a_node_goes_and_returns(world: &World) {
    shorten_graces(world);
    let space = Space::new(world, "gone");
    let (site, attached) = (world.site(2), world.attaches(true));
    let doomed = prepare(&space, &site);
    world.cluster().stop(&site.kubelet());
    // A killed driver is not restarted.
    signal(&site, Signal::SIGKILL);
    space.claim("waiting", "hostloop-xfs", json!({}));
    space.pod_with("waiting", &["waiting"], there(site.name()));
    space.until_claim("for the node", "waiting", |claim| {
        text(claim, SELECTED) == site.name()
    });
    world.delete("PersistentVolumeClaim", &space.name, "released");
    world.delete("Node", "", site.name());
    space.force_away("kept");
    space.force_away("waiting");
    if attached {
        for attachment in world.list("VolumeAttachment", "") {
            if text(&attachment, "/spec/nodeName") == site.name() {
                world.remove("VolumeAttachment", "", name(&attachment));
            }
        }
    }
    assert_tidied_up(&space, &site, &doomed);

    world.cluster().start(&site.kubelet());
    site.driver_ready();
    assert_back(&space, &site, &doomed);
    space.end();
}

/// Shortens the grace periods of a missing node and of an unknown volume. A later deployment keeps
/// them.
fn shorten_graces(world: &World) {
    let daemons = world.get("DaemonSet", NAMESPACE, "hostloop").to_string();
    if daemons.contains("HOSTLOOP_ORPHAN_GRACE") {
        return;
    }
    let nodes = ["HOSTLOOP_ORPHAN_GRACE=5s", "HOSTLOOP_ORPHAN_INTERVAL=5s"];
    let controller = ["HOSTLOOP_GONE_NODE_GRACE=5s"];
    for (workload, settings) in [
        ("deployment/hostloop-controller", &controller[..]),
        ("daemonset/hostloop", &nodes),
    ] {
        world.set_env(workload, settings);
    }
    world.drivers_ready();
}

fn prepare(space: &Space<'_>, site: &Site<'_>) -> Doomed {
    let class = space.class("there", on_node(site.name()));
    for claim in ["kept", "released"] {
        space.claim(claim, &class, json!({}));
    }
    space.run_with("kept", &["kept"], there(site.name()));
    space.sh("kept", "echo kept > /kept/file && sync");
    Doomed {
        kept: space.volume("kept"),
        released: space.volume("released"),
    }
}

fn assert_tidied_up(space: &Space<'_>, site: &Site<'_>, doomed: &Doomed) {
    let world = space.world;
    world.gone("PersistentVolumeClaim", &space.name, "released");
    world.gone("PersistentVolume", "", name(&doomed.released));
    space.until_claim("for no node", "waiting", |claim| {
        text(claim, SELECTED).is_empty()
    });
    world.until("the end of the node's capacity", || {
        let mut all = world.list("CSIStorageCapacity", NAMESPACE);
        all.retain(|c| c["nodeTopology"].to_string().contains(site.name()));
        check(all.is_empty(), || format!("{all:?}"))
    });
    space.event("kept", "NodeGone", site.name());
    let kept = world.get("PersistentVolume", "", name(&doomed.kept));
    assert_text(&kept, "/status/phase", "Bound");
    assert_eq!(kept.pointer("/metadata/deletionTimestamp"), None);
}

fn assert_back(space: &Space<'_>, site: &Site<'_>, doomed: &Doomed) {
    let world = space.world;
    let handle = handle_of(&doomed.kept);
    // The pod's object is gone. With attachment, so is the VolumeAttachment, which recorded that
    // the volume is published.
    world.until("the end of the publication", || {
        let record = record(site, handle);
        check(!record.contains(site.name()), || record.clone())
    });
    space.run_with("again", &["kept"], there(site.name()));
    assert_eq!(space.sh("again", "cat /kept/file"), "kept");
    space.claim("new", "hostloop-ext4", json!({}));
    space.run_with("new", &["new"], there(site.name()));
    space.volume("new");
    // No object refers to the volume any more, and it was never used.
    world.until("the end of what was released", || {
        let released = handle_of(&doomed.released);
        let volumes = site.volumes();
        let there = volumes.iter().any(|(handle, _)| handle == released);
        check(!there, || "its files are still there".to_owned())
    });
}
