//! Renames of an earlier process that could not be synced when the pool was opened.

use std::sync::atomic::Ordering;

use super::Pool;
use crate::storage::{Error, Result};

impl Pool {
    /// Syncs the pool's directories again, if its opening could not.
    pub(in crate::storage) fn sync_again(&self) {
        if !self.unsynced.load(Ordering::SeqCst) {
            return;
        }
        match self.layout.sync() {
            Ok(()) => self.unsynced.store(false, Ordering::SeqCst),
            Err(error) => {
                tracing::debug!(pool = %self.name(), %error, "cannot sync a pool's directories")
            }
        }
    }

    /// Fails with [`Error::Unavailable`] while what an earlier process created or deleted may not
    /// survive a power cut: no call may acknowledge it.
    pub(in crate::storage) fn check_synced(&self) -> Result<()> {
        if !self.unsynced.load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(Error::Unavailable {
            name: self.name().to_owned(),
            why:
                "its directories can't be synced, so what was deleted may come back after a power \
                  cut; the driver tries again every few seconds"
                    .to_owned(),
        })
    }
}
