//! Decides what may stand where kubelet looks for the driver, and makes each change in a way that
//! kubelet notices.
//!
//! A socket that no process serves is removed before the new one takes its place. The own file is
//! removed before its listener closes, so every client that finds it gets an answer. Only the
//! directory itself is created: without its parents, no kubelet runs here.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use tokio::net::{UnixListener, UnixStream};

use crate::socket::{self, Error, Name, Socket};

/// A listening socket with its file, which is removed on drop.
#[derive(Debug)]
pub(super) struct RegistrationSocket {
    // Dropped first, because every client that finds the file must be answered.
    name: Name,
    listener: UnixListener,
}

impl RegistrationSocket {
    /// Creates the socket, and replaces one that no process serves. Another process may take the
    /// path meanwhile: the last one wins, and the other notices.
    pub(super) fn new(path: &Path) -> Result<RegistrationSocket, Error> {
        socket::check(path)?;
        // A rename over a stale socket is not enough: kubelet unregisters it only if it is removed.
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(socket::failed("unlink", path)(error));
            }
            _ => {}
        }
        // The directory has kubelet's mode. Without its parents, this is not kubelet's host.
        let (listener, name) = Socket::bind(path, DirBuilder::new().mode(0o755))?.watched()?;
        Ok(RegistrationSocket { name, listener })
    }

    /// The socket's file.
    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    /// Accepts the next connection.
    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener as BlockingListener;

    use tempfile::TempDir;

    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("registry/a-reg.sock");
        fs::create_dir(dir.path().join("registry")).unwrap();
        drop(BlockingListener::bind(&path).unwrap());
        let bound = RegistrationSocket::new(&path).unwrap();
        assert!(bound.name().is_there());
        UnixStream::connect(&path).await.unwrap();
        let served = RegistrationSocket::new(&path).unwrap_err();
        assert!(matches!(served, Error::Served(_)), "{served}");
        drop(bound);
        assert_eq!(
            fs::read_dir(dir.path().join("registry")).unwrap().count(),
            0
        );
    }

    #[tokio::test]
    async fn a_directory_is_made_but_none_above_it() {
        let dir = TempDir::new().unwrap();
        drop(RegistrationSocket::new(&dir.path().join("registry/a-reg.sock")).unwrap());
        let error = RegistrationSocket::new(&dir.path().join("not/here/a-reg.sock")).unwrap_err();
        assert!(matches!(error, Error::Io { op: "mkdir", .. }), "{error}");
    }
}
