//! The services over the wire: a server on a Unix socket, over a kernel in memory that can be
//! held up in the middle of a mount; and the program itself, on the real one.

mod calls;
mod gate;
mod hanging;
mod program;
mod rig;
