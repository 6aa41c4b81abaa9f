//! Disks that fail on request.
//!
//! A fault disk is a file in a FUSE filesystem of its own. It stands between an image and the loop
//! device of a volume, and has the bytes of the image. [`FaultDisk`] serves one, and
//! [`server`] serves those of a node, to a client in another process ([`client`]).
//!
//! - [`rules`] make operations fail or take longer, and [`limits`] are those of a slow disk. Both
//!   change while the disk is in use.
//! - A disk may have a write cache, as real ones do: what was written since the last flush is in
//!   memory only. [`power_cut`] drops it, or keeps a part of it.
//!
//! The FUSE filesystem has no path, and is in no mount table. It goes with the last user of its
//! file.
//!
//! The kernel may write back a volume's pages before it gives memory to its server, which would
//! then wait for itself. So a server locks its memory ([`memory`]), and a disk takes all that it
//! needs when it is made.
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod aligned_buffer;
mod answer_queue;
pub mod client;
mod disk;
mod draw;
mod error;
mod fault_disk;
mod fuse_message;
mod image;
pub mod limits;
pub mod memory;
mod memory_share;
mod mount;
pub mod power_cut;
pub mod protocol;
pub mod rules;
pub mod server;
mod slots;
mod socket;
mod worker;
mod write_cache;

pub use disk::{Counts, DiskState, Settings};
pub use error::{Error, Result};
pub use fault_disk::{FaultDisk, cut_power};
