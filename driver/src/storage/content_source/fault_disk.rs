//! What the fault disk of a source has yet to write to the image.

use super::CopyJob;
use crate::kernel::{self, LoopInfo};
use crate::storage::{Error, Pools, Result, VolumeId};

/// The source, if it is a volume on a fault disk.
fn on_fault_disk(job: &CopyJob) -> Option<VolumeId> {
    let volume = job.source.volume()?;
    volume.fault_disk.as_ref().map(|_| volume.id)
}

impl Pools {
    /// Waits until a source that is not attached has all that was written to its fault disk. A
    /// staging that recovery ends, or that ends while its pool is missing, does not wait for that.
    pub(super) fn end_fault_disk(&self, job: &CopyJob) -> Result<()> {
        let Some(id) = on_fault_disk(job) else {
            return Ok(());
        };
        if !self.devices_over(job, id)?.is_empty() {
            return Ok(());
        }
        let ended = self.fault_disks().end(id);
        ended.map_err(|error| {
            Error::Refused(format!(
                "the fault disk of volume {id} may have more to write to its image: {error}"
            ))
        })
    }

    /// Ends the delays that a fault gives the disk of a source: a copy writes back first.
    pub(super) fn end_disk_delays(&self, job: &CopyJob) {
        if let Some(volume) = job.source.volume() {
            self.fault_disks().end_delays(volume);
        }
    }

    /// Flushes the fault disk of a source that is at rest. A filesystem that is mounted with
    /// nobarrier has not done that.
    pub(super) fn flush_fault_disk(&self, job: &CopyJob) -> Result<()> {
        let Some(id) = on_fault_disk(job) else {
            return Ok(());
        };
        for device in self.devices_over(job, id)? {
            match self.kernel.loop_open(device.minor, job.from_id) {
                Ok(device) => self.kernel.loop_flush(&device)?,
                Err(kernel::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // A device may have detached meanwhile.
        self.end_fault_disk(job)
    }

    fn devices_over(&self, job: &CopyJob, id: VolumeId) -> kernel::Result<Vec<LoopInfo>> {
        kernel::loops_holding(&*self.kernel, job.from_id, &id.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hostloop_fault_disk::protocol::Answer;

    use super::*;
    use crate::fault_disks::testing::answer_all;
    use crate::storage::{FaultDiskRecord, NewVolume, Source, VolumeRecord};
    use crate::testkit::{Site, new};

    fn volume(site: &Site, name: &str, fault_disk: Option<FaultDiskRecord>) -> Arc<VolumeRecord> {
        let volume = NewVolume {
            fault_disk,
            ..new(name)
        };
        site.create(volume)
    }

    fn copy(site: &Site, of: &VolumeRecord, name: &str) -> Result<Arc<VolumeRecord>> {
        let copy = NewVolume {
            source: Some(Source::Volume(of.id)),
            ..new(name)
        };
        site.pools().create_volume(&site.pool(), copy)
    }

    #[test]
    fn a_copy_waits_for_the_end_of_a_fault_disk() {
        let site = Site::fake(&["a"]);
        let source = volume(&site, "one", Some(FaultDiskRecord::default()));
        let in_use = Answer::InUse(source.id.to_string());
        answer_all(&site.options.state_dir, &in_use);
        refused!(copy(&site, &source, "early"), Error::Refused(_));
        answer_all(&site.options.state_dir, &Answer::Done);
        copy(&site, &source, "late").unwrap();
        // Its device is attached, and so its disk goes on.
        answer_all(&site.options.state_dir, &in_use);
        let _mounted = site.mounted(&source, "mount");
        copy(&site, &source, "mounted").unwrap();
    }

    #[test]
    fn a_frozen_fault_disk_is_flushed_before_it_is_copied() {
        let site = Site::fake(&["a"]);
        for (name, disk, expected) in [
            ("plain", None, vec!["freeze", "thaw"]),
            (
                "disk",
                Some(FaultDiskRecord::default()),
                vec!["freeze", "loop.flush", "thaw"],
            ),
        ] {
            let source = volume(&site, name, disk);
            let _mounted = site.mounted(&source, &format!("mount-{name}"));
            let before = site.kernel.effects().len();
            copy(&site, &source, &format!("copy-{name}")).unwrap();
            let all = site.kernel.effects();
            let done = all[before..].iter().map(|effect| effect.op);
            let done: Vec<&str> = done
                .filter(|op| ["freeze", "loop.flush", "thaw"].contains(op))
                .collect();
            assert_eq!(done, expected, "{name}");
        }
    }
}
