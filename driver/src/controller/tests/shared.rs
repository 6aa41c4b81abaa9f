//! Volumes that all nodes of a kernel may use. The Node service is a stand-in, which writes down what it
//! is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use parking_lot::Mutex;

use super::bench::*;
use crate::controller::{AnchorLook, Anchors, Error, Result};
use crate::kernel::FileId;
use crate::reach::context::PublishContext;
use crate::reach::kernels::Kernels;
use crate::storage::{Capability, Pools, Provisioning, Reach, VolumeRecord};
use crate::testkit::stage_at;

/// What the anchors are asked for, and what the test lets them answer.
#[derive(Default)]
struct Script {
    calls: Vec<&'static str>,
    /// The nodes with a pin.
    holders: BTreeSet<String>,
    /// The nodes without a marker on this kernel.
    away: BTreeSet<String>,
    release_fails: bool,
    anchor_fails: bool,
    /// How often a device was attached.
    attached: u64,
}

struct Stand {
    pools: Arc<Pools>,
    script: Mutex<Script>,
}

fn not_yet() -> Error {
    Error::NotYet("later".to_owned())
}

impl Anchors for Stand {
    fn look(&self, _record: &VolumeRecord) -> Result<Box<dyn AnchorLook + '_>> {
        Ok(Box::new(self))
    }

    fn grow(&self, _record: &VolumeRecord) -> Result<()> {
        self.script.lock().calls.push("grow");
        Ok(())
    }
}

impl AnchorLook for &Stand {
    fn anchor(&self, record: &VolumeRecord, capability: &Capability) -> Result<PublishContext> {
        let mut script = self.script.lock();
        script.calls.push("anchor");
        if script.anchor_fails {
            return Err(not_yet());
        }
        if record.stage.is_none() {
            script.attached += 1;
            let stage = stage_at("/shared", capability.clone(), Some(7));
            self.pools
                .update_volume(&record.id, |record| record.stage = Some(stage))?;
        }
        Ok(PublishContext {
            boot: "b".to_owned(),
            minor: 7,
            diskseq: script.attached,
            image: FileId { dev: 1, ino: 2 },
            fs: capability.access.fs(),
            provisioning: Provisioning::Thin,
            discard: true,
            owner: "n1".to_owned(),
            many_nodes: capability.mode.is_multi_node(),
        })
    }

    fn holders(&self) -> Result<BTreeSet<String>> {
        Ok(self.script.lock().holders.clone())
    }

    fn is_here(&self, node: &str) -> Result<bool> {
        Ok(!self.script.lock().away.contains(node))
    }

    fn is_left_over(&self, record: &VolumeRecord) -> bool {
        record.publications.is_empty() && record.stage.is_some()
    }

    fn release(&self, record: &VolumeRecord) -> Result<()> {
        let mut script = self.script.lock();
        script.calls.push("release");
        if script.release_fails {
            return Err(not_yet());
        }
        self.pools
            .update_volume(&record.id, |record| record.stage = None)?;
        Ok(())
    }
}

/// Node n1 with a kernel that it shares with n2 and n3.
struct Shared {
    bench: Bench,
    stand: Arc<Stand>,
    kernels: tempfile::TempDir,
}

impl Shared {
    fn new() -> Shared {
        Shared::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Plan)) -> Shared {
        let kernels = tempfile::tempdir().unwrap();
        std::fs::write(kernels.path().join("machine"), "n2 n1 n3\n").unwrap();
        let bench = Bench::with(|plan| {
            plan.config.kernels = Kernels::at(Some(kernels.path().to_owned()));
            change(plan);
        });
        let stand = Arc::new(Stand {
            pools: bench.controller.pools.clone(),
            script: Mutex::default(),
        });
        Shared {
            bench: bench.anchored(Some(stand.clone())),
            stand,
            kernels,
        }
    }

    fn create(&self, name: &str) -> String {
        self.bench
            .created(create_request_with(name, "reach=kernel"))
    }

    fn publish(&self, id: &str, node: &str, mode: Mode) -> Result<BTreeMap<String, String>> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: node.to_owned(),
            volume_capability: Some(mount_as("", mode)),
            ..Default::default()
        };
        let response = self.bench.controller.controller_publish_volume(request)?;
        Ok(response.publish_context)
    }

    fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.stand.script.lock());
    }

    /// The calls since the last look.
    fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.stand.script.lock().calls)
    }

    fn nodes(&self, id: &str) -> Vec<String> {
        let record = self.bench.record(id);
        record.publications.keys().cloned().collect()
    }
}

const ONE: Mode = Mode::SingleNodeWriter;
const MANY: Mode = Mode::MultiNodeMultiWriter;

#[track_caller]
fn assert_says<T: std::fmt::Debug>(refused: Result<T>, part: &str) {
    match refused {
        Err(Error::FailedPrecondition(why)) => assert!(why.contains(part), "{why}"),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn a_volume_names_all_nodes_of_its_kernel() {
    let shared = Shared::new();
    let id = shared.create("a");
    let own = shared.bench.create("b");
    assert_eq!(shared.bench.record(&id).reach, Reach::Kernel);
    let listed = csi::ListVolumesRequest::default();
    let listed = shared.bench.controller.list_volumes(listed).unwrap();
    let volumes = listed.entries.into_iter().filter_map(|entry| entry.volume);
    let (of_all, of_one): (Vec<_>, Vec<_>) = volumes.partition(|volume| volume.volume_id == id);
    let again = create_request_with("a", "reach=kernel");
    let again = shared.bench.try_create(again).unwrap();
    for volume in of_all.iter().chain([&again]) {
        let nodes = ["t/node=n1", "t/node=n2", "t/node=n3"].map(place);
        assert_eq!(volume.accessible_topology, nodes);
        assert_eq!(volume.volume_context, pairs("reach=kernel"));
    }
    assert_eq!(of_one[0].volume_id, own);
    assert_eq!(of_one[0].accessible_topology, [place("t/node=n1")]);
    assert!(of_one[0].volume_context.is_empty());
}

/// The affinity of a PersistentVolume can't be changed.
#[test]
fn a_new_volume_has_all_nodes_of_its_kernel_or_no_answer() {
    let shared = Shared::new();
    let id = shared.create("a");
    let request = || create_request_with("a", "reach=kernel");
    let list = shared.kernels.path().join("machine");
    // This node is not listed; the list is wrong; there is none.
    for content in [Some("n2 n3"), Some("n1 n2 \u{7}"), None] {
        match content {
            Some(content) => std::fs::write(&list, content).unwrap(),
            None => std::fs::remove_file(&list).unwrap(),
        }
        assert_answer(shared.bench.try_create(request()), "Unavailable");
    }
    std::fs::write(&list, "n1 n2").unwrap();
    let volume = shared.bench.try_create(request()).unwrap();
    assert_eq!(volume.volume_id, id);
    let nodes = ["t/node=n1", "t/node=n2"].map(place);
    assert_eq!(volume.accessible_topology, nodes);
}

#[test]
fn the_context_of_a_volume_is_confirmed() {
    let shared = Shared::new();
    let (id, own) = (shared.create("a"), shared.bench.create("b"));
    for (id, context, fits) in [
        (&id, "reach=kernel", true),
        (&id, "", true),
        (&id, "reach=node", false),
        (&own, "reach=kernel", false),
    ] {
        let request = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: id.clone(),
            volume_context: pairs(context),
            volume_capabilities: vec![mount("")],
            ..Default::default()
        };
        let controller = &shared.bench.controller;
        let answer = controller.validate_volume_capabilities(request).unwrap();
        assert_eq!(answer.confirmed.is_some(), fits, "{context}");
    }
}

#[test]
fn a_volume_is_shared_only_where_all_that_keeps_it_is_there() {
    type Change = fn(&mut Plan);
    const FIELD: &str = r#"parameters["reach"]"#;
    let request =
        |parameters: &str| create_request_with("a", &format!("reach=kernel {parameters}"));
    let table: [(Change, &str, &str); 6] = [
        (|plan| plan.config.attach = false, "", FIELD),
        (|plan| plan.config.kernels = Kernels::default(), "", FIELD),
        (
            |plan| plan.config.node_id = "n9".to_owned(),
            "",
            "FailedPrecondition",
        ),
        (|_| {}, "faultDisk=true", FIELD),
        (|_| {}, "fault=gone,for=5m", FIELD),
        (
            |plan| plan.config.topology = pairs("t/node=n1 zone=z").into(),
            "",
            FIELD,
        ),
    ];
    for (change, parameters, expected) in table {
        let shared = Shared::with(change);
        let made = shared.bench.try_create(request(parameters));
        assert_eq!(answer(made), expected, "{parameters}");
        assert!(shared.bench.volume_ids().is_empty());
    }
    let shared = Shared::new();
    let btrfs = csi::CreateVolumeRequest {
        volume_capabilities: vec![mount("btrfs")],
        capacity_range: range(300 * MI, 0),
        ..request("")
    };
    assert_answer(shared.bench.try_create(btrfs), FIELD);
    let raw = csi::CreateVolumeRequest {
        volume_capabilities: vec![block()],
        ..request("")
    };
    shared.bench.created(raw);
    // A driver without the Node service's half.
    let bench = Bench::new();
    assert_answer(bench.try_create(request("")), FIELD);
}

#[test]
fn many_nodes_have_one_device() {
    let shared = Shared::new();
    let id = shared.create("a");
    let first = shared.publish(&id, "n2", MANY).unwrap();
    assert_eq!(first["minor"], "7");
    assert_eq!(first["fs"], "ext4");
    assert_eq!(shared.publish(&id, "n3", MANY).unwrap(), first);
    assert_eq!(shared.publish(&id, "n1", MANY).unwrap(), first);
    // A repeated call anchors again: after a reboot, the device is another one.
    assert_eq!(shared.publish(&id, "n2", MANY).unwrap(), first);
    assert_eq!(shared.calls(), ["anchor"; 4]);
    assert_eq!(shared.nodes(&id), ["n1", "n2", "n3"]);
    assert_answer(shared.bench.delete(&id), "FailedPrecondition");

    for node in ["n1", "n3"] {
        shared.bench.unpublish(&id, node).unwrap();
        assert_eq!(shared.calls(), [""; 0], "{node}");
    }
    shared.bench.unpublish(&id, "n2").unwrap();
    shared.bench.unpublish(&id, "n2").unwrap();
    assert_eq!(shared.calls(), ["release"; 2]);
    shared.bench.delete(&id).unwrap();
}

#[test]
fn a_volume_of_one_node_moves_once_it_is_free() {
    let shared = Shared::new();
    let id = shared.create("a");
    let first = shared.publish(&id, "n2", ONE).unwrap();
    assert_says(shared.publish(&id, "n3", ONE), "published to node n2");
    shared.script(|script| script.holders = BTreeSet::from(["n2".to_owned()]));
    assert_says(shared.publish(&id, "n3", ONE), "node n2 still has");
    // Kubernetes may detach by force: the node has it all the same.
    for node in ["n2", ""] {
        assert_says(shared.bench.unpublish(&id, node), "node n2 still has");
    }
    assert_eq!(shared.nodes(&id), ["n2"]);
    assert_eq!(shared.publish(&id, "n2", ONE).unwrap(), first);
    shared.bench.unpublish(&id, "n3").unwrap();

    shared.script(|script| script.holders.clear());
    shared.bench.unpublish(&id, "n2").unwrap();
    let next = shared.publish(&id, "n3", ONE).unwrap();
    assert_ne!(next, first, "another attachment");
    let calls = ["anchor", "anchor", "release", "anchor"];
    assert_eq!(shared.calls(), calls);
    // A pin without a publication counts.
    shared.bench.unpublish(&id, "n3").unwrap();
    shared.script(|script| script.holders = BTreeSet::from(["n3".to_owned()]));
    assert_says(shared.publish(&id, "n1", ONE), "node n3 still has");
}

#[test]
fn a_device_that_was_not_released_comes_to_no_other_node() {
    let shared = Shared::new();
    let id = shared.create("a");
    let first = shared.publish(&id, "n2", ONE).unwrap();
    shared.script(|script| script.release_fails = true);
    assert_answer(shared.bench.unpublish(&id, "n2"), "Unavailable");
    assert!(shared.nodes(&id).is_empty());
    assert_answer(shared.bench.unpublish(&id, "n2"), "Unavailable");
    assert_answer(shared.publish(&id, "n3", ONE), "Unavailable");
    assert!(shared.nodes(&id).is_empty(), "released first");
    let calls = ["anchor", "release", "release", "release"];
    assert_eq!(shared.calls(), calls);
    shared.script(|script| script.release_fails = false);
    assert_ne!(shared.publish(&id, "n3", ONE).unwrap(), first);
    assert_eq!(shared.calls(), ["release", "anchor"]);
}

/// The attachment may be gone by then, so nothing repeats the unpublication.
#[test]
fn a_device_that_was_not_released_keeps_no_volume_from_its_deletion() {
    let shared = Shared::new();
    let id = shared.create("a");
    shared.publish(&id, "n2", ONE).unwrap();
    assert_says(shared.bench.delete(&id), "is published to node n2");
    shared.script(|script| script.release_fails = true);
    assert_answer(shared.bench.unpublish(&id, "n2"), "Unavailable");
    assert_answer(shared.bench.delete(&id), "Unavailable");
    assert_eq!(shared.calls(), ["anchor", "release", "release"]);
    shared.script(|script| script.release_fails = false);
    shared.bench.delete(&id).unwrap();
    assert_eq!(shared.calls(), ["release"]);
    let unused = shared.create("b");
    shared.bench.delete(&unused).unwrap();
    assert!(shared.calls().is_empty());
}

#[test]
fn a_publication_stays_until_the_device_is_attached() {
    let shared = Shared::new();
    let id = shared.create("a");
    shared.script(|script| script.anchor_fails = true);
    assert_answer(shared.publish(&id, "n2", ONE), "Unavailable");
    assert_eq!(shared.nodes(&id), ["n2"]);
    assert!(!shared.bench.record(&id).fresh);
    shared.script(|script| script.anchor_fails = false);
    shared.publish(&id, "n2", ONE).unwrap();
}

#[test]
fn only_nodes_of_the_kernel_get_a_volume() {
    let shared = Shared::new();
    let id = shared.create("a");
    for mode in [ONE, MANY] {
        assert_says(shared.publish(&id, "n4", mode), "hostloop-kernels");
    }
    shared.script(|script| script.away = BTreeSet::from(["n3".to_owned()]));
    for mode in [ONE, MANY] {
        assert_says(shared.publish(&id, "n3", mode), "no marker of it");
    }
    let single = Mode::MultiNodeSingleWriter;
    assert_says(shared.publish(&id, "n2", single), "ReadWriteMany");
    assert!(shared.nodes(&id).is_empty());
    assert_eq!(shared.calls(), [""; 0]);
    // A volume of one node is published to that one only.
    let own = shared.bench.create("b");
    assert_answer(shared.publish(&own, "n2", ONE), "NotFound");
}

#[test]
fn uses_that_exclude_each_other_are_not_mixed() {
    let shared = Shared::new();
    let id = shared.create("a");
    shared.publish(&id, "n2", ONE).unwrap();
    assert_says(shared.publish(&id, "n3", MANY), "for another use");
    assert_answer(shared.publish(&id, "n2", MANY), "AlreadyExists");
    shared.bench.unpublish(&id, "n2").unwrap();

    shared.publish(&id, "n2", MANY).unwrap();
    assert_says(shared.publish(&id, "n3", ONE), "published to node n2");
    shared
        .publish(&id, "n3", Mode::MultiNodeReaderOnly)
        .unwrap();
}

#[test]
fn the_attach_limit_is_of_this_node() {
    let shared = Shared::with(|plan| plan.config.attach_limit = Some(1));
    let ids = ["a", "b"].map(|name| shared.create(name));
    for id in &ids {
        shared.publish(id, "n2", MANY).unwrap();
    }
    shared.publish(&ids[0], "n1", MANY).unwrap();
    assert_answer(shared.publish(&ids[1], "n1", MANY), "ResourceExhausted");
}

#[test]
fn an_expansion_reaches_the_device() {
    let shared = Shared::new();
    let id = shared.create("a");
    let size = shared.bench.grow(&id, range(16 * MI, 0)).unwrap();
    assert_eq!(size, 16 * MI);
    // The ext4 would have to be unmounted, and as long as any node uses it, it is not.
    shared.publish(&id, "n2", MANY).unwrap();
    shared.bench.kernel.withhold_growth(true);
    let grown = shared.bench.grow(&id, range(32 * MI, 0));
    assert_answer(grown, "OutOfRange");
    shared.bench.kernel.withhold_growth(false);
    shared.bench.grow(&id, range(32 * MI, 0)).unwrap();
    assert_eq!(shared.calls(), ["grow", "anchor", "grow"]);
}

#[test]
fn without_anchors_nothing_is_done_with_a_shared_volume() {
    let shared = Shared::new();
    let id = shared.create("a");
    shared.publish(&id, "n2", MANY).unwrap();
    // A driver that was started without --kernels.
    let Shared { bench, .. } = shared;
    let bench = bench.anchored(None);
    assert_says(bench.publish(&id), "--kernels");
    assert_says(bench.unpublish(&id, "n2"), "--kernels");
    assert_says(bench.grow(&id, range(16 * MI, 0)), "--kernels");
    assert_answer(bench.delete(&id), "FailedPrecondition");
    let topology = bench.try_create(create_request_with("a", "reach=kernel"));
    assert_eq!(topology.unwrap().volume_id, id);
}

#[test]
fn the_class_has_the_capacity_of_its_pool() {
    let shared = Shared::new();
    let capacity = |parameters: &str| {
        let parameters = pairs(parameters);
        let asked = |request: &mut csi::GetCapacityRequest| request.parameters = parameters;
        shared.bench.capacity(asked).unwrap()
    };
    // The disk's free space changes meanwhile.
    let ((room, _, least), (_, _, expected)) = (capacity("reach=kernel"), capacity(""));
    assert!(room > 0);
    assert_eq!(least, expected);
}
