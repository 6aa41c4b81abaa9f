//! A file that takes all free room of the pool's filesystem, for a fault on request. Its name says
//! what it is.

use std::path::Path;
use std::sync::atomic::Ordering;

use super::Pool;
use super::space::nothing_else_in;
use crate::kernel::{self, file};
use crate::storage::free_room::{self, FILLER};
use crate::storage::layout::open_file;
use crate::storage::noted_problem::Until;
use crate::storage::{About, Result};

impl Pool {
    /// Makes the file, as large as the filesystem allows. False, and without a file, if the
    /// filesystem holds other files by now: the pool may have been opened long ago.
    pub(in crate::storage) fn fill(&self) -> Result<bool> {
        self.empty()?;
        if !nothing_else_in(self)? {
            return Ok(false);
        }
        let root = self.layout.root();
        let made = file::create_beneath(root, Path::new(FILLER))?;
        let free = self.usage()?.free_bytes;
        let taken = free_room::take(&*self.kernel, &made, free)
            .and_then(|()| file::allocated_bytes(&made))
            .inspect_err(|_| {
                // The fault does not begin. What is left goes with the next opening of the pool.
                let _ = self.empty();
            });
        self.filler_bytes.store(taken?, Ordering::Relaxed);
        self.forget_room();
        Ok(true)
    }

    /// Removes the file, if there is one.
    pub(in crate::storage) fn empty(&self) -> Result<()> {
        let root = self.layout.root();
        match open_file(root, FILLER) {
            Err(kernel::Error::NotFound { .. }) => return Ok(()),
            opened => file::set_len(&opened?, 0)?,
        }
        file::remove(root, FILLER)?;
        self.filler_bytes.store(0, Ordering::Relaxed);
        self.forget_room();
        Ok(())
    }

    /// Removes what an earlier process has left of the fault. The pool opens also without that.
    pub(in crate::storage) fn drop_filler(&self) {
        if let Err(error) = self.empty() {
            let why = format!("the file {FILLER} of an earlier fault can't be removed: {error}");
            let until = Until::FileGone(self.root().join(FILLER));
            self.note_unrepaired(About::Pool, until, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::Site;

    #[test]
    fn files_that_others_have_put_beside_a_pool_keep_their_room() {
        let site = Site::fake(&["a"]);
        std::fs::write(site.path("theirs"), "data").unwrap();
        assert!(!site.pool().fill().unwrap());
        assert!(!site.path(FILLER).exists());
    }
}
