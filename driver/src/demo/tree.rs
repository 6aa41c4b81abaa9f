//! Kubelet's paths, mirrored under a scratch root.
//!
//! A driver is told paths and takes them as they come; these are the ones kubelet would tell, with
//! `root` in place of `/var/lib/kubelet`.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::status::units::shorten;

/// The longest path a Unix socket can have, in bytes, its terminating NUL not counted.
const SOCKET_PATH_MAX: usize = 107;

/// The scratch root and what lies where in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Under this root, an absolute path.
    pub(super) fn new(root: impl Into<PathBuf>) -> Tree {
        Tree { root: root.into() }
    }

    /// The root itself.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The driver's socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.root.join("csi.sock")
    }

    /// Whether the socket's path is short enough to be one.
    pub(super) fn socket_fits(&self) -> bool {
        self.socket().as_os_str().len() <= SOCKET_PATH_MAX
    }

    /// What the driver prints.
    pub(super) fn log(&self) -> PathBuf {
        self.root.join("driver.log")
    }

    /// The driver's own state (`--statedir`).
    pub(super) fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// The directory the pool is kept in.
    pub(super) fn pool(&self) -> PathBuf {
        self.root.join("pool")
    }

    /// What the orchestrator remembers.
    pub(super) fn ledger(&self) -> PathBuf {
        self.root.join("orchestrator.json")
    }

    /// Where a volume is staged as a filesystem.
    pub(super) fn staging(&self, driver: &str, handle: &str) -> PathBuf {
        let csi = self.root.join("plugins/kubernetes.io/csi");
        csi.join(driver)
            .join(hex_sha256(handle.as_bytes()))
            .join("globalmount")
    }

    /// Where a pod finds a filesystem. Kubelet makes the parent, the driver the directory itself.
    pub(super) fn target(&self, pod: &str, pv: &str) -> PathBuf {
        let volumes = self.root.join("pods").join(pod).join("volumes");
        volumes.join("kubernetes.io~csi").join(pv).join("mount")
    }

    /// Where a volume is staged as a block device.
    pub(super) fn block_staging(&self, pv: &str) -> PathBuf {
        self.root
            .join("plugins/kubernetes.io/csi/volumeDevices/staging")
            .join(pv)
    }

    /// Where a pod finds a block device. Kubelet makes the parent, the driver the file.
    pub(super) fn block_target(&self, pod: &str, pv: &str) -> PathBuf {
        let publish = "plugins/kubernetes.io/csi/volumeDevices/publish";
        self.root.join(publish).join(pv).join(pod)
    }

    /// A path without the root in front.
    pub(super) fn below(&self, path: &Path) -> String {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        below.display().to_string()
    }
}

/// A text as shown to a person: without the words that are in every one of kubelet's paths, and
/// with long digests cut short.
pub(super) fn brief(text: &str) -> String {
    let text = text.replace("/kubernetes.io/csi/", "/…/");
    shorten(&text.replace("/kubernetes.io~csi/", "/…/"))
}

/// Lower-case hex digits of a SHA-256.
pub(super) fn hex_sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Lower-case hex digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The ID kubelet gives an inline volume: of the pod and the volume's name in it.
pub(super) fn inline_handle(pod: &str, name: &str) -> String {
    format!("csi-{}", hex_sha256(format!("{pod}{name}").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_kubelets() {
        let tree = Tree::new("/r");
        let digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        let csi = "/r/plugins/kubernetes.io/csi";
        for (path, expected) in [
            (
                tree.staging("hostloop.csi.dev", "test"),
                format!("{csi}/hostloop.csi.dev/{digest}/globalmount"),
            ),
            (
                tree.target("uid", "pv"),
                "/r/pods/uid/volumes/kubernetes.io~csi/pv/mount".into(),
            ),
            (
                tree.block_staging("pv"),
                format!("{csi}/volumeDevices/staging/pv"),
            ),
            (
                tree.block_target("uid", "pv"),
                format!("{csi}/volumeDevices/publish/pv/uid"),
            ),
        ] {
            assert_eq!(path, Path::new(&expected));
        }
    }

    #[test]
    fn an_inline_handle_is_one() {
        let handle = inline_handle("uid", "scratch");
        assert!(matches!(
            handle.parse(),
            Ok(crate::pool::VolumeHandle::Inline(_))
        ));
        assert_ne!(handle, inline_handle("other", "scratch"));
    }

    #[test]
    fn brief_paths_lose_root_and_digests() {
        let tree = Tree::new("/var/tmp/x");
        for (path, text) in [
            (
                tree.staging("d", "test"),
                "plugins/…/d/9f86…0a08/globalmount",
            ),
            (tree.target("uid", "pv"), "pods/uid/volumes/…/pv/mount"),
            (
                tree.block_staging("pv"),
                "plugins/…/volumeDevices/staging/pv",
            ),
            ("/dev/loop3".into(), "/dev/loop3"),
        ] {
            assert_eq!(brief(&tree.below(&path)), text);
        }
    }

    #[test]
    fn a_long_root_has_no_room_for_a_socket() {
        assert!(Tree::new("/var/tmp/x").socket_fits());
        assert!(!Tree::new(format!("/{}", "x".repeat(100))).socket_fits());
    }
}
