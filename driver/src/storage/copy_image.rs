//! Filling a new image from an old one: by reference where the pool can, sparsely by value where
//! it can't, and so that what is thick stays thick.
//!
//! Two steps. [`copy`] needs the source to hold still, so it is the only one that belongs inside
//! [`quiesced`](super::quiesce::quiesced); [`settle`] works on the new image alone.

use std::fs::File;

use super::{Error, Provisioning, Result};
use crate::kernel;
use crate::kernel::file::{self, Copied};

/// What the new image is to be.
#[derive(Clone, Copy, Debug)]
pub struct CopyRequest {
    /// Its length in bytes: the source's, or more.
    pub len: u64,
    /// Whether it is to have all its space ([`settle`] takes it). A snapshot is thin.
    pub provisioning: Provisioning,
    /// Source and new image are in one pool, and it can clone files.
    pub reflinks: bool,
    /// The source is the image of a thick *volume* (not a snapshot of one): sharing its blocks
    /// would make its own writes need new space, so it is shared only where [`keep_thick`] can
    /// undo that.
    pub thick_source: bool,
}

/// How far the source can be relied on while it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nothing changes it: a snapshot, an image at rest, a frozen filesystem.
    Still,
    /// It may be written to and can't be frozen, for this reason: only a clone is one point in
    /// time.
    Live(&'static str),
}

/// Copies the bytes: FICLONE, else a sparse copy. `to` is new and empty and gets the source's
/// length. Stops with `TimedOut` once `stop` says so. [`Error::CannotFreeze`] if the source is
/// live and this pair of files can't be cloned.
pub fn copy(
    from: &File,
    to: &File,
    want: &CopyRequest,
    source: Source,
    stop: &dyn Fn() -> bool,
) -> Result<Copied> {
    if may_share(want, unshares(to)) {
        match file::clone(from, to) {
            Ok(()) => return Ok(Copied::Shared),
            Err(e) if cannot_clone(&e) => {}
            Err(e) => return Err(e.into()),
        }
    }
    if let Source::Live(why) = source {
        return Err(Error::CannotFreeze(format!(
            "{why}, and its pool (or thick provisioning) rules out a clone: a slower copy would mix \
             different points in time; end that use first, or keep the volume thin in a pool \
             with reflinks (XFS, btrfs, or image=)"
        )));
    }
    Ok(Copied::Bytes(file::copy_sparse(from, to, stop)?))
}

/// Whether the new image may share blocks with its source: not if either of them must be thick and
/// the filesystem can't separate them again.
fn may_share(want: &CopyRequest, unshares: bool) -> bool {
    let thick = want.thick_source || want.provisioning == Provisioning::Thick;
    want.reflinks && (unshares || !thick)
}

/// Whether this pair of files can't be cloned but may be copied. EINVAL is btrfs's answer where
/// one is copied on write and the other is not.
fn cannot_clone(e: &kernel::Error) -> bool {
    match e {
        kernel::Error::Unsupported { .. } => true,
        kernel::Error::Io { source, .. } => source.raw_os_error() == Some(libc::EINVAL),
        _ => false,
    }
}

/// Whether shared blocks of this file can be separated (FALLOC_FL_UNSHARE_RANGE): only XFS can.
fn unshares(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|s| { s.f_type } == crate::kernel::magic::XFS)
}

/// Gives the new image its length, and a thick one its space: holes are allocated, and what is
/// shared with the source gets its own blocks.
pub fn finish(to: &File, want: &CopyRequest, copied: Copied) -> Result<()> {
    file::set_len(to, want.len)?;
    if want.provisioning == Provisioning::Thick {
        if copied == Copied::Shared {
            file::unshare(to, want.len)?;
        }
        // Unsharing alone need not fill the holes.
        file::allocate(to, want.len)?;
    }
    Ok(())
}

/// [`copy`] and [`settle`] in one, for a source at rest.
pub fn populate(
    from: &File,
    to: &File,
    want: &CopyRequest,
    stop: &dyn Fn() -> bool,
) -> Result<Copied> {
    let copied = copy(from, to, want, Source::Still, stop)?;
    finish(to, want, copied)?;
    Ok(copied)
}

/// Keeps a thick volume thick after a [`copy`] of its image: what came to be shared gets its own
/// blocks again, while the volume may be in use. `len` is the image's length in bytes.
/// After any error (no room above all) the caller frees the copy, and nothing is shared any more.
/// [`Error::Refused`] where the filesystem can't do it.
pub fn keep_thick(image: &File, len: u64, copied: Copied) -> Result<()> {
    if copied != Copied::Shared {
        return Ok(());
    }
    match file::unshare(image, len) {
        Err(e @ kernel::Error::Unsupported { .. }) => Err(Error::Refused(format!(
            "the volume would not stay thick, since its blocks would stay shared with the copy \
             ({e}); make it thin first"
        ))),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use Provisioning::{Thick, Thin};

    fn want(provisioning: Provisioning, reflinks: bool, thick_source: bool) -> CopyRequest {
        CopyRequest {
            len: 0,
            provisioning,
            reflinks,
            thick_source,
        }
    }

    #[rstest]
    #[case::thin(want(Thin, true, false), false, true)]
    #[case::no_reflinks(want(Thin, false, false), true, false)]
    #[case::thick_that_can_be_separated(want(Thick, true, false), true, true)]
    #[case::thick_that_cannot(want(Thick, true, false), false, false)]
    #[case::of_a_thick_volume_that_can(want(Thin, true, true), true, true)]
    #[case::of_a_thick_volume_that_cannot(want(Thin, true, true), false, false)]
    fn sharing(#[case] want: CopyRequest, #[case] unshares: bool, #[case] expected: bool) {
        assert_eq!(may_share(&want, unshares), expected);
    }

    #[rstest]
    #[case::no_reflinks(libc::EOPNOTSUPP, true)]
    #[case::cow_against_nocow(libc::EINVAL, true)]
    #[case::full(libc::ENOSPC, false)]
    #[case::broken(libc::EIO, false)]
    fn what_to_copy_after(#[case] errno: i32, #[case] expected: bool) {
        let e = kernel::Error::io("FICLONE", "x", std::io::Error::from_raw_os_error(errno));
        assert_eq!(cannot_clone(&e), expected);
    }
}
