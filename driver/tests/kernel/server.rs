//! The services over the wire: a server on a Unix socket, over a kernel in memory that can block in
//! the middle of a mount. Also the program itself, on the real kernel.

mod calls;
mod copies;
mod cuts;
mod descriptors;
mod events;
mod gate;
mod hanging;
mod otlp;
mod program;
mod rig;
