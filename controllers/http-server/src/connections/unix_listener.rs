//! Connections of a Unix socket. The client, which may run on another system, has none.
#![cfg(unix)]

use std::io;
use std::net::IpAddr;

use tokio::net::{UnixListener, UnixStream};

use super::Listener;

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Option<IpAddr>)> {
        UnixListener::accept(self)
            .await
            .map(|(stream, _)| (stream, None))
    }
}
