//! Promises never exceed the room, by a count of the oracle's own: of records, and of the space that
//! files have on the disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use hostloop_driver::storage::{Provisioning, SnapshotRecord};
use hostloop_report::pool_files::{SNAPSHOTS, VOLUMES};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::machine::disk_usage::{SIZE, used_in};
use crate::machine::{CAPACITY, Contents, Machine};
use crate::model::view::{name, text};
use crate::oracle::capacity::provisioning;
use crate::oracle::objects::node_of_capacity;
use crate::oracle::shared_blocks::{
    ChangedBlocks, bytes_of_families, bytes_of_snapshots, promised_to, saved_by_images, space_of,
};
use crate::users::bytes;
use crate::{effects, shim, trace};

/// What a pool never promises, in bytes: by default, a twentieth of its disk.
const RESERVE: u64 = SIZE / 20;
/// What a node may publish too much, in bytes: small files come and go.
pub(super) const LITTLE: u64 = 4 << 20;
/// How long a node may publish too much. It looks every minute, or in some clusters every 150 seconds.
pub(super) const LATE: Duration = Duration::from_secs(300);

/// What the oracle knows of the pools, and of what nodes publish about them.
#[derive(Default)]
pub(super) struct Promises {
    /// The number of changes at which the pools were measured.
    changes: Option<u64>,
    /// By node.
    spaces: BTreeMap<&'static str, Space>,
    /// Since when capacities are too high, by their names.
    too_high: BTreeMap<String, Duration>,
    /// What snapshots have changed.
    changed: ChangedBlocks,
}

/// The space of a pool, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Space {
    /// Promised to volumes, and to snapshots at least.
    promised: u64,
    /// Promised to volumes, and to snapshots at most.
    promised_at_most: u64,
    /// All that its files have on the disk.
    used: u64,
    /// The part of it in images.
    images: u64,
    /// The part of that which backs promises beyond doubt.
    backing: u64,
    /// What is on the disk beside its files.
    others: u64,
    /// What the records of thick volumes promise and their images lack.
    lacking: u64,
    overcommit: u64,
}

impl Space {
    fn of(machine: &Machine, contents: &Contents, changed: &ChangedBlocks) -> Space {
        let pool = machine.pool();
        let images = images_in(&pool.join(VOLUMES)) + images_in(&pool.join(SNAPSHOTS));
        let volumes = promised_to_volumes(contents);
        let space = Space {
            promised: volumes + promised_to_snapshots(snapshots_of(contents)),
            promised_at_most: volumes + snapshots_of(contents).map(promised_to).sum::<u64>(),
            used: used_in(&pool, &machine.kernel().shared_blocks()),
            images,
            backing: images,
            others: machine.others(),
            lacking: lacking(&pool, contents),
            overcommit: machine.overcommit(),
        };
        if !machine.shares_blocks() {
            return space;
        }
        let snapshots: Vec<&SnapshotRecord> = snapshots_of(contents).collect();
        let on_disk = volumes + bytes_of_snapshots(machine, &snapshots);
        let images = images.saturating_sub(saved_by_images(machine));
        Space {
            promised: space.promised.max(on_disk),
            promised_at_most: volumes + changed.most_of_snapshots(&snapshots),
            images,
            backing: bytes_of_families(&pool, contents),
            ..space
        }
    }

    /// The most that can be left for new volumes.
    fn left(self, provisioning: Provisioning) -> u64 {
        let free = SIZE.saturating_sub(self.used);
        left(
            (free, self.images),
            self.promised,
            self.overcommit,
            provisioning,
        )
    }

    /// The least that is left for new volumes. Space that was never promised backs no promise.
    pub(super) fn least_left(self, provisioning: Provisioning) -> u64 {
        let free = SIZE.saturating_sub(self.used + self.others);
        let images = self.backing.min(self.promised_at_most);
        left(
            (free, images),
            self.promised_at_most,
            self.overcommit,
            provisioning,
        )
    }

    /// What is promised and not there, if something is.
    fn excess(self) -> Option<String> {
        let most = CAPACITY.min((SIZE - RESERVE) * self.overcommit);
        let Space {
            promised,
            used,
            lacking,
            ..
        } = self;
        if promised > most {
            return Some(format!("{promised} bytes are promised, of at most {most}"));
        }
        if used > SIZE {
            return Some(format!("{used} bytes are in use, of {SIZE}"));
        }
        (lacking > 0).then(|| format!("thick volumes lack {lacking} of their bytes"))
    }
}

/// What is left for new volumes of a disk with free space and images, in bytes.
fn left(
    (free, images): (u64, u64),
    promised: u64,
    overcommit: u64,
    provisioning: Provisioning,
) -> u64 {
    let room = (free + images).saturating_sub(RESERVE);
    let thin = CAPACITY.min(room * overcommit).saturating_sub(promised);
    match provisioning {
        Provisioning::Thin => thin,
        Provisioning::Thick => thin.min(free.saturating_sub(RESERVE)),
    }
}

/// What the records of volumes promise, in bytes.
fn promised_to_volumes(contents: &Contents) -> u64 {
    let volumes = contents.volumes.iter();
    volumes.map(|volume| volume.capacity_bytes).sum()
}

fn snapshots_of(contents: &Contents) -> impl Iterator<Item = &SnapshotRecord> {
    contents.snapshots.iter().map(|snapshot| &**snapshot)
}

/// What snapshots promise at least, in bytes. Those of a volume may share their blocks, so of those the
/// largest counts.
pub(super) fn promised_to_snapshots<'a>(
    snapshots: impl IntoIterator<Item = &'a SnapshotRecord>,
) -> u64 {
    let mut largest = BTreeMap::new();
    for snapshot in snapshots {
        let most = largest.entry(snapshot.source).or_insert(0_u64);
        *most = (*most).max(promised_to(snapshot));
    }
    largest.into_values().sum()
}

/// The space of all images in a folder with a folder for each, in bytes.
fn images_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| space_of(&entry.path())).sum()
}

/// What the images of thick volumes lack, in bytes.
fn lacking(pool: &Path, contents: &Contents) -> u64 {
    let volumes = contents.volumes.iter();
    let thick = volumes.filter(|volume| volume.settings.provisioning == Provisioning::Thick);
    let lacking = thick.map(|volume| {
        let folder = pool.join(VOLUMES).join(volume.id.to_string());
        volume.capacity_bytes.saturating_sub(space_of(&folder))
    });
    lacking.sum()
}

impl Promises {
    /// The space of the pool of a node.
    pub(super) fn space(&self, node: &str) -> Option<Space> {
        self.spaces.get(node).copied()
    }

    /// Checks the pools, if something has changed, and looks at what nodes publish.
    pub(super) fn check(&mut self, cluster: &Cluster) {
        let changes = effects::changes();
        if changes.is_none() || changes != self.changes {
            self.changes = changes;
            for machine in &cluster.machines {
                self.measure(machine);
            }
        }
        let mut too_high = BTreeMap::new();
        for capacity in cluster.api.shared("csistoragecapacities") {
            let space = self.space(node_of_capacity(&capacity));
            let class = text(&capacity, "/storageClassName");
            if space
                .is_some_and(|space| exceeds(&capacity, provisioning(cluster, class, ""), space))
            {
                let name = name(&capacity).to_owned();
                let since = self.too_high.get(&name).copied();
                too_high.insert(name, since.unwrap_or_else(shim::now));
            }
        }
        self.too_high = too_high;
    }

    /// The space of a node's pool, as it is now.
    pub(super) fn space_now(&self, machine: &Machine) -> Space {
        Space::of(machine, &machine.contents(), &self.changed)
    }

    fn measure(&mut self, machine: &Machine) {
        if machine.shares_blocks() {
            self.changed.note(machine, &machine.contents());
        }
        let mut space = self.space_now(machine);
        // Recovery makes the record as large as an image that was about to grow, and a power cut
        // may take blocks from that.
        if machine.has_lost_power() {
            space.lacking = 0;
        }
        if let Some(excess) = space.excess() {
            let node = machine.name();
            trace::violation(format!("promised too much on {node}: {excess}"));
        }
        self.spaces.insert(machine.name(), space);
    }

    /// Checks after a quiet time that no node publishes more room than it has.
    pub(super) fn is_published(&self, cluster: &Cluster) {
        for (name, since) in &self.too_high {
            if shim::now() < *since + LATE {
                continue;
            }
            let objects = cluster.api.shared("csistoragecapacities");
            let object = objects.iter().find(|one| self::name(one) == name);
            let Some(object) = object else {
                continue;
            };
            let node = node_of_capacity(object);
            trace::violation(format!(
                "published too much: {} of class {} on {node}, since {since:?}: the pool has {:?}",
                object["capacity"],
                object["storageClassName"],
                self.space(node),
            ));
        }
    }
}

/// True if a capacity for volumes that are provisioned so is more than a pool has left.
fn exceeds(capacity: &Value, provisioning: Provisioning, space: Space) -> bool {
    let published = bytes(&capacity["capacity"]).max(bytes(&capacity["maximumVolumeSize"]));
    published > space.left(provisioning) + LITTLE
}

#[cfg(test)]
impl Space {
    /// A pool on an empty disk that has promised so many bytes.
    pub(super) fn promising(bytes: u64) -> Space {
        Space {
            promised: bytes,
            promised_at_most: bytes,
            overcommit: 1,
            ..Space::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn space(promised: u64, used: u64, images: u64, overcommit: u64) -> Space {
        Space {
            promised: promised * MIB,
            promised_at_most: promised * MIB,
            used: used * MIB,
            images: images * MIB,
            backing: images * MIB,
            overcommit,
            ..Space::default()
        }
    }

    #[rstest]
    #[case::empty(space(0, 0, 0, 1), SIZE - RESERVE, SIZE - RESERVE)]
    #[case::promised(space(100, 0, 0, 1), SIZE - RESERVE - 100 * MIB, SIZE - RESERVE - 100 * MIB)]
    #[case::written(
        space(100, 60, 60, 1), SIZE - RESERVE - 100 * MIB, SIZE - RESERVE - 100 * MIB)]
    #[case::used_by_others(
        space(0, 60, 0, 1), SIZE - RESERVE - 60 * MIB, SIZE - RESERVE - 60 * MIB)]
    #[case::overcommitted(space(100, 60, 60, 3), CAPACITY - 100 * MIB, SIZE - RESERVE - 60 * MIB)]
    #[case::full(space(2048, 700, 700, 3), 0, SIZE - RESERVE - 700 * MIB)]
    fn what_is_left(#[case] space: Space, #[case] thin: u64, #[case] free: u64) {
        assert_eq!(space.left(Provisioning::Thin), thin);
        assert_eq!(space.left(Provisioning::Thick), thin.min(free));
    }

    #[rstest]
    #[case::empty(space(0, 0, 0, 1), SIZE - RESERVE)]
    #[case::written(space(100, 60, 60, 1), SIZE - RESERVE - 100 * MIB)]
    #[case::beside_others(
        Space { others: 60 * MIB, ..space(100, 0, 0, 1) }, SIZE - RESERVE - 160 * MIB)]
    #[case::with_several_snapshots(
        Space { promised_at_most: 130 * MIB, ..space(100, 0, 0, 1) }, SIZE - RESERVE - 130 * MIB)]
    #[case::with_shared_blocks(
        Space { backing: 20 * MIB, ..space(100, 60, 60, 1) }, SIZE - RESERVE - 140 * MIB)]
    #[case::larger_than_promised(space(50, 60, 60, 1), SIZE - RESERVE - 60 * MIB)]
    fn what_is_left_at_least(#[case] space: Space, #[case] least: u64) {
        assert_eq!(space.least_left(Provisioning::Thin), least);
        assert!(least <= space.left(Provisioning::Thin));
    }

    #[rstest]
    #[case::full(space(729, 700, 700, 1), false)]
    #[case::promised(space(730, 0, 0, 1), true)]
    #[case::overcommitted(space(2048, 0, 0, 3), false)]
    #[case::beyond_its_capacity(space(2049, 0, 0, 3), true)]
    #[case::beyond_its_disk(space(0, 769, 0, 1), true)]
    #[case::thick(Space { lacking: 1, ..space(1, 1, 0, 1) }, true)]
    fn promises(#[case] space: Space, #[case] is_too_much: bool) {
        assert_eq!(space.excess().is_some(), is_too_much, "{space:?}");
    }

    #[test]
    fn capacities_of_both_kinds_are_compared() {
        let (half, left) = (space(300, 500, 300, 3), SIZE - RESERVE - 500 * MIB);
        for (provisioning, published, expected) in [
            (Provisioning::Thin, 1288 * MIB, false),
            (Provisioning::Thin, 1300 * MIB, true),
            (Provisioning::Thick, left, false),
            (Provisioning::Thick, left + LITTLE + MIB, true),
        ] {
            let capacity = json!({"capacity": published.to_string()});
            let found = exceeds(&capacity, provisioning, half);
            assert_eq!(found, expected, "{provisioning:?} {published}");
        }
    }
}
