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
