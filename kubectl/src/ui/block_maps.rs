//! Which maps of images' blocks are read, and which of them are sent.
//!
//! Each report has the allocated bytes of every image and the time of the last write. A map is read
//! again if one of them changed. It is also read again if a relative was written, came or went: an
//! image that may share blocks with it. Each request is for a bounded number of images, and all
//! maps together have a bounded size.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use hostloop_report::image_map::ImageMap;
use hostloop_report::image_map::ReportedRun;
use hostloop_report::status::Report;

#[cfg(test)]
mod tests;

/// The most images in one request to a node.
const AT_ONCE: usize = 64;
/// No further image is mapped once all maps have this many runs. A run takes about 60 bytes in a
/// message.
const ROOM: usize = 400_000;
/// The number of looks after which a map is read if a relative of its image went. The relative's
/// blocks are freed some time after it left the report.
const AFTER_A_DELETION: u8 = 2;

/// An image in a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Image {
    id: String,
    /// The volume or snapshot that the image was copied from.
    source: Option<String>,
    allocated: u64,
    written_ns: Option<u64>,
}

impl Image {
    pub(super) fn all(report: &Report) -> Vec<Image> {
        let volumes = report.volumes.iter().filter_map(|volume| {
            Some(Image {
                id: volume.id.clone(),
                source: volume.source.clone(),
                allocated: volume.allocated_bytes?,
                written_ns: volume.written_ns,
            })
        });
        let snapshots = report.snapshots.iter().filter_map(|snapshot| {
            Some(Image {
                id: snapshot.id.clone(),
                source: Some(snapshot.source.clone()),
                allocated: snapshot.allocated_bytes?,
                written_ns: snapshot.written_ns,
            })
        });
        volumes.chain(snapshots).collect()
    }
}

/// The images that may share blocks with some others.
#[derive(Default)]
struct Relatives {
    ids: BTreeSet<String>,
    sources: BTreeSet<String>,
}

impl Relatives {
    fn add(&mut self, image: &Image) {
        self.ids.insert(image.id.clone());
        self.sources.extend(image.source.clone());
    }

    /// True if the image was copied from one that was added, or one of these from it, or both from
    /// the same image.
    fn has(&self, image: &Image) -> bool {
        self.sources.contains(&image.id)
            || image
                .source
                .as_ref()
                .is_some_and(|source| self.ids.contains(source) || self.sources.contains(source))
    }
}

/// An image of the last report.
struct Known {
    image: Image,
    /// The number of looks after which the map is read.
    due: u8,
    /// Images are asked for in turn: the number of this one's last turn, 0 before the first.
    asked: u64,
    /// The runs and the hash of the map that was sent last.
    runs: usize,
    sent: Option<u64>,
}

impl Known {
    fn new(image: Image) -> Known {
        Known {
            image,
            due: 1,
            asked: 0,
            runs: 0,
            sent: None,
        }
    }

    fn mark(&mut self, looks: u8) {
        self.due = self.due.max(looks);
    }
}

/// The images of all nodes.
#[derive(Default)]
pub(super) struct BlockMaps {
    nodes: BTreeMap<String, BTreeMap<String, Known>>,
    turns: u64,
}

impl BlockMaps {
    /// Takes the images of a node's report. Returns the IDs of images with a map that are gone.
    pub(super) fn see(&mut self, node: &str, images: Vec<Image>) -> Vec<String> {
        let known = self.nodes.entry(node.to_owned()).or_default();
        let mut gone = std::mem::take(known);
        let mut copied = BTreeSet::new();
        let mut of_written = Relatives::default();
        for image in images {
            let now = match gone.remove(&image.id) {
                Some(same) if same.image == image => same,
                Some(before) => {
                    of_written.add(&image);
                    Known {
                        due: before.due.max(1),
                        image,
                        ..before
                    }
                }
                None => {
                    copied.extend(image.source.clone());
                    Known::new(image)
                }
            };
            known.insert(now.image.id.clone(), now);
        }
        let mut of_gone = Relatives::default();
        gone.values().for_each(|gone| of_gone.add(&gone.image));
        for each in known.values_mut() {
            // A write leaves the blocks it replaces to the relatives alone.
            if of_written.has(&each.image) || copied.contains(&each.image.id) {
                each.mark(1);
            }
            if of_gone.has(&each.image) {
                each.mark(AFTER_A_DELETION);
            }
        }
        gone.retain(|_, image| image.sent.is_some());
        gone.into_keys().collect()
    }

    /// Forgets other nodes than these.
    pub(super) fn keep(&mut self, nodes: &BTreeSet<&str>) {
        self.nodes.retain(|node, _| nodes.contains(node.as_str()));
    }

    /// The images of a node to read the maps of, those first that were asked for longest ago.
    pub(super) fn due(&self, node: &str) -> Vec<String> {
        let has_room = self.has_room();
        let images = self.nodes.get(node).into_iter().flat_map(BTreeMap::values);
        let mut due: Vec<&Known> = images
            .filter(|known| known.due > 0 && (has_room || known.sent.is_some()))
            .collect();
        due.sort_by_key(|known| known.asked);
        due.iter()
            .take(AT_ONCE)
            .map(|known| known.image.id.clone())
            .collect()
    }

    /// The number of images that have no map because the others need all the room.
    pub(super) fn left_out(&self) -> usize {
        if self.has_room() {
            0
        } else {
            self.images().filter(|known| known.sent.is_none()).count()
        }
    }

    fn has_room(&self) -> bool {
        self.images().map(|known| known.runs + 1).sum::<usize>() < ROOM
    }

    fn images(&self) -> impl Iterator<Item = &Known> {
        self.nodes.values().flat_map(BTreeMap::values)
    }

    /// Takes the answer to a request for these images, which may lack some of them. Returns the
    /// maps that differ from those before.
    pub(super) fn answered(
        &mut self,
        node: &str,
        asked: &[String],
        maps: Vec<ImageMap>,
    ) -> Vec<(String, Vec<ReportedRun>)> {
        let Some(known) = self.nodes.get_mut(node) else {
            return Vec::new();
        };
        for id in asked {
            if let Some(image) = known.get_mut(id) {
                self.turns += 1;
                image.asked = self.turns;
            }
        }
        let different = maps.into_iter().filter_map(|map| {
            let image = known.get_mut(&map.id)?;
            image.due = image.due.saturating_sub(1);
            let extents = map.extents?;
            let hash = hash(&extents);
            let is_new = image.sent.replace(hash) != Some(hash);
            image.runs = extents.len();
            is_new.then_some((map.id, extents))
        });
        different.collect()
    }
}

fn hash(extents: &[ReportedRun]) -> u64 {
    let mut hasher = DefaultHasher::new();
    extents.hash(&mut hasher);
    hasher.finish()
}
