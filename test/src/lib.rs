//! The harness under the tests: real pools on real loop devices, the built driver as a process of
//! its own, CSI clients, and a look at what is left behind.
//!
//! Read [`world`] to see how a test says what an orchestrator does, [`driver`] for how the driver
//! is started, killed and watched, and [`leaks`] for what must not remain. What breaks in here
//! panics with a sentence: it is the test that fails.

pub mod arena;
pub mod attacks;
pub mod client;
pub mod cluster;
pub mod data;
pub mod deployed;
pub mod dice;
pub mod driver;
pub mod fleet;
pub mod front;
pub mod leaks;
pub mod loops;
pub mod machine;
pub mod memory;
pub mod namespace;
pub mod pools;
pub mod scenarios;
pub mod scratch;
pub mod steps;
pub mod tools;
pub mod world;
