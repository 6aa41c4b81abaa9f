//! Growth of a volume's filesystem.
//!
//! A mounted filesystem grows. Only an ext4 may have to grow before it is mounted: the kernel grows
//! a mounted one for processes with CAP_SYS_RESOURCE alone. Whatever prevents its growth, a volume
//! that can be mounted is mounted, and health reports that its filesystem is smaller.

use std::fs::File;
use std::path::Path;

use hostloop_terminal::humanize::exact_bytes;

use super::mount_stage::MountStage;
use super::{Error, Node, Result};
use crate::csi::expansion::{self, GrowthTime};
use crate::kernel::{self, Ext4Growth, FsType, LoopDevice};
use crate::storage::{GrowthIntent, VolumeHandle, VolumeRecord};

impl MountStage<'_> {
    /// Repairs an ext4 after an interrupted growth. Call it before anything reads the filesystem.
    pub(super) fn mend_growth(&self, device: &LoopDevice) -> Result<()> {
        let Some(intent) = self.record.growth.as_deref() else {
            return Ok(());
        };
        let is_new = self.state.own().next().is_none();
        let kernel = self.node.pools.kernel();
        if !is_new && (self.is_pinned() || kernel.is_claimed(&device.path())?) {
            return Err(Error::FailedPrecondition(format!(
                "the growth of the filesystem of volume {} was interrupted, and another program or \
                 node still has its device: this repairs it once that has ended",
                self.record.id
            )));
        }
        self.mend(device, intent)
    }

    fn mend(&self, device: &LoopDevice, intent: &GrowthIntent) -> Result<()> {
        let pools = &self.node.pools;
        let kernel = pools.kernel();
        kernel.mend_growth(&device.path(), &intent.superblock, intent.begun)?;
        kernel.loop_flush(device)?;
        pools.update_volume(&self.record.id, |r| r.growth = None)?;
        Ok(())
    }

    /// True if the filesystem has to grow before it is mounted, and that moves nothing in it.
    pub(super) fn grows_unmounted(&self, device: &LoopDevice) -> Result<bool> {
        if self.fs != FsType::Ext4 {
            return Ok(false);
        }
        let kernel = self.node.pools.kernel();
        let size = kernel.loop_size(device)?;
        let growth = kernel::ext4_growth(kernel, &device.path(), size)?;
        Ok(growth == Some(Ext4Growth::Unmounted))
    }

    /// Grows an unmounted ext4. The kernel has replayed its journal.
    pub(super) fn grow_unmounted(&self, device: &LoopDevice) -> Result<()> {
        let Some(ext4) = self.node.pools.kernel().ext4(&device.path())? else {
            return Ok(());
        };
        match self.grow_recorded(device, ext4.superblock) {
            Ok(()) => self.node.grown(self.record, self.image),
            // The process ends. The next staging goes on.
            Err(error @ Error::Kernel(kernel::Error::Stopped { .. })) => Err(error),
            Err(error) => {
                let record = self.node.pools.volume(&VolumeHandle::Id(self.record.id))?;
                if let Some(intent) = record.growth.as_deref() {
                    self.mend(device, intent)?;
                }
                self.node
                    .stays_smaller(self.record, &self.requested.path, &error);
                Ok(())
            }
        }
    }

    /// Checks and grows the filesystem. Meanwhile the record has an intent: once resize2fs has
    /// begun, only its end or [`kernel::Filesystems::mend_growth`] makes the filesystem sound.
    fn grow_recorded(&self, device: &LoopDevice, superblock: Box<[u8]>) -> Result<()> {
        let pools = &self.node.pools;
        let (kernel, path) = (pools.kernel(), device.path());
        let intent = GrowthIntent {
            superblock,
            begun: false,
        };
        pools.update_volume(&self.record.id, |r| r.growth = Some(Box::new(intent)))?;
        kernel.check_whole(&path)?;
        pools.update_volume(&self.record.id, |r| {
            if let Some(intent) = &mut r.growth {
                intent.begun = true;
            }
        })?;
        kernel.grow_unmounted(&path)?;
        kernel.loop_flush(device)?;
        pools.update_volume(&self.record.id, |r| r.growth = None)?;
        Ok(())
    }
}

/// Why a mounted filesystem does not grow to this size here; `None` if it does.
pub(super) fn obstacle(
    kernel: &dyn kernel::Kernel,
    device: &Path,
    fs: FsType,
    bytes: u64,
) -> Result<Option<String>> {
    let ext4 = match fs {
        FsType::Ext4 => kernel::ext4_growth(kernel, device, bytes)?,
        FsType::Xfs | FsType::Btrfs => None,
    };
    let time = GrowthTime::Mounted {
        is_permitted: kernel.grows_mounted(fs),
    };
    Ok(expansion::obstacle(fs, bytes, ext4, time))
}

/// How the growth of a mounted filesystem ended.
enum Growth {
    /// It was as large as its device.
    Unchanged,
    Grown,
    /// It stays smaller, for this reason.
    Smaller(Error),
}

impl Node {
    /// Grows a mounted filesystem that is smaller than its device. FAILED_PRECONDITION if it can't
    /// grow: after that code, and no other, kubelet lets a pod use the volume as it is.
    pub(super) fn grow_mounted(
        &self,
        record: &VolumeRecord,
        image: &File,
        device: &LoopDevice,
        mounted_at: &Path,
        fs: FsType,
    ) -> Result<()> {
        match self.grow_filesystem(device, mounted_at, fs)? {
            Growth::Unchanged => Ok(()),
            Growth::Grown => self.grown(record, image),
            Growth::Smaller(error) => Err(error),
        }
    }

    /// Grows the filesystem of a volume during staging. Whatever prevents that, the volume stays
    /// mounted.
    pub(super) fn grow_if_possible(
        &self,
        record: &VolumeRecord,
        image: &File,
        device: &LoopDevice,
        mounted_at: &Path,
        fs: FsType,
    ) -> Result<()> {
        match self.grow_filesystem(device, mounted_at, fs)? {
            Growth::Unchanged => Ok(()),
            Growth::Grown => self.grown(record, image),
            // The process ends. The next staging goes on.
            Growth::Smaller(error @ Error::Kernel(kernel::Error::Stopped { .. })) => Err(error),
            Growth::Smaller(error) => {
                self.stays_smaller(record, mounted_at, &error);
                Ok(())
            }
        }
    }

    fn grow_filesystem(
        &self,
        device: &LoopDevice,
        mounted_at: &Path,
        fs: FsType,
    ) -> Result<Growth> {
        let kernel = self.pools.kernel();
        let (path, size) = (device.path(), kernel.loop_size(device)?);
        let now = kernel.fs_size(mounted_at, &path, fs)?;
        if now >= size {
            return Ok(Growth::Unchanged);
        }
        let why = match obstacle(kernel, &path, fs, size)? {
            Some(why) => why,
            None => match kernel.grow(&path, mounted_at, fs) {
                Ok(()) => return Ok(Growth::Grown),
                Err(error @ (kernel::Error::Tool { .. } | kernel::Error::NotRun { .. })) => {
                    error.to_string()
                }
                Err(error) => return Ok(Growth::Smaller(error.into())),
            },
        };
        let (now, size) = (exact_bytes(now), exact_bytes(size));
        let why = format!("the {fs} keeps its {now} of {size}: {why}");
        Ok(Growth::Smaller(Error::FailedPrecondition(why)))
    }

    fn grown(&self, record: &VolumeRecord, image: &File) -> Result<()> {
        self.pools.growths().ended(record.id, None);
        // ext4 zeroes its new inode tables, which punches holes into the image.
        let refilled = self.pools.refill_thick(record, image);
        refilled.map(drop).map_err(|error| {
            if error.is_no_room() {
                // Not a refusal: the filesystem has grown.
                Error::ResourceExhausted(error.to_string())
            } else {
                error.into()
            }
        })
    }

    /// Notes that a filesystem stays smaller than its volume.
    fn stays_smaller(&self, record: &VolumeRecord, path: &Path, error: &Error) {
        tracing::warn!(
            volume = %record.id, staging_target_path = %path.display(), %error,
            "cannot grow the filesystem: it stays smaller than its volume"
        );
        self.pools
            .growths()
            .ended(record.id, Some(error.to_string()));
    }
}
