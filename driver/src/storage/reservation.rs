//! Reservations in a pool's space accounting.

use std::sync::Arc;

use super::capacity::{self, SpaceRequest, SpaceUsage};
use super::{Error, Pool, Result};

/// Space reserved for a running operation. Dropping it releases the space, because the index then
/// counts what the operation made.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    pool: &'a Pool,
    need: SpaceRequest,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut under_way = self.pool.under_way.lock();
        under_way.promise -= self.need.promise;
        under_way.take -= self.need.take;
    }
}

impl Reservation<'_> {
    /// Makes the promise at least this large. After [`Error::NoRoom`] nothing has changed.
    pub(super) fn raise(&mut self, pool: &Arc<Pool>, promise: u64) -> Result<()> {
        let more = promise.saturating_sub(self.need.promise);
        if more > 0 {
            let added = pool.reserve(SpaceRequest {
                promise: more,
                ..SpaceRequest::default()
            })?;
            // Both are released by this one.
            std::mem::forget(added);
            self.need.promise += more;
        }
        Ok(())
    }
}

impl Pool {
    /// Reserves space for an operation. [`Error::NoRoom`] reports how much could be promised. A pool
    /// that its next opening would not find takes nothing more.
    pub(super) fn reserve(self: &Arc<Self>, need: SpaceRequest) -> Result<Reservation<'_>> {
        self.check_place()?;
        if need.thick {
            self.back_thick(need)?;
        }
        let (mut books, mut guard) = self.books()?;
        if self.admit(&books, need).is_err() {
            drop(guard);
            self.measure_snapshots();
            (books, guard) = self.books()?;
        }
        let _guard = guard;
        self.admit(&books, need)?;
        let mut under_way = self.under_way.lock();
        under_way.promise += need.promise;
        under_way.take += need.take;
        Ok(Reservation { pool: self, need })
    }

    /// Fails with [`Error::NoRoom`] if this much can't be promised.
    pub(super) fn admit(&self, books: &[SpaceUsage], need: SpaceRequest) -> Result<()> {
        capacity::admit(books, &self.limits, need).map_err(|available| Error::NoRoom {
            pool: self.name().to_owned(),
            wanted: need.promise.max(need.take),
            available,
        })
    }

    /// True if less than the reserve is free: a freeze, which must write back, could then hang.
    pub(super) fn below_reserve(&self) -> Result<bool> {
        let usage = self.usage()?;
        Ok(usage.free_bytes < self.limits.reserve.of(usage.total_bytes))
    }
}
