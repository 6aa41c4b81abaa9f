//! The services over pools in a temporary directory and a kernel in memory.

use super::Config;
use crate::testkit::Configs;

mod bench;
mod health;
mod in_use;
mod missing;
mod publishing;
mod reading;
mod snapshots;
mod topology;
mod volumes;

/// A configuration with all services on.
pub(super) fn config() -> Config {
    Configs::default().controller
}
