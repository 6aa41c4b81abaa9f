//! The paths and options of mounts, in the kernel's notation. Thousands of mounts have few
//! different ones, so equal ones share their memory.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use super::interned::Interned;

/// A path as the kernel writes it. Two are equal if their bytes are: comparing these is much faster
/// than comparing the components of paths.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MountPath(Arc<OsStr>);

impl Deref for MountPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        Path::new(&*self.0)
    }
}

impl AsRef<Path> for MountPath {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl<P: AsRef<OsStr> + ?Sized> From<&P> for MountPath {
    fn from(path: &P) -> MountPath {
        MountPath(path.as_ref().into())
    }
}

impl<P: AsRef<OsStr>> PartialEq<P> for MountPath {
    fn eq(&self, other: &P) -> bool {
        *self.0 == *other.as_ref()
    }
}

impl fmt::Debug for MountPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Options of a mount or of its filesystem, separated by commas, with the kernel's escapes.
#[derive(Clone, PartialEq, Eq)]
pub struct MountOptions(Arc<str>);

impl MountOptions {
    /// Each option ("ro", "errors=remount-ro"…).
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.split(',').filter(|option| !option.is_empty())
    }

    /// True if these are all options, in this order.
    pub(super) fn are(&self, options: &str) -> bool {
        *self.0 == *options
    }

    /// True if this is one of the options.
    pub fn has(&self, option: &str) -> bool {
        self.iter().any(|o| o == option)
    }
}

impl From<&str> for MountOptions {
    fn from(options: &str) -> MountOptions {
        MountOptions(options.into())
    }
}

impl fmt::Debug for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// What many mounts have in common.
#[derive(Debug, Default)]
pub(super) struct Words {
    texts: Interned<str>,
    paths: Interned<OsStr>,
}

impl Words {
    pub(super) fn text(&mut self, text: &str) -> Arc<str> {
        self.texts.get(text)
    }

    pub(super) fn options(&mut self, options: &str) -> MountOptions {
        MountOptions(self.texts.get(options))
    }

    pub(super) fn path(&mut self, path: &OsStr) -> MountPath {
        MountPath(self.paths.get(path))
    }
}
