//! Names of open files, for errors.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use super::Error;

/// Path of an open file for error messages, if the kernel still knows one.
pub fn name_of(fd: impl AsFd) -> PathBuf {
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    std::fs::read_link(&link).unwrap_or_else(|_| PathBuf::from(link))
}

/// Converts the error of an operation on an open file, and names the file in it.
pub(crate) fn on_file<E: Into<io::Error>>(
    op: &'static str,
    file: impl AsFd,
) -> impl FnOnce(E) -> Error {
    move |e| Error::io(op, name_of(file), e.into())
}
