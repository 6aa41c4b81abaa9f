//! Mounts a filesystem that was in use before. The kernel replays its journal, always: e2fsck drops
//! fast commits, and with them data that fsync had written. A check runs only if the mount fails or
//! the superblock asks for it.

use super::Result;
use crate::kernel::{self, FsState, Kernel, MountSpec};

/// Brings an unmounted filesystem into a state in which tools may work on it. `tools` says that
/// another tool than the check follows. The mount for the replay is the one that staging makes, so
/// a process that dies here leaves nothing else than it would later.
pub(super) fn before_tools(
    kernel: &dyn Kernel,
    spec: &MountSpec<'_>,
    state: FsState,
    tools: bool,
) -> Result<()> {
    if state.unreplayed && (state.needs_check || tools) {
        mount(kernel, spec, state)?;
        kernel.unmount(spec.target)?;
    } else if state.needs_check {
        kernel.check(spec.device, spec.fs)?;
    }
    Ok(())
}

/// Mounts a filesystem, of which `state` was known before. Checks it if the mount fails because of
/// damage, or the replay brought up an error.
pub(super) fn mount(kernel: &dyn Kernel, spec: &MountSpec<'_>, state: FsState) -> Result<()> {
    match kernel.mount(spec) {
        Err(error) if is_damage(&error, state) => {
            let device = spec.device.display();
            tracing::warn!(%device, %error, "the filesystem can't be mounted; checking it");
        }
        Ok(()) if state.unreplayed && asks_for_check(kernel, spec)? => {
            kernel.unmount(spec.target)?;
        }
        mounted => return Ok(mounted?),
    }
    kernel.check(spec.device, spec.fs)?;
    Ok(kernel.mount(spec)?)
}

fn asks_for_check(kernel: &dyn Kernel, spec: &MountSpec<'_>) -> kernel::Result<bool> {
    Ok(kernel.fs_state(spec.device, spec.fs)?.needs_check)
}

/// True if a check may help against this error of a mount. EINVAL may also mean the mount options,
/// and a check must not replay a journal because of those.
fn is_damage(error: &kernel::Error, state: FsState) -> bool {
    let kernel::Error::Io { source, .. } = error else {
        return false;
    };
    match source.raw_os_error() {
        Some(libc::EUCLEAN | libc::EBADMSG) => true,
        Some(libc::EINVAL | libc::EIO) => !state.unreplayed,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
