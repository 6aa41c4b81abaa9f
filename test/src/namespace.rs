//! A mount namespace that a test can end at any time.
//!
//! A sleeping process holds the namespace, and drivers are started inside. A driver can be
//! restarted in the namespace of the one before, where its mounts still exist. It can also start in
//! a new namespace, where they are gone as after the death of a container.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::PATIENCE;
use crate::child::{self, Program};
use crate::leaks::{Mounted, mounted, mountinfo};
use crate::machine;
use crate::scratch::Scratch;

/// A private mount namespace: its mounts are not visible outside.
pub struct Namespace {
    holder: Program,
}

impl Namespace {
    /// Creates a namespace with this process's current mounts, except other tests' mounts of loop
    /// devices. A copy of a mount would keep its filesystem and device busy after its owner
    /// unmounts it.
    pub fn new(scratch: &Scratch) -> Namespace {
        let program = machine::which("unshare").expect("unshare was required");
        let holder = child::command(program)
            .args([
                "--mount",
                "--propagation",
                "private",
                "--",
                "sleep",
                "infinity",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare starts");
        let namespace = Namespace {
            holder: Program::new(holder),
        };
        let deadline = Instant::now() + PATIENCE;
        while namespace.comm() != "sleep" {
            assert!(Instant::now() < deadline, "unshare --mount did not come up");
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut others = mounted(&namespace.mountinfo());
        others.retain(|mount| mount.on_loop() && !mount.at.starts_with(scratch.path()));
        // No tool unmounts: the leak checkers of other tests would find their paths in its
        // arguments.
        let inside = File::open(namespace.handle()).expect("the holder is alive");
        let unmounted = std::thread::spawn(move || {
            // The kernel only lets a thread change its namespace that shares no working directory.
            unshare(CloneFlags::CLONE_FS).expect("root may do this");
            setns(inside, CloneFlags::CLONE_NEWNS).expect("root may do this");
            // The last mount comes first, because it may stand on another.
            for Mounted { at, .. } in others.iter().rev() {
                // An error means that the copy is gone with its original.
                let _ = umount2(at, MntFlags::MNT_DETACH);
            }
        });
        unmounted.join().expect("the namespace can be entered");
        namespace
    }

    fn comm(&self) -> String {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", self.holder.pid()));
        comm.unwrap_or_default().trim().to_owned()
    }

    /// The namespace file that `nsenter` enters.
    pub fn handle(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/mnt", self.holder.pid()))
    }

    /// The path outside of a file inside. It is valid for as long as this namespace lives.
    pub fn view(&self, path: &Path) -> PathBuf {
        let inside = path
            .strip_prefix("/")
            .expect("paths of a namespace are absolute");
        PathBuf::from(format!("/proc/{}/root", self.holder.pid())).join(inside)
    }

    /// The mount table inside.
    pub fn mountinfo(&self) -> String {
        mountinfo(self.holder.pid())
    }
}
