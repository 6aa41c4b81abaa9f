//! What every controller is made of: a queue of keys, workers, counts, and one way to start and
//! stop them.

mod builder;
pub mod context;
pub mod metrics;
pub mod queue;

pub use builder::Controller;
pub use context::Context;
pub use metrics::Metrics;
