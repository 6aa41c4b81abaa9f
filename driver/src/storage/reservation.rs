//! Reservations in a pool's space accounting.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::capacity::{self, SpaceRequest, SpaceUsage};
use super::kept_bases::FreeingTime;
use super::{Error, Pool, Result};

/// Space reserved for a running operation. Dropping it releases the space, because the index then
/// counts what the operation made.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    pool: &'a Pool,
    request: SpaceRequest,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut under_way = self.pool.under_way.lock();
        under_way.promise -= self.request.promise;
        under_way.take -= self.request.take;
    }
}

impl Reservation<'_> {
    /// Makes the promise at least this large. After [`Error::NoRoom`] nothing has changed.
    pub(super) fn raise(&mut self, pool: &Arc<Pool>, promise: u64) -> Result<()> {
        let more = promise.saturating_sub(self.request.promise);
        if more > 0 {
            let added = pool.reserve(SpaceRequest {
                promise: more,
                ..SpaceRequest::default()
            })?;
            // Both are released by this one.
            std::mem::forget(added);
            self.request.promise += more;
        }
        Ok(())
    }
}

impl Pool {
    /// Reserves space for an operation. Deleted snapshots that keep their images go first if that
    /// may help. [`Error::NoRoom`] reports how much could be promised. A pool that its next opening
    /// would not find takes nothing more.
    pub(super) fn reserve(self: &Arc<Self>, request: SpaceRequest) -> Result<Reservation<'_>> {
        self.check_place()?;
        if request.thick {
            self.back_thick(request)?;
        }
        let (usages, _guard) = self.usages_with_room(request, usize::MAX)?;
        self.admit(&usages, request)?;
        let mut under_way = self.under_way.lock();
        under_way.promise += request.promise;
        under_way.take += request.take;
        Ok(Reservation {
            pool: self,
            request,
        })
    }

    /// Like [`Pool::space_usages`], once deleted snapshots that keep their images have gone, the
    /// oldest first, while that may make room for a request on so many filesystems from the top
    /// down.
    pub(super) fn usages_with_room(
        self: &Arc<Self>,
        request: SpaceRequest,
        levels: usize,
    ) -> Result<(Vec<SpaceUsage>, Option<MutexGuard<'_, ()>>)> {
        let (mut usages, mut guard) = self.space_usages()?;
        if self.admit(top(&usages, levels), request).is_err() {
            drop(guard);
            self.measure_snapshots();
            (usages, guard) = self.space_usages()?;
        }
        let mut freeing = FreeingTime::begin();
        while self.admit(top(&usages, levels), request).is_err() {
            drop(guard);
            if !self.may_fit_without_bases(top(&usages, levels), request)? {
                return self.space_usages();
            }
            self.drop_oldest_base();
            freeing.wait(|| {
                let (usages, _guard) = self.space_usages()?;
                Ok(self.admit(top(&usages, levels), request).is_ok())
            })?;
            (usages, guard) = self.space_usages()?;
        }
        Ok((usages, guard))
    }

    /// Fails with [`Error::NoRoom`] if this much can't be promised.
    pub(super) fn admit(&self, usages: &[SpaceUsage], request: SpaceRequest) -> Result<()> {
        capacity::admit(usages, &self.limits, request).map_err(|available| Error::NoRoom {
            pool: self.name().to_owned(),
            requested: request.promise.max(request.take),
            available,
        })
    }

    /// True if less than the reserve is free: a freeze, which must write back, could then hang.
    pub(crate) fn below_reserve(&self) -> Result<bool> {
        let usage = self.usage()?;
        Ok(usage.free_bytes < self.limits.reserve.of(usage.total_bytes))
    }
}

/// The first of these figures, from the top down.
fn top(usages: &[SpaceUsage], levels: usize) -> &[SpaceUsage] {
    &usages[..levels.min(usages.len())]
}
