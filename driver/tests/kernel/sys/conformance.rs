//! One script run against the real kernel and against the model, which must tell the same story.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use hostloop_driver::kernel::fake::Model;
use hostloop_driver::kernel::{
    BindFlags, Error, FsType, Kernel, LoopDevice, LoopSpec, MkfsSpec, MountSpec, Probe, Result,
    file, file_id,
};

use super::scratch::{Scratch, is_detached, lasting, spec};
use super::silent::shut_down;

const MIB: u64 = 1 << 20;

#[test]
fn the_model_tells_the_kernels_story() {
    let real = Scratch::new();
    let told = tell(&real.kernel, &real.dir("script"), &|at, _| shut_down(at));
    let dir = tempfile::tempdir().unwrap();
    let kernel = Model::new();
    let model = tell(&kernel, dir.path(), &|_, minor| {
        kernel.set_silent(minor, true)
    });
    for (told, model) in told.iter().zip(&model) {
        assert_eq!(told, model, "the kernel left, the model right");
    }
    assert_eq!(told.len(), model.len());
    assert!(told.len() > 60, "only {} lines", told.len());
}

/// Shuts down the filesystem mounted at the path. It holds the backing file of the device.
type ShutDown<'a> = &'a dyn Fn(&Path, u32);

fn tell(kernel: &dyn Kernel, dir: &Path, shut_down: ShutDown<'_>) -> Vec<String> {
    let mut teller = Teller {
        kernel,
        dir,
        story: Vec::new(),
    };
    teller.attach_and_detach();
    teller.stage_and_publish();
    teller.freeze_and_forget();
    teller.refuse();
    teller.clone_and_grow();
    teller.raw_block();
    teller.outlive(shut_down);
    teller.story
}

struct Teller<'a> {
    kernel: &'a dyn Kernel,
    dir: &'a Path,
    story: Vec<String>,
}

/// An answer without what must differ between two machines.
fn plain<T: std::fmt::Debug>(answer: Result<T>) -> String {
    match answer {
        Ok(value) => format!("{value:?}"),
        Err(Error::Io { source, .. }) => format!("errno {:?}", source.raw_os_error()),
        Err(Error::Tool { .. }) => "tool failed".to_owned(),
        Err(e) => format!("{e:?}").split(' ').next().unwrap().to_owned(),
    }
}

impl Teller<'_> {
    fn say(&mut self, what: &str, answer: impl std::fmt::Display) {
        self.story.push(format!("{what}: {answer}"));
    }

    fn image(&self, name: &str, size: u64) -> File {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(self.dir.join(name))
            .unwrap();
        file.set_len(size).unwrap();
        file
    }

    fn directory(&self, name: &str) -> PathBuf {
        let path = self.dir.join(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    fn mkfs(&self, device: &LoopDevice, fs: FsType, force: bool) -> Result<()> {
        self.kernel.mkfs(&MkfsSpec {
            device: &device.path(),
            fs,
            options: &[],
            discard: true,
            uuid: None,
            force,
        })
    }

    fn mount(&self, device: &LoopDevice, fs: FsType, at: &Path, options: &[&str]) -> Result<()> {
        let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
        self.kernel.mount(&MountSpec {
            device: &device.path(),
            target: at,
            fs,
            read_only: false,
            options: &options,
        })
    }

    /// Everything about the loops over a file and their mounts.
    fn look(&mut self, what: &str, backing: &File) {
        let loops = self.kernel.loops_of(file_id(backing).unwrap()).unwrap();
        let table = self.kernel.mounts().unwrap();
        let dir = std::fs::canonicalize(self.dir).unwrap();
        let lines: Vec<String> = loops
            .iter()
            .map(|l| {
                let path = l.backing_path.rsplit('/').next().unwrap();
                let mounts: Vec<_> = table
                    .of_loop(l.minor)
                    .map(|m| {
                        let at = m.mount_point.strip_prefix(&dir).unwrap();
                        let source = m.source == format!("/dev/loop{}", l.minor);
                        let ro = m.super_options.contains(&"ro".to_owned());
                        format!(
                            "{} {:?} on {at:?} {:?} super_ro={ro} source={source}",
                            m.fs_type, m.root, m.options
                        )
                    })
                    .collect();
                format!(
                    "{path} {} bytes, {} blocks, read_only={} autoclear={} direct={} {mounts:?}",
                    l.size_bytes, l.block_size, l.read_only, l.autoclear, l.direct_io
                )
            })
            .collect();
        self.say(what, format!("{lines:?}"));
    }

    fn gone(&mut self, what: &str, backing: &File) {
        let gone = is_detached(self.kernel, backing);
        self.say(what, gone);
    }

    fn attach_and_detach(&mut self) {
        let image = self.image("a", 4 * MIB);
        let id = file_id(&image).unwrap();
        let device = self.kernel.loop_attach(&spec(&image)).unwrap();
        self.look("attached", &image);
        drop(device);
        self.gone("closed", &image);
        let device = self.kernel.loop_attach(&lasting(&image)).unwrap();
        let minor = device.minor;
        drop(device);
        self.look("lasts", &image);
        let other = self.image("b", MIB);
        let taken = self.kernel.loop_attach(&LoopSpec {
            minor: Some(minor),
            ..spec(&other)
        });
        self.say("taken", plain(taken.map(drop)));
        let theirs = self.kernel.loop_detach(minor, file_id(&other).unwrap());
        self.say("not theirs", plain(theirs));
        let theirs = self.kernel.loop_open(minor, file_id(&other).unwrap());
        self.say("not theirs to open", plain(theirs.map(drop)));
        let held = self.kernel.loop_open(minor, id).unwrap();
        std::fs::remove_file(self.dir.join("a")).unwrap();
        self.look("deleted", &image);
        self.say("detach held", plain(self.kernel.loop_detach(minor, id)));
        self.look("held", &image);
        let again = held.file.try_clone().unwrap();
        drop(held);
        self.look("held by a duplicate", &image);
        drop(again);
        self.gone("let go", &image);
        self.say("detach again", plain(self.kernel.loop_detach(minor, id)));
        let reader = File::open(self.dir.join("b")).unwrap();
        let device = self.kernel.loop_attach(&spec(&reader)).unwrap();
        self.look("over a reader", &other);
        drop(device);
    }

    fn stage_and_publish(&mut self) {
        let image = self.image("volume", 16 * MIB);
        let device = self.kernel.loop_attach(&spec(&image)).unwrap();
        let path = device.path();
        self.say("blank", plain(self.kernel.probe(&path)));
        self.say("check blank", plain(self.kernel.check(&path, FsType::Ext4)));
        let stage = self.directory("stage");
        self.say(
            "mount blank",
            plain(self.mount(&device, FsType::Ext4, &stage, &[])),
        );
        self.say("mkfs", plain(self.mkfs(&device, FsType::Ext4, false)));
        let probe = self.kernel.probe(&path).unwrap();
        let is_ext4 =
            matches!(&probe, Probe::Filesystem { fs: FsType::Ext4, uuid } if uuid.len() == 36);
        self.say("made", is_ext4);
        self.say("check", plain(self.kernel.check(&path, FsType::Ext4)));
        self.say(
            "as xfs",
            plain(self.mount(&device, FsType::Xfs, &stage, &[])),
        );
        self.say(
            "mount",
            plain(self.mount(
                &device,
                FsType::Ext4,
                &stage,
                &["noatime", "nodev", "noexec,exec"],
            )),
        );
        self.say(
            "mount again",
            plain(self.mount(&device, FsType::Ext4, &stage, &[])),
        );
        let elsewhere = self.directory("elsewhere");
        self.say(
            "mount ro",
            plain(self.mount(&device, FsType::Ext4, &elsewhere, &["ro"])),
        );
        self.say(
            "mkfs mounted",
            plain(self.mkfs(&device, FsType::Ext4, true)),
        );
        drop(device);
        self.look("staged", &image);
        let pod = self.directory("pod");
        let all = BindFlags {
            read_only: true,
            nosuid: true,
            nodev: true,
        };
        self.say("publish", plain(self.kernel.bind(&stage, &pod, all)));
        self.look("published", &image);
        for on in [true, false] {
            let answer = self.kernel.remount_discard(&stage, FsType::Ext4, on);
            self.say("discard", plain(answer));
            let table = self.kernel.mounts().unwrap();
            let entry = table.at(&std::fs::canonicalize(&pod).unwrap()).unwrap();
            let says = entry.super_options.contains(&"discard".to_owned());
            self.say("says discard", says);
        }
        self.look("unchanged", &image);
        self.say("unstage", plain(self.kernel.unmount(&stage)));
        self.look("pod only", &image);
        self.say("unstage again", plain(self.kernel.unmount(&stage)));
        self.say("unpublish", plain(self.kernel.unmount(&pod)));
        self.gone("gone", &image);
    }

    fn freeze_and_forget(&mut self) {
        let image = File::options()
            .read(true)
            .write(true)
            .open(self.dir.join("volume"))
            .unwrap();
        let id = file_id(&image).unwrap();
        let at = self.dir.join("stage");
        let device = self.kernel.loop_attach(&spec(&image)).unwrap();
        let minor = device.minor;
        self.say("mount", plain(self.mount(&device, FsType::Ext4, &at, &[])));
        drop(device);
        let root = File::open(&at).unwrap();
        self.say("freeze", plain(self.kernel.freeze(&root)));
        self.say("freeze again", plain(self.kernel.freeze(&root)));
        self.say("thaw", plain(self.kernel.thaw(&root)));
        self.say("thaw again", plain(self.kernel.thaw(&root)));
        self.say("freeze", plain(self.kernel.freeze(&root)));
        drop(root);
        self.say("unmount frozen", plain(self.kernel.unmount(&at)));
        self.look("forgotten", &image);
        self.say("detach", plain(self.kernel.loop_detach(minor, id)));
        let device = self.kernel.loop_open(minor, id).unwrap();
        self.say(
            "mount again",
            plain(self.mount(&device, FsType::Ext4, &at, &[])),
        );
        drop(device);
        let root = File::open(&at).unwrap();
        self.say("still frozen", plain(self.kernel.freeze(&root)));
        self.say("thaw", plain(self.kernel.thaw(&root)));
        drop(root);
        self.say("unmount", plain(self.kernel.unmount(&at)));
        self.gone("gone", &image);
    }

    fn refuse(&mut self) {
        let image = self.image("refused", 16 * MIB);
        let device = self.kernel.loop_attach(&spec(&image)).unwrap();
        self.mkfs(&device, FsType::Ext4, false).unwrap();
        let at = self.directory("at");
        symlink("at", self.dir.join("link")).unwrap();
        let link = self.dir.join("link");
        let plain_file = self.dir.join("plain");
        std::fs::write(&plain_file, "").unwrap();
        self.say(
            "mount on a symlink",
            plain(self.mount(&device, FsType::Ext4, &link, &[])),
        );
        self.say(
            "mount on a file",
            plain(self.mount(&device, FsType::Ext4, &plain_file, &[])),
        );
        let none = self.dir.join("none");
        self.say(
            "mount on nothing",
            plain(self.mount(&device, FsType::Ext4, &none, &[])),
        );
        self.say("unmount nothing", plain(self.kernel.unmount(&none)));
        self.say("unmount no mount", plain(self.kernel.unmount(&at)));
        self.mount(&device, FsType::Ext4, &at, &[]).unwrap();
        self.say("unmount by symlink", plain(self.kernel.unmount(&link)));
        self.say(
            "bind from nothing",
            plain(self.kernel.bind(&none, &at, BindFlags::default())),
        );
        self.say(
            "bind to a symlink",
            plain(self.kernel.bind(&at, &link, BindFlags::default())),
        );
        self.say(
            "bind dir to file",
            plain(self.kernel.bind(&at, &plain_file, BindFlags::default())),
        );
        self.say(
            "bind file to dir",
            plain(self.kernel.bind(&plain_file, &at, BindFlags::default())),
        );
        let over = self.kernel.bind(self.dir, &at, BindFlags::default());
        self.say("bind over", plain(over));
        self.look("hidden", &image);
        self.say("unmount the top", plain(self.kernel.unmount(&at)));
        self.look("the one below", &image);
        self.say("unmount", plain(self.kernel.unmount(&at)));
        drop(device);
        self.gone("gone", &image);
        let device = self
            .kernel
            .loop_attach(&LoopSpec {
                read_only: true,
                ..spec(&image)
            })
            .unwrap();
        self.say(
            "ro device",
            plain(self.mount(&device, FsType::Ext4, &at, &[])),
        );
        self.say(
            "ro device, ro",
            plain(self.mount(&device, FsType::Ext4, &at, &["ro"])),
        );
        self.look("ro device", &image);
        self.say("unmount", plain(self.kernel.unmount(&at)));
        drop(device);
        let small = self.image("small", 16 * MIB);
        let device = self.kernel.loop_attach(&spec(&small)).unwrap();
        for fs in [FsType::Xfs, FsType::Btrfs] {
            self.say("too small", plain(self.mkfs(&device, fs, false)));
        }
    }

    fn clone_and_grow(&mut self) {
        let image = self.image("xfs", 300 * MIB);
        let device = self.kernel.loop_attach(&spec(&image)).unwrap();
        self.mkfs(&device, FsType::Xfs, false).unwrap();
        self.say("mkfs twice", plain(self.mkfs(&device, FsType::Xfs, false)));
        self.say(
            "mkfs by force",
            plain(self.mkfs(&device, FsType::Xfs, true)),
        );
        self.kernel.loop_flush(&device).unwrap();
        let copy = self.image("xfs-copy", 0);
        file::copy_sparse(&image, &copy, &|| false).unwrap();
        let (one, two) = (self.directory("one"), self.directory("two"));
        self.say("mount", plain(self.mount(&device, FsType::Xfs, &one, &[])));
        let twin = self.kernel.loop_attach(&spec(&copy)).unwrap();
        self.say("twin", plain(self.mount(&twin, FsType::Xfs, &two, &[])));
        self.say(
            "twin, nouuid",
            plain(self.mount(&twin, FsType::Xfs, &two, &["nouuid"])),
        );
        self.look("twin", &copy);
        file::set_len(&copy, 400 * MIB).unwrap();
        self.look("before", &copy);
        self.say("grow the loop", plain(self.kernel.loop_grow(&twin)));
        self.look("after", &copy);
        let size = |at: &Path| plain(self.kernel.fs_size(at, &twin.path(), FsType::Xfs));
        let before = size(&two);
        let grown = plain(self.kernel.grow(&twin.path(), &two, FsType::Xfs));
        let after = size(&two);
        let again = plain(self.kernel.grow(&twin.path(), &two, FsType::Xfs));
        self.say("sizes", [before, grown, after, again].join(", "));
        self.say("unmount", plain(self.kernel.unmount(&two)));
        self.say("unmount", plain(self.kernel.unmount(&one)));
    }

    fn raw_block(&mut self) {
        let image = self.image("raw", 8 * MIB);
        let device = self.kernel.loop_attach(&lasting(&image)).unwrap();
        let node = self.dir.join("node");
        File::create_new(&node).unwrap();
        self.say(
            "publish",
            plain(
                self.kernel
                    .bind(&device.path(), &node, BindFlags::default()),
            ),
        );
        let bound = |kernel: &dyn Kernel| {
            let table = kernel.mounts().unwrap();
            let at = std::fs::canonicalize(&node).unwrap();
            table.at(&at).and_then(|entry| entry.loop_node)
        };
        self.say("node", bound(self.kernel) == Some(device.minor));
        self.look("a node is no filesystem mount", &image);
        let above = self
            .kernel
            .loop_attach(&LoopSpec {
                backing: &device.file,
                read_only: true,
                direct_io: false,
                ..spec(&image)
            })
            .unwrap();
        let info = self.kernel.loop_info(above.minor).unwrap().unwrap();
        let beneath = rustix::fs::makedev(7, device.minor);
        self.say("above", info.backing_rdev == beneath && info.read_only);
        self.say("its size", info.size_bytes);
        self.say(
            "mkfs read-only",
            plain(self.mkfs(&above, FsType::Ext4, false)),
        );
        let id = file_id(&image).unwrap();
        let minor = device.minor;
        drop(device);
        self.say("held from above", plain(self.kernel.loop_detach(minor, id)));
        drop(above);
        self.gone("both gone", &image);
        self.say("node of nothing", bound(self.kernel) == Some(minor));
        let other = self.image("other", MIB);
        let device = self.kernel.loop_attach(&spec(&other)).unwrap();
        self.say("leads to another file", device.minor == minor);
        drop(device);
        self.say("unpublish", plain(self.kernel.unmount(&node)));
        self.say("unpublish again", plain(self.kernel.unmount(&node)));
    }

    fn outlive(&mut self, shut_down: ShutDown<'_>) {
        let pool = self.image("pool", 300 * MIB);
        let below = self.kernel.loop_attach(&spec(&pool)).unwrap();
        self.mkfs(&below, FsType::Xfs, false).unwrap();
        let at = self.directory("pool.mnt");
        self.mount(&below, FsType::Xfs, &at, &[]).unwrap();
        drop(below);
        let image = self.image("pool.mnt/image", MIB);
        let id = file_id(&image).unwrap();
        let device = self.kernel.loop_attach(&lasting(&image)).unwrap();
        let minor = device.minor;
        drop((device, image));
        let path = self.kernel.loop_info(minor).unwrap().unwrap().backing_path;
        let none = self.kernel.loop_detach_silent(minor, "/pool.mnt/image");
        self.say("another path", plain(none));
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
        let named = |name| self.kernel.loops_holding(id, name).map(|all| all.len());
        let answers = [named("image"), named("imag")].map(plain).join(", ");
        self.say("holding", answers);
        self.say("known", self.kernel.loops_of(id).unwrap().len());
        let opened = self.kernel.loop_open(minor, id);
        self.say("open", plain(opened.map(drop)));
        self.say("detach", plain(self.kernel.loop_detach(minor, id)));
        let reopened = self.kernel.loop_reopen(&info);
        self.say("reopen", plain(reopened.map(drop)));
        self.say("by its path", plain(self.kernel.loop_release(&info)));
        self.say("again", plain(self.kernel.loop_release(&info)));
        self.say("unmount", plain(self.kernel.unmount(&at)));
        self.gone("gone", &pool);
    }
}
