//! A pool's identity: `pool.json` in its directory.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::kernel::file;
use crate::record::SCHEMA;
use crate::record::id::pool_of;
use crate::storage::file_names::EntryKind;
use crate::storage::{PoolId, Result, encoding};

/// The file in the pool's directory that holds its identity.
pub(super) const IDENTITY: &str = "pool.json";

/// The content of `pool.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolIdentity {
    schema: u32,
    id: PoolId,
    /// The pool's configured name when it was made; for people.
    name: String,
}

/// Reads a pool's identity; `None` if the directory has no `pool.json`. `known` is the identity
/// that it had before.
pub(in crate::storage) fn identity(
    root: BorrowedFd<'_>,
    known: Option<PoolId>,
) -> Result<Option<PoolId>> {
    let identity: Option<PoolIdentity> = encoding::read_versioned(root, IDENTITY, || {
        recipe(known.or_else(|| pool_of_entries(root)))
    })?;
    Ok(identity.map(|identity| identity.id))
}

/// How a person writes a lost `pool.json` again.
pub(in crate::storage) fn recipe(id: Option<PoolId>) -> String {
    let Some(id) = id else {
        return format!("restore {IDENTITY} from a backup");
    };
    format!(
        "restore {IDENTITY} from a backup, or write \
         {{\"schema\":{SCHEMA},\"id\":\"{id}\",\"name\":\"pool\"}} into it"
    )
}

/// The pool in the IDs of a directory's entries; `None` without entries, or if they differ.
pub(super) fn pool_of_entries(root: BorrowedFd<'_>) -> Option<PoolId> {
    let names = EntryKind::ALL.into_iter().filter_map(|kind| {
        let dir = file::open_beneath(root, Path::new(kind.name()), OFlags::DIRECTORY).ok()?;
        file::list(dir.as_fd()).ok()
    });
    let mut pools = names.flatten().filter_map(|name| pool_of(&name));
    let first = pools.next()?;
    pools.all(|pool| pool == first).then_some(first)
}

/// Makes a directory a new pool, and returns its identity.
pub(super) fn write(root: BorrowedFd<'_>, name: &str) -> Result<PoolId> {
    let identity = PoolIdentity {
        schema: SCHEMA,
        id: PoolId::generate(),
        name: name.to_owned(),
    };
    file::replace(root, IDENTITY, &encoding::encode(&identity, IDENTITY)?)?;
    Ok(identity.id)
}
