//! The common parts of all controllers: a queue of keys, workers, metrics, and one way to start and
//! stop them.

mod builder;
pub mod context;
pub mod metrics;
pub mod owner;
pub mod queue;
pub(crate) mod tasks;

pub use builder::Controller;
pub use context::Context;
pub use metrics::Metrics;
