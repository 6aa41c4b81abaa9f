//! The FIEMAP ioctl.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Maximum number of extents per call.
pub(super) const BATCH: usize = 512;

/// The last extent of the file.
pub(super) const LAST: u32 = 0x0001;
/// The extent has no address yet.
pub(super) const UNKNOWN: u32 = 0x0002;
/// Allocated, but reads as zeros.
pub(super) const UNWRITTEN: u32 = 0x0800;
/// The filesystem keeps these blocks one by one; the kernel merged them into one extent.
pub(super) const MERGED: u32 = 0x1000;
/// Another file shares the extent.
pub(super) const SHARED: u32 = 0x2000;
/// Write the file back first.
const SYNC: u32 = 0x0001;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct RawExtent {
    pub(super) logical: u64,
    pub(super) physical: u64,
    pub(super) length: u64,
    reserved64: [u64; 2],
    pub(super) flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap`, with space for the returned extents.
#[repr(C)]
struct FiemapRequest {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
}

/// Size of `struct fiemap` without extents, from which the ioctl's number is computed.
const HEADER: usize = size_of::<FiemapRequest>() - size_of::<[RawExtent; BATCH]>();

nix::ioctl_readwrite_bad!(
    fs_ioc_fiemap,
    nix::request_code_readwrite!(b'f', 11, HEADER),
    FiemapRequest
);

/// `struct file_clone_range`.
#[repr(C)]
struct CloneRange {
    source: i64,
    source_offset: u64,
    source_length: u64,
    destination_offset: u64,
}

nix::ioctl_write_ptr!(ficlonerange, 0x94, 13, CloneRange);

/// Calls FICLONERANGE for the same range of both files.
pub(super) fn clone_range(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    offset: u64,
    length: u64,
) -> io::Result<()> {
    let range = CloneRange {
        source: from.as_raw_fd().into(),
        source_offset: offset,
        source_length: length,
        destination_offset: offset,
    };
    // SAFETY: `range` is whole, and the kernel only reads it.
    unsafe { ficlonerange(to.as_raw_fd(), &raw const range) }?;
    Ok(())
}

/// Returns the number of extents of a file, after writing the file back.
pub(super) fn count(file: BorrowedFd<'_>) -> io::Result<u64> {
    let mut request = request(0, u64::MAX, 0);
    // SAFETY: the kernel writes to the header only, because there is no space for extents.
    unsafe { fs_ioc_fiemap(file.as_raw_fd(), &raw mut *request) }?;
    Ok(request.mapped_extents.into())
}

fn request(start: u64, length: u64, extent_count: u32) -> Box<FiemapRequest> {
    Box::new(FiemapRequest {
        start,
        length,
        flags: SYNC,
        mapped_extents: 0,
        extent_count,
        reserved: 0,
        extents: [RawExtent::default(); BATCH],
    })
}

/// Returns the first extents that touch `start..start + length`, at most [`BATCH`], after writing
/// the file back.
pub(super) fn fiemap(file: BorrowedFd<'_>, start: u64, length: u64) -> io::Result<Vec<RawExtent>> {
    let mut request = request(start, length, BATCH as u32);
    // SAFETY: the kernel writes to the header and to at most `extent_count` extents, all of which
    // are in `request`. Plain integers are valid with any value.
    unsafe { fs_ioc_fiemap(file.as_raw_fd(), &raw mut *request) }?;
    let mapped = (request.mapped_extents as usize).min(BATCH);
    Ok(request.extents[..mapped].to_vec())
}
