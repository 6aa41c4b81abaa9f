//! What differs by the system that the client runs on. All other files are the same on every system.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::path::Path;

/// The program that opens an address in the person's browser, and the arguments before the address.
#[cfg(target_os = "macos")]
pub(crate) const BROWSER: (&str, &[&str]) = ("open", &[]);
/// The program that opens an address in the person's browser, and the arguments before the address.
#[cfg(windows)]
pub(crate) const BROWSER: (&str, &[&str]) = ("rundll32", &["url.dll,FileProtocolHandler"]);
/// The program that opens an address in the person's browser, and the arguments before the address.
#[cfg(not(any(target_os = "macos", windows)))]
pub(crate) const BROWSER: (&str, &[&str]) = ("xdg-open", &[]);

/// Connects to the Unix socket of a driver on this machine.
#[cfg(unix)]
pub(crate) async fn connect(
    socket: &Path,
) -> io::Result<(
    tokio::net::unix::OwnedReadHalf,
    tokio::net::unix::OwnedWriteHalf,
)> {
    let stream = tokio::net::UnixStream::connect(socket).await?;
    Ok(stream.into_split())
}

/// No driver runs on this machine.
#[cfg(not(unix))]
pub(crate) async fn connect(_: &Path) -> io::Result<(tokio::io::Empty, tokio::io::Sink)> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Lets new files be for their owner alone.
#[cfg(unix)]
pub(crate) fn private_file(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    options.mode(0o600);
}

/// Files have the rights that their directory hands on.
#[cfg(not(unix))]
pub(crate) fn private_file(_: &mut OpenOptions) {}

/// Lets new directories be for their owner alone.
#[cfg(unix)]
pub(crate) fn private_dir(builder: &mut DirBuilder) {
    use std::os::unix::fs::DirBuilderExt;
    builder.mode(0o700);
}

/// Directories have the rights that the one above hands on.
#[cfg(not(unix))]
pub(crate) fn private_dir(_: &mut DirBuilder) {}

/// Locks a directory until the file is closed. Fails with `WouldBlock` if it is locked already. Where its
/// filesystem has no locks, it is not locked.
#[cfg(unix)]
pub(crate) fn lock_dir(dir: &Path) -> io::Result<Option<File>> {
    let opened = File::open(dir)?;
    if let Err(std::fs::TryLockError::WouldBlock) = opened.try_lock() {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(Some(opened))
}

/// Directories have no locks.
#[cfg(not(unix))]
pub(crate) fn lock_dir(_: &Path) -> io::Result<Option<File>> {
    Ok(None)
}

/// Writes the names in a directory to its disk, if its filesystem does so.
#[cfg(unix)]
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    match File::open(dir)?.sync_all() {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

/// The system writes them.
#[cfg(not(unix))]
pub(crate) fn sync_dir(_: &Path) -> io::Result<()> {
    Ok(())
}

/// True if directories can be locked and synced.
#[cfg(test)]
pub(crate) const DIRS_ARE_FILES: bool = cfg!(unix);

/// Makes a symbolic link.
#[cfg(all(test, unix))]
pub(crate) fn link(to: &Path, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

/// Tests make no links here: not everyone may.
#[cfg(all(test, not(unix)))]
pub(crate) fn link(_: &Path, _: &Path) -> io::Result<()> {
    Ok(())
}

/// What others than the owner may do with a file, as bits of its mode.
#[cfg(all(test, unix))]
pub(crate) fn rights_of_others(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    let metadata = std::fs::metadata(path).expect("a file");
    metadata.permissions().mode() & 0o077
}

/// A file has no such bits here.
#[cfg(all(test, not(unix)))]
pub(crate) fn rights_of_others(_: &Path) -> u32 {
    0
}

/// Resolves at Ctrl-C, or when the process is asked to end. Returns what ended it.
#[cfg(unix)]
pub(crate) async fn interrupted() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => "Ctrl-C",
        _ = term.recv() => "SIGTERM",
    }
}

/// Resolves at Ctrl-C. Returns what ended the process.
#[cfg(not(unix))]
pub(crate) async fn interrupted() -> &'static str {
    let _ = tokio::signal::ctrl_c().await;
    "Ctrl-C"
}
