//! Pools in a filesystem of their own, made and mounted by the driver.
//!
//! The UUID the filesystem will have is recorded before mkfs runs. So a device that carries it was
//! formatted by us, or half formatted when mkfs was killed; one that carries anything else is not
//! ours and is never written to.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::ground::{Ground, identity, open_dir, unavailable};
use super::known::{Entry, Known};
use crate::pool::{Error, PoolKind, PoolOptions, PoolSpec, Result};
use crate::sys::{FsType, Kernel, MkfsSpec, MountSpec, Probe, loop_path};

/// A block device that is to hold a pool.
#[derive(Debug)]
pub(super) struct Device {
    /// Its node.
    pub(super) path: PathBuf,
    /// Major and minor number.
    pub(super) number: (u32, u32),
    /// Give unused blocks back while formatting.
    pub(super) discard: bool,
}

/// What to do with a device.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Plan {
    /// Mount it: it carries what was recorded.
    Mount,
    /// Make the filesystem, with the UUID that is recorded or a new one.
    Make(Option<String>),
    /// We began to make it. Mount it, and if that fails, make it again over what is there.
    Finish(String),
    /// An XFS we have no record of: ours if it holds a pool.
    Look(String),
    /// A pool was here and is not.
    Missing(String),
    /// It is somebody else's.
    Refuse(String),
}

fn plan(entry: &Entry, probe: &Probe) -> Plan {
    let carries = match probe {
        Probe::Blank => "nothing".to_owned(),
        Probe::Filesystem { fs, uuid } => format!("an {fs} filesystem with UUID {uuid}"),
        Probe::Other(name) => name.clone(),
        Probe::Ambivalent => "more than one signature".to_owned(),
    };
    match (probe, &entry.fs_uuid, entry.id) {
        (
            Probe::Filesystem {
                fs: FsType::Xfs,
                uuid,
            },
            Some(recorded),
            id,
        ) if uuid == recorded => match id {
            Some(_) => Plan::Mount,
            None => Plan::Finish(recorded.clone()),
        },
        (_, _, Some(_)) => Plan::Missing(format!("carries {carries}, not the pool that was there")),
        (Probe::Blank, recorded, None) => Plan::Make(recorded.clone()),
        (
            Probe::Filesystem {
                fs: FsType::Xfs,
                uuid,
            },
            None,
            None,
        ) => Plan::Look(uuid.clone()),
        _ => Plan::Refuse(format!("carries {carries}")),
    }
}

/// Mounts (and formats, the first time) a device as a pool.
pub(super) fn ground(
    kernel: &dyn Kernel,
    (spec, options): (&PoolSpec, &PoolOptions),
    (known, entry): (&Known, &Entry),
    kind: PoolKind,
    device: &Device,
) -> Result<Ground> {
    let at = mount_point(options, &spec.name)?;
    if !is_mounted(kernel, spec, device, &at)? {
        let mount = Mounting {
            kernel,
            device,
            at: &at,
        };
        mount.carry_out(spec, known, plan(entry, &kernel.probe(&device.path)?))?;
    }
    Ok(Ground {
        kind,
        root: open_dir(&at)?,
        path: at,
        locks: Vec::new(),
        notes: Vec::new(),
    })
}

/// Where a pool of its own is mounted.
pub(super) fn mount_point(options: &PoolOptions, name: &str) -> Result<PathBuf> {
    let at = options.state_dir.join("pools").join(name);
    std::fs::create_dir_all(&at).map_err(|e| crate::sys::Error::io("mkdir", &at, e))?;
    // As the mount table shows it.
    let real = at.canonicalize();
    Ok(real.map_err(|e| crate::sys::Error::io("realpath", &at, e))?)
}

/// Whether the device is mounted at the right place already (by a process before us). Anywhere
/// else it is somebody's.
fn is_mounted(kernel: &dyn Kernel, spec: &PoolSpec, device: &Device, at: &Path) -> Result<bool> {
    let mounts = kernel.mounts()?;
    if let Some(mount) = mounts.at(at) {
        if mount.device == device.number {
            return Ok(true);
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
        Some(mount) => Err(Error::Refused(format!(
            "pool {}: {} is mounted at {}",
            spec.name,
            device.path.display(),
            mount.mount_point.display()
        ))),
    }
}

struct Mounting<'a> {
    kernel: &'a dyn Kernel,
    device: &'a Device,
    at: &'a Path,
}

impl Mounting<'_> {
    fn carry_out(&self, spec: &PoolSpec, known: &Known, plan: Plan) -> Result<()> {
        let shown = self.device.path.display();
        let refuse = |why: String| Error::Refused(format!("pool {}: {shown} {why}", spec.name));
        match plan {
            Plan::Mount => self.mount(),
            Plan::Make(recorded) => {
                let uuid = match recorded {
                    Some(uuid) => uuid,
                    None => {
                        let uuid = Uuid::new_v4().to_string();
                        known.remember(&spec.name, |e| {
                            e.path = spec.path.clone();
                            e.fs_uuid = Some(uuid.clone());
                        })?;
                        uuid
                    }
                };
                tracing::info!(pool = %spec.name, device = %shown, %uuid, "formatting");
                self.make(&uuid, false)?;
                self.mount()
            }
            Plan::Finish(uuid) => match self.mount() {
                Ok(()) => Ok(()),
                Err(e) => {
                    tracing::info!(pool = %spec.name, device = %shown, %uuid, error = %e, "formatting again: it was cut short");
                    self.make(&uuid, true)?;
                    self.mount()
                }
            },
            Plan::Look(uuid) => {
                if !self.holds_a_pool().map_err(|e| {
                    refuse(format!(
                        "carries an xfs filesystem that can't be looked at: {e}"
                    ))
                })? {
                    return Err(refuse(format!(
                        "carries an xfs filesystem with UUID {uuid} that is no pool"
                    )));
                }
                self.mount()?;
                known.remember(&spec.name, |e| e.fs_uuid = Some(uuid))
            }
            Plan::Missing(why) => Err(unavailable(spec, format!("{shown} {why}"))),
            Plan::Refuse(why) => Err(refuse(why)),
        }
    }

    fn make(&self, uuid: &str, force: bool) -> Result<()> {
        Ok(self.kernel.mkfs(&MkfsSpec {
            device: &self.device.path,
            fs: FsType::Xfs,
            options: &[
                "-m".to_owned(),
                "reflink=1".to_owned(),
                "-b".to_owned(),
                "size=4096".to_owned(),
            ],
            discard: self.device.discard,
            uuid: Some(uuid),
            force,
        })?)
    }

    fn mount(&self) -> Result<()> {
        self.mount_with(false, &[])
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

    /// Looks into a filesystem without changing a byte of it, not even to replay its log.
    fn holds_a_pool(&self) -> Result<bool> {
        self.mount_with(true, &["norecovery"])?;
        let found = open_dir(self.at).and_then(|root| identity(root.as_fd()));
        self.kernel.unmount(self.at)?;
        Ok(found?.is_some())
    }
}

/// A loop device as a place for a pool.
pub(super) fn loop_device(minor: u32, discard: bool) -> Device {
    Device {
        path: loop_path(minor),
        number: (crate::sys::LOOP_MAJOR, minor),
        discard,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::PoolId;

    #[test]
    fn plans() {
        let uuid = || "d0f7c1a2-0000-4000-8000-000000000001".to_owned();
        let xfs = |uuid: &str| Probe::Filesystem {
            fs: FsType::Xfs,
            uuid: uuid.to_owned(),
        };
        let ext4 = Probe::Filesystem {
            fs: FsType::Ext4,
            uuid: uuid(),
        };
        let new = Entry::default();
        let begun = Entry {
            fs_uuid: Some(uuid()),
            ..Entry::default()
        };
        let known = Entry {
            id: Some(PoolId::generate()),
            ..begun.clone()
        };
        let refused = |what: &str| Plan::Refuse(format!("carries {what}"));
        let missing =
            |what: &str| Plan::Missing(format!("carries {what}, not the pool that was there"));
        let ours = format!("an ext4 filesystem with UUID {}", uuid());
        let table = [
            (&new, Probe::Blank, Plan::Make(None)),
            (&new, xfs("other"), Plan::Look("other".into())),
            (&new, ext4.clone(), refused(&ours)),
            (
                &new,
                Probe::Other("LVM2_member".into()),
                refused("LVM2_member"),
            ),
            (&new, Probe::Ambivalent, refused("more than one signature")),
            (&begun, Probe::Blank, Plan::Make(Some(uuid()))),
            (&begun, xfs(&uuid()), Plan::Finish(uuid())),
            (
                &begun,
                xfs("other"),
                refused("an xfs filesystem with UUID other"),
            ),
            (&begun, ext4.clone(), refused(&ours)),
            (
                &begun,
                Probe::Ambivalent,
                refused("more than one signature"),
            ),
            (&known, xfs(&uuid()), Plan::Mount),
            (&known, Probe::Blank, missing("nothing")),
            (
                &known,
                xfs("other"),
                missing("an xfs filesystem with UUID other"),
            ),
            (&known, ext4, missing(&ours)),
            (&known, Probe::Other("dos".into()), missing("dos")),
        ];
        for (entry, probe, want) in table {
            assert_eq!(plan(entry, &probe), want, "{entry:?} {probe:?}");
        }
    }
}
