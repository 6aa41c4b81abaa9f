//! The registration socket's file.
//!
//! Kubelet connects as soon as it sees a socket, so the file must not appear before it listens and
//! has its mode. The registrar creates it in a private directory, under names that kubelet ignores,
//! and then renames it.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};

use super::Error;

/// The longest path a Unix socket can have, in bytes (`sun_path` without its NUL).
const MAX_PATH: usize = 107;

/// How long connecting may take. A timeout means that another process serves the socket.
const CONNECT: Duration = Duration::from_secs(2);

/// A listening socket with its file, which is removed on drop.
#[derive(Debug)]
pub(super) struct Bound {
    // Dropped first, because every client that finds the file must be answered.
    name: Name,
    listener: UnixListener,
}

/// The file of a socket.
#[derive(Debug)]
pub(super) struct Name {
    path: PathBuf,
    id: Id,
}

/// Device and inode number, which identify a file under any name.
pub(super) type Id = (u64, u64);

impl Bound {
    /// Creates the socket, and replaces one that no process serves.
    pub(super) async fn new(path: &Path) -> Result<Bound, Error> {
        check_path(path)?;
        let dir = path.parent().unwrap_or(path);
        make_dir(dir)?;
        remove_stale(path).await?;
        let private = Private::new(dir)?;
        let listener = private.listen()?;
        let inner = private.socket();
        let failed = |op| failure(op, path);
        let meta = fs::symlink_metadata(&inner).map_err(failed("stat"))?;
        // Another process may have taken the path since the check above. The last rename wins, and
        // the other process notices.
        fs::rename(&inner, path).map_err(failed("rename to"))?;
        let name = Name { path: path.to_owned(), id: (meta.dev(), meta.ino()) };
        Ok(Bound { name, listener })
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

impl Name {
    /// The path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The identity of the file.
    pub(super) fn id(&self) -> Id {
        self.id
    }

    /// True if the path still leads to this socket.
    pub(super) fn is_there(&self) -> bool {
        matches!(id_at(&self.path), Ok(Some(id)) if id == self.id)
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if self.is_there()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "the registration socket stays");
        }
    }
}

/// The identity of the file at a path, if any.
pub(super) fn id_at(path: &Path) -> io::Result<Option<Id>> {
    match fs::symlink_metadata(path) {
        Ok(meta) => Ok(Some((meta.dev(), meta.ino()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A directory that only this user may enter, for a socket that has no mode yet.
struct Private {
    path: PathBuf,
}

impl Private {
    fn new(dir: &Path) -> Result<Private, Error> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let count = MADE.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!(".hostloop-{}-{count}", std::process::id()));
        let private = Private { path };
        // A killed process with the same PID in another container may have left this directory.
        private.remove();
        let made = fs::DirBuilder::new().mode(0o700).create(&private.path);
        made.map_err(failure("mkdir", &private.path))?;
        Ok(private)
    }

    fn socket(&self) -> PathBuf {
        self.path.join(".sock")
    }

    /// Creates the socket in the directory. The path goes through the directory's descriptor,
    /// because the full path is longer than the final one and may not fit.
    fn listen(&self) -> Result<UnixListener, Error> {
        let opened = fs::File::open(&self.path).map_err(failure("open", &self.path))?;
        let by_fd = format!("/proc/self/fd/{}/.sock", opened.as_raw_fd());
        let listener = UnixListener::bind(by_fd).map_err(failure("bind", &self.path))?;
        let socket = self.socket();
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(&socket, mode).map_err(failure("chmod", &socket))?;
        Ok(listener)
    }

    fn remove(&self) {
        let _ = fs::remove_file(self.socket());
        let _ = fs::remove_dir(&self.path);
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Creates the directory with kubelet's mode, but not its parents: without them, this is not
/// kubelet's host.
fn make_dir(dir: &Path) -> Result<(), Error> {
    match fs::DirBuilder::new().mode(0o755).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(failure("mkdir", dir)(error)),
        _ => Ok(()),
    }
}

fn check_path(path: &Path) -> Result<(), Error> {
    let bad = |why: String| Error::Path { path: path.to_owned(), why };
    let length = path.as_os_str().len();
    if length > MAX_PATH {
        return Err(bad(format!(
            "has {length} bytes, and a Unix socket's path at most {MAX_PATH}; choose a shorter \
             directory or driver name"
        )));
    }
    if !path.is_absolute() {
        return Err(bad("is not absolute".to_owned()));
    }
    Ok(())
}

/// Removes a socket that no process serves. A rename over it is not enough: kubelet must see the
/// removal to unregister the old socket.
async fn remove_stale(path: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failure("stat", path)(error)),
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(Error::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    let connected = tokio::time::timeout(CONNECT, UnixStream::connect(path)).await;
    match connected {
        // Its process died without removing it, or is removing it now.
        Ok(Err(error))
            if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {}
        // A process listens, but may be slow to accept connections.
        Ok(Ok(_)) | Err(_) => return Err(Error::Served(path.to_owned())),
        Ok(Err(error)) if error.kind() == ErrorKind::WouldBlock => {
            return Err(Error::Served(path.to_owned()));
        }
        Ok(Err(error)) => return Err(failure("connect", path)(error)),
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failure("unlink", path)(error)),
        _ => Ok(()),
    }
}

fn failure(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Io { op, path, source }
}

#[cfg(test)]
mod tests;
