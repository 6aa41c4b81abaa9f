//! The node that a pool belongs to: `node.json` in the pool.
//!
//! A node cloned from another node's disk image has a copy of its pools, with the same pool and
//! volume IDs. Both nodes would serve the same volumes, each with different bytes. Node names
//! are certain to differ within a cluster: machines made from one image often share even their
//! machine ID.

use std::os::fd::BorrowedFd;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::kernel::{self, file};
use crate::storage::record::SCHEMA;
use crate::storage::{Error, PoolOptions, PoolSpec, Result, record_io};

/// The name of the owner file. Version 0.1.0 neither writes nor reads it.
pub(in crate::storage) const OWNER: &str = "node.json";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Owner {
    schema: u32,
    node: String,
}

/// Checks that the pool at `path`, mounted read-only for inspection, does not belong to another
/// node. Changes nothing. A process without a node ID (`fsck`) skips the check.
pub(super) fn check(
    spec: &PoolSpec,
    options: &PoolOptions,
    path: &Path,
    root: BorrowedFd<'_>,
) -> Result<()> {
    let note =
        format!("{OWNER} in it (it is not mounted now: mount it somewhere, and unmount it again)");
    judge(spec, options, &note, path, root).map(drop)
}

/// Checks an open pool like [`check`], and records this node as the owner if there is none. The
/// caller holds the pool's lock.
pub(super) fn claim(
    spec: &PoolSpec,
    options: &PoolOptions,
    path: &Path,
    root: BorrowedFd<'_>,
) -> Result<()> {
    let note = path.join(OWNER).display().to_string();
    if let Some(node) = judge(spec, options, &note, path, root)? {
        let owner = Owner {
            schema: SCHEMA,
            node: node.to_owned(),
        };
        file::replace(root, OWNER, &record_io::encode(&owner, OWNER)?)?;
    }
    Ok(())
}

/// Returns this node if the pool has no owner yet. `note` names the owner file in messages.
fn judge<'a>(
    spec: &PoolSpec,
    options: &'a PoolOptions,
    note: &str,
    path: &Path,
    root: BorrowedFd<'_>,
) -> Result<Option<&'a str>> {
    let Some(node) = &options.node_id else {
        return Ok(None);
    };
    match read(path, root)? {
        Some(owner) if owner == *node => Ok(None),
        Some(owner) => Err(Error::OtherNode {
            name: spec.name.clone(),
            why: explained(spec, options, note, &owner, node),
        }),
        None => Ok(Some(node)),
    }
}

fn read(path: &Path, root: BorrowedFd<'_>) -> Result<Option<String>> {
    let mut bytes = Vec::new();
    match record_io::read_whole(root, Path::new(OWNER), &mut bytes) {
        Ok(()) => {}
        Err(kernel::Error::NotFound { .. }) => return Ok(None),
        Err(e) => return Err(e.into()),
    }
    let owner: Owner = record_io::decode_versioned(&bytes).map_err(|why| Error::Corrupt {
        path: path.join(OWNER),
        why,
    })?;
    Ok(Some(owner.node))
}

fn explained(
    spec: &PoolSpec,
    options: &PoolOptions,
    note: &str,
    owner: &str,
    node: &str,
) -> String {
    let state = options.state_dir.join(super::registry::FILE);
    format!(
        "it belongs to node {owner}, and this is node {node}; two nodes must not have the same \
         volumes. If this is the machine of {owner} under a new name, or its disk was moved here \
         for good, delete {note}. If it is a copy (a machine made from the disk image of another one), \
         its volumes are those of {owner}: erase {} and delete {}, and the pool is made anew",
        spec.path.display(),
        state.display()
    )
}
