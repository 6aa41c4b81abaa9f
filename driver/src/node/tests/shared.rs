//! Several nodes over one kernel, each with mounts of its own, as the containers of kind are.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hostloop_fake_kernel::Model;
use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use rstest::rstest;

use crate::controller::Anchors;
use crate::kernel::{Error as KernelError, LoopDevices, Mounts, loop_path};
use crate::node::{Error, Node, Result};
use crate::storage::{Access, VolumeId};
use crate::testkit::*;

mod forged;
mod left;
mod modes;
mod read_only;

const BYTES: u64 = 16 * MI;

/// Three nodes: the first one has the pool of the volumes.
struct Machine {
    /// The first node, the owner.
    o: SharedNode,
    u: SharedNode,
    w: SharedNode,
    kernel: Arc<Model>,
    by: SharedBy,
}

impl Machine {
    fn new() -> Machine {
        let by = SharedBy::nodes(&["o", "u", "w"]);
        // The second look is certain at once.
        let hurry: fn(&mut Node) = |node| node.pinning.hurry();
        let site = SharedNode::<Model>::site();
        let kernel = site.kernel.clone();
        let o = SharedNode::start("o", site, &by, hurry);
        let [u, w] = ["u", "w"].map(|name| {
            let mut site = SharedNode::<Model>::site();
            site.kernel = Arc::new(kernel.beside());
            SharedNode::start(name, site, &by, hurry)
        });
        Machine {
            o,
            u,
            w,
            kernel,
            by,
        }
    }

    /// A machine on which u uses a volume, and the context of that.
    fn in_use(access: Access, capability: &csi::VolumeCapability) -> (Machine, VolumeId, Context) {
        let m = Machine::new();
        let id = m.o.create(access, BYTES);
        let context = m.o.attach(id, "u", capability).unwrap();
        m.u.use_it(id, &context, capability).unwrap();
        (m, id, context)
    }

    /// Ends the use of a volume on u, after which nothing uses it.
    #[track_caller]
    fn give_back(&self, id: VolumeId) {
        self.u.end_use(id).unwrap();
        self.o.detach(id, "u").unwrap();
        self.assert_unused(id, "detached");
    }

    fn nodes(&self) -> [&SharedNode; 3] {
        [&self.o, &self.u, &self.w]
    }

    /// All loop devices but the markers of the nodes.
    fn devices(&self) -> usize {
        self.kernel.loops().unwrap().len() - 3
    }

    /// Checks that nothing uses a volume, and that it is staged nowhere.
    #[track_caller]
    fn assert_unused(&self, id: VolumeId, what: &str) {
        for node in self.nodes() {
            assert_eq!(node.mounted(), [] as [PathBuf; 0], "{what}");
        }
        let loops = self.kernel.loops().unwrap();
        assert_eq!(self.devices(), 0, "{what}: {loops:?}");
        assert_eq!(self.o.record(id).stage, None, "{what}");
        assert!(!self.o.anchor(id).exists(), "{what}");
    }
}

/// Calls again until the kernel shows for certain that a node is gone.
fn certainly<T: std::fmt::Debug>(mut call: impl FnMut() -> Result<T>) -> T {
    refused!(call(), Error::NotYet(_));
    call().unwrap()
}

fn many() -> csi::VolumeCapability {
    mount_as("ext4", Mode::MultiNodeMultiWriter)
}

/// Nodes that only read a raw block volume.
fn readers() -> csi::VolumeCapability {
    block_as(Mode::MultiNodeReaderOnly)
}

fn single() -> csi::VolumeCapability {
    mount_as("ext4", Mode::SingleNodeWriter)
}

#[test]
fn several_nodes_see_one_filesystem() {
    let m = Machine::new();
    let id = m.o.create(ext4(), BYTES);
    let contexts = ["o", "u"].map(|node| m.o.attach(id, node, &many()).unwrap());
    assert_eq!(contexts[0], contexts[1]);
    for node in [&m.o, &m.u] {
        node.use_it(id, &contexts[0], &many()).unwrap();
        node.use_it(id, &contexts[0], &many()).unwrap();
    }
    let device = m.o.device(id);
    assert_eq!(m.o.pins_over(device.minor), 2);
    m.o.site.kernel.write_stamp(&m.o.target(), 7).unwrap();
    let (_, seen) = m.u.site.kernel.stamps_at(&m.u.target()).unwrap();
    assert_eq!(seen.written, 7);

    // A node never detaches the device, and the last one keeps it.
    for (node, left) in [(&m.u, 1), (&m.o, 0)] {
        for _ in 0..2 {
            node.end_use(id).unwrap();
        }
        assert_eq!(m.o.pins_over(device.minor), left);
        assert_eq!(m.o.device(id), device);
    }
    m.o.detach(id, "u").unwrap();
    assert_eq!(m.o.device(id), device);
    for _ in 0..2 {
        m.o.detach(id, "o").unwrap();
        m.assert_unused(id, "detached from all");
    }
    m.o.pools().delete_volume(&id).unwrap();
}

#[rstest]
#[case::filesystem(ext4(), single())]
#[case::raw(Access::Block, block_as(Mode::SingleNodeWriter))]
fn a_volume_of_one_node_moves(#[case] access: Access, #[case] capability: csi::VolumeCapability) {
    let m = Machine::new();
    let id = m.o.create(access, BYTES);
    let mut last = None;
    for (node, name) in [(&m.u, "u"), (&m.w, "w"), (&m.o, "o"), (&m.u, "u")] {
        let context = m.o.attach(id, name, &capability).unwrap();
        if let Some(last) = &last {
            // It is another device: the context of the last node does not fit any more.
            refused!(node.stage(id, last, &capability), Error::NotYet(_));
        }
        node.use_it(id, &context, &capability).unwrap();
        for other in ["o", "u", "w"].into_iter().filter(|other| *other != name) {
            let refusal = m.o.attach(id, other, &capability).unwrap_err().to_string();
            assert!(refusal.contains(&format!("node {name}")), "{refusal}");
        }
        let held = m.o.detach(id, name).unwrap_err();
        assert!(matches!(held, Error::FailedPrecondition(_)), "{held:?}");
        assert!(held.to_string().contains("still has the volume"), "{held}");
        node.end_use(id).unwrap();
        m.o.detach(id, name).unwrap();
        m.assert_unused(id, name);
        last = Some(context);
    }
}

/// Kubelet has ended, and Kubernetes detaches by force, while all is still mounted on the node.
#[rstest]
#[case::filesystem(ext4(), single())]
#[case::raw(Access::Block, block_as(Mode::SingleNodeWriter))]
fn what_a_node_still_has_goes_to_no_other_until_its_container_ends(
    #[case] access: Access,
    #[case] capability: csi::VolumeCapability,
) {
    let (mut m, id, _) = Machine::in_use(access, &capability);
    m.u.die();
    let device = m.o.device(id);
    refused!(m.o.detach(id, "u"), Error::FailedPrecondition(_));
    refused!(m.o.detach(id, ""), Error::FailedPrecondition(_));
    refused!(
        m.o.attach(id, "w", &capability),
        Error::FailedPrecondition(_)
    );
    // Its number goes to no other file, with or without a user of its node.
    let others: Vec<_> = (0..30)
        .map(|i| {
            let path = m.o.site.root().join(format!("other{i}"));
            let file = std::fs::File::create_new(path).unwrap();
            file.set_len(MI).unwrap();
            m.o.site.attach_file(&file).minor
        })
        .collect();
    assert!(!others.contains(&device.minor), "{others:?}");
    assert_eq!(m.o.device(id), device);
    for minor in others {
        let info = m.kernel.loop_info(minor).unwrap().unwrap();
        m.kernel.loop_release(&info).unwrap();
    }

    m.u.site.kernel.end();
    certainly(|| m.o.detach(id, "u"));
    let loops = m.kernel.loops().unwrap();
    assert_eq!(loops.len(), 2, "two markers: {loops:?}");
    use_once(&m, (&m.w, "w"), id, &capability).unwrap();
}

#[test]
fn a_node_that_is_gone_holds_no_other_back() {
    let m = Machine::new();
    let id = m.o.create(ext4(), BYTES);
    let context = m.o.attach(id, "u", &many()).unwrap();
    m.o.attach(id, "w", &many()).unwrap();
    m.u.use_it(id, &context, &many()).unwrap();
    m.w.use_it(id, &context, &many()).unwrap();
    let minor = m.o.device(id).minor;
    assert_eq!(m.o.pins_over(minor), 2);
    m.u.site.kernel.end();
    // Upkeep alone detaches what is left, and w goes on.
    m.o.node().keep_marker().unwrap();
    assert_eq!(m.o.pins_over(minor), 2, "one look is not certain");
    m.w.node().keep_marker().unwrap();
    m.w.node().keep_marker().unwrap();
    assert_eq!(m.o.pins_over(minor), 2, "only the owner detaches it");
    m.o.node().keep_marker().unwrap();
    assert_eq!(m.o.pins_over(minor), 1);
    m.w.site.kernel.write_stamp(&m.w.target(), 3).unwrap();
    m.o.detach(id, "u").unwrap();
    m.w.end_use(id).unwrap();
    m.o.detach(id, "w").unwrap();
    assert_eq!(m.o.loops(id), []);
}

/// A person unmounts the marker. The node makes another one, and pins again what it uses.
#[rstest]
#[case::filesystem(ext4(), single())]
#[case::raw(Access::Block, block_as(Mode::SingleNodeWriter))]
fn a_new_marker_has_pins_of_all_that_is_in_use(
    #[case] access: Access,
    #[case] capability: csi::VolumeCapability,
) {
    let (m, id, _) = Machine::in_use(access, &capability);
    let minor = m.o.device(id).minor;
    m.u.site.kernel.unmount(&m.u.alive()).unwrap();
    refused!(m.o.detach(id, "u"), Error::NotYet(_));
    m.u.node().keep_marker().unwrap();
    assert_eq!(m.o.pins_over(minor), 2);
    // The earlier one is dead.
    refused!(m.o.detach(id, "u"), Error::FailedPrecondition(_));
    m.o.node().keep_marker().unwrap();
    assert_eq!(m.o.pins_over(minor), 1);
    m.give_back(id);
}

#[test]
fn two_stagings_at_once_never_both_succeed() {
    let m = Machine::new();
    let id = m.o.create(ext4(), BYTES);
    // Without the controller's decision, which allows one of them.
    let context = m.o.attach(id, "u", &single()).unwrap();
    let context = &context;
    for _ in 0..50 {
        let staged = std::thread::scope(|scope| {
            let both =
                [&m.u, &m.w].map(|node| scope.spawn(move || node.stage(id, context, &single())));
            both.map(|one| one.join().unwrap())
        });
        let count = staged.iter().filter(|one| one.is_ok()).count();
        assert!(count < 2, "{staged:?}");
        for (node, staged) in [&m.u, &m.w].into_iter().zip(&staged) {
            assert_eq!(node.mounted().len(), usize::from(staged.is_ok()));
            node.unstage(id).unwrap();
        }
        assert_eq!(m.o.pins_over(m.o.device(id).minor), 0);
    }
    m.o.detach(id, "u").unwrap();
    m.assert_unused(id, "detached");
}

#[rstest]
#[case::filesystem(ext4(), many())]
#[case::raw(Access::Block, block_as(Mode::MultiNodeMultiWriter))]
fn a_reboot_needs_the_owner_first(
    #[case] access: Access,
    #[case] capability: csi::VolumeCapability,
) {
    let (mut m, id, before) = Machine::in_use(access, &capability);
    m.kernel.reboot();
    for node in [&mut m.o, &mut m.u, &mut m.w] {
        node.restart();
    }
    refused!(m.u.stage(id, &before, &capability), Error::NotYet(_));
    let after = m.o.attach(id, "u", &capability).unwrap();
    assert_ne!(before, after);
    refused!(m.u.stage(id, &before, &capability), Error::NotYet(_));
    m.u.use_it(id, &after, &capability).unwrap();
    m.give_back(id);
}

/// The end of the owner's container takes its mounts, and its pool has the same images afterwards.
#[rstest]
#[case::filesystem(ext4(), many())]
#[case::raw(Access::Block, block_as(Mode::MultiNodeMultiWriter))]
fn an_owner_that_comes_back_finds_its_device(
    #[case] access: Access,
    #[case] capability: csi::VolumeCapability,
) {
    let mut m = Machine::new();
    let id = m.o.create(access, BYTES);
    let context = m.o.attach(id, "u", &capability).unwrap();
    m.o.attach(id, "o", &capability).unwrap();
    m.u.use_it(id, &context, &capability).unwrap();
    m.o.use_it(id, &context, &capability).unwrap();
    let device = m.o.device(id);
    m.o.die();
    m.o.site.kernel.end();
    // What was published before goes on without its owner.
    m.u.end_use(id).unwrap();
    m.u.use_it(id, &context, &capability).unwrap();
    m.o.restart();
    assert_eq!(m.o.device(id), device);
    assert_eq!(m.o.attach(id, "u", &capability).unwrap(), context);
    assert_eq!(m.o.device(id), device);
    m.u.site.kernel.write_stamp(&m.u.target(), 9).unwrap();
    // Its own staging of before is gone.
    m.o.use_it(id, &context, &capability).unwrap();
    for (node, name) in [(&m.o, "o"), (&m.u, "u")] {
        node.end_use(id).unwrap();
        m.o.detach(id, name).unwrap();
    }
    m.assert_unused(id, "detached");
}

/// The part of a record that has the staging is not synced.
#[rstest]
#[case::filesystem(ext4(), single())]
#[case::raw(Access::Block, block_as(Mode::SingleNodeWriter))]
fn a_volume_that_has_lost_its_staging_gets_another_device(
    #[case] access: Access,
    #[case] capability: csi::VolumeCapability,
) {
    let (m, id, before) = Machine::in_use(access, &capability);
    let lose = || m.o.pools().update_volume(&id, |record| record.stage = None);
    lose().unwrap();
    // In use, it stays.
    assert_eq!(m.o.attach(id, "u", &capability).unwrap(), before);
    m.u.end_use(id).unwrap();
    lose().unwrap();
    let after = m.o.attach(id, "u", &capability).unwrap();
    assert_ne!(after, before);
    refused!(m.u.stage(id, &before, &capability), Error::NotYet(_));
    m.u.use_it(id, &after, &capability).unwrap();
    m.u.end_use(id).unwrap();
    lose().unwrap();
    m.o.detach(id, "u").unwrap();
    m.assert_unused(id, "detached");
}

#[test]
fn a_user_has_size_usage_and_health_of_its_mount_alone() {
    let m = Machine::new();
    let id = m.o.create(ext4(), BYTES);
    let context = m.o.attach(id, "u", &many()).unwrap();
    let target = m.u.target();
    refused!(m.u.stats(id, &target), Error::NotFound(_));
    m.u.use_it(id, &context, &many()).unwrap();
    assert_eq!(m.u.stats(id, &target).unwrap()[0].total, BYTES as i64);
    assert_eq!(m.u.reasons(id, &target).unwrap(), [] as [&str; 0]);
    let elsewhere = m.u.site.root().join("pods/other");
    assert_eq!(m.u.reasons(id, &elsewhere).unwrap().len(), 1);

    assert_eq!(m.u.expand(id, &target, BYTES).unwrap(), BYTES);
    refused!(m.u.expand(id, &target, 2 * BYTES), Error::NotYet(_));
    m.o.pools().expand_volume(&id, 2 * BYTES).unwrap();
    refused!(m.u.expand(id, &target, 2 * BYTES), Error::NotYet(_));
    m.o.node().grow(&m.o.record(id)).unwrap();
    assert_eq!(m.u.expand(id, &target, 2 * BYTES).unwrap(), 2 * BYTES);
    assert_eq!(m.u.stats(id, &target).unwrap()[0].total, 2 * BYTES as i64);
    m.u.end_use(id).unwrap();
    m.o.detach(id, "u").unwrap();
}

#[test]
fn a_raw_block_volume_has_its_size_where_it_is_staged() {
    let m = Machine::new();
    let capability = block_as(Mode::MultiNodeMultiWriter);
    let id = m.o.create(Access::Block, BYTES);
    let context = m.o.attach(id, "u", &capability).unwrap();
    m.u.stage(id, &context, &capability).unwrap();
    let staging = m.u.staging();
    assert_eq!(m.u.expand(id, &staging, BYTES).unwrap(), BYTES);
    m.u.publish(id, &context, &capability, false).unwrap();
    assert_eq!(m.u.stats(id, &m.u.target()).unwrap()[0].total, BYTES as i64);
    m.u.end_use(id).unwrap();
    refused!(m.u.expand(id, &staging, BYTES), Error::NotFound(_));
    m.o.detach(id, "u").unwrap();
    m.assert_unused(id, "detached");
}

#[test]
fn a_read_only_publication_is_a_bind() {
    let capability = mount_as("ext4", Mode::MultiNodeReaderOnly);
    let (m, id, _) = Machine::in_use(ext4(), &capability);
    let table = m.u.site.kernel.mounts().unwrap();
    let root = m.u.site.root().canonicalize().unwrap();
    assert!(table.at(&root.join("pods/volume")).unwrap().read_only());
    assert!(!table.at(&root.join("stage/volume")).unwrap().read_only());
    m.give_back(id);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let m = Machine::new();
    let id = m.o.create(ext4(), BYTES);
    let none = Context::new();
    refused!(m.u.stage(id, &none, &many()), Error::FailedPrecondition(_));
    refused!(m.o.stage(id, &none, &many()), Error::FailedPrecondition(_));
    let context = m.o.attach(id, "u", &many()).unwrap();
    let as_device = block_as(Mode::MultiNodeMultiWriter);
    refused!(
        m.u.stage(id, &context, &as_device),
        Error::FailedPrecondition(_)
    );
    let labelled = with_flags(many(), &["context=\"system_u:object_r:a:s0:c1\""]);
    let refusal = m.u.stage(id, &context, &labelled).unwrap_err().to_string();
    assert!(refusal.contains("leave context out"), "{refusal}");
    refused!(
        m.u.publish(id, &context, &many(), false),
        Error::FailedPrecondition(_)
    );
    // The device was changed by a user of it.
    let minor = m.o.device(id).minor;
    m.kernel.tamper(minor, 0, 4096);
    let refusal = m.u.stage(id, &context, &many()).unwrap_err().to_string();
    assert!(
        refusal.contains(&loop_path(minor).display().to_string()),
        "{refusal}"
    );
    m.kernel.tamper(minor, 0, 0);
    assert_eq!(m.o.pins_over(minor), 0);
    m.u.stage(id, &context, &many()).unwrap();
    m.u.unstage(id).unwrap();
    m.o.detach(id, "u").unwrap();
    m.assert_unused(id, "detached");
}

/// Repeats a call until it succeeds.
#[track_caller]
fn patiently(what: &str, call: impl Fn() -> Result<()>) {
    let answers: Vec<_> = (0..8).map(|_| call()).take_while(Result::is_err).collect();
    assert!(answers.len() < 8, "{what}: {answers:?}");
}

/// The calls of one use of a volume on a node.
fn use_once(
    m: &Machine,
    (node, name): (&SharedNode, &str),
    id: VolumeId,
    capability: &csi::VolumeCapability,
) -> Result<()> {
    let context = m.o.attach(id, name, capability)?;
    node.use_it(id, &context, capability)?;
    node.end_use(id)?;
    m.o.detach(id, name)
}

/// Uses a volume on two nodes in turn, with each call as often as it takes, and deletes it.
fn live(m: &Machine, id: VolumeId, capability: &csi::VolumeCapability, what: &str) {
    let stamp = if *capability == readers() { 0 } else { 5 };
    for (node, name) in [(&m.u, "u"), (&m.o, "o")] {
        patiently(what, || {
            let context = m.o.attach(id, name, capability)?;
            node.use_it(id, &context, capability)
        });
        let written = node.site.kernel.write_stamp(&node.target(), 5);
        assert_eq!(written.is_ok(), stamp == 5, "{what}: {written:?}");
        patiently(what, || node.end_use(id));
        patiently(what, || m.o.detach(id, name));
        m.assert_unused(id, what);
    }
    let image = m.o.site.path(format!("volumes/{id}/image"));
    assert_eq!(m.kernel.stamps_of(&image).unwrap().synced, stamp, "{what}");
    m.o.pools().delete_volume(&id).unwrap();
}

/// The kernel operations of these calls that change something.
const EFFECTS: [&str; 8] = [
    "loop.attach",
    "loop.detach",
    "loop.flush",
    "loop.read-ahead",
    "mount",
    "bind",
    "unmount",
    "mkfs",
];

/// Each effect of each call fails once, before or after it has happened. The next calls go on.
#[rstest]
#[case::filesystem(ext4(), single())]
#[case::raw(Access::Block, block_as(Mode::SingleNodeWriter))]
#[case::read_only(Access::Block, readers())]
fn a_call_that_fails_anywhere_is_repeated(
    #[case] access: Access,
    #[case] capability: csi::VolumeCapability,
) {
    let m = Machine::new();
    m.kernel.take_effects();
    let create = || m.o.create(access.clone(), BYTES);
    live(&m, create(), &capability, "without a failure");
    let effects = m.kernel.take_effects();
    for op in EFFECTS {
        let calls = effects.iter().filter(|effect| **effect == op).count();
        for nth in 1..=calls {
            for is_done in [false, true] {
                let id = create();
                if is_done {
                    m.kernel.fail_afterwards(op, nth, libc::EIO);
                } else {
                    m.kernel.fail(op, nth, libc::EIO);
                }
                let what = format!("{op} {nth}, done: {is_done}");
                live(&m, id, &capability, &what);
                m.kernel.behave();
            }
        }
    }
}

/// Makes the kernel answer nothing any more before this effect, as to a process that was killed.
fn kill_before(kernel: &Model, effect: usize) {
    let done = Arc::new(AtomicUsize::new(0));
    for op in EFFECTS {
        let done = done.clone();
        kernel.shared_hook(op, move |path| {
            if done.fetch_add(1, Ordering::Relaxed) < effect {
                Ok(())
            } else {
                Err(KernelError::errno(op, path, libc::EIO))
            }
        });
    }
    for op in ["loops", "loop_info", "loop_open", "mounts", "probe"] {
        let done = done.clone();
        kernel.shared_hook(op, move |path| {
            if done.load(Ordering::Relaxed) <= effect {
                Ok(())
            } else {
                Err(KernelError::errno(op, path, libc::EIO))
            }
        });
    }
}

/// The drivers of both nodes are killed before each effect in turn, and start again.
#[rstest]
#[case::filesystem(ext4(), single())]
#[case::raw(Access::Block, block_as(Mode::SingleNodeWriter))]
#[case::read_only(Access::Block, readers())]
fn drivers_that_are_killed_anywhere_go_on(
    #[case] access: Access,
    #[case] capability: csi::VolumeCapability,
) {
    let mut m = Machine::new();
    for effect in 0.. {
        let what = format!("killed before effect {effect}");
        let id = m.o.create(access.clone(), BYTES);
        kill_before(&m.kernel, effect);
        let used = use_once(&m, (&m.u, "u"), id, &capability)
            .and_then(|()| use_once(&m, (&m.o, "o"), id, &capability));
        m.kernel.behave();
        if used.is_ok() {
            assert!(effect > 8, "{effect} effects are few");
            return;
        }
        for node in [&mut m.o, &mut m.u] {
            node.restart();
        }
        for (node, name) in [(&m.u, "u"), (&m.o, "o")] {
            patiently(&what, || node.end_use(id));
            patiently(&what, || m.o.detach(id, name));
        }
        m.assert_unused(id, &what);
        live(&m, id, &capability, &what);
    }
}
