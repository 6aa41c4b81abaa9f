//! Pools in a separate filesystem that the driver makes and mounts.
//!
//! mkfs runs on a blank device, or with the option `wipe` on bytes without a signature. It also
//! runs again over an interrupted mkfs of this driver. Two facts must prove that: the UUID recorded
//! in [`RegisteredPool::mkfs`] before mkfs began, and a superblock with that UUID that marks an
//! unfinished mkfs. Such a filesystem was never mounted, so it holds no data. If any other
//! filesystem does not mount, that is an error, and the driver never writes to it.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::identity::identity;
use super::owner_node;
use super::pool_directory::PoolDirectory;
use super::pool_error::{refused, unavailable};
use super::pool_registry::{PoolRegistry, RegisteredPool};
use crate::kernel::{self, FsType, Kernel, MkfsSpec, MountSpec, Probe, topmost_mount};
use crate::storage::layout::open_dir;
use crate::storage::{Error, PoolKind, PoolOptions, PoolSpec, Pools, Result};

/// A block device for a pool.
#[derive(Debug)]
pub(super) struct Device {
    /// The path of the device node.
    pub(super) path: PathBuf,
    /// Major and minor number.
    pub(super) number: (u32, u32),
    /// Whether mkfs discards all blocks first.
    pub(super) discard: bool,
}

/// What to do with a device.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DevicePlan {
    /// Mount it: it has the filesystem with this UUID, which this driver made.
    Mount(String),
    /// Make the filesystem.
    Make,
    /// Overwrite the unfinished filesystem of an mkfs that the driver started. The UUID stays, so
    /// that a kill during this mkfs leaves the same evidence.
    MakeAgain(String),
    /// Inspect an XFS without an entry in the registry: it may hold a pool.
    Look(String),
    /// The registered pool is not on the device.
    Missing(String),
    /// The device holds data that is not the driver's.
    Refuse(String),
}

/// The instruction to the operator for a refused device without valuable data.
const TO_GIVE_IT_AWAY: &str =
    "if nothing on it is needed, erase it (wipefs --all DEVICE; blkdiscard DEVICE)";

/// True if the registry says that this driver made the filesystem with this UUID.
fn is_ours(entry: &RegisteredPool, uuid: &str) -> bool {
    [&entry.fs_uuid, &entry.mkfs]
        .into_iter()
        .any(|known| known.as_deref() == Some(uuid))
}

fn plan(entry: &RegisteredPool, probe: &Probe, wipe: bool) -> DevicePlan {
    let carries = match probe {
        Probe::Blank => "nothing".to_owned(),
        Probe::Unknown { offset } => format!(
            "bytes without a known signature, the first at offset {offset} (it may be encrypted)"
        ),
        Probe::Unfinished { fs, uuid } => {
            format!("an {fs} filesystem with UUID {uuid}, and its mkfs did not end")
        }
        Probe::Filesystem { fs, uuid } => format!("an {fs} filesystem with UUID {uuid}"),
        Probe::Other(name) => name.clone(),
        Probe::Ambivalent => "more than one signature".to_owned(),
    };
    match (probe, entry.id) {
        (
            Probe::Filesystem {
                fs: FsType::Xfs,
                uuid,
            },
            id,
        ) if is_ours(entry, uuid) || id.is_none() => {
            if is_ours(entry, uuid) {
                DevicePlan::Mount(uuid.clone())
            } else {
                DevicePlan::Look(uuid.clone())
            }
        }
        (_, Some(_)) => {
            DevicePlan::Missing(format!("carries {carries}, not the pool that was there"))
        }
        (Probe::Blank, None) => DevicePlan::Make,
        (Probe::Unfinished { uuid, .. }, None) if entry.mkfs.as_ref() == Some(uuid) => {
            DevicePlan::MakeAgain(uuid.clone())
        }
        (Probe::Unknown { .. }, None) if wipe => DevicePlan::Make,
        (Probe::Unknown { .. }, None) => DevicePlan::Refuse(format!(
            "carries {carries}: {TO_GIVE_IT_AWAY}, or give the pool the option `wipe`"
        )),
        _ => DevicePlan::Refuse(format!("carries {carries}: {TO_GIVE_IT_AWAY}")),
    }
}

/// Mounts a device as a pool, and formats it the first time.
pub(super) fn directory(
    pools: &Pools,
    spec: &PoolSpec,
    (registry, entry): (&PoolRegistry, &RegisteredPool),
    kind: PoolKind,
    device: &Device,
) -> Result<PoolDirectory> {
    let (kernel, options) = (&*pools.kernel, &pools.options);
    let at = mount_point(options, &spec.name)?;
    let mounted = is_mounted(kernel, spec, device, &at)?;
    let mounting = PoolMount {
        kernel,
        spec,
        options,
        kind,
        device,
        at: &at,
    };
    let uuid = if !mounted {
        let plan = plan(entry, &kernel.probe(&device.path)?, spec.wipe);
        mounting.carry_out(registry, plan)?
    } else if let Some(uuid) = &entry.fs_uuid {
        uuid.clone()
    } else {
        // An earlier process died between the mount and its record in the registry.
        mounting.uuid()?
    };
    kernel.retry_forever(&device.path)?;
    PoolDirectory::new(kind, at, Some(uuid))
}

/// The mount point of a pool with a separate filesystem; created if it does not exist.
pub(super) fn mount_point(options: &PoolOptions, name: &str) -> Result<PathBuf> {
    let at = options.state_dir.join("pools").join(name);
    std::fs::create_dir_all(&at).map_err(|e| crate::kernel::Error::io("mkdir", &at, e))?;
    // The mount table shows the canonical path.
    let real = at.canonicalize();
    Ok(real.map_err(|e| crate::kernel::Error::io("realpath", &at, e))?)
}

/// True if an earlier process mounted the device writable at the pool's mount point. A read-only
/// mount there is left over from an interrupted inspection: it is unmounted. A device that is
/// mounted elsewhere is refused.
fn is_mounted(kernel: &dyn Kernel, spec: &PoolSpec, device: &Device, at: &Path) -> Result<bool> {
    let mounts = kernel.mounts()?;
    if let Some(mount) = mounts.at(at) {
        if mount.device == device.number {
            if !mount.read_only() {
                return Ok(true);
            }
            let unmounted = kernel.unmount_exactly(mount).map_err(|e| {
                let at = at.display();
                let why = format!("it is mounted read-only at {at}, and can't be unmounted: {e}");
                unavailable(spec, why)
            });
            return unmounted.map(|()| false);
        }
        let why = format!(
            "{} is mounted at {}, where the pool belongs",
            mount.source,
            at.display()
        );
        return Err(unavailable(spec, why));
    }
    match mounts.entries.iter().find(|m| m.device == device.number) {
        None => Ok(false),
        Some(mount) => {
            let (device, at) = (device.path.display(), mount.mount_point.display());
            Err(refused(spec, format!("{device} is mounted at {at}")))
        }
    }
}

/// What to do after a look at a filesystem has failed.
fn after_failed_look(error: &Error, device: &Path) -> String {
    let device = device.display();
    if is_busy(error) {
        format!(
            "Something on the node has it mounted where this process does not see it, such as an \
             installation with another directory of kubelet: `grep {device} /proc/mounts` on the \
             node finds the mount, and umount ends it if no volume uses it"
        )
    } else {
        format!("The kernel's log (dmesg) says why; `xfs_repair -n {device}` checks it")
    }
}

/// True if something else has the device mounted, and otherwise than was asked for.
fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Kernel(kernel::Error::Busy { .. }))
}

struct PoolMount<'a> {
    kernel: &'a dyn Kernel,
    spec: &'a PoolSpec,
    options: &'a PoolOptions,
    kind: PoolKind,
    device: &'a Device,
    at: &'a Path,
}

impl PoolMount<'_> {
    /// Carries the plan out, and returns the UUID of the mounted filesystem.
    fn carry_out(&self, registry: &PoolRegistry, plan: DevicePlan) -> Result<String> {
        match plan {
            DevicePlan::Mount(uuid) => {
                // Another node may have the filesystem mounted by now, and a writable mount would
                // replay its log. The mount below reports any other error of this inspection again.
                if self.options.node_id.is_some()
                    && let Err(e @ Error::OtherNode { .. }) = self.holds_a_pool()
                {
                    return Err(e);
                }
                self.mount().map(|()| uuid)
            }
            DevicePlan::Make => self.make(registry, None),
            DevicePlan::MakeAgain(uuid) => self.make(registry, Some(uuid)),
            DevicePlan::Look(uuid) => {
                let found = self.holds_a_pool().or_else(|e| self.look_beside(e));
                let found = found.map_err(|e| match e {
                    e @ Error::OtherNode { .. } => e,
                    e => self.refuse(format!(
                        "carries an xfs filesystem that can't be looked at: {e}. It may be a \
                         pool: nothing on it was changed. {}",
                        after_failed_look(&e, &self.device.path)
                    )),
                })?;
                if !found {
                    return Err(self.refuse(format!(
                        "carries an xfs filesystem with UUID {uuid} that is not a pool: \
                         {TO_GIVE_IT_AWAY}"
                    )));
                }
                self.mount().map(|()| uuid)
            }
            DevicePlan::Missing(why) => {
                let why = format!("{} {why}", self.device.path.display());
                Err(unavailable(self.spec, why))
            }
            DevicePlan::Refuse(why) => Err(self.refuse(why)),
        }
    }

    fn refuse(&self, why: String) -> Error {
        let device = self.device.path.display();
        refused(self.spec, format!("{device} {why}{}", self.in_use()))
    }

    /// A sentence about what else has the device in use; empty if nothing is known.
    fn in_use(&self) -> String {
        let holders = self.kernel.holders(&self.device.path);
        if holders.is_empty() {
            return String::new();
        }
        format!(". It is in use: {}", holders.join("; "))
    }

    /// Makes the filesystem and mounts it. Writes the UUID to disk before mkfs begins. `again` is
    /// the UUID of an interrupted mkfs: reusing it keeps the registry and the superblock in
    /// agreement throughout the second run.
    fn make(&self, registry: &PoolRegistry, again: Option<String>) -> Result<String> {
        let force = again.is_some();
        let uuid = again.unwrap_or_else(|| Uuid::new_v4().to_string());
        registry.remember(&self.spec.name, |entry| {
            entry.path = self.spec.path.clone();
            entry.mkfs = Some(uuid.clone());
        })?;
        let device = self.device.path.display();
        tracing::info!(pool = %self.spec.name, %device, %uuid, again = force, "formatting a pool");
        self.kernel
            .mkfs(&MkfsSpec {
                device: &self.device.path,
                image: None,
                fs: FsType::Xfs,
                options: &["-m", "reflink=1", "-b", "size=4096"].map(str::to_owned),
                // A discard erases the superblock first. A kill after that would leave bytes that
                // the next probe cannot identify.
                discard: self.device.discard && !force,
                uuid: Some(&uuid),
                force,
            })
            .map_err(|e| match self.in_use() {
                nothing if nothing.is_empty() => e.into(),
                in_use => unavailable(
                    self.spec,
                    format!("{device} can't be formatted: {e}{in_use}"),
                ),
            })?;
        self.mount().map(|()| uuid)
    }

    fn uuid(&self) -> Result<String> {
        match self.kernel.probe(&self.device.path)? {
            Probe::Filesystem { uuid, .. } => Ok(uuid),
            other => Err(unavailable(
                self.spec,
                format!(
                    "{} is mounted, but carries {other:?}",
                    self.device.path.display()
                ),
            )),
        }
    }

    fn mount(&self) -> Result<()> {
        self.mount_with(false, &[]).map_err(|e| {
            let device = self.device.path.display();
            let why = format!(
                "{device} can't be mounted: {e}. Nothing on it was changed. The kernel's log \
                 (dmesg) says why; `xfs_repair -n {device}` checks the filesystem. The driver \
                 mounts it as soon as that works{}",
                self.in_use()
            );
            unavailable(self.spec, why)
        })
    }

    fn mount_with(&self, read_only: bool, more: &[&str]) -> Result<()> {
        let options = ["nosuid", "nodev", "noexec", "noatime"].iter().chain(more);
        let options: Vec<String> = options.map(|o| (*o).to_owned()).collect();
        Ok(self.kernel.mount(&MountSpec {
            device: &self.device.path,
            target: self.at,
            fs: FsType::Xfs,
            read_only,
            options: &options,
        })?)
    }

    /// Inspects a filesystem without changing a byte of it, not even by replaying its log. Fails
    /// with [`Error::OtherNode`] if it is the pool of another node.
    fn holds_a_pool(&self) -> Result<bool> {
        self.mount_with(true, &["norecovery"])?;
        self.look()
    }

    /// Inspects the filesystem of an image after a look has failed, if a mount that this process does
    /// not see is the reason: an installation with another directory of kubelet leaves one. One more
    /// mount of such a filesystem replays no log. Should the other mount end just now, it replays
    /// that of a filesystem in the driver's own image.
    fn look_beside(&self, failed: Error) -> Result<bool> {
        if self.kind != PoolKind::Image || !is_busy(&failed) {
            return Err(failed);
        }
        self.mount_with(false, &[])?;
        self.look()
    }

    /// True if the mounted filesystem is a pool. Ends the mount. Fails with [`Error::OtherNode`] if it is
    /// the pool of another node.
    fn look(&self) -> Result<bool> {
        let found = open_dir(self.at).and_then(|root| {
            let found = identity(root.as_fd(), None)?;
            if found.is_some() {
                owner_node::check(self.spec, self.options, root.as_fd())?;
            }
            Ok(found)
        });
        if let Some(mount) = topmost_mount(self.kernel, self.at)?
            && mount.device == self.device.number
        {
            self.kernel.unmount_exactly(&mount)?;
        }
        Ok(found?.is_some())
    }
}

#[cfg(test)]
mod tests;
