//! The access modes of a claim. The attachment goes by all of them, and kubelet names the first.

use super::*;

#[rstest]
#[case::many(many(), single(), true)]
#[case::one(single(), many(), false)]
fn the_publication_says_whether_several_nodes_may_use_a_volume(
    #[case] published: csi::VolumeCapability,
    #[case] of_kubelet: csi::VolumeCapability,
    #[case] both: bool,
) {
    let m = Machine::new();
    let id = m.o.create(ext4(), BYTES);
    let context = m.o.attach(id, "u", &published).unwrap();
    m.u.use_it(id, &context, &of_kubelet).unwrap();
    // A node without a publication that knows the context.
    let staged = m.w.stage(id, &context, &of_kubelet);
    assert_eq!(staged.is_ok(), both, "{staged:?}");
    m.w.unstage(id).unwrap();
    m.give_back(id);
}

/// Of two nodes that stage a volume at once, one sees the other's pin, if its look is complete.
#[test]
fn a_look_without_the_pin_of_this_node_proves_nothing() {
    let m = Machine::new();
    let capability = block_as(Mode::SingleNodeWriter);
    let id = m.o.create(Access::Block, BYTES);
    let context = m.o.attach(id, "u", &capability).unwrap();
    m.u.stage(id, &context, &capability).unwrap();
    let minor = m.o.device(id).minor;
    let mut loops = m.kernel.loops().unwrap();
    loops.retain(|device| device.below() == Some(minor));
    let pin = loops.remove(0);
    m.u.unstage(id).unwrap();
    // The next pin has its number.
    let kernel = m.kernel.clone();
    m.kernel
        .hook("loops", move |_| kernel.loop_release(&pin).map(drop));
    refused!(m.u.stage(id, &context, &capability), Error::NotYet(_));
    m.kernel.behave();
    assert_eq!(m.o.pins_over(minor), 0);
    m.u.use_it(id, &context, &capability).unwrap();
    m.u.end_use(id).unwrap();
    m.o.detach(id, "u").unwrap();
    m.assert_unused(id, "detached");
}
