//! Copies an old image into a new one: by cloning if the pool can, otherwise as a sparse copy. A
//! thick image stays thick.
//!
//! The copy has two steps. Only [`copy`] needs an unchanging source, so only it runs inside
//! [`quiesced`](super::freeze::quiesced); [`finish`] works on the new image alone.

use std::fs::File;

use hostloop_events::phase;

use super::{Error, Provisioning, Result};
use crate::kernel::file::{self, Copied, Pace};
use crate::kernel::{self, Kernel};

/// The properties of the new image.
#[derive(Clone, Copy, Debug)]
pub struct NewImage {
    /// The length in bytes: the length of the source, or more.
    pub len: u64,
    /// Thick images have all their space allocated, by [`finish`]. A snapshot is thin.
    pub provisioning: Provisioning,
    /// True if source and new image are in one pool that can clone files.
    pub reflinks: bool,
    /// The source is the image of a thick *volume* (not a snapshot of one). Sharing its blocks
    /// would make later writes need new space. It is shared only if [`keep_thick`] can undo
    /// that.
    pub thick_source: bool,
}

/// Copies the bytes: FICLONE, else a sparse copy. `to` is new and empty, and gets the source's
/// length. Stops with `Stopped` or `CloneStopped` once `stop` returns true.
///
/// `live` is the reason why the source may be written to meanwhile, and can't be frozen. It is
/// `None` for a snapshot, an image at rest and a frozen filesystem. Only a clone of a live source
/// is of one point in time: fails with [`Error::CannotFreeze`] if this pair of files can't be
/// cloned.
pub fn copy(
    kernel: &dyn Kernel,
    from: &File,
    to: &File,
    want: &NewImage,
    live: Option<&str>,
    pace: Pace,
    stop: &dyn Fn() -> bool,
) -> Result<Copied> {
    if may_share(want, to) {
        let cloned = phase("clone", || match live {
            None => kernel.clone_in_steps(from, to, pace, stop),
            // The source changes meanwhile, and only one call clones it at one point in time.
            Some(_) => kernel.clone_file(from, to),
        });
        match cloned {
            Ok(()) => return Ok(Copied::Shared),
            Err(kernel::Error::Unsupported { .. }) => {}
            Err(e) if file::is_too_new(&e) => {
                if let Some(why) = live {
                    return Err(Error::CannotFreeze(format!(
                        "{why}, and its newest blocks are not on disk yet: try again"
                    )));
                }
            }
            Err(e) => return Err(e.into()),
        }
    }
    if let Some(why) = live {
        return Err(Error::CannotFreeze(format!(
            "{why}, and its pool (or thick provisioning) rules out a clone: a slower copy would mix \
             different points in time; end that use first, or keep the volume thin in a pool \
             with reflinks (XFS, btrfs, or image=)"
        )));
    }
    Ok(Copied::Bytes(phase("copy", || {
        file::copy_sparse(from, to, pace, stop)
    })?))
}

/// True if the new image `to` may share blocks with its source.
pub(super) fn may_share(want: &NewImage, to: &File) -> bool {
    sharing_allowed(want, file::can_unshare(to))
}

/// False if source or copy must be thick and the filesystem can't unshare blocks.
fn sharing_allowed(want: &NewImage, unshares: bool) -> bool {
    let thick = want.thick_source || want.provisioning == Provisioning::Thick;
    want.reflinks && (unshares || !thick)
}

/// Sets the length of the new image. Also allocates the holes of a thick image, and unshares the
/// blocks that it shares with its source.
pub fn finish(kernel: &dyn Kernel, to: &File, want: &NewImage, copied: Copied) -> Result<()> {
    file::set_len(to, want.len)?;
    if want.provisioning == Provisioning::Thick {
        if copied == Copied::Shared {
            phase("unshare", || file::unshare(to, want.len))?;
        }
        // Unsharing does not necessarily fill holes.
        phase("allocate", || kernel.allocate(to, 0..want.len))?;
    }
    Ok(())
}

/// Keeps a thick volume thick after a [`copy`] of its image: shared blocks are unshared, while the
/// volume may be in use. `len` is the image's length in bytes. After any error (such as a full
/// pool) the caller frees the copy, which ends the sharing. Fails with [`Error::Refused`] if the
/// filesystem can't unshare blocks.
pub fn keep_thick(image: &File, len: u64, copied: Copied) -> Result<()> {
    if copied != Copied::Shared {
        return Ok(());
    }
    match phase("unshare", || file::unshare(image, len)) {
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

    fn want(provisioning: Provisioning, reflinks: bool, thick_source: bool) -> NewImage {
        NewImage {
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
    fn sharing(#[case] want: NewImage, #[case] unshares: bool, #[case] expected: bool) {
        assert_eq!(sharing_allowed(&want, unshares), expected);
    }
}
