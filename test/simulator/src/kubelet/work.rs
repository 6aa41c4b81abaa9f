//! What the model of kubelet does to volumes.

use std::fmt;

use super::wanted::Wanted;
use super::{Published, Staged};

/// What kubelet does to a volume.
#[derive(Clone)]
pub(super) enum Work {
    Mount(Wanted),
    Expand(Wanted),
    Unpublish((String, String), Published),
    Unstage(String, Staged),
}

impl Work {
    pub(super) fn handle(&self) -> &str {
        match self {
            Work::Mount(wanted) | Work::Expand(wanted) => &wanted.handle,
            Work::Unpublish(_, published) => &published.handle,
            Work::Unstage(handle, _) => handle,
        }
    }

    pub(super) fn key(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Mount(one) => write!(f, "mounting {} for {}", one.handle, one.pod.name),
            Work::Expand(one) => write!(f, "expanding {} to {:?}", one.handle, one.grows_to),
            Work::Unpublish((pod, _), one) => write!(f, "unmounting {} from {pod}", one.handle),
            Work::Unstage(handle, _) => write!(f, "unstaging {handle}"),
        }
    }
}
