//! What is left of a node once its container has ended.

use super::*;
use crate::kernel::{LoopInfo, LoopSpec};
use crate::reach::pins;
use crate::storage::GrowthIntent;

/// Attaches a device over one that is published to a pod, as kubelet does for each raw block volume.
pub(super) fn attach_as_kubelet(m: &Machine, published: &LoopInfo) -> LoopInfo {
    let opened = m.kernel.loop_reopen(published).unwrap();
    let attached = m.kernel.loop_attach(&LoopSpec {
        backing: &opened.file,
        label: "/kubelet/volumeDevices/pvc-1/dev/pod",
        offset: 0,
        read_only: published.read_only,
        direct_io: false,
        autoclear: false,
        minor: None,
    });
    let minor = attached.unwrap().minor;
    m.kernel.loop_info(minor).unwrap().unwrap()
}

/// A raw block volume's pod has a device of its kubelet, which nothing detaches once that is gone.
#[test]
fn the_device_of_a_kubelet_that_is_gone_holds_no_volume() {
    let capability = block_as(Mode::SingleNodeWriter);
    let (mut m, id, _) = Machine::in_use(Access::Block, &capability);
    attach_as_kubelet(&m, &m.o.device(id));
    m.u.die();
    refused!(m.o.detach(id, "u"), Error::FailedPrecondition(_));
    // One for the volume, the pin and that of kubelet.
    assert_eq!(m.devices(), 3, "as long as the container lives, all stays");
    m.u.site.kernel.end();
    certainly(|| m.o.detach(id, "u"));
    assert_eq!(m.o.loops(id), []);
    let loops = m.kernel.loops().unwrap();
    assert_eq!(loops.len(), 2, "two markers: {loops:?}");
    use_once(&m, (&m.w, "w"), id, &capability).unwrap();
}

/// Ends the owner's container, and starts another one with its pool.
fn start_owner_again(m: &mut Machine) {
    m.o.die();
    m.o.site.kernel.end();
    m.o.restart();
}

/// A node that has pinned a volume may mount it between any two steps of another one.
#[test]
fn no_tool_works_on_a_filesystem_that_another_node_may_mount() {
    let mut m = Machine::new();
    m.kernel.withhold_growth(true);
    let id = m.o.create(ext4(), 8 * MI);
    let context = m.o.attach(id, "u", &many()).unwrap();
    m.u.use_it(id, &context, &many()).unwrap();
    m.u.unmount_all();
    start_owner_again(&mut m);
    m.o.pools().expand_volume(&id, 1024 * MI).unwrap();
    m.kernel.take_effects();
    assert_eq!(m.o.attach(id, "u", &many()).unwrap(), context);
    let effects = m.kernel.take_effects();
    assert!(effects.contains(&"mount"), "{effects:?}");
    assert!(
        !effects.contains(&"check-whole") && !effects.contains(&"grow"),
        "{effects:?}"
    );
    m.u.end_use(id).unwrap();
    m.o.detach(id, "u").unwrap();
    // Without a node that has it, it grows.
    m.o.attach(id, "u", &many()).unwrap();
    assert!(m.kernel.take_effects().contains(&"grow"));
    m.o.detach(id, "u").unwrap();
    m.assert_unused(id, "detached");
}

/// The other node has it mounted, or has pinned it alone and may mount it at any time.
#[rstest]
fn an_interrupted_growth_is_not_repaired_beneath_another_node(
    #[values(false, true)] is_mounted: bool,
) {
    let (mut m, id, context) = Machine::in_use(ext4(), &many());
    if !is_mounted {
        m.u.unmount_all();
    }
    start_owner_again(&mut m);
    let intend = |intent| {
        let updated = m.o.pools().update_volume(&id, |r| r.growth = intent);
        updated.unwrap();
    };
    intend(Some(Box::new(GrowthIntent {
        superblock: vec![0; 1024].into_boxed_slice(),
        begun: true,
    })));
    m.kernel.take_effects();
    let refusal = m.o.attach(id, "u", &many()).unwrap_err().to_string();
    assert!(refusal.contains("was interrupted"), "{refusal}");
    let effects = m.kernel.take_effects();
    assert!(!effects.contains(&"mend"), "{effects:?}");
    intend(None);
    assert_eq!(m.o.attach(id, "u", &many()).unwrap(), context);
    m.give_back(id);
}

/// A person takes the list of the nodes away while a pod runs.
#[rstest]
#[case::filesystem(ext4(), single())]
#[case::raw(Access::Block, block_as(Mode::SingleNodeWriter))]
fn a_node_that_shares_no_kernel_any_more_gives_back_what_it_has(
    #[case] access: Access,
    #[case] capability: csi::VolumeCapability,
) {
    let (mut m, id, context) = Machine::in_use(access, &capability);
    for node in [&mut m.o, &mut m.u] {
        node.stop_sharing();
    }
    refused!(m.o.detach(id, "u"), Error::FailedPrecondition(_));
    refused!(m.u.stage(id, &context, &capability), Error::NotYet(_));
    m.give_back(id);
}

/// It has a state directory of its own, and would never end a pin of what it did not stage.
#[test]
fn what_another_driver_of_the_node_uses_is_not_pinned() {
    let m = Machine::new();
    let mut site = SharedNode::<Model>::site();
    site.kernel = m.u.site.kernel.clone();
    let other = SharedNode::start("u", site, &m.by, |_| {});
    let id = m.o.create(ext4(), BYTES);
    let context = m.o.attach(id, "u", &many()).unwrap();
    m.u.use_it(id, &context, &many()).unwrap();
    let minor = m.o.device(id).minor;
    other.node().keep_marker().unwrap();
    assert_eq!(m.o.pins_over(minor), 1);
    m.u.end_use(id).unwrap();
    m.o.detach(id, "u").unwrap();
    assert_eq!(m.o.loops(id), []);
}

/// A person removes the marker's file. The node makes another one, and pins again what it uses.
#[test]
fn a_marker_without_its_file_is_replaced() {
    let (m, id, _) = Machine::in_use(ext4(), &single());
    let alive = m.u.alive();
    for entry in std::fs::read_dir(alive.parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if path != alive {
            std::fs::remove_file(path).unwrap();
        }
    }
    m.u.node().keep_marker().unwrap();
    assert_eq!(m.o.pins_over(m.o.device(id).minor), 2);
    refused!(m.o.detach(id, "u"), Error::NotYet(_));
    refused!(m.o.detach(id, "u"), Error::FailedPrecondition(_));
    m.o.node().keep_marker().unwrap();
    m.u.end_use(id).unwrap();
    m.o.detach(id, "u").unwrap();
    assert_eq!(m.o.loops(id), []);
}

/// A driver may end between the last use of a volume and the end of its pin, and a kubelet that starts
/// again then does not unstage the volume once more.
#[rstest]
#[case::filesystem(ext4(), single())]
#[case::raw(Access::Block, block_as(Mode::SingleNodeWriter))]
fn a_pin_that_nothing_uses_ends_with_the_next_start_of_the_driver(
    #[case] access: Access,
    #[case] capability: csi::VolumeCapability,
) {
    let mut m = Machine::new();
    let id = m.o.create(access, BYTES);
    let context = m.o.attach(id, "u", &capability).unwrap();
    m.u.use_it(id, &context, &capability).unwrap();
    let minor = m.o.device(id).minor;
    m.u.restart();
    assert_eq!(m.o.pins_over(minor), 1, "it is in use");
    m.u.unmount_all();
    m.u.node().keep_marker().unwrap();
    assert_eq!(m.o.pins_over(minor), 1, "a call may be about to use it");
    refused!(m.o.detach(id, "u"), Error::FailedPrecondition(_));
    m.u.restart();
    assert_eq!(m.o.pins_over(minor), 0);
    m.o.detach(id, "u").unwrap();
    m.assert_unused(id, "detached");
}

/// Nothing shows that a raw block volume is staged but its pin.
#[test]
fn a_raw_block_volume_that_was_only_staged_is_published_after_a_start() {
    let mut m = Machine::new();
    let capability = block_as(Mode::SingleNodeWriter);
    let id = m.o.create(Access::Block, BYTES);
    let context = m.o.attach(id, "u", &capability).unwrap();
    m.u.stage(id, &context, &capability).unwrap();
    m.u.restart();
    let minor = m.o.device(id).minor;
    assert_eq!(m.o.pins_over(minor), 0);
    let publish = |m: &Machine| m.u.publish(id, &context, &capability, false);
    // It is staged as before, so not beside another node.
    m.w.stage(id, &context, &capability).unwrap();
    refused!(publish(&m), Error::FailedPrecondition(_));
    assert_eq!(m.o.pins_over(minor), 1);
    m.w.unstage(id).unwrap();
    publish(&m).unwrap();
    assert_eq!(m.o.pins_over(minor), 1);
    refused!(m.o.detach(id, "u"), Error::FailedPrecondition(_));
    m.u.end_use(id).unwrap();
    m.o.detach(id, "u").unwrap();
    m.assert_unused(id, "detached");
}

/// Only the owner attaches a device. As long as a node uses the one that there is, others can, too.
#[test]
fn the_last_use_ends_the_device_of_an_owner_that_is_gone() {
    let mut m = Machine::new();
    let id = m.o.create(ext4(), BYTES);
    let before = m.o.attach(id, "u", &many()).unwrap();
    m.u.use_it(id, &before, &many()).unwrap();
    m.o.die();
    m.o.site.kernel.end();
    m.u.end_use(id).unwrap();
    refused!(m.u.stage(id, &before, &many()), Error::NotYet(_));
    m.o.restart();
    let after = m.o.attach(id, "u", &many()).unwrap();
    assert_ne!(before, after);
    m.u.use_it(id, &after, &many()).unwrap();
    m.u.end_use(id).unwrap();
    m.o.detach(id, "u").unwrap();
    m.assert_unused(id, "detached");
}

/// Nothing but its path shows then what it is over.
#[test]
fn a_pin_that_does_not_answer_keeps_its_device() {
    let mut m = Machine::new();
    let capability = block_as(Mode::SingleNodeWriter);
    let id = m.o.create(Access::Block, BYTES);
    let context = m.o.attach(id, "u", &capability).unwrap();
    m.u.use_it(id, &context, &capability).unwrap();
    let device = m.o.device(id);
    let mut loops = m.kernel.loops().unwrap();
    loops.retain(|over| over.below() == Some(device.minor));
    let pin = loops[0].minor;
    m.kernel.set_silent(pin, true);
    refused!(m.o.detach(id, "u"), Error::NotYet(_));
    // Recovery detaches a device that nothing uses.
    let lost = m.o.pools().update_volume(&id, |record| record.stage = None);
    lost.unwrap();
    m.o.restart();
    assert_eq!(m.o.device(id), device);
    m.kernel.set_silent(pin, false);
    refused!(m.o.detach(id, "u"), Error::FailedPrecondition(_));
    m.u.end_use(id).unwrap();
    m.o.detach(id, "u").unwrap();
    m.assert_unused(id, "detached");
}

/// Attaches a pin that shows all of the device, as an earlier version does, in place of the only one.
fn pin_as_an_earlier_version(m: &Machine, id: VolumeId) {
    let device = m.o.device(id);
    let mut over = m.kernel.loops().unwrap();
    over.retain(|over| over.below() == Some(device.minor));
    let pin = over.remove(0);
    assert_eq!((pin.offset, pin.size_bytes), (pins::OFFSET, 0));
    let opened = m.kernel.loop_reopen(&device).unwrap();
    m.kernel.loop_release(&pin).unwrap();
    let attached = m.kernel.loop_attach(&LoopSpec {
        backing: &opened.file,
        label: &pin.label,
        offset: 0,
        read_only: true,
        direct_io: false,
        autoclear: false,
        minor: None,
    });
    let earlier = m.kernel.loop_info(attached.unwrap().minor).unwrap();
    assert_eq!(earlier.unwrap().size_bytes, device.size_bytes);
}

/// It counts, and ends, like one of this version.
#[rstest]
#[case::filesystem(ext4(), single())]
#[case::raw(Access::Block, block_as(Mode::SingleNodeWriter))]
fn a_pin_of_an_earlier_version_keeps_its_device(
    #[case] access: Access,
    #[case] capability: csi::VolumeCapability,
) {
    let (mut m, id, context) = Machine::in_use(access, &capability);
    let minor = m.o.device(id).minor;
    pin_as_an_earlier_version(&m, id);
    m.u.restart();
    m.u.use_it(id, &context, &capability).unwrap();
    assert_eq!(m.o.pins_over(minor), 1, "it needs no other one");
    refused!(m.o.detach(id, "u"), Error::FailedPrecondition(_));
    m.give_back(id);

    // The node's container ends.
    let context = m.o.attach(id, "u", &capability).unwrap();
    m.u.use_it(id, &context, &capability).unwrap();
    pin_as_an_earlier_version(&m, id);
    m.u.die();
    m.u.site.kernel.end();
    certainly(|| m.o.detach(id, "u"));
    assert_eq!(m.o.loops(id), []);
    let loops = m.kernel.loops().unwrap();
    assert_eq!(loops.len(), 2, "two markers: {loops:?}");
}
