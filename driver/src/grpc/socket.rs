//! The driver's Unix sockets.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

pub use hostloop_controllers::socket::{Error, Name, Socket, check};

/// Creates a socket, and its directories if they are missing.
pub fn bind(path: &Path) -> Result<Socket, Error> {
    Socket::bind(path, DirBuilder::new().recursive(true).mode(0o750))
}
