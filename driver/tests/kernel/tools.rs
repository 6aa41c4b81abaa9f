//! The machine's own tools, run by tests that make loop devices and filesystems by hand.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use hostloop_driver::kernel::Kernel;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use crate::testkit::PATIENCE;

/// What programs inherit of this process's environment.
const INHERITED: [&str; 4] = ["PATH", "TMPDIR", "RUST_BACKTRACE", "TEST_RUN"];

/// A command in an environment made for it: it has no setting of hostloop, of a library or a
/// cluster.
#[expect(clippy::disallowed_methods, reason = "this makes the environment")]
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    let inherited = INHERITED
        .iter()
        .filter_map(|name| Some((name, std::env::var_os(name)?)));
    command.env_clear().envs(inherited);
    command
}

/// Tools that a process can hold up that another test is just forking: it holds our open files until
/// it has become its own program.
const HELD_UP: [&str; 3] = ["umount", "wipefs", "dmsetup"];

/// Runs a tool and returns its output.
pub(crate) fn run(tool: &str, args: &[&str]) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let output = command(tool)
            .args(args)
            .output()
            .unwrap_or_else(|e| panic!("{tool} is needed: {e}"));
        let said = String::from_utf8_lossy(&output.stderr);
        let is_busy = HELD_UP.contains(&tool) && said.contains("busy");
        // A device of another program can go while losetup lists.
        let lists = tool == "losetup" && args.contains(&"-j") && !output.status.success();
        if (is_busy || lists) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        assert!(
            output.status.success(),
            "{tool} {args:?} (as root?): {said}"
        );
        return String::from_utf8(output.stdout).unwrap().trim().to_owned();
    }
}

/// Prints a line that `scripts/test` repeats in its summary. `test/machine/cases.tsv` lists these
/// tests.
pub(crate) fn not_run(what: &str, why: &str) {
    use std::io::Write;
    // Not by `eprintln`, which the test runner hides when the test passes.
    let line = format!("not run: {what}: {why}\n");
    #[expect(clippy::disallowed_methods, reason = "a test's own words")]
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Shuts a filesystem down: it answers every request with EIO.
pub(crate) fn shut_down(at: &Path) {
    run("xfs_io", &["-x", "-c", "shutdown", arg(at)]);
}

/// Gives this thread its own mount namespace. It has copies of all mounts, but of those of loop
/// devices, only the ones beneath `kept`: a copy keeps another test's filesystem alive.
pub(crate) fn own_namespace(kernel: &dyn Kernel, kept: &Path) {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
    for entry in kernel.mounts().unwrap().entries.iter() {
        if entry.loop_minor().is_some() && !entry.mount_point.starts_with(kept) {
            // Another thread may have unmounted it.
            let _ = umount2(&*entry.mount_point, MntFlags::MNT_DETACH);
        }
    }
}

/// Takes the mount at this path away, and attaches it again after a `look` at the mounts. It keeps
/// its ID, and many mounts at `over` have later ones. Only for a thread with its own namespace.
pub(crate) fn attach_late(at: &Path, over: &Path, look: impl FnOnce()) {
    let tmpfs = || {
        mount(
            Some("none"),
            over,
            Some("tmpfs"),
            MsFlags::empty(),
            None::<&str>,
        )
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, at, flags).unwrap();
    run("umount", &[arg(at)]);
    for _ in 0..100 {
        tmpfs().unwrap();
    }
    look();
    move_mount(tree, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).unwrap();
}

/// Has btrfs scan a loop device by this path, as a container with a `/dev` of its own can.
pub(crate) fn scan_as(minor: u32, path: &Path) {
    let script = format!(
        "mount -t tmpfs none /dev && mknod /dev/btrfs-control c 10 234 && mknod {path} b 7 {minor} \
         && btrfs device scan {path}",
        path = path.display()
    );
    run(
        "unshare",
        &["--mount", "--propagation", "private", "sh", "-ec", &script],
    );
}

/// A path as a tool's argument.
pub(crate) fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Like [`run`], but only prints a failure if the test is already failing.
pub(crate) fn release(tool: &str, args: &[&str]) {
    if std::thread::panicking() {
        let _ = command(tool).args(args).status();
    } else {
        run(tool, args);
    }
}

pub(crate) fn open_rw(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

pub(crate) fn sparse(path: &Path, len: u64) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    let file = options.open(path).unwrap();
    file.set_len(len).unwrap();
    file
}

/// The loop devices over a file, by their nodes' paths.
pub(crate) fn loops_of(file: &Path) -> Vec<String> {
    let output = run("losetup", &["-n", "-O", "NAME", "-j", arg(file)]);
    output.lines().map(|l| l.trim().to_owned()).collect()
}

/// An address for a server of this process alone: another process has another IP address, and each
/// call another port. A port that was free a moment ago could be in use by now.
pub(crate) fn own_address() -> SocketAddr {
    static PORT: AtomicU16 = AtomicU16::new(7000);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, a | 0x80, b, c], PORT.fetch_add(1, Ordering::Relaxed)))
}

/// Writes a program. This process never has it open to write: a child of another test would have a
/// copy of the open file until its exec, and until then the kernel would refuse to run it.
pub(crate) fn script(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, text).unwrap();
    run("install", &["--mode=0755", arg(&draft), arg(path)]);
    std::fs::remove_file(draft).unwrap();
}

/// Waits for what the kernel does after the call that caused it, or once a child of another test
/// has become its own program.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until nothing has the device: a namespace with copies of all mounts keeps a filesystem alive
/// after its unmount.
#[track_caller]
pub(crate) fn until_unclaimed(kernel: &dyn Kernel, device: &Path) {
    until("the filesystem is gone", || {
        !kernel.is_claimed(device).unwrap()
    });
}

/// Detaches the device if it still has this file. Another process may have its number by now. While
/// the device is open here, the kernel attaches no other file to it.
pub(crate) fn detach(device: &str, file: &Path) {
    let Ok(_open) = File::open(device) else {
        return;
    };
    if loops_of(file).iter().any(|now| now == device) {
        // A device that stays attached shows later.
        let _ = command("losetup").args(["-d", device]).output();
    }
}

/// Allocates all free space of a filesystem to this file, from offset `len` on. Returns its new
/// length.
pub(crate) fn fill(file: &File, mut len: u64) -> u64 {
    let mut step = 64 << 20;
    while step >= 4096 {
        match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), len, step) {
            Ok(()) => len += step,
            Err(rustix::io::Errno::NOSPC) => step /= 2,
            Err(e) => panic!("fallocate: {e}"),
        }
    }
    file.sync_all().unwrap();
    len
}

/// An attached loop device.
pub(crate) struct Loop {
    /// `/dev/loopN`.
    pub(crate) device: PathBuf,
}

impl Loop {
    pub(crate) fn attach(file: &Path) -> Loop {
        let args = [
            "--find",
            "--show",
            "--direct-io=on",
            "-b",
            "4096",
            arg(file),
        ];
        Loop {
            device: run("losetup", &args).into(),
        }
    }

    pub(crate) fn open(&self) -> File {
        open_rw(&self.device)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        release("losetup", &["-d", arg(&self.device)]);
    }
}

/// A mounted filesystem.
pub(crate) struct Mount {
    pub(crate) at: PathBuf,
}

impl Mount {
    pub(crate) fn new(fs: &str, device: &Path, at: &Path, options: &str) -> Mount {
        std::fs::create_dir_all(at).unwrap();
        run("mount", &["-t", fs, "-o", options, arg(device), arg(at)]);
        // Beneath a shared root, what is mounted over it would appear over its binds as well.
        run("mount", &["--make-private", arg(at)]);
        Mount {
            at: at.to_path_buf(),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        release("umount", &[arg(&self.at)]);
    }
}

pub(crate) fn mkfs(fs: &str, device: &Path, options: &[&str]) {
    let force = if fs == "ext4" { "-F" } else { "-f" };
    let args = [&["-q", force], options, &[arg(device)]].concat();
    run(&format!("mkfs.{fs}"), &args);
}
