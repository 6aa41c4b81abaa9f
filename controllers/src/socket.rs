//! Unix sockets that clients find in the filesystem: the driver's, and its registration with
//! kubelet.
//!
//! A socket is bound under a private name and renamed once it listens. So every client that can
//! connect gets an answer. The mode is set before the socket has any name. A path that exists is
//! checked first: a socket that another process serves, or a file that is not a socket, is left
//! alone.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};

/// The longest path a Unix socket can have, in bytes (`sun_path` without its NUL).
pub const MAX_PATH: usize = 107;

/// Connections the kernel keeps waiting while the process is busy.
const BACKLOG: i32 = 128;

/// Why a socket can't be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("socket {path}: {why}")]
    Path { path: PathBuf, why: String },
    #[error("socket {0} is served by another process; stop that one first")]
    Served(PathBuf),
    #[error("{0} exists and is not a socket; it is left as it is")]
    NotASocket(PathBuf),
    #[error("{op} {path}: {source}")]
    Io {
        op: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// A listening socket in the filesystem. Dropping it removes its name.
#[derive(Debug)]
pub struct Socket {
    name: Name,
    listener: UnixListener,
}

/// The name of a listening socket. Dropping it removes the name if it is still this socket's.
#[derive(Debug)]
pub struct Name {
    path: PathBuf,
    id: Id,
}

/// Device and inode number, which identify a file under any name.
pub type Id = (u64, u64);

impl Socket {
    /// Creates the socket, and its directory with this builder if it is missing.
    pub fn bind(path: &Path, missing: &fs::DirBuilder) -> Result<Socket, Error> {
        check(path)?;
        let dir = path.parent().unwrap_or(path);
        make_dir(dir, missing)?;
        let fd = new_socket().map_err(failed("socket", path))?;
        // bind gives the file the mode of the unbound socket.
        fchmod(&fd, Mode::S_IRUSR | Mode::S_IWUSR).map_err(failed("fchmod", path))?;
        let private = dir.join(private_name());
        bind_beneath(&fd, dir, &private)?;
        let made = Name::of(private)?;
        let backlog = Backlog::new(BACKLOG).map_err(failed("listen", path))?;
        listen(&fd, backlog).map_err(failed("listen", path))?;
        let name = made.rename(path)?;
        let listener = UnixListener::from(fd);
        listener
            .set_nonblocking(true)
            .map_err(failed("set_nonblocking", path))?;
        Ok(Socket { name, listener })
    }

    /// The listener, which the runtime of the caller watches, and its name. Drop the name to accept no
    /// new clients.
    pub fn watched(self) -> Result<(tokio::net::UnixListener, Name), Error> {
        let listener = tokio::net::UnixListener::from_std(self.listener);
        let listener = listener.map_err(failed("watch", self.name.path()))?;
        Ok((listener, self.name))
    }
}

impl Name {
    fn of(path: PathBuf) -> Result<Name, Error> {
        let meta = fs::symlink_metadata(&path).map_err(failed("stat", &path))?;
        Ok(Name {
            id: (meta.dev(), meta.ino()),
            path,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The identity of the file.
    pub fn id(&self) -> Id {
        self.id
    }

    /// True if the path still leads to this socket.
    pub fn is_there(&self) -> bool {
        matches!(id_at(&self.path), Ok(Some(id)) if id == self.id)
    }

    fn rename(mut self, to: &Path) -> Result<Name, Error> {
        fs::rename(&self.path, to).map_err(failed("rename to", to))?;
        self.path = to.to_owned();
        Ok(self)
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if self.is_there()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

/// The identity of the file at a path, if any.
pub fn id_at(path: &Path) -> io::Result<Option<Id>> {
    match fs::symlink_metadata(path) {
        Ok(meta) => Ok(Some((meta.dev(), meta.ino()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks that a socket could be created at this path. The path must be valid, and either free or a
/// socket that no process serves.
pub fn check(path: &Path) -> Result<(), Error> {
    check_path(path)?;
    refuse_what_is_not_stale(path)
}

/// Adds the failed call and its path to an error.
pub(crate) fn failed<E: Into<io::Error>>(op: &'static str, path: &Path) -> impl FnOnce(E) -> Error {
    move |error| Error::Io {
        op,
        path: path.to_owned(),
        source: error.into(),
    }
}

/// A name that no client looks for and no other socket has.
fn private_name() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let count = MADE.fetch_add(1, Ordering::Relaxed);
    format!(".{}-{count}.sock", std::process::id())
}

fn make_dir(dir: &Path, missing: &fs::DirBuilder) -> Result<(), Error> {
    match missing.create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(failed("mkdir", dir)),
    }
}

fn check_path(path: &Path) -> Result<(), Error> {
    let length = path.as_os_str().len();
    let why = if length > MAX_PATH {
        format!(
            "has {length} bytes, and a Unix socket's path at most {MAX_PATH}; choose a shorter one"
        )
    } else if !path.is_absolute() {
        "is not absolute".to_owned()
    } else if path.file_name().is_none() {
        "has no file name".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::Path {
        path: path.to_owned(),
        why,
    })
}

fn refuse_what_is_not_stale(path: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("stat", path)(error)),
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(Error::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    let fd = new_socket().map_err(failed("socket", path))?;
    let address = UnixAddr::new(path).map_err(failed("connect", path))?;
    match connect(fd.as_raw_fd(), &address) {
        // No process listens: the owner died without removing the socket, or removed it just now.
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(()),
        // EAGAIN: a process listens, but its backlog is full.
        Ok(()) | Err(Errno::EAGAIN) => Err(Error::Served(path.to_owned())),
        Err(error) => Err(failed("connect", path)(error)),
    }
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

/// Binds through the directory's descriptor. So the private name may be longer than the public one,
/// and lies in the same directory.
fn bind_beneath(fd: &OwnedFd, dir: &Path, private: &Path) -> Result<(), Error> {
    let opened = fs::File::open(dir).map_err(failed("open directory", dir))?;
    let name = private.file_name().unwrap_or_default();
    let by_fd = Path::new("/proc/self/fd")
        .join(opened.as_raw_fd().to_string())
        .join(name);
    // A process with the same PID was killed here and left this file.
    match fs::remove_file(private) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => removed.map_err(failed("unlink", private))?,
    }
    let address = UnixAddr::new(&by_fd).map_err(failed("bind", private))?;
    bind(fd.as_raw_fd(), &address).map_err(failed("bind", private))
}

#[cfg(test)]
mod tests;
