//! A mount namespace that a test can end when it likes.
//!
//! A sleeping process holds it; drivers are started inside. So a driver can be restarted in the
//! namespace of the one before (its mounts are there), or in a new one (they are gone, as after
//! the death of a container).

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::leaks::{Mounted, mounted};
use crate::machine::{self, text};
use crate::scratch::Scratch;

/// A mount namespace, private: nothing mounted in it is seen outside.
pub struct Namespace {
    holder: Child,
}

impl Namespace {
    /// A new one, with what is mounted here now, but for what stands on loop devices and is not
    /// this test's: a copy of a mount keeps its filesystem, and the device under it, from going
    /// when its owner takes it down.
    pub fn new(scratch: &Scratch) -> Namespace {
        let unshare = machine::which("unshare").expect("unshare was required");
        let holder = Command::new(unshare)
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
        let namespace = Namespace { holder };
        let deadline = Instant::now() + Duration::from_secs(10);
        while namespace.comm() != "sleep" {
            assert!(Instant::now() < deadline, "unshare --mount did not come up");
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut others = mounted(&namespace.mountinfo());
        others.retain(|mount| mount.on_loop() && !mount.at.starts_with(scratch.path()));
        // The last mounted first: one may stand on another.
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

    /// What `nsenter` enters it by.
    pub fn handle(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/mnt", self.holder.id()))
    }

    /// A path inside, reachable from outside for as long as this lives.
    pub fn view(&self, path: &Path) -> PathBuf {
        let inside = path
            .strip_prefix("/")
            .expect("paths of a namespace are absolute");
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
