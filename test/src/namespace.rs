//! A mount namespace that a test can end at any time.
//!
//! A sleeping process holds the namespace, and drivers are started inside. A driver can be
//! restarted in the namespace of the one before, where its mounts still exist. It can also start in
//! a new namespace, where they are gone as after the death of a container.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::leaks::{Mounted, mounted};
use crate::machine::{self, text};
use crate::scratch::Scratch;

/// A private mount namespace: its mounts are not visible outside.
pub struct Namespace {
    holder: Child,
}

impl Namespace {
    /// Creates a namespace with this process's current mounts, except other tests' mounts of loop
    /// devices. A copy of a mount would keep its filesystem and device busy after its owner
    /// unmounts it.
    pub fn new(scratch: &Scratch) -> Namespace {
        let unshare = machine::which("unshare").expect("unshare was required");
        let holder = Command::new(unshare)
            .args(["--mount", "--propagation", "private", "--", "sleep", "infinity"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare starts");
        let namespace = Namespace { holder };
        let deadline = Instant::now() + Duration::from_secs(10);
        while namespace.comm() != "sleep" {
            assert!(Instant::now() < deadline, "unshare --mount did not come up");
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut others = mounted(&namespace.mountinfo());
        others.retain(|mount| mount.on_loop() && !mount.at.starts_with(scratch.path()));
        // The last mount comes first, because it may stand on another.
        for Mounted { at, .. } in others.iter().rev() {
            let enter = format!("--mount={}", text(&namespace.handle()));
            let _ = machine::try_run("nsenter", &[&enter, "--", "umount", "--lazy", text(at)]);
        }
        namespace
    }

    fn comm(&self) -> String {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", self.holder.id()));
        comm.unwrap_or_default().trim().to_owned()
    }

    /// The namespace file that `nsenter` enters.
    pub fn handle(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/mnt", self.holder.id()))
    }

    /// The path outside of a file inside. It is valid for as long as this namespace lives.
    pub fn view(&self, path: &Path) -> PathBuf {
        let inside = path.strip_prefix("/").expect("paths of a namespace are absolute");
        PathBuf::from(format!("/proc/{}/root", self.holder.id())).join(inside)
    }

    /// The mount table inside.
    pub fn mountinfo(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/mountinfo", self.holder.id()))
            .expect("the namespace's holder is alive")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
