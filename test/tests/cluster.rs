//! The cluster the tests run on: it comes up, does what the tests need of it, and leaves nothing.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use hostloop_test::PATIENCE;
use hostloop_test::child;
use hostloop_test::cluster::{BUSYBOX, Cluster, Node, Options, Stock, check, wait_for};
use hostloop_test::loop_devices;
use hostloop_test::machine;
use hostloop_test::scratch::Scratch;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;

/// What one cluster leaves on the machine: processes, mounts, its network, its cgroups, its folder.
fn traces(name: &str) -> Vec<String> {
    let tables = [
        machine::run("ps", &["-eo", "stat,args"]),
        machine::run("mount", &[]),
        machine::run("ip", &["-o", "address"]),
        machine::run("iptables-save", &[]),
        machine::found(&["/sys/fs/cgroup", "-maxdepth", "2", "-type", "d"]),
        machine::found(&["/var/tmp", "-maxdepth", "2"]),
    ];
    let lines = tables.iter().flat_map(|table| table.lines());
    lines
        .filter(|line| line.contains(name) && !line.starts_with('Z'))
        .map(str::to_owned)
        .collect()
}

/// Waits until nothing is left of a cluster. The kernel takes away what a process had after its end.
#[track_caller]
fn assert_no_traces(name: &str, why: &str) {
    let started = Instant::now();
    loop {
        let left = traces(name);
        if left.is_empty() {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{left:#?} {why}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_comes_and_goes() {
    machine::require();
    let cluster = Cluster::up(&Options::default());
    let (name, kubeconfig) = (cluster.name().to_owned(), cluster.kubeconfig());
    let client = cluster.client().await;

    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let before = cluster.audit();
    let created = maps.create(&PostParams::default(), &map("one")).await;
    created.expect("it can be created");
    assert!(cluster.try_apply("kind: Nonsense").is_err());
    let listed = cluster.kubectl(&["get", "configmaps", "-o", "name"]);
    assert!(listed.contains("one"));

    // The API server writes its log a little after its answer.
    wait_for("the request in the audit log", PATIENCE, async || {
        let audit = cluster.audit().since(&before);
        let counts = audit.counts("admin");
        match counts.get(&("create", "configmaps")) {
            Some(1) => Ok(()),
            _ => Err(format!("{counts:?}")),
        }
    })
    .await;

    // The API server goes and comes back; what it knew is still there.
    cluster.kill("apiserver");
    assert!(maps.get("one").await.is_err());
    cluster.start("apiserver");
    wait_for("what it knew", PATIENCE, async || {
        maps.get("one").await.map_err(|e| e.to_string())
    })
    .await;

    assert_ne!(traces(&name), Vec::<String>::new());
    drop(cluster);
    assert_no_traces(&name, "");
    assert!(!kubeconfig.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_live_side_by_side_and_know_nothing_of_each_other() {
    machine::require();
    let one = Cluster::up(&Options::default());
    let other = Cluster::up(&Options::default());
    one.kubectl(&["create", "namespace", "only-here"]);
    let get = ["get", "namespace", "only-here"];
    assert!(one.try_kubectl(&get).is_ok());
    assert!(other.try_kubectl(&get).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_behind_is_named() {
    machine::require();
    let cluster = Cluster::up(&Options::default());
    let stock = Stock::take(&cluster, &[]);
    assert_eq!(stock.left(&cluster), Ok(Vec::new()));
    cluster.apply(
        r#"{apiVersion: v1, kind: PersistentVolume, metadata: {name: forgotten}, spec: {
            capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce],
            csi: {driver: d.example.com, volumeHandle: v}}}"#,
    );
    let left = stock.left(&cluster).expect("the cluster answers");
    assert_eq!(left, ["persistentvolume/forgotten"]);
    cluster.kubectl(&["delete", "persistentvolume", "forgotten"]);
    stock.assert_nothing_left(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_run_pods_and_go_without_a_trace() {
    machine::require();
    let own = tempfile::Builder::new()
        .prefix(&format!("hostloop-test-kubelet-{}-", std::process::id()))
        .tempdir_in("/var/tmp")
        .expect("it can be made");
    let kubelet_dir = machine::text(own.path()).to_owned();
    // A file of an earlier kubelet, in the kubelet root of the first node.
    let earlier = own.path().join("earlier");
    std::fs::write(&earlier, "data").expect("it can be written");
    let cluster = Cluster::up(&Options {
        kubelet_dir: Some(kubelet_dir.clone().into()),
        ..Options::two_nodes()
    });
    let name = cluster.name().to_owned();
    assert!(!earlier.exists(), "kubelet's root is not empty");
    for (pod, node) in [("shell", 1), ("other", 2)] {
        let node = cluster.node(node);
        cluster.apply(&format!(
            r#"{{apiVersion: v1, kind: Pod, metadata: {{name: {pod}}}, spec: {{
                nodeName: {node}, terminationGracePeriodSeconds: 1, containers: [{{
                name: shell, image: "{BUSYBOX}", command: [sh, -c, "echo begun; exec sleep 1d"],
                volumeMounts: [{{name: m, mountPath: /m}}]}}],
                volumes: [{{name: m, emptyDir: {{medium: Memory}}}}]}}}}"#
        ));
    }
    for pod in ["shell", "other"] {
        cluster.pod_ready("default", pod);
        let exec = |command: &str| cluster.exec("default", pod, &["sh", "-c", command]);
        assert_eq!(exec("echo here > /m/file; cat /m/file"), "here\n");
        wait_for("the pod's words", PATIENCE, async || {
            let log = cluster.logs("default", pod);
            check(log == "begun\n", || log)
        })
        .await;
        // The service's address leads to the API server: it takes the connection.
        let connect = "nc -w 5 $KUBERNETES_SERVICE_HOST 443 </dev/null && echo open";
        assert_eq!(exec(connect), "open\n");
    }

    // A pod outlives its kubelet.
    for (kubelet, pod) in [("kubelet", "shell"), ("kubelet-2", "other")] {
        cluster.stop(kubelet);
        cluster.start(kubelet);
        wait_for("kubelet again", PATIENCE, async || {
            cluster.try_exec("default", pod, &["cat", "/m/file"])
        })
        .await;
    }

    drop(cluster);
    assert_no_traces(&name, "");
    let left: Vec<_> = std::fs::read_dir(&kubelet_dir)
        .expect("it is there as before")
        .map(|entry| entry.expect("it can be read").path())
        .collect();
    assert_eq!(left, [earlier]);
    own.close().expect("the test made it");
    assert_no_traces(&kubelet_dir, "");
}

/// Attaches new files of a folder on a node to loop devices. Where a device has no node, one is
/// made.
fn attach(node: &Node, folder: &Path, count: usize) -> Vec<String> {
    let script = "mkdir -p $2 && truncate -s 1M $2/$3 && { [ -e $0 ] || mknod $0 b 7 $1; } && \
                  losetup $0 $2/$3";
    let try_attach = |file: &str| {
        let free = machine::run("losetup", &["--find"]);
        let minor = free.trim_start_matches("/dev/loop");
        let folder = machine::text(folder);
        let attached = node.try_run(&["sh", "-c", script, &free, minor, folder, file]);
        attached.map(|_| free)
    };
    // Another process may take the device that was just found to be free.
    let attach = |i: usize| {
        let file = format!("file-{i}");
        let attached = (0..20).find_map(|_| try_attach(&file).ok());
        attached.unwrap_or_else(|| try_attach(&file).unwrap_or_else(|why| panic!("{why}")))
    };
    (0..count).map(attach).collect()
}

/// A filesystem that is mounted before a cluster comes up, and has nothing to do with it.
struct Elsewhere {
    scratch: Scratch,
}

impl Elsewhere {
    fn mounted() -> Elsewhere {
        let scratch = Scratch::new();
        let (image, at) = (scratch.path().join("image"), scratch.dir("mounted"));
        let made = std::fs::File::create(&image).and_then(|f| f.set_len(16 << 20));
        made.expect("it can be written");
        machine::run("mkfs.ext4", &["-q", machine::text(&image)]);
        let mount = ["-o", "loop", machine::text(&image), machine::text(&at)];
        machine::run("mount", &mount);
        Elsewhere { scratch }
    }

    /// The cluster has no copy of the mount, so its loop device is detached with it. A namespace
    /// that another test's cluster creates at this moment has a copy for a short time.
    async fn assert_free_once_unmounted(&self) {
        let at = self.scratch.path().join("mounted");
        assert_eq!(loop_devices::beneath(self.scratch.path()).len(), 1);
        machine::run("umount", &[machine::text(&at)]);
        wait_for(
            "the mount's end",
            PATIENCE,
            async || match &loop_devices::beneath(self.scratch.path())[..] {
                [] => Ok(()),
                left => Err(format!("{left:?}")),
            },
        )
        .await;
    }
}

/// What kind does to loop devices and mounts.
#[tokio::test(flavor = "multi_thread")]
async fn every_node_but_the_first_has_files_mounts_and_devices_of_its_own() {
    machine::require();
    let kubelet_dir = format!("/var/tmp/hostloop-test-own-{}", std::process::id());
    let elsewhere = Elsewhere::mounted();
    let cluster = Cluster::up(&Options {
        kubelet_dir: Some(kubelet_dir.clone().into()),
        ..Options::two_nodes()
    });
    let (name, [first, second]) = (cluster.name().to_owned(), [cluster.on(1), cluster.on(2)]);
    assert!(cluster.status().contains("mount namespace of process"));
    elsewhere.assert_free_once_unmounted().await;

    // The same path, another file; /dev as it was when the node came up.
    let folder = PathBuf::from(format!("/var/tmp/{name}-files"));
    let here = attach(&first, &folder, 9);
    let there = attach(&second, &folder, 1);
    let came_with_it: Vec<_> = (0..8).map(|n| format!("/dev/loop{n}")).collect();
    let late = here.iter().find(|device| !came_with_it.contains(device));
    let late = Path::new(late.expect("there are nine"));
    assert!(first.path(late).exists() && !second.path(late).exists());
    let sys = Path::new("/sys/block").join(late.file_name().expect("it has one"));
    let shared = second.path(&sys).exists();
    assert!(shared, "the kernel's devices are shared");
    // The kernel shows the same folder for all files, but each file is on one node.
    let of = |node: &Node| -> BTreeSet<String> {
        let all = node.loops_beneath(&folder).into_iter();
        all.map(|l| format!("/dev/loop{}", l.minor)).collect()
    };
    assert_eq!(of(&first), here.iter().cloned().collect());
    assert_eq!(of(&second), there.iter().cloned().collect());

    // What a pod mounts where it may reach the node, the node has, and no other.
    cluster.apply(&format!(
        r#"{{apiVersion: v1, kind: Pod, metadata: {{name: mounts}}, spec: {{
            nodeName: {}, terminationGracePeriodSeconds: 1, containers: [{{
            name: main, image: "{BUSYBOX}", securityContext: {{privileged: true}},
            command: [sh, -c, "mkdir -p {kubelet_dir}/shown && mount -t tmpfs shown {kubelet_dir}/shown && exec sleep 1d"],
            volumeMounts: [{{name: k, mountPath: {kubelet_dir}, mountPropagation: Bidirectional}}]}}],
            volumes: [{{name: k, hostPath: {{path: {kubelet_dir}}}}}]}}}}"#,
        second.name
    ));
    cluster.pod_ready("default", "mounts");
    let shown = Path::new(&kubelet_dir).join("shown");
    let has = |node: &Node| node.mounts().iter().any(|m| m.at == shown);
    wait_for("the pod's mount", PATIENCE, async || {
        check(has(&second), || "it is not there".to_owned())
    })
    .await;
    assert!(!has(&first));
    let own_root = second.try_run(&["stat", "--format=%n", machine::text(&shown)]);
    assert_eq!(own_root, Ok(machine::text(&shown).to_owned()));

    // A killed node loses its processes and mounts. The kernel keeps its devices, and once it is started
    // again, its pods have their mounts.
    cluster.kill("node-2");
    assert!(cluster.try_exec("default", "mounts", &["true"]).is_err());
    cluster.start("node-2");
    for device in &there {
        let name = device.trim_start_matches("/dev/");
        let attached = Path::new("/sys/block").join(name).join("loop");
        assert!(attached.exists(), "{device} is detached");
    }
    wait_for("the mount of the pod again", PATIENCE, async || {
        check(has(&cluster.on(2)), || cluster.kubectl(&["get", "pods"]))
    })
    .await;

    drop(cluster);
    wait_for(
        "the end of the second node's device",
        PATIENCE,
        async || {
            // Another process may have taken the device for a file of its own.
            let mut left = loop_devices::all();
            left.retain(|l| there[0] == format!("/dev/loop{}", l.minor));
            left.retain(|l| l.backing.contains(machine::text(&folder)));
            check(left.is_empty(), || format!("{left:?}"))
        },
    )
    .await;
    for device in &here {
        machine::run("losetup", &["--detach", device]);
    }
    std::fs::remove_dir_all(&folder).expect("the test's own folder can be removed");
    assert_no_traces(&name, "");
    assert_no_traces(&kubelet_dir, "");
}

/// A folder of tools like the script's own, in which one program fails.
fn tools_with_a_broken(program: &str) -> Scratch {
    let scratch = Scratch::new();
    let tools = scratch.dir("tools");
    for tool in std::fs::read_dir(machine::tool_cache().join("tools")).expect("the tools are built")
    {
        let bin = tool.expect("it can be listed").path().join("bin");
        let name = bin.parent().and_then(Path::file_name).expect("it has one");
        let ours = tools.join(name).join("bin");
        std::fs::create_dir_all(&ours).expect("it can be made");
        for file in std::fs::read_dir(&bin).into_iter().flatten().flatten() {
            symlink(file.path(), ours.join(file.file_name())).expect("it can be linked");
        }
        if ours.join(program).exists() {
            std::fs::remove_file(ours.join(program)).expect("it can be removed");
            let text = "#!/bin/sh\necho no luck today >&2\nsleep 1\nexit 1\n";
            machine::script(&ours.join(program), text);
        }
    }
    scratch
}

#[test]
fn the_log_of_a_part_that_fails_is_shown_and_the_others_go_with_it() {
    machine::require();
    assert!(script().arg("build").status().is_ok_and(|s| s.success()));
    let kubelet_dir = format!("/var/tmp/hostloop-test-broken-{}", std::process::id());
    for program in ["etcd", "kube-controller-manager", "kubelet"] {
        let tools = tools_with_a_broken(program);
        fails("broken", "no luck today", |up| {
            up.args(["--kubelet-dir", &kubelet_dir]);
            up.env("HOSTLOOP_CACHE", tools.path());
        });
        assert!(!Path::new(&kubelet_dir).exists(), "{program}");
    }
}

fn script() -> Command {
    child::command(machine::root().join("scripts/cluster"))
}

/// The cluster does not come up, for this reason, and leaves nothing.
fn fails(name: &str, why: &str, change: impl FnOnce(&mut Command)) {
    let name = format!("{name}-{}", std::process::id());
    let mut up = script();
    change(up.args(["up", "--name", &name]));
    let ended = up.output().expect("the script can be run");
    let printed = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success(), "{up:?}");
    assert!(printed.contains(why), "{up:?}: {printed}");
    assert_no_traces(&name, &format!("after {up:?}: {printed}"));
}

fn map(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map
}

#[test]
fn a_cluster_that_cannot_come_up_says_why_and_leaves_nothing() {
    machine::require();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = taken.local_addr().expect("it has an address").port();
    let base = (port - 3).to_string();
    for (why, arguments) in [
        ("are in use", &["--no-nodes", "--port-base", &base][..]),
        ("--nodes must be", &["--nodes", "many"]),
        ("not an absolute path", &["--no-nodes", "--dir", "here"]),
        ("unknown argument", &["--no-nodes", "--colour"]),
        ("holds files", &["--no-nodes", "--dir", "/usr/lib"]),
    ] {
        fails("fails", why, |up| {
            up.args(arguments);
        });
    }
}
