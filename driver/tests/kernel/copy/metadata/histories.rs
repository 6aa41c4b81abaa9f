//! Random histories of a volume: what a delta lists, written over its base, is its target, also if
//! the base was deleted and keeps its image.
//!
//! - `DELTA_SECONDS`: how long new histories begin on each filesystem, by default two.
//! - `DELTA_SEED`: the seed of the first history; those that follow count from it.

use std::time::{Duration, Instant};

use hostloop_driver::storage::{Source, VolumeHandle};
use nix::fcntl::{FallocateFlags, fallocate};

use super::*;

/// Steps of a history between two starts of the driver.
const STEPS: u64 = 60;
/// How large a volume gets, in blocks.
const MOST_BLOCKS: u64 = 1536;

/// What is left of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    All,
    /// It is deleted, and keeps its image.
    Image,
    Nothing,
}

/// A snapshot, with its content when it was taken.
struct Taken {
    record: Arc<SnapshotRecord>,
    content: Vec<u8>,
    left: Left,
}

/// A volume, its clones, and all snapshots of it, oldest first.
struct History {
    seed: u64,
    random: Random,
    volume: Arc<VolumeRecord>,
    clones: Vec<Arc<VolumeRecord>>,
    taken: Vec<Taken>,
    /// How many deleted snapshots keep their images.
    most: usize,
    names: u64,
    compared: u64,
    /// Bytes that deltas listed, and those of their targets.
    listed: u64,
    whole: u64,
}

impl History {
    fn begin(rig: &Rig, seed: u64) -> History {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let most = 1 + random.below(3) as usize;
        History {
            volume: rig.volume(&format!("{seed}"), 512 * BLOCK, Provisioning::Thin),
            seed,
            random,
            clones: Vec::new(),
            taken: Vec::new(),
            most,
            names: 0,
            compared: 0,
            listed: 0,
            whole: 0,
        }
    }

    fn run(&mut self, rig: &Rig) {
        for _ in 0..STEPS {
            match self.random.below(20) {
                0..7 => self.change(rig, false),
                7..9 => self.change(rig, true),
                9 => self.grow(rig),
                10 => self.clone_volume(rig),
                11..14 => self.take(rig),
                14..16 => self.delete(rig),
                _ => self.compare_some(rig),
            }
        }
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("{}-{}", self.seed, self.names)
    }

    /// Writes to the volume or to a clone, or discards a part of it.
    fn change(&mut self, rig: &Rig, discards: bool) {
        let of_clone = self.random.below(4) == 0;
        let volume = match self.clones.last() {
            Some(clone) if of_clone => clone.clone(),
            _ => self.volume.clone(),
        };
        let image = rig.controller.pools.open_image(&volume, true).unwrap();
        let blocks = volume.capacity_bytes / BLOCK;
        for _ in 0..1 + self.random.below(8) {
            let at = self.random.below(blocks);
            let count = (1 + self.random.below(24)).min(blocks - at);
            let (offset, length) = (at * BLOCK, count * BLOCK);
            if discards {
                let hole =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                fallocate(&image, hole, offset as i64, length as i64).unwrap();
            } else {
                // One in five is zeros, and a few are the same as before.
                let data = vec![self.random.below(5) as u8; length as usize];
                image.write_all_at(&data, offset).unwrap();
            }
        }
        if self.random.below(2) == 0 {
            image.sync_all().unwrap();
        }
    }

    fn grow(&mut self, rig: &Rig) {
        let blocks = self.volume.capacity_bytes / BLOCK + 1 + self.random.below(256);
        if blocks <= MOST_BLOCKS {
            let pools = &rig.controller.pools;
            let id = self.volume.id;
            pools.expand_volume(&id, blocks * BLOCK).unwrap();
            self.volume = pools.volume(&VolumeHandle::Id(id)).unwrap();
        }
    }

    /// Clones the volume, and deletes an earlier clone.
    fn clone_volume(&mut self, rig: &Rig) {
        let pools = &rig.controller.pools;
        if self.clones.len() > 1 {
            pools.delete_volume(&self.clones.remove(0).id).unwrap();
        }
        let new = NewVolume {
            capacity_bytes: self.volume.capacity_bytes,
            capabilities: vec![testkit::raw()],
            source: Some(Source::Volume(self.volume.id)),
            ..testkit::new(&self.name())
        };
        let made = pools.create_volume(&pools.named(None).unwrap(), new);
        self.clones.push(made.unwrap());
    }

    fn take(&mut self, rig: &Rig) {
        let name = self.name();
        let parameters = BTreeMap::from([("keepDeletedBases".to_owned(), self.most.to_string())]);
        let pools = &rig.controller.pools;
        let record = pools.create_snapshot(&self.volume.id, &name, &parameters);
        let record = record.unwrap();
        self.taken.push(Taken {
            content: rig.content(&record),
            record,
            left: Left::All,
        });
    }

    /// The places of those of which this is left, oldest first.
    fn with(&self, left: Left) -> Vec<usize> {
        let all = self.taken.iter().enumerate();
        all.filter(|(_, taken)| taken.left == left)
            .map(|(at, _)| at)
            .collect()
    }

    fn delete(&mut self, rig: &Rig) {
        let all = self.with(Left::All);
        if all.is_empty() {
            return;
        }
        let at = all[self.random.below(all.len() as u64) as usize];
        let id = self.taken[at].record.id;
        rig.controller.pools.delete_snapshot(&id).unwrap();
        self.taken[at].left = Left::Image;
        let images = self.with(Left::Image);
        for at in images.iter().rev().skip(self.most) {
            self.taken[*at].left = Left::Nothing;
        }
    }

    fn compare_some(&mut self, rig: &Rig) {
        let targets = self.with(Left::All);
        if targets.is_empty() {
            return;
        }
        let target = targets[self.random.below(targets.len() as u64) as usize];
        let base = self.random.below(self.taken.len() as u64) as usize;
        self.compare(rig, base, target);
    }

    fn compare(&mut self, rig: &Rig, base: usize, target: usize) {
        let (base, target) = (&self.taken[base], &self.taken[target]);
        let ids = [base, target].map(|taken| taken.record.id.to_string());
        let context = format!(
            "DELTA_SEED={}: {} ({:?}) to {}",
            self.seed, base.record.name, base.left, target.record.name
        );
        match (rig.delta([&ids[0], &ids[1]], 0, 0), base.left) {
            (Ok(answer), Left::All | Left::Image) => {
                let mut restored = base.content.clone();
                restored.resize(target.content.len(), 0);
                for (offset, size) in answer.tuples {
                    let range = offset as usize..(offset + size) as usize;
                    restored[range.clone()].copy_from_slice(&target.content[range]);
                    self.listed += size;
                }
                if restored != target.content {
                    let mut bytes = restored.iter().zip(&target.content);
                    let at = bytes.position(|(a, b)| a != b);
                    panic!("{context}: byte {at:?} differs and is not listed");
                }
                self.whole += target.content.len() as u64;
            }
            (Err(Error::FailedPrecondition(_)), Left::Nothing) => {}
            (answer, _) => panic!("{context}: {answer:?}"),
        }
        self.compared += 1;
    }

    /// Compares each snapshot with all earlier and later ones, and deletes everything.
    fn end(&mut self, rig: &Rig) {
        let pools = &rig.controller.pools;
        for target in self.with(Left::All) {
            for base in 0..self.taken.len() {
                self.compare(rig, base, target);
            }
        }
        pools.delete_volume(&self.volume.id).unwrap();
        for at in self.with(Left::Image) {
            self.taken[at].left = Left::Nothing;
        }
        for target in self.with(Left::All) {
            self.compare(rig, 0, target);
        }
        for at in self.with(Left::All) {
            pools.delete_snapshot(&self.taken[at].record.id).unwrap();
        }
        for clone in &self.clones {
            pools.delete_volume(&clone.id).unwrap();
        }
        assert!(pools.volumes().is_empty() && pools.snapshots().is_empty());
        assert!(pools.kept_bases().is_empty(), "DELTA_SEED={}", self.seed);
    }
}

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value.parse().unwrap(),
        Err(_) => default,
    }
}

#[rstest]
fn a_base_with_its_delta_is_the_target(#[values("xfs", "btrfs")] fs: &str) {
    let until = Instant::now() + Duration::from_secs(number("DELTA_SECONDS", 2));
    let first = number("DELTA_SEED", 1);
    let mut rig = Rig::new(fs, VARIABLE);
    let (mut histories, mut compared, mut listed, mut whole) = (0, 0, 0, 0);
    while histories < 3 || Instant::now() < until {
        let mut history = History::begin(&rig, first + histories);
        history.run(&rig);
        rig = rig.restarted();
        history.run(&rig);
        history.end(&rig);
        histories += 1;
        compared += history.compared;
        listed += history.listed;
        whole += history.whole;
    }
    println!(
        "{fs}: {histories} histories, {compared} comparisons, {:.1} % listed",
        100.0 * listed as f64 / whole as f64
    );
    assert!(listed < whole, "{fs}: no delta leaves anything out");
}
