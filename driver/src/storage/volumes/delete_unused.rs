//! Deletion of volumes: refused while a volume is in use.

use crate::diagnose::{KernelState, VolumeIdentity, VolumeState};
use crate::kernel::{self, Detached, FileId, LoopInfo};
use crate::storage::file_names::EntryKind;
use crate::storage::{About, Error, Freed, Pool, Pools, Result, Stage, VolumeHandle, VolumeId};

impl Pools {
    /// Deletes a volume and frees its space. Fails with [`Error::Attached`] while the volume is
    /// staged, or used in this mount namespace. A container with a copy of the mount, or a program
    /// with an open handle, may still hold the loop device. The device then detaches at its last
    /// close, and only that frees the space. A missing volume is [`Error::NoVolume`].
    pub fn delete_volume(&self, id: &VolumeId) -> Result<()> {
        let record = self.volume(&VolumeHandle::Id(*id))?;
        // A node that shares the kernel may use it without a trace in this mount namespace.
        let node = record.publications.keys().next();
        if let Some(node) = node.filter(|_| record.is_shared()) {
            return Err(Error::Attached {
                volume: VolumeHandle::Id(*id),
                by: format!("it is published to node {node}"),
            });
        }
        self.delete(*id, record.stage.as_deref())
    }

    /// Deletes a volume with an unusable record, like [`Pools::delete_volume`]. Its publications
    /// are unknown, so its `state.json` and the kernel show whether it is in use.
    pub fn delete_unrecorded_volume(&self, id: VolumeId) -> Result<()> {
        let pool = self.with_id(id.pool())?;
        pool.index.read().volumes.check_deletable(id)?;
        let (stage, _) = pool.state_until_reboot(id);
        self.delete(id, stage.as_deref())
    }

    /// Deletes a volume that was just unstaged, though its record still has the stage. If this
    /// fails, recovery uses the stage to find the volume.
    pub fn delete_unstaged_volume(&self, id: &VolumeId) -> Result<()> {
        self.delete(*id, None)
    }

    fn delete(&self, id: VolumeId, stage: Option<&Stage>) -> Result<()> {
        let pool = self.with_id(id.pool())?;
        let image = pool.stat_image(&id)?.map(|image| image.file);
        if let Some(image) = image {
            self.unmount_scratch(id, image)?;
        }
        let is_detached = self.detach_idle(id, stage, image)?;
        pool.drop_volume(id)?;
        if let Some(image) = image.filter(|_| is_detached) {
            kernel::forget_stand_ins_of(image);
        }
        self.growths.forget(id);
        Ok(())
    }

    /// Detaches the image's loop devices, if they have no users in this mount namespace. A device
    /// may also hold an image that was removed: then it has the only copy of the data. False if a
    /// device detaches later.
    fn detach_idle(
        &self,
        id: VolumeId,
        stage: Option<&Stage>,
        image: Option<FileId>,
    ) -> Result<bool> {
        if let Some(image) = image
            && kernel::loops_holding(&*self.kernel, image, &id.to_string())?.is_empty()
        {
            return Ok(true);
        }
        // A mount that is not known yet would lose its image, so this reads everything.
        let kernel_state = KernelState::read(&*self.kernel)?;
        let state = VolumeState::of(
            &kernel_state,
            VolumeIdentity::without_record(id, image, stage),
        );
        let attached: Vec<&LoopInfo> = state.own().collect();
        for device in &attached {
            let mut users = kernel_state.users(device.minor);
            if let Some(stage) = stage {
                users.push(format!("staged at {}", stage.path.display()));
            }
            if users.is_empty() {
                kernel::refuse_unknown_mount(&*self.kernel, &kernel_state.mounts, device.minor)?;
            } else {
                let freed = Freed::Volume(id.to_string());
                self.announce_at_detach(device, freed);
                return Err(Error::Attached {
                    volume: VolumeHandle::Id(id),
                    by: format!("/dev/loop{} is {}", device.minor, users.join(", ")),
                });
            }
        }
        let mut is_detached = true;
        for device in attached {
            // This also marks a device that is held elsewhere to detach at its last close.
            if self.kernel.loop_release(device)? == Detached::WhenClosed {
                tracing::info!(
                    volume = %id, device = %kernel::loop_path(device.minor).display(),
                    "the volume's device is held elsewhere: its space is free when that ends"
                );
                self.announce_at_detach(device, Freed::Room);
                is_detached = false;
            }
        }
        Ok(is_detached)
    }
}

impl Pool {
    /// Deletes a volume and frees its space, with that of its deleted snapshots.
    pub(in crate::storage) fn drop_volume(&self, id: VolumeId) -> Result<()> {
        let entry = id.to_string();
        self.layout.discard(EntryKind::Volumes, &entry)?;
        self.index.write().take_volume(id);
        self.synced.lock().remove(&id);
        self.forget(&About::Volume(id));
        self.layout.free(&entry);
        self.drop_surplus_bases(id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{Publication, Reach};
    use crate::testkit::{Site, mounted, stage_at};

    #[test]
    fn an_attached_volume_is_not_deleted() {
        let site = Site::fake(&["a"]);
        let made = site.make("one");
        let device = site.attach(&made);
        let staged = stage_at("/stage", mounted(), Some(device.minor));
        site.update(made.id, |r| r.stage = Some(staged));
        drop(device);
        refused!(site.pools().delete_volume(&made.id), Error::Attached { .. });

        // An unstaged device without users is a leftover of a crash.
        site.update(made.id, |r| r.stage = None);
        site.pools().delete_volume(&made.id).unwrap();
        assert!(site.pools().kernel().loops().unwrap().is_empty());
        assert!(site.entries().is_empty());
    }

    #[test]
    fn a_shared_volume_is_not_deleted_while_it_is_published() {
        let site = Site::fake(&["a"]);
        let made = site.make("one");
        let publication = Publication {
            capability: mounted(),
            readonly: false,
        };
        site.update(made.id, |r| {
            r.reach = Reach::Kernel;
            r.publications.insert("n2".to_owned(), publication);
        });
        refused!(site.pools().delete_volume(&made.id), Error::Attached { .. });
        site.update(made.id, |r| r.publications.clear());
        site.pools().delete_volume(&made.id).unwrap();
        assert!(site.entries().is_empty());
    }

    #[test]
    fn a_deleted_volume_has_no_fault_disk_any_more() {
        let site = Site::fake(&["a"]);
        let made = site.make("one");
        let image = site.image_of(&made);
        // No file has this device number.
        let disk = FileId {
            dev: u64::MAX,
            ino: 571,
        };
        kernel::stand_in(disk, image);
        site.pools().delete_volume(&made.id).unwrap();
        assert_eq!(kernel::image_of(disk), disk);
    }
}
