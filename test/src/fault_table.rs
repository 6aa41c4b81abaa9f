//! The table of claim faults in docs/faults.md, on a cluster: what a pod sees of each fault on each
//! filesystem, what Kubernetes shows, and how it heals. All rows run at the same time, each with a
//! claim and a pod of its own.

use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::plugin::Plugin;
use crate::{PATIENCE, loop_devices, walk};

mod rows;

use rows::{Heals, ROWS, Row, Seen, WRITE, disk_row, row};

/// Writes a line and some blocks, which no filesystem keeps among its metadata.
const PREPARE: &str = "echo synced >/data/file && sync /data/file && \
     dd if=/dev/zero of=/data/blocks bs=4k count=16 conv=fsync";
/// Writes a file that has to have blocks behind the first 64 MiB of the disk.
const PREPARE_LARGE: &str = "dd if=/dev/zero of=/data/large bs=1M count=200 conv=fsync";

/// A class of volumes on fault disks for each filesystem.
pub fn disk_classes() -> String {
    ["ext4", "xfs", "btrfs"].map(disk_class).join("---\n")
}

/// The write caches take little of the memory that the disks of a node have.
fn disk_class(fs: &str) -> String {
    format!(
        "\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: fault-disk-{fs}}}
provisioner: hostloop.csi.dev
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
parameters:
  faultDisk: 'true'
  faultDiskCache: '2097152'
  csi.storage.k8s.io/fstype: {fs}
"
    )
}

/// All rows. The driver is installed with `--faults`, [`disk_classes`] are there, and the pool has room
/// for the claims, 16 GiB.
pub fn all(cluster: &Cluster, plugin: &Plugin<'_>) {
    run(cluster, plugin, &ROWS);
}

/// A row of each kind of ending, but for that of time: all at once, they take less than a minute.
pub fn sample(cluster: &Cluster, plugin: &Plugin<'_>) {
    let sampled = [("gone", "btrfs"), ("readonly", "ext4"), ("full", "xfs")];
    let rows = ROWS
        .into_iter()
        .filter(|row| sampled.contains(&(row.fault, row.fs)));
    run(cluster, plugin, &rows.collect::<Vec<_>>());
}

fn run(cluster: &Cluster, plugin: &Plugin<'_>, rows: &[Row]) {
    scope(|threads| {
        for row in rows {
            threads.spawn(move || row.run(cluster, plugin));
        }
    });
}

impl Row {
    /// The name of its claim and pod.
    fn name(&self) -> String {
        let fault = self.fault.replace([',', '='], "-").to_lowercase();
        let disk = if self.on_fault_disk { "disk-" } else { "" };
        format!("{disk}{fault}-{}", self.fs)
    }

    /// The word of the fault.
    fn word(&self) -> &'static str {
        self.fault.split([',', '=']).next().unwrap_or_default()
    }

    fn objects(&self) -> String {
        let kind = if self.on_fault_disk {
            "fault-disk"
        } else {
            "hostloop"
        };
        let class = format!("storageClassName: {kind}-{}", self.fs);
        walk::claim_and_pod(&self.name(), &[&class])
    }

    fn run(&self, cluster: &Cluster, plugin: &Plugin<'_>) {
        let (name, objects) = (self.name(), self.objects());
        cluster.apply(&objects);
        cluster.pod_ready("default", &name);
        self.can(cluster, PREPARE);
        if self.word() == "eio-from" {
            self.can(cluster, PREPARE_LARGE);
        }
        match self.seen {
            Seen::Nothing => self.is_refused(plugin),
            Seen::Waits => self.waits(cluster, plugin),
            Seen::Takes(command, least) => {
                self.begins(plugin);
                let began = Instant::now();
                self.can(cluster, command);
                let took = began.elapsed();
                assert!(took >= least, "{name}: {took:?}");
                self.is_shown(cluster, plugin);
                self.ends(plugin);
            }
            Seen::Fails(command, words) => {
                self.begins(plugin);
                let why = self.sh(cluster, command).expect_err(&name);
                assert!(words.iter().any(|word| why.contains(word)), "{name}: {why}");
                // The cut of a btrfs, which goes on running, is over at once. A disk stays cut.
                if (self.fault, self.fs) != ("powercut", "btrfs") {
                    self.is_shown(cluster, plugin);
                }
                self.ends(plugin);
            }
        }
        if !matches!(self.heals, Heals::Restaged | Heals::Perhaps) {
            // In the same pod.
            self.can(cluster, "echo after >/data/after && sync /data/after");
        }
        self.restage(cluster);
        self.is_over(plugin);
        cluster.delete(&objects);
    }

    /// Runs a command of a shell in the pod.
    fn sh(&self, cluster: &Cluster, command: &str) -> Result<String, String> {
        cluster.try_exec("default", &self.name(), &["sh", "-c", command])
    }

    /// [`Row::sh`], which succeeds.
    fn can(&self, cluster: &Cluster, command: &str) {
        self.sh(cluster, command)
            .unwrap_or_else(|why| panic!("{self:?}: {command}: {why}"));
    }

    fn begins(&self, plugin: &Plugin<'_>) {
        let set = ["fault", "set", &self.name(), self.fault];
        plugin.succeeds(&set, &["injected"]);
    }

    /// The event says why the volume can't have the fault.
    fn is_refused(&self, plugin: &Plugin<'_>) {
        let set = ["fault", "set", &self.name(), self.fault];
        plugin.fails(&set, &["refused", "The volume can't have the fault"]);
        plugin.succeeds(&["fault", "clear", &self.name()], &["cleared"]);
    }

    /// A write under the fault lasts as long as that.
    fn waits(&self, cluster: &Cluster, plugin: &Plugin<'_>) {
        let name = self.name();
        let set = ["fault", "set", &name, "frozen", "--for", "30s"];
        plugin.succeeds(&set, &["injected"]);
        let began = Instant::now();
        self.can(cluster, WRITE);
        let waited = began.elapsed();
        assert!(waited > Duration::from_secs(2), "{name}: {waited:?}");
        until(&name, || {
            let listed = plugin.run(&["fault", "list"]).0;
            let own = listed.lines().find(|line| line.contains(&*name));
            match own {
                Some(own) if own.contains("healed") => Ok(()),
                own => Err(own.unwrap_or("it is not listed").to_owned()),
            }
        });
        plugin.succeeds(&["fault", "clear", &name], &["cleared"]);
    }

    /// The fault is in the state of the volume, and in its health.
    fn is_shown(&self, cluster: &Cluster, plugin: &Plugin<'_>) {
        let name = self.name();
        let mark = format!("fault-{}", self.word());
        let status = plugin.succeeds(&["status", &name], &[&mark]);
        assert!(status.contains(&name), "{status}");
        let about = format!("involvedObject.name={name},reason=VolumeConditionAbnormal");
        let events = [
            "get",
            "events",
            "--field-selector",
            &about,
            "--output=jsonpath={.items[*].message}",
        ];
        until(&name, || {
            let said = cluster.try_kubectl(&events)?;
            if said.contains("FaultInjected") {
                Ok(())
            } else {
                Err(format!("its health says {said:?}"))
            }
        });
    }

    fn ends(&self, plugin: &Plugin<'_>) {
        let said = plugin.succeeds(&["fault", "clear", &self.name()], &[]);
        let states: &[&str] = match self.heals {
            Heals::InPlace | Heals::InTime => &["healed"],
            Heals::Perhaps => &["healed", "needs-restage"],
            Heals::Restaged => &["needs-restage"],
        };
        assert!(
            states.iter().any(|state| said.contains(state)),
            "{self:?}: {said}"
        );
        if said.contains("needs-restage") {
            self.stays_named(plugin);
        }
    }

    /// Also without its annotation, the fault is named while the filesystem is stopped.
    fn stays_named(&self, plugin: &Plugin<'_>) {
        let (name, mark) = (self.name(), format!("fault-{}", self.word()));
        plugin.succeeds(&["fault", "clear", &name], &["needs-restage"]);
        plugin.succeeds(&["status", &name], &[&mark]);
    }

    /// Nothing names the fault once the volume works.
    fn is_over(&self, plugin: &Plugin<'_>) {
        let (name, mark) = (self.name(), format!("fault-{}", self.word()));
        until(&name, || {
            let (said, _) = plugin.run(&["fault", "clear", &name]);
            if said.contains("cleared") {
                Ok(())
            } else {
                Err(said)
            }
        });
        let status = plugin.succeeds(&["status", &name], &[&name]);
        assert!(!status.contains(&mark), "{status}");
    }

    /// The next pod has what was synced, and can write.
    fn restage(&self, cluster: &Cluster) {
        let name = self.name();
        cluster.kubectl(&["delete", "pod", &name, "--timeout=300s"]);
        until_unstaged(cluster, &name);
        // The pod alone: the claim may have grown.
        let objects = self.objects();
        let pod = objects.split("---\n").find(|one| one.contains("kind: Pod"));
        cluster.apply(pod.expect("the claim has a pod"));
        cluster.pod_ready("default", &name);
        let found = self.sh(cluster, "cat /data/file && echo again >/data/again");
        assert_eq!(found.as_deref(), Ok("synced\n"), "{name}");
    }
}

/// Under each fault of an ext4 volume, a person asks for a larger volume, a snapshot and a clone, and
/// the driver starts again. All of them are there in the end, and nothing that was synced is lost.
pub fn changes_under_faults(cluster: &Cluster, plugin: &Plugin<'_>) {
    let faults = [
        "gone",
        "eio-from=64Mi",
        "powercut",
        "frozen",
        "readonly",
        "full",
    ];
    let of_disks = ["eio", "enospc,op=write", "slow=500ms", "powercut,loss=all"];
    let rows = faults.map(|fault| row(fault, "ext4", Seen::Nothing, Heals::Perhaps));
    let more = of_disks.map(|fault| disk_row(fault, "ext4", Seen::Nothing, Heals::Perhaps));
    let rows = [&rows[..], &more].concat();
    for row in &rows {
        cluster.apply(&row.objects());
    }
    for row in &rows {
        cluster.pod_ready("default", &row.name());
        row.can(cluster, PREPARE);
    }
    scope(|threads| {
        for row in &rows {
            threads.spawn(move || row.is_changed(cluster, plugin));
        }
    });
    let restart = ["-n", "hostloop", "rollout", "restart", "daemonset/hostloop"];
    cluster.kubectl(&restart);
    let rollout = [
        "-n",
        "hostloop",
        "rollout",
        "status",
        "daemonset/hostloop",
        "--timeout=300s",
    ];
    cluster.kubectl(&rollout);
    scope(|threads| {
        for row in &rows {
            threads.spawn(move || row.gets_all(cluster, plugin));
        }
    });
}

impl Row {
    /// A snapshot and a clone of the volume.
    fn copies(&self) -> String {
        let name = self.name();
        let snapshot = walk::SNAPSHOT.replace("original", &name);
        let class = "storageClassName: hostloop-ext4";
        let source = format!("dataSource: {{kind: PersistentVolumeClaim, name: {name}}}");
        let clone = walk::claim_and_pod(&format!("{name}-clone"), &[class, &source]);
        // Its source may have grown before.
        let clone = clone.replace("storage: 512Mi", "storage: 1Gi");
        [snapshot, clone].join("---\n")
    }

    fn is_changed(&self, cluster: &Cluster, plugin: &Plugin<'_>) {
        let mut set = vec!["fault", "set"];
        let name = self.name();
        set.extend([&*name, self.fault]);
        if self.fault == "frozen" {
            set.extend(["--for", "1m"]);
        }
        plugin.succeeds(&set, &["injected"]);
        cluster.apply(&self.copies());
        let size = r#"{"spec": {"resources": {"requests": {"storage": "1Gi"}}}}"#;
        cluster.kubectl(&["patch", "pvc", &name, "--patch", size]);
    }

    fn gets_all(&self, cluster: &Cluster, plugin: &Plugin<'_>) {
        let (name, copies) = (self.name(), self.copies());
        // After the restart, the driver knows the fault of the process before. It may be over by now,
        // or have ended with the copy of a frozen volume.
        plugin.succeeds(&["fault", "list"], &[&name]);
        plugin.succeeds(&["fault", "clear", &name, "--wait=false"], &["cleared"]);
        let record = [
            "get",
            "pvc",
            &name,
            "--output=jsonpath={.metadata.annotations}",
        ];
        let annotations = cluster.kubectl(&record);
        assert!(
            !annotations.contains("hostloop.csi.dev/fault"),
            "{annotations}"
        );
        self.restage(cluster);
        let clone = format!("{name}-clone");
        cluster.pod_ready("default", &clone);
        let found = cluster.exec("default", &clone, &["cat", "/data/file"]);
        assert_eq!(found, "synced\n", "{clone}");
        until(&name, || {
            let snapshot = format!("volumesnapshot/{name}");
            let ready = ["get", &snapshot, "--output=jsonpath={.status.readyToUse}"];
            let ready = cluster.try_kubectl(&ready)?;
            if ready == "true" { Ok(()) } else { Err(ready) }
        });
        let mut looks = 0;
        until(&name, || {
            looks += 1;
            if looks % 20 == 0 {
                // Kubelet checks a pod's volumes when the pod changes, otherwise every minute. A mounted
                // ext4 may need its next pod.
                self.restage(cluster);
            }
            let claim = format!("pvc/{name}");
            let size = [
                "get",
                &claim,
                "--output=jsonpath={.status.capacity.storage}",
            ];
            let size = cluster.try_kubectl(&size)?;
            if size == "1Gi" { Ok(()) } else { Err(size) }
        });
        cluster.delete(&[&*copies, &*self.objects()].join("---\n"));
    }
}

/// Waits until kubelet has unstaged the volume of a claim without a pod. A pod that comes before gets
/// the mount that was there.
pub fn until_unstaged(cluster: &Cluster, claim: &str) {
    // The path of an image has it in the middle, and that of a fault disk at its end.
    let name = format!("/{}", cluster.handle("default", claim));
    until(claim, || {
        let attached = loop_devices::all();
        match attached.iter().find(|one| one.backing.contains(&name)) {
            Some(one) => Err(format!("a loop device is over {}", one.backing)),
            None => Ok(()),
        }
    });
}

/// Looks once a second until there is nothing left to say. Threads of their own wait here.
pub(crate) fn until(what: &str, mut look: impl FnMut() -> Result<(), String>) {
    let started = Instant::now();
    while let Err(seen) = look() {
        assert!(
            started.elapsed() < PATIENCE,
            "{what}: not there after {PATIENCE:?}; seen last: {seen}"
        );
        sleep(Duration::from_secs(1));
    }
}
