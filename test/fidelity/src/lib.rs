//! Compares a simulated cluster with a real one.
//!
//! The simulator does a history, and exports it ([`Export`]): what users sent to the API server,
//! and the [`State`] that this came to. The test `fidelity` sends the same to a real cluster, and
//! compares. Both sides make their state here, of objects and records as they are ([`Found`]): with
//! names that do not depend on a run ([`Names`]), and without times and versions. A [`Difference`]
//! is a sentence. Some of them are [`known()`].

mod difference;
mod export;
mod found;
mod known;
mod names;
mod state;

pub use difference::{Difference, Side};
pub use export::{Call, Export, Step};
pub use found::{Found, KINDS, NAMESPACE, Pool, Records};
pub use known::{KNOWN, Known, known};
pub use names::Names;
pub use state::State;

use std::time::Duration;

/// The time after each step in which the simulated cluster settles. A real one has a little more.
pub const QUIET: Duration = Duration::from_secs(60);
