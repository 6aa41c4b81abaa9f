//! The node that a pool belongs to: `node.json` in the pool.
//!
//! A node cloned from another node's disk image has a copy of its pools, with the same pool and
//! volume IDs. Both nodes would serve the same volumes, each with different bytes. Node names
//! are certain to differ within a cluster: machines made from one image often share even their
//! machine ID.

use std::os::fd::BorrowedFd;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::kernel::file;
use crate::record::SCHEMA;
use crate::storage::file_names::OWNER;
use crate::storage::{Error, PoolOptions, PoolSpec, Result, encoding};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnerNode {
    schema: u32,
    node: String,
}

/// Checks that the pool, mounted read-only for inspection, does not belong to another node. Changes
/// nothing. A process without a node ID (`fsck`) skips the check.
pub(super) fn check(spec: &PoolSpec, options: &PoolOptions, root: BorrowedFd<'_>) -> Result<()> {
    let note =
        format!("{OWNER} in it (it is not mounted now: mount it somewhere, and unmount it again)");
    new_owner(spec, options, &note, root).map(drop)
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
    if let Some(node) = new_owner(spec, options, &note, root)? {
        let owner = OwnerNode {
            schema: SCHEMA,
            node: node.to_owned(),
        };
        file::replace(root, OWNER, &encoding::encode(&owner, OWNER)?)?;
    }
    Ok(())
}

/// Returns this node if the pool has no owner yet. `note` names the owner file in messages.
fn new_owner<'a>(
    spec: &PoolSpec,
    options: &'a PoolOptions,
    note: &str,
    root: BorrowedFd<'_>,
) -> Result<Option<&'a str>> {
    let Some(node) = &options.node_id else {
        return Ok(None);
    };
    let found = encoding::read_versioned::<OwnerNode>(root, OWNER, || {
        format!("if the pool belongs to this node, {node}, delete {note}")
    })?;
    let owner = match found {
        Some(owner) if owner.node == *node => return Ok(None),
        Some(owner) => owner.node,
        None => return Ok(Some(node)),
    };
    let state = options.state_dir.join(super::pool_registry::FILE);
    let why = format!(
        "it belongs to node {owner}, and this is node {node}; two nodes must not have the same \
         volumes. If this is the machine of {owner} under a new name, or its disk was moved here \
         for good, delete {note}. If it is a copy (a machine made from the disk image of another one), \
         its volumes are those of {owner}: erase {} and delete {}, and the driver makes a new pool",
        spec.path.display(),
        state.display()
    );
    Err(Error::OtherNode {
        name: spec.name.clone(),
        why,
    })
}
