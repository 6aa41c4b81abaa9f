//! What faults on request do to the pool of a slot. The crate's `pool_faults` says when.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::Pools;
use crate::diagnose::NotedFault;
use crate::fault_disks::FaultDisks;
use crate::storage::{Error, Pool, PoolId, Result, VolumeId};

impl Pools {
    /// Notes the fault of a pool, which health explains by it, or that it has none.
    pub fn note_fault(&self, slot: usize, fault: Option<NotedFault>) {
        self.slots.write()[slot].fault = fault;
    }

    /// The open pool of a slot; [`Error::Unavailable`] if it is missing.
    fn of_slot(&self, slot: usize) -> Result<Arc<Pool>> {
        self.slots.read()[slot].pool()
    }

    /// Lets an open pool be missing for this reason. It keeps its files open and its locks, and is not
    /// opened again. Refused if the fault of a claim has frozen a volume in it, also just now.
    pub fn set_aside(&self, slot: usize, why: String) -> Result<()> {
        let pool = self.of_slot(slot)?;
        {
            let slot = &mut self.slots.write()[slot];
            slot.state = Err(why);
            slot.set_aside = Some(pool.clone());
        }
        refuse_frozen(&pool).inspect_err(|_| self.bring_back(slot))?;
        self.end_delays_in(&pool);
        Ok(())
    }

    /// Ends [`Pools::set_aside`].
    pub fn bring_back(&self, slot: usize) {
        let slot = &mut self.slots.write()[slot];
        if let Some(pool) = slot.set_aside.take() {
            slot.state = Ok(pool);
        }
    }

    /// The pool with this identity, if it is only set aside.
    pub(in crate::storage) fn pool_set_aside(&self, id: PoolId) -> Option<Arc<Pool>> {
        let slots = self.slots.read();
        let mut aside = slots.iter().filter_map(|slot| slot.set_aside.clone());
        aside.find(|pool| pool.id() == id)
    }

    /// Notes that a volume was unstaged at this path, if its pool is only set aside: then no recovery
    /// follows, which would clear the stage. The stage of a volume on a fault disk stays, because it says
    /// which file the volume's device is over.
    pub fn clear_stage_if_set_aside(&self, id: VolumeId, path: &Path) {
        if self.pool_set_aside(id.pool()).is_none() {
            return;
        }
        let cleared = self.clear_in_volume(&id, |record| {
            let is_it = record.fault_disk.is_none()
                && record
                    .stage
                    .as_ref()
                    .is_some_and(|stage| stage.path == path);
            if is_it {
                record.stage = None;
            }
        });
        if let Err(error) = cleared {
            tracing::warn!(volume = %id, %error, "its record still says that it is staged");
        }
    }

    /// Lets all that needs the pool's files wait, for this time at most. Refused as
    /// [`Pools::set_aside`] is.
    pub fn hold_up(&self, slot: usize, time: Duration) -> Result<()> {
        let pool = self.of_slot(slot)?;
        pool.layout.gate.close(time);
        refuse_frozen(&pool).inspect_err(|_| pool.layout.gate.open())?;
        self.end_delays_in(&pool);
        Ok(())
    }

    /// The fault disks of this node.
    pub(crate) fn fault_disks(&self) -> FaultDisks {
        FaultDisks::of(&self.options.state_dir)
    }

    /// Ends the delays that faults of claims give the disks of a pool's volumes: as long as the pool can't
    /// be reached, these faults can't end.
    fn end_delays_in(&self, pool: &Pool) {
        let disks = self.fault_disks();
        let faulty = pool.index.read().faulty_volumes();
        for volume in &faulty {
            disks.end_delays(volume);
        }
    }

    /// Ends [`Pools::hold_up`].
    pub fn release(&self, slot: usize) {
        if let Ok(pool) = self.of_slot(slot) {
            pool.layout.gate.open();
        }
    }

    /// Takes all free room of the pool's filesystem. False if that holds other files by now.
    pub fn fill(&self, slot: usize) -> Result<bool> {
        self.of_slot(slot)?.fill()
    }

    /// Ends [`Pools::fill`]. A pool that has gone meanwhile loses the file when it is opened again.
    pub fn empty(&self, slot: usize) -> Result<()> {
        match self.of_slot(slot) {
            Ok(pool) => pool.empty(),
            Err(Error::Unavailable { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Fails while the pool is missing, or hangs by a fault. A fault of a claim that has recorded its
    /// freeze asks for this: the freeze could not end meanwhile.
    pub fn check_answers(&self, id: PoolId) -> Result<()> {
        let pool = self.with_id(id)?;
        if pool.layout.gate.is_closed() {
            return Err(Error::Unavailable {
                name: pool.name().to_owned(),
                why: "it hangs, by a fault that an administrator has asked for".to_owned(),
            });
        }
        Ok(())
    }

    /// A volume in the pool that the fault of its claim has frozen.
    pub fn frozen_volume(&self, slot: usize) -> Option<VolumeId> {
        let pool = self.of_slot(slot).ok()?;
        frozen_in(&pool)
    }
}

/// Fails if the fault of a claim has frozen a volume in the pool. Such a fault records its freeze, and
/// then looks for the pool ([`Pools::check_answers`]): one of the two sees the other.
fn refuse_frozen(pool: &Pool) -> Result<()> {
    let Some(frozen) = frozen_in(pool) else {
        return Ok(());
    };
    Err(Error::Refused(format!(
        "the fault of its claim freezes volume {frozen} at this moment: clear that fault first"
    )))
}

fn frozen_in(pool: &Pool) -> Option<VolumeId> {
    let faulty = pool.index.read().faulty_volumes();
    let frozen = faulty.iter().find(|volume| volume.is_frozen_by_fault());
    frozen.map(|volume| volume.id)
}
