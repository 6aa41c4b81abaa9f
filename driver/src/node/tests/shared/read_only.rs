//! Read-only publications of raw block volumes that nodes share.

use std::fs::File;
use std::path::Path;

use super::left::attach_as_kubelet;
use super::*;
use crate::kernel::LoopInfo;
use crate::reach::pins;

/// Nodes that may all write to a raw block volume.
fn writers() -> csi::VolumeCapability {
    block_as(Mode::MultiNodeMultiWriter)
}

/// The readable pins over a volume's device.
fn readable(m: &Machine, id: VolumeId) -> Vec<LoopInfo> {
    let minor = m.o.device(id).minor;
    let mut loops = m.kernel.loops().unwrap();
    loops.retain(|device| device.below() == Some(minor) && pins::is_readable(device));
    loops
}

/// Publishes a staged volume at one of several targets of a node.
fn publish_at(
    node: &SharedNode,
    (id, context): (VolumeId, &Context),
    target: &Path,
    readonly: bool,
) -> Result<()> {
    let request = csi::NodePublishVolumeRequest {
        volume_id: id.to_string(),
        publish_context: context.clone(),
        staging_target_path: text(&node.staging()),
        target_path: text(target),
        volume_capability: Some(writers()),
        readonly,
        ..Default::default()
    };
    node.node().node_publish_volume(request).map(drop)
}

fn unpublish_at(node: &SharedNode, id: VolumeId, target: &Path) -> Result<()> {
    let request = csi::NodeUnpublishVolumeRequest {
        volume_id: id.to_string(),
        target_path: text(target),
    };
    node.node().node_unpublish_volume(request).map(drop)
}

#[test]
fn readers_on_all_nodes_see_what_one_writes() {
    let m = Machine::new();
    let id = m.o.create(Access::Block, BYTES);
    let context = m.o.attach(id, "o", &writers()).unwrap();
    for name in ["u", "w"] {
        assert_eq!(m.o.attach(id, name, &writers()).unwrap(), context);
    }
    for node in m.nodes() {
        node.stage(id, &context, &writers()).unwrap();
    }
    m.w.publish(id, &context, &writers(), false).unwrap();
    refused!(
        m.w.publish(id, &context, &writers(), true),
        Error::AlreadyExists(_)
    );
    for node in [&m.o, &m.u] {
        for _ in 0..2 {
            node.publish(id, &context, &writers(), true).unwrap();
        }
        refused!(
            node.publish(id, &context, &writers(), false),
            Error::AlreadyExists(_)
        );
    }
    assert_eq!(readable(&m, id).len(), 2);
    assert_eq!(m.u.reasons(id, &m.u.target()).unwrap(), [] as [&str; 0]);

    m.w.site.kernel.write_stamp(&m.w.target(), 7).unwrap();
    for node in [&m.o, &m.u] {
        let (_, seen) = node.site.kernel.stamps_at(&node.target()).unwrap();
        assert_eq!(seen.written, 7);
        let written = node.site.kernel.write_stamp(&node.target(), 8);
        assert!(written.is_err());
        refused!(node.unstage(id), Error::FailedPrecondition(_));
    }

    for (node, left) in [(&m.o, 1), (&m.u, 0)] {
        for _ in 0..2 {
            node.unpublish(id).unwrap();
            assert_eq!(readable(&m, id).len(), left);
        }
        node.unstage(id).unwrap();
    }
    m.w.end_use(id).unwrap();
    for name in ["o", "u", "w"] {
        m.o.detach(id, name).unwrap();
    }
    m.assert_unused(id, "detached");
}

#[test]
fn a_node_has_read_only_and_writable_targets_of_one_volume() {
    let (mut m, id, context) = Machine::in_use(Access::Block, &writers());
    let minor = m.o.device(id).minor;
    let [first, second] = ["first", "second"].map(|name| m.u.site.root().join("pods").join(name));
    for target in [&first, &second] {
        publish_at(&m.u, (id, &context), target, true).unwrap();
    }
    assert_eq!(m.o.pins_over(minor), 3);
    unpublish_at(&m.u, id, &first).unwrap();
    assert_eq!(m.o.pins_over(minor), 2);
    m.u.restart();
    assert_eq!(m.o.pins_over(minor), 2, "both are in use");
    m.u.unpublish(id).unwrap();
    m.u.restart();
    assert_eq!(m.o.pins_over(minor), 2, "the second target is a use of it");
    refused!(m.u.unstage(id), Error::FailedPrecondition(_));
    refused!(m.o.detach(id, "u"), Error::FailedPrecondition(_));
    unpublish_at(&m.u, id, &second).unwrap();
    assert_eq!(m.o.pins_over(minor), 1);
    m.give_back(id);
}

#[test]
fn a_read_only_target_grows_with_its_volume() {
    let (m, id, _) = Machine::in_use(Access::Block, &readers());
    let target = m.u.target();
    let total = || m.u.stats(id, &target).unwrap()[0].total;
    assert_eq!(total(), BYTES as i64);
    m.o.pools().expand_volume(&id, 2 * BYTES).unwrap();
    refused!(m.u.expand(id, &target, 2 * BYTES), Error::NotYet(_));
    m.o.node().grow(&m.o.record(id)).unwrap();
    assert_eq!(total(), 2 * BYTES as i64);
    assert_eq!(m.u.expand(id, &target, 2 * BYTES).unwrap(), 2 * BYTES);

    // The owner does not know this pin yet.
    m.o.pools().expand_volume(&id, 3 * BYTES).unwrap();
    let own = m.kernel.loop_reopen(&m.o.device(id)).unwrap();
    m.kernel.loop_grow(&own).unwrap();
    drop(own);
    assert_eq!(total(), 2 * BYTES as i64);
    assert_eq!(m.u.expand(id, &target, 3 * BYTES).unwrap(), 3 * BYTES);
    assert_eq!(total(), 3 * BYTES as i64);
    m.give_back(id);
}

/// A call has ended between the end of the target and that of its pin, or before the target was bound.
#[test]
fn a_readable_pin_that_nothing_binds_is_given_back() {
    let (mut m, id, context) = Machine::in_use(Access::Block, &writers());
    let minor = m.o.device(id).minor;
    let target = m.u.site.root().canonicalize().unwrap().join("pods/readers");
    let lose = |m: &Machine| {
        publish_at(&m.u, (id, &context), &target, true).unwrap();
        m.u.site.kernel.unmount(&target).unwrap();
        unpublish_at(&m.u, id, &target).unwrap();
        assert_eq!((m.o.pins_over(minor), readable(m, id).len()), (2, 1));
    };
    lose(&m);
    publish_at(&m.u, (id, &context), &target, true).unwrap();
    assert_eq!(readable(&m, id).len(), 1, "the next publication");
    unpublish_at(&m.u, id, &target).unwrap();
    assert_eq!(readable(&m, id), []);

    lose(&m);
    m.u.restart();
    assert_eq!(readable(&m, id), [], "a start of the driver");
    assert_eq!(m.o.pins_over(minor), 1, "the writable target is in use");

    lose(&m);
    m.give_back(id);
}

/// Kubelet has a device over that of each pod, and nothing detaches it once its container is gone. The pod
/// may have changed the label of its own.
#[rstest]
fn a_reader_that_is_gone_holds_no_volume(#[values(false, true)] is_labelled: bool) {
    let (mut m, id, _) = Machine::in_use(Access::Block, &readers());
    let pin = readable(&m, id).remove(0);
    attach_as_kubelet(&m, &pin);
    if is_labelled {
        m.kernel.relabel(pin.minor, "mine");
    }
    m.u.die();
    refused!(m.o.detach(id, "u"), Error::FailedPrecondition(_));
    assert_eq!(m.devices(), 4, "as long as the container lives, all stays");
    m.u.site.kernel.end();
    certainly(|| m.o.detach(id, "u"));
    assert_eq!(m.o.loops(id), []);
    let loops = m.kernel.loops().unwrap();
    assert_eq!(loops.len(), 2, "two markers: {loops:?}");
    use_once(&m, (&m.w, "w"), id, &readers()).unwrap();
}

/// Nothing shows whether another node of the volume has it bound. It does no harm.
#[test]
fn the_readable_pin_of_a_node_that_is_gone_ends_after_the_last_use() {
    let m = Machine::new();
    let id = m.o.create(Access::Block, BYTES);
    let context = m.o.attach(id, "u", &writers()).unwrap();
    m.o.attach(id, "w", &writers()).unwrap();
    m.u.stage(id, &context, &writers()).unwrap();
    m.u.publish(id, &context, &writers(), true).unwrap();
    m.w.use_it(id, &context, &writers()).unwrap();
    let minor = m.o.device(id).minor;
    assert_eq!(m.o.pins_over(minor), 3);
    m.u.site.kernel.end();
    for _ in 0..2 {
        m.o.node().keep_marker().unwrap();
    }
    assert_eq!((m.o.pins_over(minor), readable(&m, id).len()), (2, 1));
    m.o.detach(id, "u").unwrap();
    m.w.end_use(id).unwrap();
    m.o.detach(id, "w").unwrap();
    assert_eq!(m.o.loops(id), []);
    let loops = m.kernel.loops().unwrap();
    assert_eq!(loops.len(), 2, "two markers: {loops:?}");
}

/// A person unmounts the marker. What a pod has bound stays, though its marker is gone.
#[test]
fn a_pin_that_is_bound_outlives_its_marker() {
    let (m, id, _) = Machine::in_use(Access::Block, &readers());
    let minor = m.o.device(id).minor;
    m.u.site.kernel.unmount(&m.u.alive()).unwrap();
    refused!(m.o.detach(id, "u"), Error::NotYet(_));
    m.u.node().keep_marker().unwrap();
    assert_eq!(m.o.pins_over(minor), 3);
    refused!(m.o.detach(id, "u"), Error::FailedPrecondition(_));
    for _ in 0..2 {
        m.o.node().keep_marker().unwrap();
    }
    assert_eq!((m.o.pins_over(minor), readable(&m, id).len()), (2, 1));
    m.u.site.kernel.stamps_at(&m.u.target()).unwrap();
    m.give_back(id);
}

/// LOOP_CHANGE_FD needs only read access to the device.
#[test]
fn another_file_behind_a_readable_pin_keeps_nothing() {
    let (m, id, _) = Machine::in_use(Access::Block, &readers());
    let minor = m.o.device(id).minor;
    let file = File::create_new(m.u.site.root().join("other")).unwrap();
    file.set_len(BYTES).unwrap();
    let pin = readable(&m, id).remove(0);
    m.kernel.change_backing(pin.minor, &file).unwrap();
    assert_eq!(m.o.pins_over(minor), 1, "the device keeps its number");
    assert_eq!(m.u.reasons(id, &m.u.target()).unwrap().len(), 1);
    m.give_back(id);
}

/// LOOP_SET_STATUS64 needs no more than write access to the device node. If the owner took a device that a pod
/// uses for one that nothing uses, the pod would reach the next file that gets its number.
#[test]
fn a_readable_pin_that_poses_as_a_dead_one_stays_below_its_kubelets_device() {
    let (m, id, _) = Machine::in_use(Access::Block, &readers());
    let pin = readable(&m, id).remove(0);
    let of_kubelet = attach_as_kubelet(&m, &pin);
    m.kernel.relabel(pin.minor, &pins::label(&"f".repeat(32)));
    m.kernel.tamper(pin.minor, pins::OFFSET, 0);
    for _ in 0..3 {
        m.o.node().keep_marker().unwrap();
    }
    assert_eq!(m.devices(), 4, "the volume's, two pins and that of kubelet");
    m.kernel.loop_release(&of_kubelet).unwrap();
    m.give_back(id);
}

/// Nothing shows that the device was a pin, and its pod is to end all the same.
#[test]
fn another_file_and_label_of_a_readable_pin_keep_nothing() {
    let (m, id, _) = Machine::in_use(Access::Block, &readers());
    let file = File::create_new(m.u.site.root().join("other")).unwrap();
    file.set_len(BYTES).unwrap();
    let pin = readable(&m, id).remove(0);
    m.kernel.change_backing(pin.minor, &file).unwrap();
    m.kernel.relabel(pin.minor, "mine");
    m.u.end_use(id).unwrap();
    m.o.detach(id, "u").unwrap();
    assert_eq!(m.o.loops(id), []);
    assert_eq!(m.devices(), 1, "that of the pod's file");
}
