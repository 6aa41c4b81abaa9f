//! Reservations in a pool's space accounting.

use std::sync::Arc;

use super::capacity::{self, SpaceRequest};
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

impl Pool {
    /// Reserves space for an operation. [`Error::NoRoom`] reports how much could be promised.
    pub(super) fn reserve(self: &Arc<Self>, need: SpaceRequest) -> Result<Reservation<'_>> {
        let (books, _guard) = self.books()?;
        capacity::admit(&books, &self.limits, need).map_err(|available| Error::NoRoom {
            pool: self.name().to_owned(),
            wanted: need.promise.max(need.take),
            available,
        })?;
        let mut under_way = self.under_way.lock();
        under_way.promise += need.promise;
        under_way.take += need.take;
        Ok(Reservation { pool: self, need })
    }

    /// True if less than the reserve is free: a freeze, which must write back, could then hang.
    pub(super) fn below_reserve(&self) -> Result<bool> {
        let usage = self.usage()?;
        Ok(usage.free_bytes < self.limits.reserve.of(usage.total_bytes))
    }
}
