//! Volumes that all nodes of a kernel may use. Each node is a thread with a mount namespace of its own,
//! as the containers of kind have one.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hostloop_driver::controller::Anchors;
use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::kernel::{Filesystems, FsType, LoopDevices, Probe, loop_path};
use hostloop_driver::node::{Error, ReadOnlyCaches, Result};
use hostloop_driver::reach::pins;
use hostloop_driver::storage::{Access, NewVolume, Reach, Source, VolumeId};
use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use rstest::rstest;

use super::growth::grows_mounted;
use crate::testkit::*;
use crate::tools::{arg, own_namespace, run, until};

/// A node over the machine's kernel.
type Shared = SharedNode<Linux>;

/// What a node's thread does for a test.
type Job = Box<dyn FnOnce(&mut Shared) + Send>;

/// A node in a thread with a mount namespace of its own.
struct Container {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Container {
    fn start(name: &'static str, by: &Arc<SharedBy>) -> Container {
        Container::over(name, by, None)
    }

    /// A node with its pool on a filesystem of its own.
    fn over(name: &'static str, by: &Arc<SharedBy>, pool: Option<FsType>) -> Container {
        let (jobs, todo) = channel::<Job>();
        let by = by.clone();
        let thread = std::thread::spawn(move || {
            own_namespace(&Linux::new(), Path::new("/nothing"));
            let site = Shared::site();
            if let Some(fs) = pool {
                new_filesystem(&*site.kernel, &site.path(""), fs, 2048 * MI);
            }
            // As kubelet's directory, where a pod may mount something for its node.
            let state_dir = site.options.state_dir.clone();
            run("mount", &["--bind", arg(&state_dir), arg(&state_dir)]);
            run("mount", &["--make-shared", arg(&state_dir)]);
            let mut node = Shared::start(name, site, &by, |_| {});
            for job in todo {
                job(&mut node);
            }
        });
        let container = Container {
            jobs: Some(jobs),
            thread: Some(thread),
        };
        // Others find its marker once it has started.
        container.run(|_| {});
        container
    }

    /// Calls this in the node's thread.
    #[track_caller]
    fn run<T: Send + 'static>(&self, call: impl FnOnce(&mut Shared) -> T + Send + 'static) -> T {
        let (answer, answered) = channel();
        let job: Job = Box::new(move |node| {
            let _ = answer.send(call(node));
        });
        let jobs = self.jobs.as_ref().expect("the container runs");
        jobs.send(job).expect("the node's thread runs");
        answered.recv().expect("the node's thread has panicked")
    }

    /// Calls this again while another program has a device open, or attaches one.
    #[track_caller]
    fn patiently<T: Send + 'static>(
        &self,
        call: impl Fn(&Shared) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run(move |node| {
            let end = Instant::now() + PATIENCE;
            loop {
                match call(node) {
                    Err(Error::FailedPrecondition(why))
                        if why.contains("still held open") && Instant::now() < end => {}
                    Err(Error::NotYet(why))
                        if why.contains("does not say now") && Instant::now() < end => {}
                    answer => return answer,
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        })
    }

    /// Ends the container: its mounts, and its marker with them. What it pinned stays.
    fn end(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            assert!(std::thread::panicking(), "the node's thread has panicked");
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.end();
    }
}

/// An owner and another node.
fn nodes() -> [Container; 2] {
    let by = Arc::new(SharedBy::nodes(&["o", "u"]));
    ["o", "u"].map(|name| Container::start(name, &by))
}

fn attach(o: &Container, id: VolumeId, node: &'static str, cap: &csi::VolumeCapability) -> Context {
    let cap = cap.clone();
    let context = o.patiently(move |o| o.attach(id, node, &cap));
    context.unwrap()
}

fn detach(o: &Container, id: VolumeId, node: &'static str) -> Result<()> {
    o.patiently(move |o| o.detach(id, node))
}

fn use_it(
    node: &Container,
    id: VolumeId,
    context: &Context,
    cap: &csi::VolumeCapability,
) -> Result<()> {
    let (context, cap) = (context.clone(), cap.clone());
    node.patiently(move |node| node.use_it(id, &context, &cap))
}

fn end_use(node: &Container, id: VolumeId) {
    node.patiently(move |node| node.end_use(id)).unwrap();
}

/// Grows a volume that two nodes use. The filesystem grows once, and both see it.
fn grow(o: &Container, u: &Container, id: VolumeId) {
    let grown = o.patiently(move |o| {
        let bytes = o.record(id).capacity_bytes.max(512 * MI);
        o.pools().expand_volume(&id, bytes)?;
        o.node().grow(&o.record(id))?;
        Ok(bytes)
    });
    let grown = grown.unwrap();
    u.run(move |u| {
        assert_eq!(u.expand(id, &u.target(), grown).unwrap(), grown);
        let total = u.stats(id, &u.target()).unwrap()[0].total;
        assert!(total > 400 << 20, "{total}");
    });
}

#[rstest]
#[case::ext4(FsType::Ext4)]
#[case::xfs(FsType::Xfs)]
fn nodes_see_one_filesystem_at_once(#[case] fs: FsType) {
    let [o, u] = nodes();
    let cap = mount_as(fs, Mode::MultiNodeMultiWriter);
    let id = o.run(move |o| o.create(on(fs), 64 * MI));
    let context = attach(&o, id, "o", &cap);
    assert_eq!(attach(&o, id, "u", &cap), context);
    for node in [&o, &u] {
        use_it(node, id, &context, &cap).unwrap();
    }
    // Nothing is synced: there is one page cache.
    u.run(|u| std::fs::write(u.target().join("file"), pattern(1, 5000)).unwrap());
    o.run(|o| assert_written(&o.target().join("file"), 1, 5000));

    if fs == FsType::Xfs || o.run(|o| grows_mounted(&*o.site.kernel, "growing a shared ext4")) {
        grow(&o, &u, id);
    }

    let minor = o.run(move |o| o.device(id).minor);
    end_use(&u, id);
    assert_eq!(
        o.run(move |o| (o.device(id).minor, o.pins_over(minor))),
        (minor, 1)
    );
    o.run(|o| assert_written(&o.target().join("file"), 1, 5000));
    end_use(&o, id);
    for node in ["u", "o"] {
        detach(&o, id, node).unwrap();
    }
    o.run(move |o| {
        assert_eq!(o.loops(id), []);
        assert_eq!(o.record(id).stage, None);
        o.pools().delete_volume(&id).unwrap();
    });
}

#[test]
fn a_volume_of_one_node_moves_with_its_files() {
    let [o, u] = nodes();
    let cap = mount_as("ext4", Mode::SingleNodeWriter);
    let id = o.run(|o| o.create(ext4(), 64 * MI));
    let mut last: Option<Context> = None;
    for round in 0..4 {
        let (node, name, other) = if round % 2 == 0 {
            (&u, "u", "o")
        } else {
            (&o, "o", "u")
        };
        let context = attach(&o, id, name, &cap);
        if let Some(last) = &last {
            refused!(use_it(node, id, last, &cap), Error::NotYet(_));
        }
        use_it(node, id, &context, &cap).unwrap();
        node.run(move |node| {
            let file = |round: u8| node.target().join(format!("file{round}"));
            for earlier in 0..round {
                assert_written(&file(earlier), earlier, 5000);
            }
            // Not synced: the unmount writes it back.
            std::fs::write(file(round), pattern(round, 5000)).unwrap();
        });
        let refused_cap = cap.clone();
        let elsewhere = o.patiently(move |o| o.attach(id, other, &refused_cap));
        refused!(elsewhere, Error::FailedPrecondition(_));
        refused!(detach(&o, id, name), Error::FailedPrecondition(_));
        end_use(node, id);
        detach(&o, id, name).unwrap();
        assert_eq!(o.run(move |o| o.loops(id)), []);
        last = Some(context);
    }
}

/// The node has a bind of the device node and no more: no process has it open.
#[test]
fn what_a_node_has_bound_keeps_its_number_until_the_container_ends() {
    let [o, mut u] = nodes();
    let cap = block_as(Mode::SingleNodeWriter);
    let id = o.run(|o| o.create(Access::Block, 16 * MI));
    let context = attach(&o, id, "u", &cap);
    use_it(&u, id, &context, &cap).unwrap();
    let minor = o.run(move |o| o.device(id).minor);
    // As kubelet does. Nothing detaches that one once the node's container is gone.
    u.run(move |_| run("losetup", &["--find", arg(&loop_path(minor))]));

    // A person unmounts the marker, and the driver makes another one.
    u.run(|u| {
        run("umount", &[arg(&u.alive())]);
        u.node().keep_marker().unwrap();
    });
    assert_eq!(o.run(move |o| o.pins_over(minor)), 2);
    u.run(|u| u.die());
    until("the earlier pin is gone", || {
        o.run(move |o| {
            let _ = o.node().keep_marker();
            o.pins_over(minor) == 1
        })
    });
    refused!(detach(&o, id, "u"), Error::FailedPrecondition(_));
    o.run(move |o| {
        let others = (0..30).map(|i| {
            let path = o.site.root().join(format!("other{i}"));
            let file = std::fs::File::create_new(path).unwrap();
            file.set_len(MI).unwrap();
            o.site.attach_file(&file).minor
        });
        let others: Vec<u32> = others.collect();
        assert!(!others.contains(&minor), "{others:?}");
        for other in others {
            let info = o.site.kernel.loop_info(other).unwrap().unwrap();
            o.site.kernel.loop_release(&info).unwrap();
        }
    });

    u.end();
    until("the node counts as gone", || detach(&o, id, "u").is_ok());
    assert_eq!(o.run(move |o| o.loops(id)), []);
}

/// A node that only reads has a device of its own over that of the volume.
#[test]
fn a_read_only_target_shows_what_another_node_writes() {
    let [o, u] = nodes();
    let cap = block_as(Mode::MultiNodeMultiWriter);
    let id = o.run(|o| o.create(Access::Block, 16 * MI));
    let context = attach(&o, id, "o", &cap);
    attach(&o, id, "u", &cap);
    use_it(&o, id, &context, &cap).unwrap();
    let read = u.patiently(move |u| {
        u.stage(id, &context, &cap)?;
        u.publish(id, &context, &cap, true)
    });
    read.unwrap();

    let write = |seed: u8| {
        o.run(move |o| {
            let device = File::options().write(true).open(o.target()).unwrap();
            device.write_all_at(&pattern(seed, 4096), 0).unwrap();
            device.sync_all().unwrap();
        });
    };
    let read = |file: &File| {
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    write(1);
    let reader = u.run(|u| File::open(u.target()).unwrap());
    assert_eq!(read(&reader), pattern(1, 4096));
    u.run(|u| {
        let device = File::options().write(true).open(u.target());
        let written = device.and_then(|device| {
            device.write_all_at(&pattern(3, 4096), 0)?;
            device.sync_all()
        });
        assert!(written.is_err());
    });
    // Its page cache is its own, and the driver drops it after writes.
    write(2);
    u.run(|u| u.node().drop_stale_caches(&mut ReadOnlyCaches::default()));
    assert_eq!(read(&reader), pattern(2, 4096));
    drop(reader);

    let minor = o.run(move |o| o.device(id).minor);
    u.run(|u| u.restart());
    assert_eq!(o.run(move |o| o.pins_over(minor)), 3, "all are in use");
    let grown = o.patiently(move |o| {
        o.pools().expand_volume(&id, 32 * MI)?;
        o.node().grow(&o.record(id))
    });
    grown.unwrap();
    u.run(move |u| {
        let total = u.stats(id, &u.target()).unwrap()[0].total;
        assert_eq!(total, 32 * MI as i64);
    });

    end_use(&u, id);
    assert_eq!(o.run(move |o| o.pins_over(minor)), 1);
    end_use(&o, id);
    for node in ["u", "o"] {
        detach(&o, id, node).unwrap();
    }
    assert_eq!(o.run(move |o| o.loops(id)), []);
}

#[test]
fn a_node_that_read_a_volume_and_is_gone_leaves_nothing() {
    let [o, mut u] = nodes();
    let cap = block_as(Mode::MultiNodeReaderOnly);
    let id = o.run(|o| o.create(Access::Block, 16 * MI));
    let context = attach(&o, id, "u", &cap);
    use_it(&u, id, &context, &cap).unwrap();
    let (minor, readable) = o.run(move |o| {
        let minor = o.device(id).minor;
        let mut over = o.site.kernel.loops().unwrap();
        over.retain(|over| over.below() == Some(minor) && pins::is_readable(over));
        (minor, over.remove(0).minor)
    });
    // As kubelet does. Nothing detaches that one once the node's container is gone.
    u.run(move |_| run("losetup", &["--find", arg(&loop_path(readable))]));
    u.run(|u| u.die());
    refused!(detach(&o, id, "u"), Error::FailedPrecondition(_));
    assert_eq!(o.run(move |o| o.pins_over(minor)), 2);
    u.end();
    until("the node counts as gone", || detach(&o, id, "u").is_ok());
    assert_eq!(
        o.run(move |o| (o.loops(id), o.pins_over(minor))),
        (vec![], 0)
    );
}

/// A program of the machine that looks at each disk, as udev does, finds what is on the volume once.
#[test]
fn a_pin_shows_nothing_of_the_volume() {
    let [o, u] = nodes();
    let cap = mount_as("ext4", Mode::MultiNodeMultiWriter);
    let id = o.run(|o| o.create(ext4(), 64 * MI));
    let context = attach(&o, id, "u", &cap);
    use_it(&u, id, &context, &cap).unwrap();
    o.run(move |o| {
        let kernel = &o.site.kernel;
        let minor = o.device(id).minor;
        let mut over = kernel.loops().unwrap();
        over.retain(|over| over.below() == Some(minor));
        assert_eq!(over.len(), 1, "{over:?}");
        assert_eq!(over[0].size_bytes, 0, "{over:?}");
        let pin = kernel.probe(&loop_path(over[0].minor)).unwrap();
        assert_eq!(pin, Probe::Blank);
        let volume = kernel.probe(&loop_path(minor)).unwrap();
        assert!(matches!(volume, Probe::Filesystem { .. }), "{volume:?}");
    });
    end_use(&u, id);
    detach(&o, id, "u").unwrap();
    assert_eq!(o.run(move |o| o.loops(id)), []);
}

/// The processes of the driver may end at any time. Nothing is in them that is needed.
#[test]
fn a_driver_that_starts_again_leaves_all_as_it_is() {
    let [o, u] = nodes();
    let cap = mount_as("ext4", Mode::MultiNodeMultiWriter);
    let id = o.run(|o| o.create(ext4(), 64 * MI));
    let context = attach(&o, id, "u", &cap);
    use_it(&u, id, &context, &cap).unwrap();
    u.run(|u| std::fs::write(u.target().join("file"), pattern(1, 5000)).unwrap());
    for node in [&o, &u] {
        node.run(|node| node.restart());
    }
    assert_eq!(attach(&o, id, "u", &cap), context);
    use_it(&u, id, &context, &cap).unwrap();
    u.run(|u| assert_written(&u.target().join("file"), 1, 5000));
    end_use(&u, id);
    detach(&o, id, "u").unwrap();
    assert_eq!(o.run(move |o| o.loops(id)), []);
}

/// The driver of a node ends between the last use of a volume and the end of its pin, and no call is
/// repeated.
#[test]
fn a_driver_that_starts_again_gives_back_what_its_node_does_not_use() {
    let [o, u] = nodes();
    let cap = block_as(Mode::SingleNodeWriter);
    let id = o.run(|o| o.create(Access::Block, 16 * MI));
    let context = attach(&o, id, "u", &cap);
    use_it(&u, id, &context, &cap).unwrap();
    let minor = o.run(move |o| o.device(id).minor);
    u.run(|u| u.restart());
    assert_eq!(o.run(move |o| o.pins_over(minor)), 1, "it is bound");
    u.run(|u| {
        u.die();
        run("umount", &[arg(&u.target())]);
        u.restart();
    });
    until("the pin is given back", || {
        o.run(move |o| o.pins_over(minor) == 0)
    });
    detach(&o, id, "u").unwrap();
    assert_eq!(o.run(move |o| o.loops(id)), []);
}

/// A fault of the pool is one of its node alone, and of what needs the pool's files.
#[test]
fn nodes_keep_a_volume_while_its_pool_is_missing_on_request() {
    let [o, u] = nodes();
    let cap = mount_as("ext4", Mode::MultiNodeMultiWriter);
    let id = o.run(|o| o.create(ext4(), 64 * MI));
    let context = attach(&o, id, "o", &cap);
    attach(&o, id, "u", &cap);
    for node in [&o, &u] {
        use_it(node, id, &context, &cap).unwrap();
    }
    o.run(|o| o.pools().set_aside(0, "a test asks for it".to_owned()))
        .unwrap();
    u.run(|u| write(&u.target().join("file"), 1, 5000));
    o.run(|o| assert_written(&o.target().join("file"), 1, 5000));
    // Pods come and go on both nodes.
    for node in [&o, &u] {
        end_use(node, id);
        use_it(node, id, &context, &cap).unwrap();
        node.run(|node| assert_written(&node.target().join("file"), 1, 5000));
    }
    end_use(&u, id);
    let refused = [
        detach(&o, id, "u").unwrap_err(),
        o.run(move |o| o.attach(id, "u", &cap)).unwrap_err(),
    ];
    for error in refused {
        assert!(error.to_string().contains("a test asks for it"), "{error}");
    }

    o.run(|o| o.pools().bring_back(0));
    end_use(&o, id);
    for node in ["u", "o"] {
        detach(&o, id, node).unwrap();
    }
    assert_eq!(o.run(move |o| o.loops(id)), []);
}

/// Nothing is frozen, and each node goes on.
#[test]
fn a_power_cut_has_what_each_node_has_synced() {
    let by = Arc::new(SharedBy::nodes(&["o", "u"]));
    let o = Container::over("o", &by, Some(FsType::Xfs));
    let u = Container::start("u", &by);
    let cap = mount_as("ext4", Mode::MultiNodeMultiWriter);
    let id = o.run(|o| o.create(ext4(), 64 * MI));
    let context = attach(&o, id, "o", &cap);
    attach(&o, id, "u", &cap);
    for (node, seed) in [(&o, 1), (&u, 2)] {
        use_it(node, id, &context, &cap).unwrap();
        node.run(move |node| write(&node.target().join(format!("file{seed}")), seed, 5000));
    }
    let cut = o.run(move |o| {
        let pools = o.pools();
        let taken = pools.create_powercut(&id, "cut", &Default::default());
        taken.unwrap().id
    });
    u.run(|u| write(&u.target().join("later"), 3, 5000));
    o.run(|o| assert_written(&o.target().join("later"), 3, 5000));
    for (node, name) in [(&o, "o"), (&u, "u")] {
        end_use(node, id);
        detach(&o, id, name).unwrap();
    }

    let restored = o.run(move |o| {
        let new = NewVolume {
            reach: Reach::Kernel,
            ..copy_of(Source::Snapshot(cut), ext4(), 64 * MI)
        };
        let pool = o.pools().named(None).unwrap();
        o.pools().create_volume(&pool, new).unwrap().id
    });
    let context = attach(&o, restored, "u", &cap);
    use_it(&u, restored, &context, &cap).unwrap();
    u.run(|u| {
        for seed in [1, 2] {
            assert_written(&u.target().join(format!("file{seed}")), seed, 5000);
        }
        assert!(!u.target().join("later").exists());
    });
    end_use(&u, restored);
    detach(&o, restored, "u").unwrap();
    assert_eq!(o.run(move |o| o.loops(restored)), []);
}
