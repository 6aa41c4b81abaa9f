//! What a filesystem says of its own features.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use super::{Error, Result, file};

/// `f_type` from `linux/magic.h`.
const XFS: i64 = 0x5846_5342;
const BTRFS: i64 = 0x9123_683e;
const EXT4: i64 = 0xef53;
const TMPFS: i64 = 0x0102_1994;
/// `XFS_FSOP_GEOM_FLAGS_REFLINK`.
const FLAG_REFLINK: u32 = 1 << 20;

/// `struct xfs_fsop_geom`: the kernel's, of which only `flags` matters here.
#[repr(C)]
struct Geometry {
    before: [u32; 23],
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

/// Whether files of this filesystem can share extents (reflinks), told without trying, which would
/// change something. `None` for a filesystem of which that is not known.
pub fn shares_extents(on: BorrowedFd<'_>) -> Result<Option<bool>> {
    let error = |e: rustix::io::Errno| Error::io("statfs", file::name_of(on), e.into());
    Ok(match rustix::fs::fstatfs(on).map_err(error)?.f_type {
        BTRFS => Some(true),
        EXT4 | TMPFS => Some(false),
        XFS => Some(xfs_flags(on)? & FLAG_REFLINK != 0),
        _ => None,
    })
}

/// The features an XFS was made with.
fn xfs_flags(on: BorrowedFd<'_>) -> Result<u32> {
    let mut geometry = Geometry {
        before: [0; 23],
        flags: 0,
        after: [0; 40],
    };
    // SAFETY: the descriptor is open, and the kernel writes one struct of this size (256 bytes,
    // which is part of the request number) to where the pointer leads.
    unsafe { xfs_geometry(on.as_raw_fd(), &raw mut geometry) }
        .map_err(|e| Error::io("XFS_IOC_FSGEOMETRY", file::name_of(on), e.into()))?;
    Ok(geometry.flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_struct_is_the_kernels() {
        assert_eq!(size_of::<Geometry>(), 256);
        assert_eq!(std::mem::offset_of!(Geometry, flags), 92);
    }
}
