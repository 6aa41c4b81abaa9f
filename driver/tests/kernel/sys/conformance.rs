//! A script that runs on the real kernel and on the model. Both must give the same answers.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use hostloop_driver::kernel::FsType::{Btrfs, Ext4, Xfs};
use hostloop_driver::kernel::{
    BindFlags, Error, FsType, Kernel, LoopDevice, LoopSpec, MkfsSpec, Probe, Result, file, file_id,
    loops_holding, loops_of,
};
use hostloop_fake_kernel::Model;

use super::scratch::{self, Scratch, is_detached, lasting};
use crate::testkit::{MI, loop_spec, make_fs};
use crate::tools::{shut_down, sparse, until_unclaimed};

#[test]
fn the_model_answers_like_the_kernel() {
    let real = Scratch::new();
    let kernel = run(&real.kernel, &real.dir("script"), &|at, _| shut_down(at));
    let dir = tempfile::tempdir().unwrap();
    let model = Model::new();
    let model = run(&model, dir.path(), &|_, minor| {
        model.set_silent(minor, true)
    });
    for (kernel, model) in kernel.iter().zip(&model) {
        assert_eq!(kernel, model, "the kernel left, the model right");
    }
    assert_eq!(kernel.len(), model.len());
    assert!(kernel.len() > 100, "only {} lines", kernel.len());
}

/// Shuts down the filesystem mounted at the path. It holds the backing file of the device.
type ShutDown<'a> = &'a dyn Fn(&Path, u32);

fn run(kernel: &dyn Kernel, dir: &Path, shut_down: ShutDown<'_>) -> Vec<String> {
    let mut script = Script {
        kernel,
        dir,
        answers: Vec::new(),
    };
    script.attach_and_detach();
    script.number_attachments();
    script.stage_and_publish();
    for fs in FsType::ALL {
        script.unmount_frozen(fs);
    }
    for fs in [Ext4, Xfs] {
        script.limit_and_shut_down(fs);
    }
    script.meet_an_error();
    script.refuse();
    script.clone_and_grow();
    script.raw_block();
    script.begin_beyond_the_end();
    script.outlive(shut_down);
    script.answers
}

struct Script<'a> {
    kernel: &'a dyn Kernel,
    dir: &'a Path,
    answers: Vec<String>,
}

/// An answer without the parts that differ between two machines.
fn plain<T: std::fmt::Debug>(answer: Result<T>) -> String {
    match answer {
        Ok(value) => format!("{value:?}"),
        Err(Error::Io { source, .. }) => format!("errno {:?}", source.raw_os_error()),
        Err(Error::Tool { .. } | Error::NotRun { .. }) => "tool failed".to_owned(),
        Err(e) => format!("{e:?}").split(' ').next().unwrap().to_owned(),
    }
}

impl Script<'_> {
    fn say(&mut self, what: &str, answer: impl std::fmt::Display) {
        self.answers.push(format!("{what}: {answer}"));
    }

    /// Adds the result of a call.
    fn did<T: std::fmt::Debug>(&mut self, what: &str, answer: Result<T>) {
        self.say(what, plain(answer));
    }

    fn image(&self, name: &str, size: u64) -> File {
        sparse(&self.dir.join(name), size)
    }

    fn directory(&self, name: &str) -> PathBuf {
        let path = self.dir.join(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    fn attach(&self, backing: &File) -> LoopDevice {
        self.kernel.loop_attach(&loop_spec(backing)).unwrap()
    }

    fn mkfs(&mut self, what: &str, device: &LoopDevice, fs: FsType, force: bool) {
        let path = device.path();
        let spec = MkfsSpec {
            force,
            ..MkfsSpec::new(&path, fs)
        };
        self.did(what, self.kernel.mkfs(&spec));
    }

    fn mount(&mut self, what: &str, device: &LoopDevice, fs: FsType, at: &Path, options: &[&str]) {
        let answer = scratch::mount(self.kernel, device, fs, at, options);
        self.did(what, answer);
    }

    fn opens(&mut self, what: &str, device: &LoopDevice, fs: FsType) {
        let opened = self.kernel.open_filesystem(&device.path(), fs);
        self.did(
            what,
            opened.map(drop).map_err(|e| match e {
                Error::NotMountable { path, .. } => Error::Tool {
                    tool: String::new(),
                    path,
                    code: None,
                    message: String::new(),
                },
                e => e,
            }),
        );
    }

    fn unmount(&mut self, what: &str, at: &Path) {
        self.did(what, self.kernel.unmount(at));
    }

    /// Unmounts a filesystem, and waits for its end: it would be mounted again as it is.
    fn unmount_for_good(&mut self, what: &str, device: &LoopDevice, at: &Path) {
        self.unmount(what, at);
        until_unclaimed(self.kernel, &device.path());
    }

    /// Adds everything about the loops over a file and their mounts.
    fn look(&mut self, what: &str, backing: &File) {
        let loops = loops_of(self.kernel, file_id(backing).unwrap()).unwrap();
        let table = self.kernel.mounts().unwrap();
        let dir = std::fs::canonicalize(self.dir).unwrap();
        let lines: Vec<String> = loops
            .iter()
            .map(|l| {
                let path = l.backing_path.replace(dir.to_str().unwrap(), "DIR");
                let mounts: Vec<_> = table
                    .of_loop(l.minor)
                    .map(|m| {
                        let at = m.mount_point.strip_prefix(&dir).unwrap();
                        let source = *m.source == *format!("/dev/loop{}", l.minor);
                        let ro = m.fs_read_only();
                        format!(
                            "{} {:?} on {at:?} {:?} super_ro={ro} source={source}",
                            m.fs_type, m.root, m.options
                        )
                    })
                    .collect();
                format!(
                    "{path} {} rdev={} {} bytes, {} blocks, \
                     read_only={} autoclear={} direct={} {mounts:?}",
                    l.label,
                    l.backing_rdev,
                    l.size_bytes,
                    l.block_size,
                    l.read_only,
                    l.autoclear,
                    l.direct_io
                )
            })
            .collect();
        self.say(what, format!("{lines:?}"));
    }

    fn gone(&mut self, what: &str, backing: &File) {
        let gone = is_detached(self.kernel, backing);
        assert!(gone, "{what}");
        self.say(what, gone);
    }

    fn attach_and_detach(&mut self) {
        let image = self.image("a", 4 * MI);
        let id = file_id(&image).unwrap();
        let device = self.attach(&image);
        self.look("attached", &image);
        assert_eq!(loops_of(self.kernel, id).unwrap().len(), 1);
        for on in [false, true] {
            let switched = self.kernel.loop_set_direct_io(&device, on);
            self.did("direct I/O", switched);
            self.look("switched", &image);
        }
        drop(device);
        self.gone("closed", &image);
        let device = self.kernel.loop_attach(&lasting(&image)).unwrap();
        let minor = device.minor;
        drop(device);
        self.look("lasts", &image);
        let other = self.image("b", MI);
        let taken = self.kernel.loop_attach(&LoopSpec {
            minor: Some(minor),
            ..loop_spec(&other)
        });
        self.did("taken", taken.map(drop));
        let theirs = self.kernel.loop_detach(minor, file_id(&other).unwrap());
        self.did("another file's", theirs);
        let theirs = self.kernel.loop_open(minor, file_id(&other).unwrap());
        self.did("another file's to open", theirs.map(drop));
        std::fs::rename(self.dir.join("a"), self.dir.join("moved")).unwrap();
        std::fs::rename(self.dir.join("b"), self.dir.join("a")).unwrap();
        self.look("renamed", &image);
        self.look("another file under the old name", &other);
        let held = self.kernel.loop_open(minor, id).unwrap();
        std::fs::remove_file(self.dir.join("moved")).unwrap();
        self.look("deleted", &image);
        self.did("detach held", self.kernel.loop_detach(minor, id));
        self.look("held", &image);
        let again = held.file.try_clone().unwrap();
        drop(held);
        self.look("held by a duplicate", &image);
        drop(again);
        self.gone("closed", &image);
        self.did("detach again", self.kernel.loop_detach(minor, id));
        let opened = self.kernel.loop_open(minor, id);
        self.did("open again", opened.map(drop));
        let reader = File::open(self.dir.join("a")).unwrap();
        let device = self.attach(&reader);
        self.look("over a reader", &other);
        drop(device);
    }

    /// Each attachment has a number of its own, also one of the same file.
    fn number_attachments(&mut self) {
        let image = self.image("numbered", MI);
        let device = self.attach(&image);
        let first = self.kernel.loop_diskseq(device.minor).unwrap();
        let again = self.kernel.loop_diskseq(device.minor).unwrap();
        self.say("the number stays", first.is_some() && first == again);
        drop(device);
        self.gone("closed", &image);
        let device = self.attach(&image);
        let other = self.kernel.loop_diskseq(device.minor).unwrap();
        self.say("another number", other.is_some() && first != other);
    }

    fn stage_and_publish(&mut self) {
        let image = self.image("volume", 16 * MI);
        let device = self.attach(&image);
        let path = device.path();
        self.did("blank", self.kernel.probe(&path));
        self.did("check blank", self.kernel.check(&path, Ext4));
        let stage = self.directory("stage");
        self.mount("mount blank", &device, Ext4, &stage, &[]);
        self.opens("open blank", &device, Ext4);
        self.mkfs("mkfs", &device, Ext4, false);
        let probe = self.kernel.probe(&path).unwrap();
        let is_ext4 = matches!(&probe, Probe::Filesystem { fs: Ext4, uuid } if uuid.len() == 36);
        self.say("made", is_ext4);
        self.did("check", self.kernel.check(&path, Ext4));
        self.mount("as xfs", &device, Xfs, &stage, &[]);
        self.opens("open as xfs", &device, Xfs);
        self.opens("open", &device, Ext4);
        self.look("mounted nowhere", &image);
        let options = ["noatime", "nodev", "noexec,exec"];
        self.mount("mount", &device, Ext4, &stage, &options);
        self.mount("mount again", &device, Ext4, &stage, &[]);
        let elsewhere = self.directory("elsewhere");
        self.mount("mount ro", &device, Ext4, &elsewhere, &["ro"]);
        self.mkfs("mkfs mounted", &device, Ext4, true);
        drop(device);
        self.look("staged", &image);
        let pod = self.directory("pod");
        let all = BindFlags {
            read_only: true,
            nosuid: true,
            nodev: true,
            noexec: true,
        };
        self.did("publish", self.kernel.bind(&stage, &pod, all));
        self.look("published", &image);
        for on in [true, false] {
            let answer = self.kernel.remount_discard(&stage, Ext4, on);
            self.did("discard", answer);
            let table = self.kernel.mounts().unwrap();
            let entry = table.at(&std::fs::canonicalize(&pod).unwrap()).unwrap();
            let says = entry.super_options.has("discard");
            self.say("says discard", says);
        }
        self.look("unchanged", &image);
        self.unmount("unstage", &stage);
        self.look("pod only", &image);
        self.unmount("unstage again", &stage);
        self.unmount("unpublish", &pod);
        self.gone("gone", &image);
    }

    /// A frozen filesystem outlives its unmount, until it is mounted again and thawed.
    fn unmount_frozen(&mut self, fs: FsType) {
        let image = self.image(&format!("frozen-{fs}"), scratch::size(fs));
        let id = file_id(&image).unwrap();
        let at = self.directory(&format!("frozen-{fs}.mnt"));
        let device = self.attach(&image);
        let minor = device.minor;
        make_fs(self.kernel, &device, fs);
        self.did("freeze a node", self.kernel.freeze(&device.file));
        self.mount("mount", &device, fs, &at, &[]);
        drop(device);
        let root = File::open(&at).unwrap();
        for what in ["freeze", "freeze again"] {
            self.did(what, self.kernel.freeze(&root));
        }
        for what in ["thaw", "thaw again"] {
            self.did(what, self.kernel.thaw(&root));
        }
        self.did("freeze", self.kernel.freeze(&root));
        drop(root);
        self.unmount("unmount frozen", &at);
        self.look("still attached", &image);
        self.did("detach", self.kernel.loop_detach(minor, id));
        let device = self.kernel.loop_open(minor, id).unwrap();
        let root = self.kernel.open_filesystem(&device.path(), fs).unwrap();
        self.did("still frozen", self.kernel.freeze(&root));
        self.look("mounted nowhere", &image);
        self.did("thaw", self.kernel.thaw(&root));
        drop(root);
        self.mount("mount again", &device, fs, &at, &[]);
        drop(device);
        let root = File::open(&at).unwrap();
        self.did("frozen no more", self.kernel.freeze(&root));
        self.did("thaw", self.kernel.thaw(&root));
        drop(root);
        std::fs::write(at.join("file"), "x").unwrap();
        self.unmount("unmount", &at);
        self.gone("gone", &image);
    }

    /// A device is limited while it is open. A filesystem that shuts down loses what it has not
    /// written, and works again once it is unmounted and mounted.
    fn limit_and_shut_down(&mut self, fs: FsType) {
        let image = self.image(&format!("cut-{fs}"), scratch::size(fs));
        let at = self.directory(&format!("cut-{fs}.mnt"));
        let device = self.attach(&image);
        for bytes in [4096, MI, 1024 * MI, 0] {
            self.did("limit", self.kernel.loop_limit(&device, bytes));
            let info = self.kernel.loop_info(device.minor).unwrap().unwrap();
            self.say("limited to", info.size_limit);
            self.look("limited", &image);
        }
        make_fs(self.kernel, &device, fs);
        self.mount("mount", &device, fs, &at, &[]);
        let root = File::open(&at).unwrap();
        self.did("shut down", self.kernel.shut_down(&root));
        drop(root);
        self.unmount_for_good("unmount", &device, &at);
        self.mount("mount again", &device, fs, &at, &[]);
        self.unmount("unmount again", &at);
        drop(device);
        self.gone("gone", &image);
    }

    fn meet_an_error(&mut self) {
        let image = self.image("error", scratch::size(Ext4));
        let at = self.directory("error.mnt");
        let device = self.attach(&image);
        make_fs(self.kernel, &device, Ext4);
        let options = ["errors=remount-ro"];
        self.mount("mount", &device, Ext4, &at, &options);
        let met = self.kernel.trigger_error(device.minor);
        self.did("an error", met);
        self.look("read-only", &image);
        self.unmount_for_good("unmount", &device, &at);
        self.mount("mount again", &device, Ext4, &at, &options);
        self.look("writable", &image);
        self.unmount("unmount again", &at);
        drop(device);
        self.gone("gone", &image);
    }

    fn refuse(&mut self) {
        let image = self.image("refused", 16 * MI);
        let device = self.attach(&image);
        make_fs(self.kernel, &device, Ext4);
        let at = self.directory("at");
        let link = self.dir.join("link");
        symlink("at", &link).unwrap();
        let file = self.dir.join("plain");
        std::fs::write(&file, "").unwrap();
        let none = self.dir.join("none");
        self.mount("mount on a symlink", &device, Ext4, &link, &[]);
        self.mount("mount on a file", &device, Ext4, &file, &[]);
        self.mount("mount on nothing", &device, Ext4, &none, &[]);
        self.unmount("unmount nothing", &none);
        self.unmount("unmount no mount", &at);
        self.mount("mount", &device, Ext4, &at, &[]);
        self.unmount("unmount by symlink", &link);
        for (what, source, target) in [
            ("bind from nothing", &none, &at),
            ("bind to a symlink", &at, &link),
            ("bind dir to file", &at, &file),
            ("bind file to dir", &file, &at),
            ("bind over", &self.dir.to_path_buf(), &at),
        ] {
            let answer = self.kernel.bind(source, target, BindFlags::default());
            self.did(what, answer);
        }
        self.look("hidden", &image);
        self.unmount("unmount the top", &at);
        self.look("the one below", &image);
        self.unmount("unmount", &at);
        drop(device);
        self.gone("gone", &image);
        let read_only = LoopSpec {
            read_only: true,
            ..loop_spec(&image)
        };
        let device = self.kernel.loop_attach(&read_only).unwrap();
        self.mount("ro device", &device, Ext4, &at, &[]);
        self.mount("ro device, ro", &device, Ext4, &at, &["ro"]);
        self.look("ro device", &image);
        self.unmount("unmount", &at);
        drop(device);
        let small = self.image("small", 16 * MI);
        let device = self.attach(&small);
        for fs in [Xfs, Btrfs] {
            self.mkfs("too small", &device, fs, false);
        }
    }

    fn clone_and_grow(&mut self) {
        let image = self.image("xfs", 300 * MI);
        let device = self.attach(&image);
        make_fs(self.kernel, &device, Xfs);
        self.mkfs("mkfs twice", &device, Xfs, false);
        self.mkfs("mkfs by force", &device, Xfs, true);
        self.kernel.loop_flush(&device).unwrap();
        let copy = self.image("xfs-copy", 0);
        file::copy_sparse(&image, &copy, file::Pace::Fast, &|| false).unwrap();
        let (one, two) = (self.directory("one"), self.directory("two"));
        self.mount("mount", &device, Xfs, &one, &[]);
        let twin = self.attach(&copy);
        self.mount("twin", &twin, Xfs, &two, &[]);
        self.mount("twin, nouuid", &twin, Xfs, &two, &["nouuid"]);
        self.look("twin", &copy);
        file::set_len(&copy, 400 * MI).unwrap();
        self.look("before", &copy);
        self.did("grow the loop", self.kernel.loop_grow(&twin));
        self.look("after", &copy);
        let size = |at: &Path| plain(self.kernel.fs_size(at, &twin.path(), Xfs));
        let before = size(&two);
        let grown = plain(self.kernel.grow(&twin.path(), &two, Xfs));
        let after = size(&two);
        let again = plain(self.kernel.grow(&twin.path(), &two, Xfs));
        self.say("sizes", [before, grown, after, again].join(", "));
        self.unmount("unmount", &two);
        self.unmount("unmount", &one);
    }

    fn raw_block(&mut self) {
        let image = self.image("raw", 8 * MI);
        let device = self.kernel.loop_attach(&lasting(&image)).unwrap();
        let (id, minor) = (file_id(&image).unwrap(), device.minor);
        let node = self.dir.join("node");
        File::create_new(&node).unwrap();
        let bound = self
            .kernel
            .bind(&device.path(), &node, BindFlags::default());
        self.did("publish", bound);
        let bound = |kernel: &dyn Kernel| {
            let table = kernel.mounts().unwrap();
            let at = std::fs::canonicalize(&node).unwrap();
            table.at(&at).and_then(|entry| entry.loop_node)
        };
        self.say("node", bound(self.kernel) == Some(minor));
        self.look("a node is not a filesystem mount", &image);
        let above = LoopSpec {
            backing: &device.file,
            read_only: true,
            direct_io: false,
            ..loop_spec(&image)
        };
        let above = self.kernel.loop_attach(&above).unwrap();
        let info = self.kernel.loop_info(above.minor).unwrap().unwrap();
        let beneath = rustix::fs::makedev(7, minor);
        self.say("above", info.backing_rdev == beneath && info.read_only);
        self.say("its node", info.backing == file_id(&device.file).ok());
        self.say("its size", info.size_bytes);
        self.mkfs("mkfs read-only", &above, Ext4, false);
        drop(device);
        self.did("held from above", self.kernel.loop_detach(minor, id));
        drop(above);
        self.gone("both gone", &image);
        self.say("node of nothing", bound(self.kernel) == Some(minor));
        let other = self.image("other", MI);
        let device = self.attach(&other);
        self.say("leads to another file", device.minor == minor);
        drop(device);
        self.unmount("unpublish", &node);
        self.unmount("unpublish again", &node);
    }

    /// A device that begins beyond the end of what is below keeps that attached, and shows nothing of it.
    fn begin_beyond_the_end(&mut self) {
        let image = self.image("below", 16 * MI);
        let at = self.directory("below.mnt");
        let device = self.kernel.loop_attach(&lasting(&image)).unwrap();
        let (id, minor) = (file_id(&image).unwrap(), device.minor);
        make_fs(self.kernel, &device, Ext4);
        let beyond = LoopSpec {
            offset: 1 << 62,
            read_only: true,
            ..lasting(&device.file)
        };
        let above = self.kernel.loop_attach(&beyond).unwrap();
        let info = self.kernel.loop_info(above.minor).unwrap().unwrap();
        let bytes = (info.offset, info.size_limit, info.size_bytes);
        self.say("begins beyond", format!("{bytes:?}"));
        self.say("still over it", info.below() == Some(minor));
        self.did("has", self.kernel.probe(&above.path()));
        let mounted = scratch::mount(self.kernel, &above, Ext4, &at, &["ro"]);
        self.say("mounts", mounted.is_ok());
        self.did("grow", self.kernel.loop_grow(&above));
        self.did("its size", self.kernel.loop_size(&above));
        self.mount("mount the one below", &device, Ext4, &at, &[]);
        for device in [&above, &device] {
            let claimed = self.kernel.is_claimed(&device.path());
            self.did("claimed", claimed);
        }
        self.unmount_for_good("unmount", &device, &at);
        drop((above, device));
        self.did("held from above", self.kernel.loop_detach(minor, id));
        self.look("held", &image);
        let other = self.image("not-below", MI);
        let taken = self.kernel.loop_attach(&LoopSpec {
            minor: Some(minor),
            ..loop_spec(&other)
        });
        self.did("its number is taken", taken.map(drop));
        self.did("release", self.kernel.loop_release(&info));
        self.gone("both gone", &image);
        let beyond = LoopSpec {
            offset: 1 << 62,
            ..lasting(&image)
        };
        let device = self.kernel.loop_attach(&beyond).unwrap();
        self.look("beyond the end of a file", &image);
        self.did("detach", self.kernel.loop_detach(device.minor, id));
        drop(device);
        self.gone("gone", &image);
    }

    fn outlive(&mut self, shut_down: ShutDown<'_>) {
        let healthy = self.image("healthy", MI);
        let _device = self.attach(&healthy);
        let pool = self.image("pool", 300 * MI);
        let below = self.attach(&pool);
        make_fs(self.kernel, &below, Xfs);
        let at = self.directory("pool.mnt");
        self.mount("mount", &below, Xfs, &at, &[]);
        drop(below);
        let image = self.image("pool.mnt/image", MI);
        let id = file_id(&image).unwrap();
        let device = self.kernel.loop_attach(&lasting(&image)).unwrap();
        let minor = device.minor;
        drop((device, image));
        let path = self.kernel.loop_info(minor).unwrap().unwrap().backing_path;
        let none = self.kernel.loop_detach_silent(minor, "/pool.mnt/image");
        self.did("another path", none);
        shut_down(&at, minor);
        let info = self.kernel.loop_info(minor).unwrap().unwrap();
        self.say("silent", format!("{:?} {:?}", info.backing, info.label));
        self.say("its path", info.backing_path == path);
        let more = (
            info.size_bytes,
            info.block_size,
            info.autoclear,
            info.offset,
        );
        self.say("more of it", format!("{more:?}"));
        let named = |name| loops_holding(self.kernel, id, name).map(|all| all.len());
        let answers = [named("image"), named("imag")].map(plain).join(", ");
        self.say("holding", answers);
        self.say("known", loops_of(self.kernel, id).unwrap().len());
        let healthy = file_id(&healthy).unwrap();
        self.say("healthy", loops_of(self.kernel, healthy).unwrap().len());
        let holding = loops_holding(self.kernel, healthy, "healthy");
        self.did("holding", holding.map(|all| all.len()));
        let opened = self.kernel.loop_open(minor, id);
        self.did("open", opened.map(drop));
        self.did("detach", self.kernel.loop_detach(minor, id));
        let reopened = self.kernel.loop_reopen(&info);
        self.did("reopen", reopened.map(drop));
        self.did("by its path", self.kernel.loop_release(&info));
        self.did("again", self.kernel.loop_release(&info));
        self.unmount("unmount", &at);
        self.gone("gone", &pool);
    }
}
