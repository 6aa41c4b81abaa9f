//! What was written and synced is there: of each image, the oracle knows what pods have written to
//! it, and compares that with what it has.
//!
//! Each image must at all times read as what was written to it last, or, after a stop of its node,
//! as something that may have been on its disk then. A copy begins with what its source had at the
//! time in its record. An unreadable record excuses nothing: its image must stay as it is. What was
//! deleted has no image any more, and is not missed here.

use std::collections::BTreeMap;

use hostloop_driver::record::now_ns;
use hostloop_driver::storage::Source;
use hostloop_report::pool_files::{IMAGE, SNAPSHOTS, VOLUMES};

use crate::cluster::Cluster;
use crate::machine::{Contents, Machine};
use crate::stamps::{self, StampEvent, What};
use crate::trace;

#[cfg(test)]
mod tests;

/// What became of images, by the handles of their volumes and snapshots. Those of deleted ones
/// stay: a power cut may take a deletion back.
#[derive(Default)]
pub(super) struct StampHistories(BTreeMap<String, StampHistory>);

/// What became of an image.
struct StampHistory {
    node: &'static str,
    folder: &'static str,
    /// Its record was read, and its beginning compared with its source.
    is_known: bool,
    /// What its users read, each from a time on, in nanoseconds since 1970. Never empty.
    read: Vec<(u64, u64)>,
    /// What the image itself may have: what it had for certain, and what was written since.
    on_disk: Vec<u64>,
}

/// The record of a volume or snapshot.
struct Beginning {
    handle: String,
    node: &'static str,
    folder: &'static str,
    /// The handle of what it is a copy of.
    source: Option<String>,
    /// When it was made, in nanoseconds since 1970.
    at: u64,
}

impl StampHistories {
    /// Notes what pods have written since the last call, and which images are new. Compares all
    /// with what they have now.
    pub(super) fn check(&mut self, cluster: &Cluster) {
        for event in stamps::take() {
            self.note(&event).into_iter().for_each(trace::violation);
        }
        for begun in self.new_ones(cluster) {
            let machine = cluster.machine_named(begun.node);
            let found = machine.and_then(|it| stamps_of(it, begun.folder, &begun.handle));
            // The process that has the record may be dead, and the image not be in its place.
            if let Some((written, _)) = found {
                self.begin(&begun, written)
                    .into_iter()
                    .for_each(trace::violation);
            }
        }
        let now = now_ns();
        for (handle, history) in &mut self.0 {
            let machine = cluster.machine_named(history.node);
            let Some((written, synced)) =
                machine.and_then(|it| stamps_of(it, history.folder, handle))
            else {
                continue;
            };
            let wrong = [
                history.reads(handle, now, written),
                history.has_on_disk(handle, now, synced),
            ];
            wrong.into_iter().flatten().for_each(trace::violation);
        }
    }

    /// The records that were not read before, in the order of their times: a copy comes after its
    /// source.
    fn new_ones(&self, cluster: &Cluster) -> Vec<Beginning> {
        let mut new = Vec::new();
        for machine in &cluster.machines {
            let Contents {
                volumes, snapshots, ..
            } = machine.contents();
            let node = machine.name();
            new.extend(volumes.iter().map(|volume| Beginning {
                handle: volume.id.to_string(),
                node,
                folder: VOLUMES,
                source: volume.source.as_deref().map(|source| match source {
                    Source::Snapshot(id) => id.to_string(),
                    Source::Volume(id) => id.to_string(),
                }),
                at: volume.created_ns,
            }));
            new.extend(snapshots.iter().map(|snapshot| Beginning {
                handle: snapshot.id.to_string(),
                node,
                folder: SNAPSHOTS,
                source: Some(snapshot.source.to_string()),
                at: snapshot.created_ns,
            }));
        }
        new.retain(|one| {
            self.0
                .get(&one.handle)
                .is_none_or(|history| !history.is_known)
        });
        new.sort_by(|a, b| (a.at, &a.handle).cmp(&(b.at, &b.handle)));
        new
    }

    /// Something has happened to an image. Returns what is wrong with it.
    fn note(&mut self, event: &StampEvent) -> Option<String> {
        let (handle, at, what) = (&event.handle, event.at, event.what);
        let first = match what {
            What::Read(stamp) | What::Left(stamp) => stamp,
            // A pod reads before it writes.
            What::Written(_) | What::Synced => 0,
        };
        let history = self.0.entry(handle.clone());
        let history = history.or_insert_with(|| StampHistory::of(event.node, VOLUMES, first));
        match what {
            What::Read(found) => return history.reads(handle, at, found),
            What::Left(found) => return history.is_left(handle, at, found),
            What::Written(stamp) => {
                history.read.push((at, stamp));
                history.on_disk.push(stamp);
            }
            What::Synced => history.on_disk = vec![history.last()],
        }
        None
    }

    /// An image is new, or was before its record was read. `found` is what it has now. Returns what
    /// is wrong with its beginning.
    fn begin(&mut self, begun: &Beginning, found: u64) -> Option<String> {
        let first = self.0.get(&begun.handle).map_or(found, StampHistory::first);
        let wrong = match begun.source.as_ref().map(|source| self.0.get(source)) {
            None if first == 0 => None,
            None => Some(wrong(&begun.handle, first, &[0], false)),
            // Its source came and went between two looks.
            Some(None) => None,
            Some(Some(source)) => {
                let expected = source.read_at(begun.at);
                let is_right = expected.contains(&first);
                (!is_right).then(|| wrong(&begun.handle, first, &expected, source.had(first)))
            }
        };
        let history = self.0.entry(begun.handle.clone());
        let history = history.or_insert_with(|| StampHistory::of(begun.node, begun.folder, first));
        history.is_known = true;
        wrong
    }
}

impl StampHistory {
    fn of(node: &'static str, folder: &'static str, first: u64) -> StampHistory {
        StampHistory {
            node,
            folder,
            is_known: false,
            read: vec![(0, first)],
            on_disk: vec![first],
        }
    }

    /// What it began with.
    fn first(&self) -> u64 {
        self.read.first().map_or(0, |(_, stamp)| *stamp)
    }

    /// What its users read now.
    fn last(&self) -> u64 {
        self.read.last().map_or(0, |(_, stamp)| *stamp)
    }

    /// What its users read at a time. Of two things at one time, either may have been first.
    fn read_at(&self, time: u64) -> Vec<u64> {
        let end = self.read.partition_point(|(from, _)| *from <= time);
        let start = self.read.partition_point(|(from, _)| *from < time);
        let read = &self.read[start.saturating_sub(1)..end];
        read.iter().map(|(_, stamp)| *stamp).collect()
    }

    /// True if this was written to it once, or if it is nothing.
    fn had(&self, stamp: u64) -> bool {
        stamp == 0 || self.read.iter().any(|(_, read)| *read == stamp)
    }

    /// Its users read this now. Returns what is wrong with that, once.
    fn reads(&mut self, handle: &str, now: u64, found: u64) -> Option<String> {
        let expected = self.last();
        let is_right = found == expected;
        (!is_right).then(|| self.goes_on_with(handle, now, found, &[expected]))
    }

    /// The image itself has this now. It never goes back.
    fn has_on_disk(&mut self, handle: &str, now: u64, found: u64) -> Option<String> {
        let place = self.on_disk.iter().position(|stamp| *stamp == found);
        if let Some(place) = place {
            self.on_disk.drain(..place);
            return None;
        }
        let expected = self.on_disk.clone();
        Some(self.goes_on_with(handle, now, found, &expected))
    }

    /// Its node has stopped, and left this.
    fn is_left(&mut self, handle: &str, now: u64, found: u64) -> Option<String> {
        let wrong = self.has_on_disk(handle, now, found);
        self.read.push((now, found));
        self.on_disk = vec![found];
        wrong
    }

    /// Takes what it has instead of what was expected as what it has from now on.
    fn goes_on_with(&mut self, handle: &str, now: u64, found: u64, expected: &[u64]) -> String {
        let wrong = wrong(handle, found, expected, self.had(found));
        self.read.push((now, found));
        self.on_disk = vec![found];
        wrong
    }
}

/// What is wrong with an image that has this instead of one of these. `had` says if it, or what it
/// is a copy of, had it once.
fn wrong(handle: &str, found: u64, expected: &[u64], had: bool) -> String {
    let rule = if had {
        "data lost"
    } else {
        "a stranger's data"
    };
    let expected: Vec<String> = expected.iter().map(|stamp| shown(*stamp)).collect();
    let (found, expected) = (shown(found), expected.join(" or "));
    format!("{rule}: {handle} has {found} instead of {expected}")
}

fn shown(stamp: u64) -> String {
    match stamp {
        0 => "nothing".to_owned(),
        stamp => format!("write {stamp}"),
    }
}

/// What the users of an image read, and what it has itself. None if there is no image.
fn stamps_of(machine: &Machine, folder: &str, handle: &str) -> Option<(u64, u64)> {
    let image = machine.pool().join(folder).join(handle).join(IMAGE);
    let found = machine.kernel().stamps_of(&image).ok()?;
    Some((found.written, found.synced))
}
