//! Compares a simulated cluster with a real one.
//!
//! The simulator does a history, and exports it ([`Export`]): what users sent to the API server,
//! and the [`ClusterState`] that this came to. The test `fidelity` sends the same to a real
//! cluster, and compares. Both sides make their state here, of objects and records as they are
//! ([`FoundObjects`]): with names that do not depend on a run ([`Names`]), and without times and
//! versions. A [`Difference`] is a sentence. Some of them are [`known()`].

mod cluster_state;
mod difference;
mod export;
mod found_objects;
mod known_difference;
mod names;
mod record_directory;

pub use cluster_state::ClusterState;
pub use difference::{Difference, Side};
pub use export::{Call, Export, ReplayedStep};
pub use found_objects::{FoundObjects, KINDS, NAMESPACE};
pub use known_difference::{KNOWN, KnownDifference, known};
pub use names::Names;
pub use record_directory::{RecordDirectory, Records};

use std::time::Duration;

/// The time after each step in which the simulated cluster settles. Controllers tell some errors
/// after a minute. A real cluster has more time.
pub const QUIET: Duration = Duration::from_secs(80);
