//! Markers: each node that shares a kernel has a loop device over a file with its name, and every node
//! of the kernel sees the file's name in sysfs. So a marker proves that its node shares the kernel.
//!
//! The device detaches with its last use, and only a mount in the node's own namespaces uses it. So it
//! exists exactly as long as they do: it outlives the driver, and ends with the node's container. The
//! nonce in the name tells one life of a container from the next.
//!
//! A process that may open a read-only loop device can put another file behind it (LOOP_CHANGE_FD), and
//! so forge a marker. It then makes a node seem to be there that is not, or keeps something held for
//! longer. Nothing is given up because of a marker that exists, only because of one that does not.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::OFlags;
use uuid::Uuid;

use super::kernels::{is_kernel_name, is_node_name};
use super::pin_label::{self, is_nonce};
use crate::kernel::{
    self, Error, FsType, Kernel, LoopInfo, LoopSpec, LoopTable, MkfsSpec, MountSpec, MountTable,
    file, topmost_mount,
};

/// First word of the name of each marker's file.
const MARKER: &str = "marker";
/// What `losetup` shows of a marker.
const LABEL: &str = "hostloop-marker";
/// The directory of the markers' files, in the state directory.
const DIRECTORY: &str = "kernel";
/// The mount point of the marker, in that directory.
const ALIVE: &str = "alive";
/// Size of a marker's filesystem, which nothing is written to.
const BYTES: u64 = 1 << 20;

/// Two calls make one marker.
static MAKING: Mutex<()> = Mutex::new(());

/// That a node runs on this kernel, since its container began.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Marker {
    /// The name of the kernel when the marker was made.
    pub kernel: String,
    /// The node's ID.
    pub node: String,
    /// Random, and another one in each life of the node's container.
    pub nonce: String,
}

impl Marker {
    fn new(kernel: &str, node: &str) -> Marker {
        Marker {
            kernel: kernel.to_owned(),
            node: node.to_owned(),
            nonce: Uuid::new_v4().simple().to_string(),
        }
    }

    /// The name of the marker's file.
    pub fn file_name(&self) -> String {
        let Marker {
            kernel,
            node,
            nonce,
        } = self;
        format!("{MARKER},{kernel},{node},{nonce}")
    }

    /// The marker in the path of a loop device's file, whatever directories are in it: each mount
    /// namespace shows others. `None` for any other file, and for one that was deleted.
    pub fn read(backing_path: &str) -> Option<Marker> {
        let name = backing_path.rsplit('/').next()?;
        let words: Vec<&str> = name.split(',').collect();
        let [MARKER, kernel, node, nonce] = words[..] else {
            return None;
        };
        (is_kernel_name(kernel) && is_node_name(node) && is_nonce(nonce)).then(|| Marker {
            kernel: kernel.to_owned(),
            node: node.to_owned(),
            nonce: nonce.to_owned(),
        })
    }
}

/// The marker that a loop device is.
pub fn of(device: &LoopInfo) -> Option<Marker> {
    let is_marker = device.read_only && device.autoclear && device.backing_rdev == 0;
    is_marker
        .then(|| Marker::read(&device.backing_path))
        .flatten()
}

/// All markers among these devices, whatever their kernels are called. An administrator may give a
/// kernel another name while volumes are in use, and not all nodes learn it at the same time.
pub fn all<'l>(loops: impl IntoIterator<Item = &'l LoopInfo>) -> Vec<Marker> {
    loops.into_iter().filter_map(of).collect()
}

/// The markers among these devices of nodes that share the kernel of this name.
pub fn seen<'l>(loops: impl IntoIterator<Item = &'l LoopInfo>, kernel: &str) -> Vec<Marker> {
    let mut markers = all(loops);
    markers.retain(|marker| marker.kernel == kernel);
    markers
}

/// This node's own markers, with their minors: those that are mounted here. It has two after its kernel
/// got another name. The names of markers prove nothing: a process can forge one with the name of this
/// node and the nonce of another one.
pub fn own<'l>(
    loops: impl IntoIterator<Item = &'l LoopInfo>,
    mounts: &MountTable,
) -> Vec<(u32, Marker)> {
    let here = loops
        .into_iter()
        .filter(|device| mounts.of_loop(device.minor).next().is_some());
    here.filter_map(|device| Some((device.minor, of(device)?)))
        .collect()
}

/// True for a pin of another node that runs, by its label.
pub fn is_pin_of_another(device: &LoopInfo, loops: &LoopTable, mounts: &MountTable) -> bool {
    let Some(nonce) = pin_label::nonce(&device.label) else {
        return false;
    };
    let own = own(loops.iter(), mounts);
    let is_own = own.iter().any(|(_, marker)| marker.nonce == nonce);
    !is_own && all(loops.iter()).iter().any(|marker| marker.nonce == nonce)
}

/// The marker of this node, made if its mount is not there.
///
/// Fails if mounts beneath the state directory reach only this process: the marker would then end with
/// it, and what the node still uses would count as unused.
pub fn keep(
    kernel: &dyn Kernel,
    state_dir: &Path,
    name: &str,
    node: &str,
) -> kernel::Result<Marker> {
    let _making = MAKING.lock();
    let dir = state_dir.join(DIRECTORY);
    std::fs::create_dir_all(dir.join(ALIVE)).map_err(|e| Error::io("mkdir", &dir, e))?;
    // The mount table has no symlinks.
    let dir = dir
        .canonicalize()
        .map_err(|e| Error::io("realpath", &dir, e))?;
    let alive = dir.join(ALIVE);
    if let Some(marker) = mounted(kernel, &alive)?
        && marker.kernel == name
        && marker.node == node
    {
        return Ok(marker);
    }
    if !kernel.is_shared(&dir)? {
        return Err(Error::io("share", &dir, io::Error::other(NOT_SHARED)));
    }
    if !is_kernel_name(name) || !is_node_name(node) {
        let why = format!("kernel {name:?} and node {node:?} make no name of a file");
        return Err(Error::io("mark", &dir, io::Error::other(why)));
    }
    remove_unused(kernel, &dir)?;
    let marker = Marker::new(name, node);
    make(kernel, &dir, &alive, &marker)?;
    if mounted(kernel, &alive)?.as_ref() != Some(&marker) {
        let why = "another process has made a marker at the same time: this tries again";
        return Err(Error::io("mark", &alive, io::Error::other(why)));
    }
    tracing::info!(
        kernel = name,
        node,
        nonce = marker.nonce,
        "this node has a new marker"
    );
    Ok(marker)
}

const NOT_SHARED: &str = "mounts in this directory do not reach the node: mount it into the driver's \
                          pod with mountPropagation: Bidirectional, and make it shared on the node";

/// The marker that is mounted at a path.
fn mounted(kernel: &dyn Kernel, alive: &Path) -> kernel::Result<Option<Marker>> {
    let mount = topmost_mount(kernel, alive)?;
    let Some(minor) = mount.and_then(|mount| mount.loop_minor()) else {
        return Ok(None);
    };
    let device = kernel.loop_info(minor)?;
    Ok(device.as_ref().and_then(of))
}

/// The nonces of the markers of this state directory. Those of earlier ones are among them as long as
/// pins of them are left.
pub fn own_nonces(state_dir: &Path) -> kernel::Result<BTreeSet<String>> {
    let handle = open(&state_dir.join(DIRECTORY))?;
    let names = file::list(handle.as_fd())?;
    let own = names.iter().filter_map(|name| Marker::read(name));
    Ok(own.map(|marker| marker.nonce).collect())
}

/// The nonces of a node's markers that do not count any more, because a person has removed their files.
pub fn lost_nonces<'l>(
    loops: impl IntoIterator<Item = &'l LoopInfo>,
    node: &str,
) -> BTreeSet<String> {
    let paths = loops
        .into_iter()
        .filter_map(|device| device.backing_path.strip_suffix(" (deleted)"));
    paths
        .filter_map(Marker::read)
        .filter(|marker| marker.node == node)
        .map(|marker| marker.nonce)
        .collect()
}

/// Removes the files of earlier markers. A file that a device still has keeps its name: the name is
/// the marker. One with pins stays, too: it says that they are of this node and driver.
fn remove_unused(kernel: &dyn Kernel, dir: &Path) -> kernel::Result<()> {
    let loops = kernel.loops()?;
    let used: BTreeSet<String> = all(&loops).iter().map(Marker::file_name).collect();
    let pinned: BTreeSet<&str> = loops
        .iter()
        .filter_map(|device| pin_label::nonce(&device.label))
        .collect();
    let handle = open(dir)?;
    for name in file::list(handle.as_fd())? {
        let is_unused = Marker::read(&name)
            .is_some_and(|marker| !used.contains(&name) && !pinned.contains(marker.nonce.as_str()));
        if is_unused {
            file::remove(handle.as_fd(), &name)?;
        }
    }
    Ok(())
}

/// Makes a marker's file, and mounts it. From then on, the mount alone keeps the device attached.
fn make(kernel: &dyn Kernel, dir: &Path, alive: &Path, marker: &Marker) -> kernel::Result<()> {
    let name = marker.file_name();
    let path = dir.join(&name);
    let image = file::create_beneath(open(dir)?.as_fd(), Path::new(&name))?;
    file::set_len(&image, BYTES)?;
    kernel.mkfs(&MkfsSpec {
        image: Some(&image),
        discard: false,
        ..MkfsSpec::new(&path, FsType::Ext4)
    })?;
    let device = kernel.loop_attach(&LoopSpec {
        backing: &image,
        label: LABEL,
        offset: 0,
        read_only: true,
        direct_io: false,
        autoclear: true,
        minor: None,
    })?;
    kernel.mount(&MountSpec {
        device: &device.path(),
        target: alive,
        fs: FsType::Ext4,
        read_only: true,
        options: &[],
    })
}

fn open(dir: &Path) -> kernel::Result<std::fs::File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(dir, flags, rustix::fs::Mode::empty());
    Ok(opened.map_err(|e| Error::io("open", dir, e.into()))?.into())
}

#[cfg(test)]
mod tests;
