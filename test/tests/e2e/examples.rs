//! Applies each file of `deploy/examples`, and checks what its head tells the reader to look at.

use std::collections::BTreeSet;
use std::path::PathBuf;

use hostloop_test::machine;
use serde_json::Value;

use crate::objects::{name, text};
use crate::snapshots;
use crate::space::Space;
use crate::world::{World, check, is_ready};

/// The files with a test below.
const FILES: [&str; 13] = [
    "attributes",
    "block",
    "claim",
    "clone",
    "expand",
    "group-snapshot",
    "inline",
    "powercut",
    "rwop",
    "rwx",
    "slow-disk",
    "snapshot",
    "statefulset",
];

/// Manifests of other suites: `foreign` runs one for a driver that is not here, `snapshot_metadata`
/// reads changed blocks with the account of another one, and `explore` cuts the power of the writers.
const ELSEWHERE: [&str; 11] = [
    "other-driver",
    "backup-client",
    "explore/careful",
    "explore/careless",
    "explore/check",
    "explore/postgresql-check",
    "explore/postgresql-off",
    "explore/postgresql-on",
    "explore/sqlite-check",
    "explore/sqlite-full",
    "explore/sqlite-off",
];

fn folder() -> PathBuf {
    machine::root().join("deploy/examples")
}

/// Applies an example in a namespace of its own, as a user does.
fn applied<'w>(world: &'w World, file: &str) -> Space<'w> {
    let space = Space::new(world, &format!("example-{file}"));
    space.apply(file);
    space
}

/// Applies `claim`, and an example that is made of its volume.
fn applied_to_claim<'w>(world: &'w World, file: &str) -> Space<'w> {
    let space = Space::new(world, &format!("example-{file}"));
    space.apply("claim");
    space.ready("claim");
    space.begun("claim", 1);
    space.volume("claim");
    space.apply(file);
    space
}

impl Space<'_> {
    fn apply(&self, file: &str) {
        assert!(FILES.contains(&file), "{file} is not in the list of files");
        let path = folder().join(format!("{file}.yaml"));
        let arguments = [
            "apply",
            "--namespace",
            &self.name,
            "-f",
            machine::text(&path),
        ];
        self.world.cluster().kubectl(&arguments);
    }

    fn log(&self, pod: &str) -> String {
        self.world.cluster().logs(&self.name, pod)
    }

    /// Waits until the pod's log has this text.
    fn logged(&self, pod: &str, expected: &str) {
        self.world
            .until(&format!("{expected:?} in the log of {pod}"), || {
                let log = self.log(pod);
                check(log.contains(expected), || log)
            });
    }

    /// Waits until this many containers of a pod's name have begun to write to its volume.
    fn begun(&self, pod: &str, times: u32) {
        let what = format!("{times} beginnings in the log of {pod}");
        self.world.until(&what, || {
            let begun = self.try_sh(pod, "grep -c begun /data/log")?;
            check(begun == times.to_string(), || begun)
        });
    }

    /// The pods with this label `app`, once this number of them is ready.
    fn ready_pods(&self, app: &str, count: usize) -> Vec<Value> {
        let of = |pod: &Value| pod["metadata"]["labels"]["app"] == app;
        self.world
            .until(&format!("{count} ready pods of {app}"), || {
                let mut pods = self.world.list("Pod", &self.name);
                pods.retain(|pod| of(pod) && is_ready(pod));
                check(pods.len() == count, || self.events())?;
                Ok(pods)
            })
    }
}

/// The names in a folder of the examples.
fn names_in(folder_of: &str) -> Vec<String> {
    let files = std::fs::read_dir(folder().join(folder_of)).expect("the examples are there");
    files
        .map(|file| {
            file.expect("its name")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

pub(crate) fn every_file_has_a_test(_: &World) {
    let mut files: BTreeSet<String> = names_in("").into_iter().collect();
    assert!(files.remove("explore"), "the folder of the crash explorer");
    let explore = names_in("explore").into_iter();
    files.extend(explore.map(|file| format!("explore/{file}")));
    let all = FILES.into_iter().chain(ELSEWHERE);
    let expected = all.map(|file| format!("{file}.yaml"));
    assert_eq!(files, expected.collect());
}

pub(crate) fn attributes(world: &World) {
    let space = applied(world, "attributes");
    space.ready("attributes");
    space.logged("attributes", "128\n");
    space.modify("attributes", "hostloop-streaming");
    space.logged("attributes", "4096\n");
    space.end();
}

pub(crate) fn block(world: &World) {
    let space = applied(world, "block");
    space.ready("block");
    space.logged("block", "1073741824\nwritten to the device itself");
    assert_eq!(text(&space.volume("block"), "/spec/volumeMode"), "Block");
    space.end();
}

pub(crate) fn claim(world: &World) {
    let space = applied(world, "claim");
    space.ready("claim");
    space.begun("claim", 1);
    assert!(space.sh("claim", "df -h /data").contains("/data"));
    let owner = space.sh("claim", "stat -c '%u %g' /data/log");
    assert_eq!(owner, "1000 1000");
    // The log goes on after the pod is replaced.
    space.delete_pod("claim");
    space.apply("claim");
    space.ready("claim");
    space.begun("claim", 2);
    space.volume("claim");
    space.end();
}

pub(crate) fn clone(world: &World) {
    let space = applied_to_claim(world, "clone");
    space.ready("clone");
    space.logged("clone", "begun on");
    assert_eq!(space.node_of("claim"), space.node_of("clone"));
    space.volume("clone");
    space.end();
}

pub(crate) fn expand(world: &World) {
    let space = applied(world, "expand");
    space.ready("expand");
    let before = space.mib("expand", "/data");
    space.grow_in("expand", "expand", "3Gi");
    let after = space.mib("expand", "/data");
    assert!(after >= before + 1900, "{before} MiB, then {after}");
    space.volume("expand");
    space.end();
}

pub(crate) fn group_snapshot(world: &World) {
    let space = applied(world, "group-snapshot");
    space.ready("group");
    snapshots::ready(&space, "VolumeGroupSnapshot", "group");
    let claims = ["group-data", "group-log"];
    world.until("a member for each claim", || {
        let members = world.list("VolumeSnapshot", &space.name);
        let mut of: Vec<_> = members
            .iter()
            .map(|one| text(one, "/spec/source/persistentVolumeClaimName"))
            .collect();
        of.sort_unstable();
        check(of == claims, || format!("{of:?}"))
    });
    for claim in claims {
        space.volume(claim);
    }
    world.remove("VolumeGroupSnapshot", &space.name, "group");
    space.end();
}

pub(crate) fn inline(world: &World) {
    let space = applied(world, "inline");
    space.ready("inline");
    let mib = space.mib("inline", "/scratch");
    assert!((150..=256).contains(&mib), "{mib} MiB");
    assert!(world.list("PersistentVolumeClaim", &space.name).is_empty());
    space.end();
}

/// The shipped driver has no faults, and refuses the snapshot by name.
pub(crate) fn powercut(world: &World) {
    let space = applied_to_claim(world, "powercut");
    let snapshot = ("VolumeSnapshot", space.name.as_str(), "powercut");
    world.until_is("refused", snapshot, |snapshot| {
        let why = text(snapshot, "/status/error/message");
        why.contains("consistency") && why.contains("--enable-faults")
    });
    world.remove("VolumeSnapshot", &space.name, "powercut");
    space.end();
    let class = ["delete", "volumesnapshotclass", "hostloop-powercut"];
    world.cluster().kubectl(&class);
}

/// The shipped driver has no fault disks, and refuses the claim by name.
pub(crate) fn slow_disk(world: &World) {
    let space = applied(world, "slow-disk");
    space.event("slow-disk", "ProvisioningFailed", "faultDisk");
    space.event("slow-disk", "ProvisioningFailed", "--enable-faults");
    space.end();
    let classes = [
        "hostloop-like-a-hard-disk",
        "hostloop-like-gp3",
        "hostloop-like-nfs",
    ];
    for class in classes {
        world
            .cluster()
            .kubectl(&["delete", "volumeattributesclass", class]);
    }
    let class = ["delete", "storageclass", "hostloop-fault-disk"];
    world.cluster().kubectl(&class);
}

pub(crate) fn rwop(world: &World) {
    let space = applied(world, "rwop");
    space
        .world
        .until("one pod that runs and one that waits", || {
            let pods = world.list("Pod", &space.name);
            let ready: Vec<_> = pods.iter().filter(|pod| is_ready(pod)).collect();
            check(ready.len() == 1 && pods.len() == 2, || space.events())
        });
    // The scheduler may have taken the second one first.
    let runs = |pod: &&Value| is_ready(pod);
    let pods = world.list("Pod", &space.name);
    let first = pods.iter().find(runs).map(|pod| name(pod).to_owned());
    let first = first.expect("one runs");
    let second = pods
        .iter()
        .map(name)
        .find(|pod| *pod != first)
        .expect("one waits");
    assert_eq!(text(&space.pod_now(second), "/status/phase"), "Pending");
    space.delete_pod(&first);
    space.ready(second);
    space.volume("rwop");
    space.end();
}

pub(crate) fn rwx(world: &World) {
    let space = applied(world, "rwx");
    let pods = space.ready_pods("rwx", 2);
    let nodes: BTreeSet<_> = pods.iter().map(|pod| text(pod, "/spec/nodeName")).collect();
    let node: Vec<_> = nodes.into_iter().collect();
    let [node] = node[..] else {
        panic!("the pods run on {node:?}")
    };
    space.event("rwx", "AllPodsOnOneNode", &format!("run on node {node},"));
    for pod in &pods {
        let writer = format!("grep -q '^{} at' /data/log", name(pod));
        space.world.until("lines of both pods", || {
            space.try_sh(name(&pods[0]), &writer)
        });
    }
    // An event that gets no answer is sent again, with the same time.
    let mut events = world.list("Event", &space.name);
    events.retain(|event| text(event, "/reason") == "AllPodsOnOneNode");
    let times: BTreeSet<_> = events
        .iter()
        .map(|event| text(event, "/firstTimestamp"))
        .collect();
    assert_eq!(times.len(), 1, "{events:?}");
    space.volume("rwx");
    space.end();
}

pub(crate) fn snapshot(world: &World) {
    let space = applied_to_claim(world, "snapshot");
    snapshots::ready(&space, "VolumeSnapshot", "snapshot");
    snapshots::content_of(&space, "snapshot");
    space.ready("snapshot");
    space.logged("snapshot", "begun on");
    let mib = space.mib("snapshot", "/data");
    assert!(mib > 1700, "{mib} MiB");
    space.volume("snapshot");
    space.end();
}

pub(crate) fn statefulset(world: &World) {
    let space = applied(world, "statefulset");
    space.ready_pods("statefulset", 2);
    for claim in ["data-statefulset-0", "data-statefulset-1"] {
        space.volume(claim);
    }
    // Its successor has the same name.
    space.begun("statefulset-0", 1);
    let first = space.pod_now("statefulset-0");
    world.delete("Pod", &space.name, "statefulset-0");
    space.successor("statefulset-0", &first);
    space.ready("statefulset-0");
    space.begun("statefulset-0", 2);
    let arguments = [
        "delete",
        "--namespace",
        &space.name,
        "statefulset",
        "statefulset",
    ];
    world.cluster().kubectl(&arguments);
    world.until("the end of the claims", || {
        let left = world.list("PersistentVolumeClaim", &space.name);
        check(left.is_empty(), || format!("{left:?}"))
    });
    space.end();
}
