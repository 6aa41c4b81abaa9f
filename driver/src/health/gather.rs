//! Gathers facts about volumes and pools from disk and kernel.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use super::{Condition, VolumeFacts, filesystem_size, volume_conditions};
use crate::diagnose::pool::PoolFacts;
use crate::diagnose::volume::{ImageState, shut_down_problem, stop_problem, volume_problems};
use crate::diagnose::{KernelState, Problem, VolumeIdentity, VolumeState};
use crate::fault_disks::DiskPresence;
use crate::kernel::{self, FileId, FsType, Kernel, file, refused_mount_options};
use crate::storage::{
    self, About, Access, Format, Look, PoolId, PoolSlot, Pools, VolumeHandle, VolumeRecord,
};

impl PoolFacts {
    /// Collects the facts from a look at a pool; `look` is `None` if the pool is missing.
    pub fn of(pools: &Pools, slot: &PoolSlot, look: Option<Look>) -> PoolFacts {
        let mut facts = PoolFacts {
            name: slot.spec.name.clone(),
            fault: slot.fault.clone(),
            ..PoolFacts::default()
        };
        let pool = match &slot.state {
            Ok(pool) => pool,
            Err(why) => {
                facts.missing = Some(why.clone());
                return facts;
            }
        };
        let reserve = pools.options().reserve;
        match look {
            Some(Ok(reading)) => {
                facts.usage = Some(reading.usage);
                facts.reserve_bytes = reserve.of(reading.usage.total_bytes);
                let sparse = reading.sparse.into_iter();
                facts.sparse = sparse
                    .map(|file| {
                        let kept = reserve.of(file.usage.total_bytes);
                        (file, kept)
                    })
                    .collect();
                facts.lost = reading.lost;
            }
            Some(Err(why)) => facts.silent = Some(why),
            None => {}
        }
        facts.noted = pool
            .noted_problems()
            .into_iter()
            .filter(|noted| !matches!(noted.about, About::Volume(_)))
            .map(|noted| format!("{}: {}", noted.about, noted.problem.message()))
            .collect();
        facts
    }
}

/// What the conditions of volumes follow from: the pools, and for many volumes the loop devices and
/// mounts, read at one time.
#[derive(Debug)]
pub struct View {
    pools: BTreeMap<PoolId, PoolFacts>,
    /// `None` to look at each volume's own devices and mounts. The error if the kernel's tables
    /// can't be read.
    kernel: Result<Option<KernelState>, String>,
}

impl View {
    /// Reads the pools and the kernel's tables.
    pub fn take(pools: &Pools) -> View {
        let kernel = KernelState::read(pools.kernel());
        View {
            kernel: kernel.map(Some).map_err(|e| e.to_string()),
            ..View::of_one(pools)
        }
    }

    /// Reads the pools, for a single volume.
    pub(super) fn of_one(pools: &Pools) -> View {
        let looks = pools.look().into_iter();
        let facts =
            looks.filter_map(|(slot, look)| Some((slot.id?, PoolFacts::of(pools, &slot, look))));
        View {
            pools: facts.collect(),
            kernel: Ok(None),
        }
    }

    /// Returns the conditions of a volume. If it was staged or unstaged after the view was taken,
    /// reads the kernel again. A deleted volume has no conditions.
    pub fn conditions(&self, pools: &Pools, record: &VolumeRecord) -> Vec<Condition> {
        self.conditions_at(pools, record, &[]).0
    }

    /// Like [`View::conditions`], with what the kernel shows of the volume and at these paths.
    /// `None` if it can't be asked, or the pool does not answer.
    pub(super) fn conditions_at(
        &self,
        pools: &Pools,
        record: &VolumeRecord,
        paths: &[&Path],
    ) -> (Vec<Condition>, Option<VolumeState>) {
        let (facts, state) = self.facts(pools, record, paths);
        match pools.volume(&VolumeHandle::Id(record.id)) {
            Err(storage::Error::NoVolume(_)) => (Vec::new(), state),
            Ok(now) if now.stage != record.stage || now.format != record.format => {
                let (facts, state) = View::of_one(pools).facts(pools, &now, paths);
                (volume_conditions(&facts), state)
            }
            _ => (volume_conditions(&facts), state),
        }
    }

    /// Collects the facts about a volume, and what the kernel shows of it.
    fn facts(
        &self,
        pools: &Pools,
        record: &VolumeRecord,
        paths: &[&Path],
    ) -> (VolumeFacts, Option<VolumeState>) {
        let pool = self.pools.get(&record.id.pool()).cloned();
        let mut facts = VolumeFacts {
            pool: pool.unwrap_or_else(|| PoolFacts {
                missing: Some("it is not on this node".to_owned()),
                ..PoolFacts::default()
            }),
            provisioning: record.settings.provisioning,
            max_freeze: pools.options().max_freeze,
            noted: noted(pools, record),
            ..VolumeFacts::default()
        };
        if facts.pool.unreachable().is_some() {
            // Reading the volume's files might never return.
            return (facts, None);
        }
        let (image, file) = look_at_image(pools, record);
        let identity = VolumeIdentity::of(record, file);
        let state = match &self.kernel {
            Ok(Some(kernel)) => Ok(VolumeState::of(kernel, identity)),
            Ok(None) => {
                VolumeState::look(pools.kernel(), &identity, paths).map_err(|e| e.to_string())
            }
            Err(why) => Err(why.clone()),
        };
        let state = match state {
            Ok(state) => state,
            Err(why) => {
                facts.problems = vec![Problem::ImageUnreadable(why)];
                facts.problems.extend(refused_options(record));
                return (facts, None);
            }
        };
        facts.problems = volume_problems(record, &image, &state);
        facts
            .problems
            .extend(lost_fault_disk(pools, record, &state));
        if state.has_shut_down(record) {
            // The first problem of a kind counts.
            facts.problems.push(shut_down_problem(record));
        } else {
            let errors = filesystem_errors(pools.kernel(), &state, record);
            facts.problems.extend(errors.map(Problem::FilesystemErrors));
            let smaller = filesystem_size::smaller(pools, &state, record);
            facts
                .problems
                .extend(smaller.map(Problem::FilesystemSmaller));
        }
        facts.problems.extend(refused_options(record));
        (facts, Some(state))
    }
}

/// The problem of an attached volume without its fault disk.
fn lost_fault_disk(pools: &Pools, record: &VolumeRecord, state: &VolumeState) -> Option<Problem> {
    record.fault_disk.as_ref()?;
    state.own().next()?;
    match pools.fault_disks().state(record.id) {
        Ok(DiskPresence::Serving) => None,
        // The record has the fault that has cut it.
        Ok(DiskPresence::Cut) => record.fault.as_deref().map(stop_problem),
        Ok(DiskPresence::Gone) => Some(Problem::FaultDiskGone),
        Err(error) => {
            tracing::warn!(volume = %record.id, %error, "can't ask the server of fault disks");
            None
        }
    }
}

fn look_at_image(pools: &Pools, record: &VolumeRecord) -> (ImageState, Option<FileId>) {
    let file = match pools.open_image_unchecked(record) {
        Ok(file) => file,
        Err(storage::Error::ImageMissing { .. }) => return (ImageState::Missing, None),
        Err(e) => return (ImageState::Unreadable(e.to_string()), None),
    };
    image_state(&file).unwrap_or_else(|e| (ImageState::Unreadable(e.to_string()), None))
}

fn image_state(file: &File) -> kernel::Result<(ImageState, Option<FileId>)> {
    let (bytes, allocated) = (file::length(file)?, file::allocated_bytes(file)?);
    Ok((
        ImageState::Present { bytes, allocated },
        Some(kernel::file_id(file)?),
    ))
}

/// Errors that the mounted filesystem reports. A failed query does not count: the mount may
/// disappear meanwhile.
fn filesystem_errors(
    kernel: &dyn Kernel,
    state: &VolumeState,
    record: &VolumeRecord,
) -> Option<String> {
    let mount = state.staged_mount(record.stage.as_ref()?)?;
    let fs = match record.format {
        Format::Done(fs) | Format::Formatting(fs) => Some(fs),
        Format::None | Format::Raw => FsType::parse(&mount.fs_type),
    };
    let errors = kernel.fs_errors(&mount.mount_point, mount.loop_minor()?, fs?);
    errors.unwrap_or_default()
}

/// The mount options of a staged volume that no class may set any more.
fn refused_options(record: &VolumeRecord) -> Option<Problem> {
    let stage = record.stage.as_deref()?;
    let Access::Mount { fs, flags, .. } = &stage.capability.access else {
        return None;
    };
    let refused: Vec<String> = refused_mount_options(*fs, flags)
        .into_iter()
        .map(|option| option.name)
        .collect();
    (!refused.is_empty()).then_some(Problem::MountOptionsRefused(refused))
}

/// What recovery noted of a volume.
fn noted(pools: &Pools, record: &VolumeRecord) -> Vec<String> {
    pools
        .noted_problems()
        .into_iter()
        .filter(|noted| noted.about == About::Volume(record.id))
        .map(|noted| noted.problem.message())
        .collect()
}
