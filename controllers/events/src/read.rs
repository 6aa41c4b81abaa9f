//! Reads the events of a process from its socket.

use std::path::Path;

pub use hostloop_report::events::{Error, Said, Stream, header, said};
use tokio::net::UnixStream;

use crate::serve::Request;

/// Connects to a socket, and sends a request.
pub async fn open(path: &Path, request: &Request) -> Result<Stream, Error> {
    let stream = UnixStream::connect(path).await;
    let stream = stream.map_err(|source| Error::Connect {
        path: path.to_owned(),
        source,
    })?;
    let (reader, writer) = stream.into_split();
    Stream::begin(reader, writer, request).await
}
