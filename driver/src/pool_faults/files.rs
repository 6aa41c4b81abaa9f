//! The two files in the state directory: what is asked for, and what became of it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use hostloop_controllers::api::pool_fault::PoolFault;
use hostloop_report::node_faults::{NodeFaults, PoolFaultNow, PoolFaultState};
use rustix::fs::FlockOperation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::diagnose::NotedFault;

/// What is asked for.
const REQUESTS: &str = "pool-faults.json";
/// What became of it.
const SHOWN: &str = "pool-faults-now.json";

/// A fault that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolFaultRequest {
    /// The fault, as text.
    pub fault: String,
    /// When it is asked for, nanoseconds since the epoch. Tells repetitions apart.
    pub requested_ns: u64,
}

/// The requests, by the names of the pools.
pub(super) type PoolFaultRequests = BTreeMap<String, PoolFaultRequest>;

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FaultFilesError {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("{path} is not readable: {source}; delete it")]
    Content {
        path: PathBuf,
        source: serde_json::Error,
    },
}

/// The files of one driver.
#[derive(Clone, Debug)]
pub struct FaultFiles {
    state_dir: PathBuf,
}

impl FaultFiles {
    /// The files in this state directory.
    pub fn at(state_dir: &Path) -> FaultFiles {
        FaultFiles {
            state_dir: state_dir.to_owned(),
        }
    }

    /// What is asked for.
    pub(super) fn requests(&self) -> Result<PoolFaultRequests, FaultFilesError> {
        Ok(self.read(REQUESTS)?.unwrap_or_default())
    }

    /// Asks for no fault of any pool.
    pub(super) fn forget_requests(&self) -> Result<(), FaultFilesError> {
        match fs::remove_file(self.state_dir.join(REQUESTS)) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(self.error(REQUESTS, source))
            }
            _ => Ok(()),
        }
    }

    /// Asks for this fault of a pool, or for none.
    pub fn request(
        &self,
        pool: &str,
        request: Option<PoolFaultRequest>,
    ) -> Result<(), FaultFilesError> {
        // Two administrators may do this at the same time.
        let dir = File::open(&self.state_dir).map_err(|source| self.error("", source))?;
        rustix::fs::flock(&dir, FlockOperation::LockExclusive)
            .map_err(|source| self.error("", source.into()))?;
        let mut requests = self.requests()?;
        match request {
            Some(request) => requests.insert(pool.to_owned(), request),
            None => requests.remove(pool),
        };
        if requests.is_empty() {
            // A full disk takes no new file, and must not keep a fault from its end.
            return self.forget_requests();
        }
        self.write(REQUESTS, &requests)
    }

    /// What the driver says; `None` if no driver with this ability has run.
    pub fn shown(&self) -> Result<Option<NodeFaults>, FaultFilesError> {
        self.read(SHOWN)
    }

    /// Says what became of the requests.
    pub(super) fn show(&self, faults: &NodeFaults) -> Result<(), FaultFilesError> {
        self.write(SHOWN, faults)
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, FaultFilesError> {
        let content = match fs::read(self.state_dir.join(name)) {
            Ok(content) => content,
            Err(source) if source.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.error(name, source)),
        };
        let read = serde_json::from_slice(&content);
        read.map(Some).map_err(|source| FaultFilesError::Content {
            path: self.state_dir.join(name),
            source,
        })
    }

    /// Replaces a file by a rename: others see the old content or the new one.
    fn write<T: Serialize>(&self, name: &str, content: &T) -> Result<(), FaultFilesError> {
        let path = self.state_dir.join(name);
        let content = serde_json::to_vec(content).map_err(|source| FaultFilesError::Content {
            path: path.clone(),
            source,
        })?;
        let new = self.state_dir.join(format!(".{name}.new"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options
            .open(&new)
            .map_err(|source| self.error(name, source))?;
        file.write_all(&content)
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|source| self.error(name, source))
    }

    fn error(&self, name: &str, source: io::Error) -> FaultFilesError {
        FaultFilesError::File {
            path: self.state_dir.join(name),
            source,
        }
    }
}

/// The faults that the pools of a running driver have, by the names of the pools.
pub(crate) fn noted_faults(state_dir: &Path) -> BTreeMap<String, NotedFault> {
    let shown = FaultFiles::at(state_dir).shown().ok().flatten();
    let pools = shown.into_iter().flat_map(|shown| shown.pools);
    pools
        .filter_map(|pool| Some((pool.pool, noted(&pool.now?)?)))
        .collect()
}

fn noted(now: &PoolFaultNow) -> Option<NotedFault> {
    let fault = PoolFault::parse(&now.fault).ok()?;
    (now.state == PoolFaultState::Active).then(|| NotedFault {
        fault: fault.to_string(),
        total: fault.kind.is_total(),
        since_ns: now.requested_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_kept_by_pool() {
        let dir = tempfile::tempdir().unwrap();
        let files = FaultFiles::at(dir.path());
        assert!(files.requests().unwrap().is_empty());
        let request = |requested_ns| PoolFaultRequest {
            fault: "full".to_owned(),
            requested_ns,
        };
        files.request("a", Some(request(1))).unwrap();
        files.request("b", Some(request(2))).unwrap();
        files.request("a", Some(request(3))).unwrap();
        files.request("c", None).unwrap();
        let expected = [("a".to_owned(), request(3)), ("b".to_owned(), request(2))];
        assert_eq!(files.requests().unwrap(), expected.into());
        files.request("b", None).unwrap();
        assert_eq!(files.requests().unwrap().len(), 1);
        // As on a full disk: no new file can be written.
        let new = dir.path().join(format!(".{REQUESTS}.new"));
        fs::create_dir(&new).unwrap();
        files.request("b", Some(request(4))).unwrap_err();
        files.request("a", None).unwrap();
        assert!(files.requests().unwrap().is_empty());
        fs::remove_dir(&new).unwrap();
        files.forget_requests().unwrap();
        files.forget_requests().unwrap();
        assert!(files.requests().unwrap().is_empty());
    }

    #[test]
    fn a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let files = FaultFiles::at(dir.path());
        fs::write(dir.path().join(REQUESTS), "{").unwrap();
        let error = files.requests().unwrap_err().to_string();
        assert!(
            error.contains("pool-faults.json is not readable"),
            "{error}"
        );
        assert_eq!(files.shown().unwrap(), None);
        assert!(noted_faults(dir.path()).is_empty());
    }
}
