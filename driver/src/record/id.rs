//! IDs of pools, volumes, snapshots, groups and explorations.
//!
//! An ID is generated, never taken from a request. It names its pool, so a driver can distinguish
//! an object of another node from a missing one. IDs in requests are parsed here before they become
//! part of a path. Form: `vol-<pool>-<uuid v7>`, `snap-…`, `group-…`; a pool's ID is 16 hex digits.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The error for a string that is not an ID of this driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an ID of this driver")]
pub struct NotAnId;

/// A pool's identity: 64 random bits, 16 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PoolId(u64);

impl PoolId {
    /// Generates a random identity.
    pub fn generate() -> Self {
        PoolId(Uuid::new_v4().as_u64_pair().1 << 2 ^ Uuid::new_v4().as_u64_pair().1)
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for PoolId {
    type Err = NotAnId;

    fn from_str(s: &str) -> Result<Self, NotAnId> {
        lower_hex(s, 16)?;
        u64::from_str_radix(s, 16).map(PoolId).map_err(|_| NotAnId)
    }
}

fn lower_hex(s: &str, len: usize) -> Result<(), NotAnId> {
    let ok = s.len() == len && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if ok { Ok(()) } else { Err(NotAnId) }
}

/// Text forms for serde and debug, from `Display` and `FromStr`.
macro_rules! text_form {
    ($name:ident) => {
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
        impl TryFrom<String> for $name {
            type Error = NotAnId;
            fn try_from(s: String) -> Result<Self, NotAnId> {
                s.parse()
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}
text_form!(PoolId);

macro_rules! id {
    ($name:ident, $prefix:literal) => {
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name {
            pool: PoolId,
            uuid: Uuid,
        }

        impl $name {
            /// Generates an ID in this pool; later IDs sort after earlier ones.
            pub fn generate(pool: PoolId) -> Self {
                $name {
                    pool,
                    uuid: Uuid::now_v7(),
                }
            }

            /// The pool that holds the object.
            pub fn pool(&self) -> PoolId {
                self.pool
            }

            /// The UUID v7, which sorts by time of creation across pools.
            pub fn uuid(&self) -> Uuid {
                self.uuid
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "-{}-{}"), self.pool, self.uuid.simple())
            }
        }

        impl FromStr for $name {
            type Err = NotAnId;

            fn from_str(s: &str) -> Result<Self, NotAnId> {
                let rest = s.strip_prefix(concat!($prefix, "-")).ok_or(NotAnId)?;
                let (pool, uuid) = rest.split_once('-').ok_or(NotAnId)?;
                lower_hex(uuid, 32)?;
                let uuid = Uuid::try_parse(uuid).map_err(|_| NotAnId)?;
                Ok($name {
                    pool: pool.parse()?,
                    uuid,
                })
            }
        }
        text_form!($name);
    };
}

/// The identity of an exploration: many cuts of one volume in one burst. The records of its cuts
/// name it, and no path does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExplorationId(Uuid);

impl ExplorationId {
    /// Generates an ID; later IDs sort after earlier ones.
    pub fn generate() -> Self {
        ExplorationId(Uuid::now_v7())
    }
}

impl fmt::Display for ExplorationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exploration-{}", self.0.simple())
    }
}

impl FromStr for ExplorationId {
    type Err = NotAnId;

    fn from_str(s: &str) -> Result<Self, NotAnId> {
        let uuid = s.strip_prefix("exploration-").ok_or(NotAnId)?;
        lower_hex(uuid, 32)?;
        let uuid = Uuid::try_parse(uuid).map_err(|_| NotAnId)?;
        Ok(ExplorationId(uuid))
    }
}
text_form!(ExplorationId);

id!(VolumeId, "vol");
id!(SnapshotId, "snap");
id!(GroupId, "group");

/// The pool in the ID of a volume, snapshot or group that is a component of this path. The ID is
/// unique, so the path may come from any mount namespace.
pub fn pool_named_in(path: &Path) -> Option<PoolId> {
    path.components()
        .find_map(|part| pool_of(part.as_os_str().to_str()?))
}

/// The pool in the ID of a volume, snapshot or group.
pub fn pool_of(id: &str) -> Option<PoolId> {
    let volume = id.parse::<VolumeId>().map(|id| id.pool());
    volume
        .or_else(|_| id.parse::<SnapshotId>().map(|id| id.pool()))
        .or_else(|_| id.parse::<GroupId>().map(|id| id.pool()))
        .ok()
}

/// A volume ID in a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VolumeHandle {
    /// An ID this driver generated (here or on another node).
    Id(VolumeId),
    /// Kubelet's ID of an inline ephemeral volume: `csi-` and 64 hex digits. A record maps it.
    Inline(String),
}

impl FromStr for VolumeHandle {
    type Err = NotAnId;

    fn from_str(s: &str) -> Result<Self, NotAnId> {
        if let Some(hex) = s.strip_prefix("csi-") {
            lower_hex(hex, 64)?;
            return Ok(VolumeHandle::Inline(s.to_owned()));
        }
        s.parse().map(VolumeHandle::Id)
    }
}

impl fmt::Display for VolumeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolumeHandle::Id(id) => id.fmt(f),
            VolumeHandle::Inline(handle) => f.write_str(handle),
        }
    }
}
