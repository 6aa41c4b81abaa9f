//! The harness of the tests: real pools on real loop devices, the built driver as a separate
//! process, CSI clients, and checks for leaks.
//!
//! [`world`] shows how a test describes the actions of an orchestrator. [`driver`] starts, kills
//! and observes the driver, and [`leaks`] lists what must not remain. A failure in the harness
//! panics with a sentence and fails the test.

use std::time::Duration;

pub mod arena;
pub mod attacks;
pub mod changed_blocks;
pub mod child;
pub mod client;
pub mod cluster;
pub mod data;
pub mod deployed;
pub mod dice;
pub mod driver;
pub mod fault_table;
pub mod fleet;
pub mod front;
pub mod host_path;
pub mod leaks;
pub mod loop_devices;
pub mod machine;
pub mod memory;
pub mod mock_driver;
pub mod namespace;
pub mod plugin;
pub mod pools;
pub mod process;
pub mod queries;
pub mod recording;
pub mod requests;
pub mod scenarios;
pub mod scratch;
pub mod sharing;
pub mod shell;
pub mod steps;
pub mod tools;
pub mod walk;
pub mod world;

/// The time limit of each wait for a condition. Only a failing test waits this long: a machine can
/// stand still for half a minute, and several of these pauses can follow each other.
pub const PATIENCE: Duration = Duration::from_secs(300);
