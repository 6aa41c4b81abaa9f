//! What the node with a shared volume's pool tells the others of the volume's device: the publish
//! context. A node compares it with the kernel before it uses the device.

use std::collections::BTreeMap;
use std::str::FromStr;

use hostloop_controllers::api::constants::{REACH, REACH_KERNEL};

use crate::kernel::{FileId, FsType};
use crate::record::Provisioning;

const BOOT: &str = "boot";
const MINOR: &str = "minor";
const DISKSEQ: &str = "diskseq";
const DEVICE: &str = "device";
const INODE: &str = "inode";
const FS: &str = "fs";
const PROVISIONING: &str = "provisioning";
const DISCARD: &str = "discard";
const OWNER: &str = "owner";
const NODES: &str = "nodes";

/// How many nodes may use a volume at once.
const ONE: &str = "one";
const MANY: &str = "many";

/// The word of a raw block volume, in place of a filesystem.
const RAW: &str = "raw";

/// The device of a shared volume, as it is attached now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishContext {
    /// The ID of the running boot.
    pub boot: String,
    /// N of `/dev/loopN`.
    pub minor: u32,
    /// The number of the attachment.
    pub diskseq: u64,
    /// The image behind the device.
    pub image: FileId,
    /// The filesystem; `None` for a raw block volume.
    pub fs: Option<FsType>,
    pub provisioning: Provisioning,
    /// True if the volume returns freed space to its pool.
    pub discard: bool,
    /// The ID of the node with the volume's pool.
    pub owner: String,
    /// True if it is published for several nodes at once. Kubelet tells a node the first access mode of
    /// a claim, and the attachment goes by all of them.
    pub many_nodes: bool,
}

/// A publish context that this driver did not write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("publish_context[{key:?}]: {why}")]
pub struct InvalidContext {
    /// The entry.
    pub key: &'static str,
    /// What is wrong with it.
    pub why: &'static str,
}

impl PublishContext {
    /// Reads a context; `None` if it is that of a volume of one node.
    pub fn read(map: &BTreeMap<String, String>) -> Result<Option<PublishContext>, InvalidContext> {
        if !map.contains_key(REACH) {
            return Ok(None);
        }
        one_of(map, REACH, |word| (word == REACH_KERNEL).then_some(()))?;
        Ok(Some(PublishContext {
            boot: text(map, BOOT)?.to_owned(),
            minor: number(map, MINOR)?,
            diskseq: number(map, DISKSEQ)?,
            image: FileId {
                dev: number(map, DEVICE)?,
                ino: number(map, INODE)?,
            },
            fs: one_of(map, FS, filesystem)?,
            provisioning: one_of(map, PROVISIONING, Provisioning::parse)?,
            discard: one_of(map, DISCARD, |word| word.parse().ok())?,
            owner: text(map, OWNER)?.to_owned(),
            many_nodes: one_of(map, NODES, nodes)?,
        }))
    }

    /// The context as a map. It is part of the attachment, which all may read.
    pub fn write(&self) -> BTreeMap<String, String> {
        let nodes = if self.many_nodes { MANY } else { ONE };
        let entries = [
            (REACH, REACH_KERNEL.to_owned()),
            (BOOT, self.boot.clone()),
            (MINOR, self.minor.to_string()),
            (DISKSEQ, self.diskseq.to_string()),
            (DEVICE, self.image.dev.to_string()),
            (INODE, self.image.ino.to_string()),
            (FS, self.fs.map_or(RAW, FsType::as_str).to_owned()),
            (PROVISIONING, self.provisioning.as_str().to_owned()),
            (DISCARD, self.discard.to_string()),
            (OWNER, self.owner.clone()),
            (NODES, nodes.to_owned()),
        ];
        entries
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }
}

/// An entry that must be there.
fn text<'a>(
    map: &'a BTreeMap<String, String>,
    key: &'static str,
) -> Result<&'a str, InvalidContext> {
    let value = map.get(key).filter(|value| !value.is_empty());
    value.map(String::as_str).ok_or(InvalidContext {
        key,
        why: "is missing",
    })
}

fn one_of<T>(
    map: &BTreeMap<String, String>,
    key: &'static str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<T, InvalidContext> {
    read(text(map, key)?).ok_or(InvalidContext {
        key,
        why: "has a word that this driver does not write",
    })
}

fn number<T: FromStr>(
    map: &BTreeMap<String, String>,
    key: &'static str,
) -> Result<T, InvalidContext> {
    let digits = Some(text(map, key)?).filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    // `parse` would accept a leading plus.
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or(InvalidContext {
            key,
            why: "is not a number",
        })
}

fn filesystem(word: &str) -> Option<Option<FsType>> {
    if word == RAW {
        return Some(None);
    }
    FsType::parse(word).map(Some)
}

fn nodes(word: &str) -> Option<bool> {
    match word {
        ONE => Some(false),
        MANY => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(fs: Option<FsType>, provisioning: Provisioning) -> PublishContext {
        PublishContext {
            boot: "b-1".to_owned(),
            minor: 7,
            diskseq: 41,
            image: FileId {
                dev: 66306,
                ino: u64::MAX,
            },
            fs,
            provisioning,
            discard: provisioning == Provisioning::Thin,
            owner: "n1".to_owned(),
            many_nodes: fs.is_none(),
        }
    }

    #[test]
    fn a_context_is_read_as_it_was_written() {
        for (fs, provisioning) in [
            (Some(FsType::Ext4), Provisioning::Thin),
            (Some(FsType::Xfs), Provisioning::Thick),
            (None, Provisioning::Thin),
        ] {
            let written = context(fs, provisioning);
            let map = written.write();
            // The API server and the policies allow 16 entries.
            assert!(map.len() <= 16, "{map:?}");
            assert_eq!(PublishContext::read(&map), Ok(Some(written)));
        }
    }

    #[test]
    fn a_volume_of_one_node_has_none() {
        assert_eq!(PublishContext::read(&BTreeMap::new()), Ok(None));
        let other = BTreeMap::from([(MINOR.to_owned(), "7".to_owned())]);
        assert_eq!(PublishContext::read(&other), Ok(None));
    }

    #[test]
    fn an_entry_that_is_not_ours_is_refused_by_name() {
        let table = [
            (REACH, "galaxy"),
            (REACH, ""),
            (BOOT, ""),
            (MINOR, "-7"),
            (MINOR, "+7"),
            (MINOR, "4294967296"),
            (DISKSEQ, "0x1"),
            (DEVICE, " 1"),
            (INODE, "18446744073709551616"),
            (FS, "ext3"),
            (FS, "none"),
            (PROVISIONING, "fat"),
            (DISCARD, "yes"),
            (OWNER, ""),
            (NODES, "1"),
        ];
        for (key, value) in table {
            let mut map = context(None, Provisioning::Thin).write();
            map.insert(key.to_owned(), value.to_owned());
            let refused = PublishContext::read(&map).unwrap_err();
            assert_eq!(refused.key, key, "{value:?}: {refused}");
            map.remove(key);
            let without = PublishContext::read(&map);
            if key == REACH {
                assert_eq!(without, Ok(None));
            } else {
                assert_eq!(without.unwrap_err().key, key);
            }
        }
    }
}
