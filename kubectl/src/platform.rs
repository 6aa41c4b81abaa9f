//! What differs by the system that the client runs on. All other files are the same on every system.

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
