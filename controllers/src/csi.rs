//! The client for the CSI driver: calls, the meaning of their errors, and what the driver reports
//! of itself.

pub mod capacity_signal;
mod client;
pub mod driver;
pub mod error_class;
pub mod freed_signal;
pub mod list;
pub mod pools;

pub use capacity_signal::CapacitySignal;
pub use client::{Csi, Failure};
pub use driver::Driver;
pub use error_class::{CallKind, ErrorClass, class, may_lack_secret};
pub(crate) use freed_signal::Waiters;
pub use freed_signal::{Freed, FreedSignal};
pub use list::{ListError, Published};
pub use pools::Pools;
