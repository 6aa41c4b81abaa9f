//! Facts about volumes and pools, from disk and kernel.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Condition, Filesystem, Image, PoolFacts, Staged, VolumeFacts};
use super::{of_volume, overdue, staged_read_only};
use crate::pool::{self, About, Access, Format, Look, PoolId, Pools, Reserve, Slot, Stage};
use crate::pool::{VolumeHandle, VolumeRecord};
use crate::sys::{self, FileId, FsUsage, Kernel, LOOP_MAJOR, LoopInfo, MountEntry, MountTable};

impl PoolFacts {
    /// The facts from a look at a pool; `look` is `None` if the pool is missing.
    pub fn of(pools: &Pools, slot: &Slot, look: Option<Look>) -> PoolFacts {
        let mut facts = PoolFacts {
            name: slot.spec.name.clone(),
            ..PoolFacts::default()
        };
        let pool = match &slot.state {
            Ok(pool) => pool,
            Err(why) => {
                facts.missing = Some(why.clone());
                return facts;
            }
        };
        match look {
            Some(Ok(reading)) => facts.usage = Some(reading.usage),
            Some(Err(why)) => facts.silent = Some(why),
            None => {}
        }
        facts.reserve_bytes = facts
            .usage
            .map_or(0, |usage| reserve(&pools.options().reserve, &usage));
        let about_itself = pool
            .findings()
            .into_iter()
            .filter(|f| !matches!(f.about, About::Volume(_)));
        facts.findings = about_itself
            .map(|f| format!("{}: {}", f.about, f.what))
            .collect();
        facts
    }
}

fn reserve(reserve: &Reserve, usage: &FsUsage) -> u64 {
    match reserve {
        Reserve::Percent(percent) => (usage.total_bytes as f64 * percent / 100.0) as u64,
        Reserve::Bytes(bytes) => *bytes,
    }
}

/// Pools, loop devices and mounts, read at one time: what many volumes are looked at with.
#[derive(Debug)]
pub struct View {
    pools: BTreeMap<PoolId, PoolFacts>,
    /// Of the kernel's tables, or why they can't be read.
    kernel: Result<Tables, String>,
}

#[derive(Debug)]
struct Tables {
    loops: Vec<LoopInfo>,
    mounts: MountTable,
}

impl View {
    /// Looks.
    pub fn take(pools: &Pools) -> View {
        let looks = pools.look().into_iter();
        let facts =
            looks.filter_map(|(slot, look)| Some((slot.id?, PoolFacts::of(pools, &slot, look))));
        View {
            pools: facts.collect(),
            kernel: Tables::read(&**pools.kernel()).map_err(|e| e.to_string()),
        }
    }

    /// What is wrong with a volume. If it was staged or unstaged since the view was taken, it is
    /// looked at again; if it is gone, nothing is.
    pub fn judge(&self, pools: &Pools, record: &VolumeRecord) -> Vec<Condition> {
        let facts = self.facts(pools, record);
        match pools.volume(&VolumeHandle::Id(record.id)) {
            Err(pool::Error::NoVolume(_)) => Vec::new(),
            Ok(now) if now.stage != record.stage || now.format != record.format => {
                of_volume(&View::take(pools).facts(pools, &now))
            }
            _ => of_volume(&facts),
        }
    }

    /// What is known of a volume.
    pub fn facts(&self, pools: &Pools, record: &VolumeRecord) -> VolumeFacts {
        let pool = self.pools.get(&record.id.pool()).cloned();
        let mut facts = VolumeFacts {
            pool: pool.unwrap_or_else(|| PoolFacts {
                missing: Some("it is not on this node".to_owned()),
                ..PoolFacts::default()
            }),
            provisioning: record.settings.provisioning,
            direct_io: record.settings.direct_io,
            findings: findings(pools, record),
            ..VolumeFacts::default()
        };
        if facts.pool.missing.is_some() || facts.pool.silent.is_some() {
            // Looking at its files might never end.
            return facts;
        }
        let limit = pools.options().max_freeze;
        facts.frozen_too_long = record.freeze.and_then(|f| overdue(f.since_ns, limit));
        let tables = match &self.kernel {
            Ok(tables) => tables,
            Err(why) => {
                facts.image = Image::Unreadable(why.clone());
                return facts;
            }
        };
        let (image, id) = look_at_image(pools, record, tables);
        facts.image = image;
        facts.loops = id.map(|id| tables.over(id)).unwrap_or_default();
        let mount = tables.mount_of(&facts.loops, record.stage.as_ref());
        facts.filesystem = mount.map(|m| filesystem(&**pools.kernel(), m, record));
        facts.staged = record
            .stage
            .as_ref()
            .map(|stage| tables.staged(stage, &facts.loops, record));
        facts
    }
}

impl Tables {
    fn read(kernel: &dyn Kernel) -> sys::Result<Tables> {
        Ok(Tables {
            loops: kernel.loops()?,
            mounts: kernel.mounts()?,
        })
    }

    fn over(&self, image: FileId) -> Vec<LoopInfo> {
        let over = self.loops.iter().filter(|l| l.backing == Some(image));
        over.cloned().collect()
    }

    /// The mount of the volume's filesystem: where it is staged, or anywhere else.
    fn mount_of(&self, loops: &[LoopInfo], stage: Option<&Stage>) -> Option<&MountEntry> {
        let staged = stage.and_then(|stage| self.mounted_at(&stage.path, loops));
        staged.or_else(|| {
            loops
                .iter()
                .find_map(|l| self.mounts.of_loop(l.minor).next())
        })
    }

    fn mounted_at(&self, path: &Path, loops: &[LoopInfo]) -> Option<&MountEntry> {
        let mount = self.mounts.at(path)?;
        let minor = mount.loop_minor()?;
        loops.iter().any(|l| l.minor == minor).then_some(mount)
    }

    fn staged(&self, stage: &Stage, loops: &[LoopInfo], record: &VolumeRecord) -> Staged {
        let over_it = |minor: &u32| {
            let device = stage.minor.map(|m| rustix::fs::makedev(LOOP_MAJOR, m));
            let found = self.loops.iter().find(|l| l.minor == *minor);
            found.is_some_and(|l| Some(l.backing_rdev) == device)
        };
        let lost = stage.read_only_loops.iter().filter(|(_, m)| !over_it(m));
        Staged {
            path: stage.path.clone(),
            block: stage.capability.access == Access::Block,
            read_only: staged_read_only(&stage.capability),
            minor: stage.minor,
            lost_targets: lost.map(|(target, _)| target.clone()).collect(),
            formatted: matches!(record.format, Format::Done(_)),
            mounted: self.mounted_at(&stage.path, loops).is_some(),
        }
    }

    /// Devices that hold a deleted image. The path is of whoever attached it, in whatever mount
    /// namespace; but the ID in it is one of a kind.
    fn holding_deleted(&self, record: &VolumeRecord) -> Vec<u32> {
        let end = format!("/{}/image (deleted)", record.id);
        let held = self.loops.iter().filter(|l| l.backing_path.ends_with(&end));
        held.map(|l| l.minor).collect()
    }
}

fn look_at_image(pools: &Pools, record: &VolumeRecord, tables: &Tables) -> (Image, Option<FileId>) {
    let file = match pools.open_image(record, false) {
        Ok(file) => file,
        Err(pool::Error::ImageMissing { .. }) => {
            let held_by = tables.holding_deleted(record);
            return (Image::Missing { held_by }, None);
        }
        Err(pool::Error::Corrupt { why, .. }) => {
            return (Image::Short(format!("its image {why}")), None);
        }
        Err(e) => return (Image::Unreadable(e.to_string()), None),
    };
    match sys::file_id(&file) {
        Ok(id) => (Image::Present, Some(id)),
        Err(e) => (Image::Unreadable(e.to_string()), None),
    }
}

fn filesystem(kernel: &dyn Kernel, mount: &MountEntry, record: &VolumeRecord) -> Filesystem {
    let fs = match record.format {
        Format::Done(fs) | Format::Formatting(fs) => Some(fs),
        Format::None | Format::Raw => sys::FsType::parse(&mount.fs_type),
    };
    let errors = match (mount.loop_minor(), fs) {
        (Some(minor), Some(fs)) => kernel.fs_errors(&mount.mount_point, minor, fs),
        _ => Ok(None),
    };
    Filesystem {
        options: mount.super_options.clone(),
        // What can't be asked is no error of the filesystem's: a mount may go while it is looked at.
        errors: errors.unwrap_or_default(),
    }
}

fn findings(pools: &Pools, record: &VolumeRecord) -> Vec<String> {
    let all = pools.findings().into_iter();
    let ours = all.filter(|f| f.about == About::Volume(record.id));
    ours.map(|f| f.what).collect()
}
