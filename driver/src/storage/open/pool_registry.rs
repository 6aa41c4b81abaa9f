//! `pools.json` in the state directory: the pools that this node has seen, by configured name. It
//! lies outside the pools, so that the driver can detect a missing pool.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::kernel::{self, file};
use crate::record::SCHEMA;
use crate::storage::layout::{open_dir, open_or_create};
use crate::storage::{PoolId, PoolSpec, Result, encoding};

pub(super) const FILE: &str = "pools.json";
/// Locked while the file is read and replaced: two drivers may share a state directory.
const LOCK: &str = "pools.lock";

/// The registered state of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::storage) struct RegisteredPool {
    /// The pool's identity; `None` before the pool was first opened.
    pub(in crate::storage) id: Option<PoolId>,
    /// The configured path; for people.
    pub(super) path: PathBuf,
    /// The UUID of its filesystem, if the driver mounts it; written together with `id`. Version
    /// 0.1.0 wrote it before mkfs, so without an `id` it only names a filesystem that may be
    /// mounted.
    pub(super) fs_uuid: Option<String>,
    /// The UUID of the filesystem that mkfs was started for; written before mkfs, removed when `id`
    /// is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mkfs: Option<String>,
}

impl RegisteredPool {
    /// The end of a sentence that says where the pool was; empty if its path has not changed.
    pub(super) fn path_before(&self, spec: &PoolSpec) -> String {
        if self.path.as_os_str().is_empty() || self.path == spec.path {
            return String::new();
        }
        let before = self.path.display();
        format!(": this pool was at {before} before, so the path may be wrong")
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegistryContent {
    schema: u32,
    pools: BTreeMap<String, RegisteredPool>,
}

/// The registry file, `pools.json`.
#[derive(Debug)]
pub(in crate::storage) struct PoolRegistry {
    dir: File,
}

impl PoolRegistry {
    /// Opens the state directory, and creates it if it does not exist.
    pub(in crate::storage) fn at(state_dir: &Path) -> Result<PoolRegistry> {
        std::fs::create_dir_all(state_dir).map_err(|e| kernel::Error::io("mkdir", state_dir, e))?;
        let dir = open_dir(state_dir)?;
        Ok(PoolRegistry { dir })
    }

    /// The entry of a pool; an unknown pool has the default entry.
    pub(in crate::storage) fn entry(&self, name: &str) -> Result<RegisteredPool> {
        Ok(self.read()?.pools.remove(name).unwrap_or_default())
    }

    /// Changes the entry of a pool on disk. An entry that stays the same is synced, too: the
    /// process that wrote it may have died between the rename and its fsync.
    pub(super) fn remember(
        &self,
        name: &str,
        change: impl FnOnce(&mut RegisteredPool),
    ) -> Result<()> {
        let _lock = self.lock()?;
        let mut content = self.read()?;
        let entry = content.pools.entry(name.to_owned()).or_default();
        let before = entry.clone();
        change(entry);
        if *entry == before {
            return Ok(file::sync(&self.dir, &file::name_of(&self.dir))?);
        }
        let content = encoding::encode(&content, FILE)?;
        Ok(file::replace(self.dir.as_fd(), FILE, &content)?)
    }

    fn read(&self) -> Result<RegistryContent> {
        let content = encoding::read_versioned(self.dir.as_fd(), FILE, || {
            "restore it from a backup, or delete it once every pool is mounted at its path: the \
             driver writes it again"
                .to_owned()
        })?;
        Ok(content.unwrap_or_else(|| RegistryContent {
            schema: SCHEMA,
            pools: BTreeMap::new(),
        }))
    }

    fn lock(&self) -> Result<File> {
        let lock = open_or_create(self.dir.as_fd(), LOCK)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .map_err(|e| kernel::Error::io("flock", file::name_of(&lock), e.into()))?;
        Ok(lock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers() {
        let dir = tempfile::tempdir().unwrap();
        let registry = PoolRegistry::at(&dir.path().join("state")).unwrap();
        assert_eq!(registry.entry("a").unwrap(), RegisteredPool::default());
        let id = PoolId::generate();
        registry
            .remember("a", |e| e.fs_uuid = Some("x".into()))
            .unwrap();
        registry.remember("b", |_| {}).unwrap();
        registry.remember("a", |e| e.id = Some(id)).unwrap();
        let again = PoolRegistry::at(&dir.path().join("state")).unwrap();
        let entry = again.entry("a").unwrap();
        assert_eq!((entry.id, entry.fs_uuid.as_deref()), (Some(id), Some("x")));
        assert_eq!(again.entry("b").unwrap(), RegisteredPool::default());
    }

    #[test]
    fn never_overwrites_what_it_cannot_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        for content in ["{", "{}", r#"{"schema": 2, "pools": {}}"#] {
            std::fs::write(&file, content).unwrap();
            let registry = PoolRegistry::at(dir.path()).unwrap();
            assert!(registry.entry("a").is_err());
            assert!(registry.remember("a", |e| e.path = "/x".into()).is_err());
            assert_eq!(std::fs::read_to_string(&file).unwrap(), content);
        }
    }
}
