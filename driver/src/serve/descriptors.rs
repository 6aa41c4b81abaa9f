//! Descriptors: the limit of open files, and the part of it for connections.

use crate::kernel::linux::open_files::{self, Raised};

/// The most connections to the CSI socket. Kubelet has one for each call under way.
const CONNECTIONS: u64 = 1024;
/// The least, whatever the limit is.
const LEAST: u64 = 16;
/// The part of all descriptors that these connections may take.
const SHARE: u64 = 4;

/// Raises the limit of open files as far as the system allows.
pub(super) fn raise() {
    match open_files::raise() {
        Ok(Raised { limit, from }) => {
            let (limit, from) = (
                limit.unwrap_or(u64::MAX),
                from.or(limit).unwrap_or(u64::MAX),
            );
            tracing::info!(
                limit,
                from,
                "the limit of open files is raised as far as the system allows"
            );
        }
        Err(error) => tracing::warn!(
            %error,
            "can't raise the limit of open files: volumes and connections share the lower one. \
             Raise the limit of the container"
        ),
    }
}

/// The most connections to the CSI socket under the limit of open files.
pub(super) fn csi_connections() -> usize {
    share(open_files::limit())
}

fn share(limit: Option<u64>) -> usize {
    let share = limit.map_or(CONNECTIONS, |limit| {
        (limit / SHARE).clamp(LEAST, CONNECTIONS)
    });
    usize::try_from(share).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none(None, 1024)]
    #[case::usual(Some(1 << 20), 1024)]
    #[case::old(Some(1024), 256)]
    #[case::tiny(Some(20), 16)]
    fn connections_leave_descriptors_for_work(#[case] limit: Option<u64>, #[case] most: usize) {
        assert_eq!(share(limit), most);
    }
}
