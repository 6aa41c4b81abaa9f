//! Queries a filesystem for its features.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use super::Result;
use super::file_name::on_file;
use super::magic::{BTRFS, EXT4, TMPFS, XFS};

/// `XFS_FSOP_GEOM_FLAGS_REFLINK`.
const FLAG_REFLINK: u32 = 1 << 20;

/// `struct xfs_fsop_geom`: the fields in use, and padding for the others.
#[repr(C)]
struct Geometry {
    blocksize: u32,
    before: [u32; 7],
    datablocks: u64,
    between: [u32; 13],
    flags: u32,
    after: [u32; 40],
}

nix::ioctl_read!(
    /// `XFS_IOC_FSGEOMETRY`.
    xfs_geometry,
    b'X',
    126,
    Geometry
);

/// True if files of this filesystem can share extents (reflinks). The query changes nothing, unlike
/// an attempt. `None` for a filesystem for which this is unknown.
pub fn shares_extents(on: BorrowedFd<'_>) -> Result<Option<bool>> {
    let statfs = rustix::fs::fstatfs(on).map_err(on_file("statfs", on))?;
    Ok(match statfs.f_type {
        BTRFS => Some(true),
        EXT4 | TMPFS => Some(false),
        XFS => Some(xfs(on)?.flags & FLAG_REFLINK != 0),
        _ => None,
    })
}

/// The size of a mounted XFS, in bytes.
pub(super) fn xfs_bytes(on: BorrowedFd<'_>) -> Result<u64> {
    let geometry = xfs(on)?;
    let block = u64::from(geometry.blocksize);
    Ok(geometry.datablocks.saturating_mul(block))
}

/// The geometry of a mounted XFS.
fn xfs(on: BorrowedFd<'_>) -> Result<Geometry> {
    let mut geometry = Geometry {
        blocksize: 0,
        before: [0; 7],
        datablocks: 0,
        between: [0; 13],
        flags: 0,
        after: [0; 40],
    };
    // SAFETY: the descriptor is open, and the kernel writes one struct of this size (256 bytes,
    // which is part of the request number) to the pointer's target.
    unsafe { xfs_geometry(on.as_raw_fd(), &raw mut geometry) }
        .map_err(on_file("XFS_IOC_FSGEOMETRY", on))?;
    Ok(geometry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_struct_is_the_kernels() {
        assert_eq!(size_of::<Geometry>(), 256);
        assert_eq!(std::mem::offset_of!(Geometry, datablocks), 32);
        assert_eq!(std::mem::offset_of!(Geometry, flags), 92);
    }
}
