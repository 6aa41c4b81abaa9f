//! The common parts of all controllers: a queue of keys, workers, metrics, and one way to start and
//! stop them.

mod builder;
pub(crate) mod content_owner;
pub mod context;
pub mod event_key;
pub(crate) mod finalizers;
pub(crate) mod grace_period;
pub mod object_key;
pub mod owner;
pub(crate) mod workers;

pub use builder::Controller;
pub(crate) use builder::{about, pause};
pub use context::Context;
pub use event_key::EventKey;
pub use object_key::ObjectKey;
