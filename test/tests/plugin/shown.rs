//! What `status`, `describe` and `logs` show of a claim in use, against what kubectl and the
//! machine show of it.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hostloop_test::PATIENCE;
use hostloop_test::child::Program;
use hostloop_test::cluster::{Cluster, check, wait_for};
use hostloop_test::loop_devices::{self, Loop};
use hostloop_test::machine::text;
use hostloop_test::plugin::Plugin;
use hostloop_test::pools::GIB;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::civil::DateTime;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::tables::{Row, assert_row, bytes, cells, pairs, table};

/// The columns of a volume in `status`, then those that `-A` and `-o wide` add.
const COLUMNS: [&str; 9] = [
    "CLAIM", "NODE", "SIZE", "ON-DISK", "FS", "LOOP", "POD", "STATE", "AGE",
];
const MORE_COLUMNS: [&str; 7] = [
    "NAMESPACE",
    "POOL",
    "CLASS",
    "I/O",
    "SOURCE",
    "VOLUME",
    "ID",
];

/// The calls of the claim's life so far, in order.
pub(crate) const CALLS: [&str; 3] = ["CreateVolume", "NodeStageVolume", "NodePublishVolume"];

/// The claim `claim` of namespace `default`, which a pod of the same name uses.
pub(crate) struct InUse<'c> {
    cluster: &'c Cluster,
    plugin: &'c Plugin<'c>,
    node: String,
    claim: Value,
    volume: Value,
    pod: Value,
    /// The volume's ID.
    handle: String,
    /// The volume's file.
    image: PathBuf,
    device: Loop,
}

impl<'c> InUse<'c> {
    /// Reads its objects and finds its image beneath the pool's root.
    pub(crate) fn of(cluster: &'c Cluster, plugin: &'c Plugin<'c>, pool: &Path) -> InUse<'c> {
        let get = |kind: &str, name: &str| -> Value {
            let object = cluster.kubectl(&["get", kind, name, "-o", "json"]);
            serde_json::from_str(&object).expect("kubectl prints JSON")
        };
        let claim = get("pvc", "claim");
        let volume = get("pv", field(&claim, "/spec/volumeName"));
        let handle = field(&volume, "/spec/csi/volumeHandle").to_owned();
        let end = format!("/volumes/{handle}/image");
        let device = loop_devices::all()
            .into_iter()
            .find(|device| device.backing.ends_with(&end));
        InUse {
            node: cluster.node(1),
            pod: get("pod", "claim"),
            image: pool.join(end.trim_start_matches('/')),
            device: device.expect("the volume has a loop device"),
            cluster,
            plugin,
            claim,
            volume,
            handle,
        }
    }

    fn volume_name(&self) -> &str {
        field(&self.volume, "/metadata/name")
    }

    fn device_path(&self) -> String {
        format!("/dev/loop{}", self.device.minor)
    }

    fn io(&self) -> &'static str {
        if self.device.direct_io {
            "direct"
        } else {
            "buffered"
        }
    }

    /// Runs the plugin, and returns the bytes on disk before and after: the pod writes meanwhile.
    fn says(&self, arguments: &[&str]) -> (String, RangeInclusive<u64>) {
        let used = || self.image.metadata().expect("the image is there").blocks() * 512;
        let before = used();
        let said = self.plugin.succeeds(arguments, &[]);
        let after = used();
        (said, before.min(after)..=before.max(after))
    }

    /// `status` in all forms.
    pub(crate) fn is_in_status(&self) {
        let (said, used) = self.says(&["status", "-o", "json"]);
        self.is_in_report(&serde_json::from_str(&said).expect("JSON"), &used);
        let (said, used) = self.says(&["status", "-o", "yaml"]);
        self.is_in_report(&serde_saphyr::from_str(&said).expect("YAML"), &used);

        let (said, used) = self.says(&["status"]);
        self.is_in_tables(&said, &used, &COLUMNS);
        let (said, used) = self.says(&["status", "-A", "-o", "wide"]);
        self.is_in_tables(&said, &used, &[&COLUMNS[..], &MORE_COLUMNS].concat());
    }

    fn is_in_report(&self, report: &Value, used: &RangeInclusive<u64>) {
        let [volume] = list(&report["volumes"]) else {
            panic!("not one volume: {report:#}")
        };
        has(
            volume,
            &json!({
                "namespace": "default", "claim": "claim", "inline": null, "state": "published",
                "stuck": null, "note": null, "node": self.node, "pool": "default",
                "size_bytes": GIB, "filesystem": "ext4", "loops": [self.device_path()],
                "direct_io": self.device.direct_io, "pods": ["claim"],
                "volume": self.volume_name(), "handle": self.handle, "class": "hostloop-ext4",
                "source": null,
            }),
        );
        let on_disk = volume["used_bytes"].as_u64().expect("a number");
        assert!(used.contains(&on_disk), "{on_disk} is not in {used:?}");
        let created: Timestamp = field(&self.claim, "/metadata/creationTimestamp")
            .parse()
            .expect("a time");
        let created_ns = volume["created_ns"].as_i64().map(i128::from);
        assert_eq!(created_ns, Some(created.as_nanosecond()), "{volume:#}");

        let [pool] = list(&report["pools"]) else {
            panic!("not one pool: {report:#}")
        };
        has(
            pool,
            &json!({
                "node": self.node, "name": "default", "kind": "directory", "state": "open",
                "why": null, "fs": "xfs", "reflinks": true, "promised_bytes": GIB, "volumes": 1,
                "snapshots": 0,
            }),
        );
        let [node] = list(&report["nodes"]) else {
            panic!("not one node: {report:#}")
        };
        has(node, &json!({"node": self.node, "problem": null}));
        assert_eq!(report["missing"], json!([]));
        assert_eq!(report["snapshots"], json!([]));
    }

    fn is_in_tables(&self, said: &str, used: &RangeInclusive<u64>, columns: &[&str]) {
        let rows = table(said, "Volumes");
        let [row] = &rows[..] else {
            panic!("not one volume: {said}")
        };
        let found: BTreeSet<&str> = row.keys().map(String::as_str).collect();
        assert_eq!(found, columns.iter().copied().collect(), "{said}");
        let device = format!("loop{}", self.device.minor);
        let expected: [(&str, &str); 14] = [
            ("NAMESPACE", "default"),
            ("CLAIM", "claim"),
            ("NODE", &self.node),
            ("SIZE", "1GiB"),
            ("FS", "ext4"),
            ("LOOP", &device),
            ("POD", "claim"),
            ("STATE", "published"),
            ("POOL", "default"),
            ("CLASS", "hostloop-ext4"),
            ("I/O", self.io()),
            ("SOURCE", "-"),
            ("VOLUME", self.volume_name()),
            ("ID", &self.handle),
        ];
        let shown: Vec<(&str, &str)> = expected
            .into_iter()
            .filter(|(column, _)| columns.contains(column))
            .collect();
        assert_row(row, &shown);
        assert_is_about(&row["ON-DISK"], used);
        assert!(row["AGE"].ends_with(['s', 'm']), "{row:?}");

        let pools = table(said, "Pools");
        let [pool] = &pools[..] else {
            panic!("not one pool: {said}")
        };
        assert_row(
            pool,
            &[
                ("NODE", &self.node),
                ("NAME", "default"),
                ("STATE", "open"),
                ("FS", "xfs"),
                ("REFLINKS", "yes"),
                ("PROMISED", "1GiB"),
                ("VOLUMES", "1"),
            ],
        );
        let others = ["Stuck", "Not known", "Without an owner"];
        assert!(
            !said
                .lines()
                .any(|line| others.iter().any(|o| line.starts_with(o))),
            "{said}"
        );
    }

    /// `describe`: objects, record, image, loop device, mounts, calls and history.
    pub(crate) fn is_described(&self) {
        let (said, used) = self.says(&["describe", "claim"]);
        let claim = pairs(&said, "Claim default/claim");
        assert_row(
            &claim,
            &[
                ("state", "published"),
                ("node", &self.node),
                ("class", "hostloop-ext4"),
                ("access", "ReadWriteOnce"),
                ("mode", "Filesystem"),
            ],
        );
        let (size, on_disk) = claim["size"].split_once(", ").expect("two sizes");
        assert_eq!(size, "1 GiB");
        assert_is_about(on_disk.strip_suffix(" on disk").expect("its words"), &used);

        self.objects_are_described(&said);
        self.node_is_described(&said, &used);
        self.calls_are_described(&said);
        self.history_is_described(&said);
        assert!(!said.contains("Not known"), "{said}");
    }

    fn objects_are_described(&self, said: &str) {
        let objects = table(said, "Objects");
        let running = format!("Running-on-{}", self.node);
        let expected: [(&str, &Value, &str); 3] = [
            ("PersistentVolumeClaim", &self.claim, "Bound"),
            ("PersistentVolume", &self.volume, "Bound,policy-Delete"),
            ("Pod", &self.pod, &running),
        ];
        assert_eq!(objects.len(), expected.len(), "{said}");
        for (row, (kind, object, state)) in objects.iter().zip(expected) {
            let (name, uid) = (
                field(object, "/metadata/name"),
                field(object, "/metadata/uid"),
            );
            assert_row(
                row,
                &[
                    ("KIND", kind),
                    ("NAME", name),
                    ("STATE", state),
                    ("UID", uid),
                ],
            );
        }
    }

    fn node_is_described(&self, said: &str, used: &RangeInclusive<u64>) {
        let device = self.device_path();
        let mounts = self.cluster.on(1).mounts().into_iter();
        let mounts = mounts.filter(|mount| mount.source == device);
        let mounts: Vec<String> = mounts.map(|mount| text(&mount.at).to_owned()).collect();
        let staged = mounts
            .iter()
            .find(|at| at.contains("/plugins/kubernetes.io/csi/"));
        let published = mounts
            .iter()
            .filter(|at| at.contains("/volumes/kubernetes.io~csi/"));
        assert_eq!(published.count(), 1, "{mounts:?}");

        let record = pairs(said, &format!("Record on node {}", self.node));
        let staged = format!("as mount at {}", staged.expect("it is staged"));
        assert_row(
            &record,
            &[
                ("ID", &self.handle),
                ("name", self.volume_name()),
                ("pool", "default (directory, open, xfs)"),
                ("image", text(&self.image)),
                ("size", "1 GiB"),
                ("allocation", "thin"),
                ("filesystem", "ext4"),
                ("published to", "-"),
                ("staged", &staged),
                ("I/O", self.io()),
            ],
        );
        assert_is_about(&record["on disk"], used);

        let loops = table(said, "Loop devices");
        let [row] = &loops[..] else {
            panic!("not one loop device: {said}")
        };
        assert_row(
            row,
            &[
                ("DEVICE", &device),
                ("SIZE", "1GiB"),
                ("BLOCK", &self.device.sector.to_string()),
                ("I/O", self.io()),
                ("MODE", "rw"),
                ("OVER", "volume"),
                ("OBJECT", &self.handle),
            ],
        );

        let rows = table(said, "Mounts");
        let paths: BTreeSet<&str> = rows.iter().map(|row| row["PATH"].as_str()).collect();
        assert_eq!(paths, mounts.iter().map(String::as_str).collect(), "{said}");
        for row in &rows {
            let object = ("OBJECT", &*self.handle);
            assert_row(
                row,
                &[("DEVICE", &device), ("FS", "ext4"), ("MODE", "rw"), object],
            );
        }
    }

    fn calls_are_described(&self, said: &str) {
        let rows = table(said, "Last calls");
        assert_in_order_of_time(&rows);
        // Kubelet asks for the volume's statistics, too.
        let life: Vec<&Row> = rows
            .iter()
            .filter(|row| CALLS.contains(&row["CALL"].as_str()))
            .collect();
        let mut calls: Vec<&str> = life.iter().map(|row| row["CALL"].as_str()).collect();
        // Kubernetes repeats a call that is answered late.
        calls.dedup();
        assert_eq!(calls, CALLS, "{said}");
        for call in CALLS {
            let done = life
                .iter()
                .find(|row| row["CALL"] == call && row["CODE"] == "OK");
            let row = done.unwrap_or_else(|| panic!("no {call} succeeded: {said}"));
            let ms: f64 = row["MS"].parse().expect("a duration");
            assert!(ms > 0.0 && ms < 60e3, "{row:?}");
        }
    }

    fn history_is_described(&self, said: &str) {
        let rows = table(said, "History");
        assert_in_order_of_time(&rows);
        let volume = format!("volume/{}", self.volume_name());
        // Creation, a phase, a condition, and events of the provisioner and of kubelet.
        for (object, what) in [
            ("claim", "created"),
            ("claim", "ProvisioningSucceeded: "),
            (volume.as_str(), "phase Bound"),
            ("pod/claim", "created"),
            ("pod/claim", "condition Ready is True"),
            ("pod/claim", "Started: "),
        ] {
            let is_it = |row: &&Row| row["OBJECT"] == object && row["WHAT"].starts_with(what);
            // An event that gets no answer is sent again, with the same time.
            let found: BTreeSet<&Row> = rows.iter().filter(is_it).collect();
            assert_eq!(found.len(), 1, "{object} {what}: {said}");
        }
        assert_row(&rows[0], &[("OBJECT", "claim"), ("WHAT", "created")]);
    }

    /// `logs`: the calls of its life, each after the name of its node, and no other claim's.
    pub(crate) fn is_in_logs(&self) {
        let (said, _) = self.says(&["logs", "claim"]);
        let calls = said.lines().filter(|line| line.contains("hostloop::call"));
        let mut calls: Vec<&str> = calls
            .filter_map(|line| {
                let (node, text) = line.split_once("  ").expect("a source");
                let call = CALLS
                    .into_iter()
                    .find(|call| text.contains(&format!("{call:?}")))?;
                assert_eq!(node.trim_end(), self.node, "{line}");
                assert!(text.contains("code=") && text.contains(" ms="), "{line}");
                text.contains("code=OK").then_some(call)
            })
            .collect();
        calls.dedup();
        assert_eq!(calls, CALLS, "{said}");
        let sources: BTreeSet<&str> = said
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        let known = |source: &&str| *source == self.node || *source == "controller";
        assert!(sources.iter().all(known), "{sources:?}");
        assert!(
            !said.contains("hostloop-check-"),
            "lines of another claim: {said}"
        );
    }
}

/// `status --watch` while the test changes something. It ends with its owner.
pub(crate) struct Watch {
    program: Program,
    output: PathBuf,
}

impl Watch {
    /// Starts it, and waits until it has shown the status once.
    pub(crate) async fn start(plugin: &Plugin<'_>, dir: &Path) -> Watch {
        let output = dir.join("watch");
        let file = File::create(&output).expect("a file can be created");
        let child = plugin.command(&["status", "--watch"]).stdout(file).spawn();
        let program = Program::new(child.expect("the plugin can be run"));
        let watch = Watch { program, output };
        watch.until("the pools", |line| line == "Pools").await;
        watch
    }

    /// Waits for a row of these cells, among others.
    pub(crate) async fn until_row(&self, first: &str, other: &str) {
        let is_it = |line: &str| {
            let cells = cells(line);
            cells.first().is_some_and(|cell| cell == first) && cells.iter().any(|c| c == other)
        };
        self.until(&format!("a row of {first} with {other}"), is_it)
            .await;
    }

    async fn until(&self, what: &str, is_it: impl Fn(&str) -> bool) {
        wait_for(what, PATIENCE, async || {
            let said = std::fs::read_to_string(&self.output).expect("the output can be read");
            check(said.lines().any(&is_it), || said)
        })
        .await;
    }

    /// Presses Ctrl-C. It ends at once, and not as a failure.
    pub(crate) fn interrupt(mut self) {
        self.program.signal(Signal::SIGINT);
        let ended = self.program.wait(PATIENCE).expect("the watch ends");
        assert!(ended.success(), "{ended}");
    }
}

#[track_caller]
fn assert_in_order_of_time(rows: &[Row]) {
    let time = |row: &Row| row["TIME"].trim_end_matches('Z').parse().expect("a time");
    let times: Vec<DateTime> = rows.iter().map(time).collect();
    assert!(times.is_sorted(), "{times:?}");
}

/// The size, to three figures, is in this range.
#[track_caller]
fn assert_is_about(size: &str, range: &RangeInclusive<u64>) {
    let (least, most) = (*range.start() as f64 * 0.99, *range.end() as f64 * 1.01);
    assert!(
        (least..=most).contains(&bytes(size)),
        "{size} is not in {range:?}"
    );
    assert!(*range.start() > 0, "the image has no blocks");
}

/// The object has these fields with these values.
#[track_caller]
fn has(object: &Value, expected: &Value) {
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(object.get(name), Some(value), "{name} of {object:#}");
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[track_caller]
fn field<'v>(object: &'v Value, pointer: &str) -> &'v str {
    let text = object.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_else(|| panic!("no {pointer} in {object:#}"))
}
