//! What the kernel and the disk show at one moment, and what changed between two.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::pool::{Access, Format, Provisioning, SnapshotRecord, VolumeRecord};
use crate::status::units::bytes;
use crate::survey::{Item, LoopUse, Owner, Survey, Uses};
use crate::sys::MountEntry;

use super::tree::Tree;

/// What kind of thing is shown, in the order they are shown in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Sort {
    /// What a record says of a volume, a snapshot or a group.
    Record,
    /// The bytes of a volume or snapshot, as a file.
    Image,
    /// A loop device.
    Loop,
    /// A mount.
    Mount,
    /// The pool's own space.
    Pool,
}

impl Sort {
    /// The word for it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Sort::Record => "record",
            Sort::Image => "image",
            Sort::Loop => "loop",
            Sort::Mount => "mount",
            Sort::Pool => "pool",
        }
    }
}

/// Everything shown at one moment: sort and name, and what is to be said of it, part by part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Picture {
    things: BTreeMap<(Sort, String), Vec<String>>,
}

/// What became of something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Change {
    /// What it is.
    pub(super) sort: Sort,
    /// Its name: an alias, a device, a path.
    pub(super) name: String,
    /// What was said of it before; nothing if it is new.
    pub(super) before: Option<Vec<String>>,
    /// What is said of it now; nothing if it is gone.
    pub(super) now: Option<Vec<String>>,
}

impl Picture {
    /// Draws what a survey shows. `alias` gives the names of the story to IDs.
    pub(super) fn of(survey: &Survey, tree: &Tree, alias: &dyn Fn(&str) -> String) -> Picture {
        let mut picture = Picture::default();
        let uses = Uses::of(survey);
        for (pool, contents) in survey.contents() {
            for item in &contents.volumes {
                let said = item.record.as_ref().map(|v| volume(v, tree));
                picture.item(alias(&item.name), item, said.ok());
            }
            for item in &contents.snapshots {
                let said = item.record.as_ref().map(|s| snapshot(s, alias));
                picture.item(alias(&item.name), item, said.ok());
            }
            for item in &contents.groups {
                let members = item.record.as_ref().map_or(0, |g| g.snapshots.len());
                let said = format!("group of {members} snapshots");
                picture.add(Sort::Record, alias(&item.name), vec![said]);
            }
            let used = contents.usage.total_bytes - contents.usage.free_bytes;
            let (used, all) = (bytes(used), bytes(contents.usage.total_bytes));
            let said = vec![format!("{used} used"), format!("{all} in all")];
            picture.add(Sort::Pool, pool.name.clone(), said);
        }
        for l in uses.loops.values() {
            let name = crate::sys::loop_path(l.device.minor).display().to_string();
            picture.add(Sort::Loop, name, device(l, alias));
        }
        // Mounts are shown by place, not by loop: one that lost its volume must not go unseen.
        for mount in &survey.mounts.entries {
            if mount.mount_point.starts_with(tree.root()) {
                picture.add(Sort::Mount, tree.below(&mount.mount_point), mounted(mount));
            }
        }
        picture
    }

    fn item<R>(&mut self, name: String, item: &Item<R>, said: Option<Vec<String>>) {
        let said = said.unwrap_or_else(|| vec!["unreadable".to_owned()]);
        self.add(Sort::Record, name.clone(), said);
        if let Some(image) = &item.image {
            let (size, taken) = (bytes(image.bytes), bytes(image.allocated));
            self.add(Sort::Image, name, vec![size, format!("{taken} on disk")]);
        }
    }

    fn add(&mut self, sort: Sort, name: String, said: Vec<String>) {
        self.things.insert((sort, name), said);
    }

    /// What changed since an earlier one.
    pub(super) fn since(&self, before: &Picture) -> Vec<Change> {
        let keys = before.things.keys().chain(self.things.keys());
        let keys: std::collections::BTreeSet<_> = keys.collect();
        keys.into_iter()
            .filter_map(|key| {
                let (was, is) = (before.things.get(key), self.things.get(key));
                (was != is).then(|| Change {
                    sort: key.0,
                    name: key.1.clone(),
                    before: was.cloned(),
                    now: is.cloned(),
                })
            })
            .collect()
    }

    /// How many things of a sort there are.
    pub(super) fn count(&self, sort: Sort) -> usize {
        self.things.keys().filter(|(s, _)| *s == sort).count()
    }
}

fn volume(record: &VolumeRecord, tree: &Tree) -> Vec<String> {
    let mut said = vec![match record.format {
        Format::None => "not formatted".to_owned(),
        Format::Formatting(fs) => format!("{fs} being made"),
        Format::Done(fs) => fs.to_string(),
        Format::Raw => "raw".to_owned(),
    }];
    if record.settings.provisioning == Provisioning::Thick {
        said.push("thick".to_owned());
    }
    if record.settings.discard {
        said.push("discard".to_owned());
    }
    if let Some(kib) = record.settings.read_ahead_kib {
        said.push(format!("read-ahead {kib} KiB"));
    }
    if !record.publications.is_empty() {
        let nodes: Vec<&str> = record.publications.keys().map(String::as_str).collect();
        said.push(format!("published to {}", nodes.join(", ")));
    }
    if let Some(stage) = &record.stage {
        let what = match stage.capability.access {
            Access::Block => "as a block device",
            Access::Mount { .. } => "as a filesystem",
        };
        let at = tree.below(&stage.path);
        said.push(match record.inline {
            Some(_) => format!("mounted inline at {at}"),
            None => format!("staged {what}"),
        });
    }
    said
}

fn snapshot(record: &SnapshotRecord, alias: &dyn Fn(&str) -> String) -> Vec<String> {
    let of = alias(&record.source.to_string());
    vec![match record.group {
        Some(group) => format!("snapshot of {of} in {}", alias(&group.to_string())),
        None => format!("snapshot of {of}"),
    }]
}

fn device(l: &LoopUse, alias: &dyn Fn(&str) -> String) -> Vec<String> {
    let device = &l.device;
    let over = match &l.owner {
        Owner::Pool(name) => format!("the image of pool {name}"),
        Owner::Volume(name) | Owner::Snapshot(name) => alias(name),
        Owner::Leftover(name) => name.clone(),
        Owner::Deleted(path) => path.clone(),
        Owner::Loop(minor) => format!("/dev/loop{minor}"),
    };
    let mut said = vec![
        bytes(device.size_bytes),
        match device.direct_io {
            true => "direct I/O".to_owned(),
            false => "buffered".to_owned(),
        },
        format!("{}-byte blocks", device.block_size),
    ];
    if device.read_only {
        said.push("read-only".to_owned());
    }
    said.push(format!("over {over}"));
    said
}

/// A mount, with the options that tell something here.
fn mounted(mount: &MountEntry) -> Vec<String> {
    let node = mount.loop_node;
    let what = match node {
        Some(minor) => format!("the device node of /dev/loop{minor}"),
        None => format!("{} on {}", mount.fs_type, mount.source),
    };
    let mode = if mount.read_only() {
        "read-only"
    } else {
        "read-write"
    };
    let mut said = vec![what, mode.to_owned()];
    if mount.super_options.iter().any(|o| o.starts_with("discard")) {
        said.push("discard".to_owned());
    }
    said
}

impl Change {
    /// What is to be read of it: all of what is new, what is different of what changed, and of
    /// what is gone only what it was over.
    pub(super) fn said(&self) -> String {
        match (&self.before, &self.now) {
            (None, Some(now)) => now.join(", "),
            (Some(before), Some(now)) if before.len() == now.len() => {
                let pairs = before.iter().zip(now).filter(|(b, n)| b != n);
                let pairs = pairs.map(|(b, n)| format!("{b} → {n}"));
                pairs.collect::<Vec<_>>().join(", ")
            }
            (Some(_), Some(now)) => now.join(", "),
            (Some(before), None) => match (self.sort, before.last()) {
                (Sort::Loop, Some(over)) => over.clone(),
                _ => String::new(),
            },
            (None, None) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(said: &str) -> Vec<String> {
        said.split(", ").map(str::to_owned).collect()
    }

    fn picture(things: &[(Sort, &str, &str)]) -> Picture {
        let mut picture = Picture::default();
        for (sort, name, said) in things {
            picture.add(*sort, (*name).to_owned(), parts(said));
        }
        picture
    }

    #[test]
    fn what_came_went_and_changed() {
        let before = picture(&[
            (Sort::Loop, "/dev/loop1", "1 GiB, over a"),
            (Sort::Loop, "/dev/loop2", "1 GiB, over b"),
            (Sort::Image, "a", "1 GiB, 4 KiB on disk"),
            (Sort::Record, "a", "ext4, published"),
        ]);
        let now = picture(&[
            (Sort::Loop, "/dev/loop2", "1 GiB, over b"),
            (Sort::Image, "a", "2 GiB, 4 KiB on disk"),
            (Sort::Mount, "mnt", "ext4, read-write"),
            (Sort::Record, "a", "ext4, published, staged"),
        ]);
        let changes = now.since(&before);
        let told: Vec<_> = changes
            .iter()
            .map(|c| (c.sort, c.name.as_str(), c.said()))
            .collect();
        let expected = [
            (Sort::Record, "a", "ext4, published, staged"),
            (Sort::Image, "a", "1 GiB → 2 GiB"),
            (Sort::Loop, "/dev/loop1", "over a"),
            (Sort::Mount, "mnt", "ext4, read-write"),
        ];
        assert_eq!(
            told,
            expected.map(|(sort, name, said)| (sort, name, said.to_owned()))
        );
        assert_eq!(now.since(&now), []);
        assert_eq!(before.count(Sort::Loop), 2);
    }
}
