//! What the snapshots of a volume promise together. Pure.
//!
//! A snapshot never changes, so the snapshots of a volume never hold more than all the blocks that
//! are in any of them. Each one promises only the blocks that it does not share with an earlier
//! one, its *base*, so a block counts with the first snapshot that has it. When a base is deleted,
//! the snapshots that count on it promise its blocks, too.

use std::collections::{BTreeMap, HashMap};

use super::{SnapshotId, VolumeId};

#[cfg(test)]
mod tests;

/// A snapshot's part of what the snapshots of its volume promise, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    /// The earlier snapshot with which it shares the rest.
    base: Option<SnapshotId>,
    /// What it promises without a base; `None` while it is taken.
    all: Option<u64>,
    /// What it promises beside its base. While it is taken: what it inherited from deleted ones.
    own: u64,
}

/// The snapshots of a pool, and on which others they count.
#[derive(Clone, Debug, Default)]
pub(super) struct Lineage {
    volumes: HashMap<VolumeId, BTreeMap<SnapshotId, Part>>,
    /// Bytes of all parts that do not count, because a base has them.
    shared: u64,
    /// Bytes that snapshots promise while they are taken.
    inherited: u64,
}

impl Lineage {
    /// What the snapshots of the pool promise, if they would promise `all` without bases.
    pub(super) fn promised(&self, all: u64) -> u64 {
        all.saturating_sub(self.shared)
            .saturating_add(self.inherited)
    }

    /// The newest snapshot of a volume.
    pub(super) fn newest(&self, volume: VolumeId) -> Option<SnapshotId> {
        let parts = self.volumes.get(&volume)?.iter();
        parts
            .rev()
            .find(|(_, part)| part.all.is_some())
            .map(|(id, _)| *id)
    }

    /// What a snapshot promises; `None` if nothing is known of it.
    pub(super) fn own(&self, volume: VolumeId, id: SnapshotId) -> Option<u64> {
        self.part(volume, id).map(|part| part.own)
    }

    /// Begins to take a snapshot that is to count on this base. [`Lineage::take`] ends it without
    /// a snapshot.
    pub(super) fn begin(&mut self, volume: VolumeId, id: SnapshotId, base: SnapshotId) {
        let exists = self.part(volume, base).is_some();
        let part = Part {
            base: exists.then_some(base),
            ..Part::default()
        };
        self.set(volume, id, part);
    }

    /// Adds a snapshot that promises `all` without a base, and `own` beside the one that
    /// [`Lineage::begin`] named.
    pub(super) fn put(&mut self, volume: VolumeId, id: SnapshotId, all: u64, own: u64) {
        let part = match self.part(volume, id) {
            Some(Part {
                base,
                all: None,
                own: inherited,
            }) if base.is_some() || inherited > 0 => Part {
                base,
                all: Some(all),
                own: all.min(own.saturating_add(inherited)),
            },
            _ => Part {
                base: None,
                all: Some(all),
                own: all,
            },
        };
        self.set(volume, id, part);
    }

    /// Notes that a snapshot promises no more than `own` beside this base, if both exist and it has
    /// none yet.
    pub(super) fn count_on(
        &mut self,
        volume: VolumeId,
        id: SnapshotId,
        base: SnapshotId,
        own: u64,
    ) {
        let (Some(part), Some(_)) = (self.part(volume, id), self.part(volume, base)) else {
            return;
        };
        let Part {
            base: None,
            all: Some(all),
            ..
        } = part
        else {
            return;
        };
        let mut earlier = Some(base);
        while let Some(at) = earlier {
            if at == id {
                return;
            }
            earlier = self.part(volume, at).and_then(|part| part.base);
        }
        self.set(
            volume,
            id,
            Part {
                base: Some(base),
                own: part.own.min(own),
                all: Some(all),
            },
        );
    }

    /// Removes a snapshot. Those that count on it promise its part, and count on its base.
    pub(super) fn take(&mut self, volume: VolumeId, id: SnapshotId) {
        let Some(gone) = self.remove(volume, id) else {
            return;
        };
        let parts = self.volumes.get(&volume).into_iter().flatten();
        let heirs = parts.filter(|(_, part)| part.base == Some(id));
        let heirs: Vec<(SnapshotId, Part)> = heirs.map(|(id, part)| (*id, *part)).collect();
        for (heir, part) in heirs {
            let own = part
                .own
                .saturating_add(gone.own)
                .min(part.all.unwrap_or(u64::MAX));
            self.set(
                volume,
                heir,
                Part {
                    base: gone.base,
                    own,
                    ..part
                },
            );
        }
    }

    /// The snapshots without a base that have an earlier one of their volume, with that one.
    pub(super) fn without_base(&self) -> Vec<(VolumeId, SnapshotId, SnapshotId)> {
        let mut found = Vec::new();
        for (volume, parts) in &self.volumes {
            let whole = parts.iter().filter(|(_, part)| part.all.is_some());
            let pairs = whole.clone().zip(whole.skip(1));
            let pairs = pairs.filter(|(_, (_, part))| part.base.is_none());
            found.extend(pairs.map(|((base, _), (id, _))| (*volume, *id, *base)));
        }
        found
    }

    fn part(&self, volume: VolumeId, id: SnapshotId) -> Option<Part> {
        self.volumes.get(&volume)?.get(&id).copied()
    }

    fn set(&mut self, volume: VolumeId, id: SnapshotId, part: Part) {
        self.remove(volume, id);
        match part.all {
            Some(all) => self.shared += all.saturating_sub(part.own),
            None => self.inherited += part.own,
        }
        self.volumes.entry(volume).or_default().insert(id, part);
    }

    fn remove(&mut self, volume: VolumeId, id: SnapshotId) -> Option<Part> {
        let parts = self.volumes.get_mut(&volume)?;
        let part = parts.remove(&id)?;
        if parts.is_empty() {
            self.volumes.remove(&volume);
        }
        match part.all {
            Some(all) => self.shared -= all.saturating_sub(part.own),
            None => self.inherited -= part.own,
        }
        Some(part)
    }
}
