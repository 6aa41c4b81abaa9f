//! The services over the wire: a server on a Unix socket, over a kernel in memory that can be
//! held up in the middle of a mount; and the program itself, on the real one.

#![allow(
    clippy::unwrap_used,
    reason = "a test says what failed by where it failed"
)]

mod calls;
mod gate;
mod hanging;
mod program;
mod rig;
