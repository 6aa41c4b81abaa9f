//! Which records this build can use, and why it can't use one.

use std::cmp::Ordering;

use super::SCHEMA;
use super::id::PoolId;

/// Fails for another schema than this build's, and says why.
pub(crate) fn check_schema(schema: u64) -> Result<(), String> {
    match schema.cmp(&SCHEMA.into()) {
        Ordering::Less => Err(format!("has the unknown schema {schema}")),
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(format!(
            "has schema {schema}; this build reads up to {SCHEMA}: a newer version of hostloop \
             wrote it; install that version again"
        )),
    }
}

/// Why a record can't be used, as a phrase that follows "its record".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableRecord {
    /// The record's file does not exist.
    #[error("is missing")]
    Missing,
    /// A newer build wrote it.
    #[error("{why}", why = check_schema(*.0).err().unwrap_or_default())]
    Newer(u64),
    /// It is the record of another object, with this ID.
    #[error("is the record of {0}")]
    Misplaced(String),
    /// Its entry belongs to another pool.
    #[error("is of pool {0}")]
    OtherPool(PoolId),
    /// It is damaged, or in an unknown format.
    #[error("{0}")]
    Damaged(String),
}

impl UnusableRecord {
    /// What a person can do about it.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            UnusableRecord::Missing | UnusableRecord::Damaged(_) => {
                "restore the record from a backup, delete the object, or move its directory out of \
                 the pool; until then its image is kept"
            }
            UnusableRecord::Newer(_) => "run the driver that wrote it, or a newer one",
            UnusableRecord::Misplaced(_) | UnusableRecord::OtherPool(_) => {
                "find out who moved it, and move it back"
            }
        }
    }

    /// Fails if the entry could be another object, or one that a newer build must delete. What its
    /// record said is lost otherwise, so only its ID and the kernel decide.
    pub(crate) fn check_deletable(&self) -> Result<(), String> {
        match self {
            UnusableRecord::Missing | UnusableRecord::Damaged(_) => Ok(()),
            UnusableRecord::Newer(_)
            | UnusableRecord::Misplaced(_)
            | UnusableRecord::OtherPool(_) => Err(format!(
                "its record {self}, so it is not deleted: {}",
                self.advice()
            )),
        }
    }
}
