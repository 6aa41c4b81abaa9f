//! What a process did: CSI calls, the steps inside them, and the work of controllers.
//!
//! A process keeps its last events in a [`Ring`] of fixed size, whether or not anyone reads them.
//! [`serve`] sends them to the readers of a Unix socket, one JSON object a line. A reader that is
//! too slow misses events and never blocks the process. [`otlp`] sends them to a collector of
//! OpenTelemetry.
//!
//! [`call`] has the calls and their steps, [`work`] the controllers' work and leases.
//!
//! Events have no secrets, parameters, contexts or mount flags. The caller passes only fields of
//! requests that are never secret, see [`Fields`]. Text is escaped and shortened.

use std::sync::LazyLock;

pub mod call;
mod event;
pub mod otlp;
pub mod read;
mod ring;
pub mod serve;
mod trace;
pub mod work;

pub use call::{Call, phase};
pub use event::{Event, Field, Fields, Kind, MAX_TEXT, Shortened, State, now};
pub use hostloop_report::events::FORMAT;
pub use ring::{Batch, Ring};
pub use trace::{is_uid, trace_of};

/// The size of the ring of a process, in bytes: about 1,500 events.
pub const LIMIT: usize = 384 << 10;

/// The ring of this process.
pub static RING: LazyLock<Ring> = LazyLock::new(|| Ring::new(LIMIT));
