//! The topology of this node: the driver's own keys and values, and labels of the Node object.
//!
//! The driver does not call the API server: the Kubernetes controllers read the labels and pass
//! them in. The state directory stores the last labels, so a node registers even if the API server
//! is down. A node that has never read its labels answers with an error, and kubelet retries.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use crate::kernel::{self, file};
use crate::record::SCHEMA;
use crate::storage::{self, encoding};

/// The keys and values of a node's topology; empty if the topology is off.
pub type Segments = BTreeMap<String, String>;

/// The file with the stored labels, in the state directory.
const FILE: &str = "topology.json";
/// How long a registration waits for current labels before it uses the stored ones.
const PATIENCE: Duration = Duration::from_secs(3);

/// Some labels are not known yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the topology of this node is not known yet: its labels {keys} (--topology-from-node-labels) \
     have not been read from the API server"
)]
pub struct Unknown {
    /// The missing labels.
    keys: String,
}

/// A label differs from the value that the node was registered with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "label {key} of this node is {now:?} now and was {before:?} when kubelet registered the node \
     (--topology-from-node-labels): the new value counts after a restart of the driver"
)]
pub struct Moved {
    key: String,
    before: String,
    now: String,
}

/// The topology of this node. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Topology(Arc<TopologyData>);

#[derive(Debug, Default)]
struct TopologyData {
    /// The segments known from the start.
    own: Segments,
    /// Labels of the Node object that belong to the topology.
    labels: BTreeSet<String>,
    memory: Option<Memory>,
    state: Mutex<LabelState>,
    read: Condvar,
}

#[derive(Debug, Default)]
struct LabelState {
    /// All segments once all are known; `None` while a label is missing.
    known: Option<Arc<Segments>>,
    /// True if the labels were read in this process, not only loaded from the file.
    is_read: bool,
    /// True once a caller has received the segments.
    is_reported: bool,
}

impl From<Segments> for Topology {
    fn from(own: Segments) -> Self {
        Topology(Arc::new(TopologyData {
            own,
            ..TopologyData::default()
        }))
    }
}

impl<const N: usize> From<[(String, String); N]> for Topology {
    fn from(own: [(String, String); N]) -> Self {
        Topology::from(Segments::from(own))
    }
}

impl Topology {
    /// Creates a topology with these labels of the named node, and loads the stored values.
    pub fn with_labels(
        own: Segments,
        labels: BTreeSet<String>,
        node: &str,
        state_dir: &Path,
    ) -> Self {
        let memory = Memory {
            dir: state_dir.to_owned(),
            node: node.to_owned(),
        };
        let remembered = memory.read().unwrap_or_else(|error| {
            tracing::warn!(%error, "the node's stored labels can't be read");
            Segments::new()
        });
        let found: Option<Segments> = labels
            .iter()
            .map(|key| Some((key.clone(), remembered.get(key)?.clone())))
            .collect();
        let known = found.map(|found| Arc::new(own.clone().into_iter().chain(found).collect()));
        Topology(Arc::new(TopologyData {
            own,
            labels,
            memory: Some(memory),
            state: Mutex::new(LabelState {
                known,
                ..LabelState::default()
            }),
            read: Condvar::new(),
        }))
    }

    /// The labels of the Node object that must be read.
    pub fn labels(&self) -> &BTreeSet<String> {
        &self.0.labels
    }

    /// All segments.
    pub fn segments(&self) -> Result<Arc<Segments>, Unknown> {
        self.current_segments(self.0.state.lock())
    }

    /// All segments, after a short wait for current labels. Registration uses this, because kubelet
    /// refuses segments that contradict the labels.
    pub fn settled(&self) -> Result<Arc<Segments>, Unknown> {
        let mut state = self.0.state.lock();
        self.0.read.wait_while_for(
            &mut state,
            |state: &mut LabelState| !self.0.labels.is_empty() && !state.is_read,
            PATIENCE,
        );
        self.current_segments(state)
    }

    fn current_segments(
        &self,
        mut state: MutexGuard<'_, LabelState>,
    ) -> Result<Arc<Segments>, Unknown> {
        if self.0.labels.is_empty() {
            return Ok(state
                .known
                .get_or_insert_with(|| Arc::new(self.0.own.clone()))
                .clone());
        }
        let Some(known) = state.known.clone() else {
            let keys: Vec<_> = self.0.labels.iter().map(String::as_str).collect();
            return Err(Unknown {
                keys: keys.join(", "),
            });
        };
        state.is_reported = true;
        Ok(known)
    }

    /// Stores the node's current labels and returns the missing ones. A missing label keeps its
    /// stored value: kubelet sets it again when the node registers.
    pub fn take(&self, labels: &BTreeMap<String, String>) -> Result<Vec<String>, Moved> {
        let keys = &self.0.labels;
        let missing = keys.iter().filter(|key| value(labels, key).is_none());
        let missing: Vec<String> = missing.cloned().collect();
        let mut state = self.0.state.lock();
        let before = state.known.clone().unwrap_or_default();
        let now = keys.iter().map(|key| {
            let value = value(labels, key).or(before.get(key))?;
            Some((key.clone(), value.clone()))
        });
        let now: Option<Segments> = now.collect();
        if let Some(now) = now {
            let whole: Segments = self.0.own.clone().into_iter().chain(now.clone()).collect();
            let moved = keys
                .iter()
                .find(|key| before.get(*key) != whole.get(*key))
                .filter(|_| state.is_reported);
            let moved = moved.map(|key| Moved {
                key: key.clone(),
                before: before.get(key).cloned().unwrap_or_default(),
                now: whole.get(key).cloned().unwrap_or_default(),
            });
            if *before != whole {
                self.remember(&now);
            }
            if let Some(moved) = moved {
                return Err(moved);
            }
            state.known = Some(Arc::new(whole));
            state.is_read = true;
            self.0.read.notify_all();
        }
        Ok(missing)
    }

    fn remember(&self, labels: &Segments) {
        let Some(memory) = &self.0.memory else {
            return;
        };
        if let Err(error) = memory.write(labels) {
            tracing::warn!(%error, "the node's labels could not be stored");
        }
    }
}

/// The value of a label; `None` if it is missing or empty.
fn value<'l>(labels: &'l BTreeMap<String, String>, key: &str) -> Option<&'l String> {
    labels.get(key).filter(|value| !value.is_empty())
}

/// The labels read last, on disk. If the file is lost, they are read again.
#[derive(Debug)]
struct Memory {
    dir: PathBuf,
    node: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredLabels {
    schema: u32,
    node: String,
    labels: Segments,
}

impl Memory {
    /// The stored labels of this node; empty if there are none.
    fn read(&self) -> Result<Segments, storage::Error> {
        let dir = match File::open(&self.dir).map_err(|e| kernel::Error::io("open", &self.dir, e)) {
            Err(kernel::Error::NotFound { .. }) => return Ok(Segments::new()),
            dir => dir?,
        };
        let stored: Option<StoredLabels> = encoding::read_versioned(dir.as_fd(), FILE, || {
            "the labels that are read next replace it".to_owned()
        })?;
        let stored = stored.filter(|stored| stored.node == self.node);
        Ok(stored.map(|stored| stored.labels).unwrap_or_default())
    }

    fn write(&self, labels: &Segments) -> Result<(), storage::Error> {
        std::fs::create_dir_all(&self.dir).map_err(|e| kernel::Error::io("mkdir", &self.dir, e))?;
        let dir = File::open(&self.dir).map_err(|e| kernel::Error::io("open", &self.dir, e))?;
        let content = StoredLabels {
            schema: SCHEMA,
            node: self.node.clone(),
            labels: labels.clone(),
        };
        let text = encoding::encode(&content, FILE)?;
        Ok(file::replace(dir.as_fd(), FILE, &text)?)
    }
}

#[cfg(test)]
mod tests;
