//! Checks whether an open pool answers, and whether its next opening would find it.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::Pool;
use super::reading::{Look, Reading};
use crate::diagnose::Lost;
use crate::kernel::{self, Kernel};
use crate::storage::open::identity;
use crate::storage::place::PoolPlace;
use crate::storage::{Error, Provisioning, Result, layers};

/// How long an open pool may take to answer a check. Shorter than the timeouts of health RPCs.
const LOOK: Duration = Duration::from_secs(2);

impl Pool {
    /// Starts a check on another thread, or joins a running one. [`Pool::wait_for_look`] returns
    /// its result.
    pub fn begin_look(self: &Arc<Self>, kernel: &Arc<dyn Kernel>) {
        let (pool, kernel) = (self.clone(), kernel.clone());
        self.look.begin(move || {
            let reading = pool.alive().and_then(|()| pool.read(&*kernel));
            reading.map_err(|e| match e {
                Error::Unavailable { why, .. } => why,
                e => e.to_string(),
            })
        });
    }

    fn read(self: &Arc<Self>, kernel: &dyn Kernel) -> Result<Reading> {
        let root = File::from(
            self.layout
                .root()
                .try_clone_to_owned()
                .map_err(|e| kernel::Error::io("dup", self.root(), e))?,
        );
        Ok(Reading {
            usage: layers::usage(kernel, &root, self.root())?,
            capacity: self.promisable(Provisioning::Thin)?,
            sparse: self.sparse_files(kernel)?,
            lost: self.lost(),
        })
    }

    /// The result of the check that [`Pool::begin_look`] started. A check that hangs returns an
    /// error after two seconds, and occupies only one thread for any number of callers.
    pub fn wait_for_look(&self) -> Look {
        self.look
            .answer(LOOK)
            .unwrap_or_else(|| Err(format!("it has not answered for {} s", LOOK.as_secs())))
    }

    /// What the pool was opened from and its next opening would not find.
    pub(in crate::storage) fn lost(&self) -> Option<Lost> {
        self.places.iter().find_map(PoolPlace::lost)
    }

    /// Fails with [`Error::Unavailable`] if the pool's next opening would not find it, or another
    /// pool.
    pub(in crate::storage) fn check_place(&self) -> Result<()> {
        self.alive()?;
        let why = self.lost().map(|lost| lost.message());
        why.map_or(Ok(()), |why| {
            Err(Error::Unavailable {
                name: self.name().to_owned(),
                why,
            })
        })
    }

    /// Checks that `pool.json` reads back with the pool's identity. The error says why it does not.
    pub fn alive(&self) -> Result<()> {
        let why = match identity::identity(self.layout.root(), Some(self.id)) {
            Ok(Some(id)) if id == self.id => return Ok(()),
            Ok(Some(id)) => format!("it has become pool {id}"),
            Ok(None) => {
                let how = identity::recipe(Some(self.id));
                format!("its pool.json is gone: {how}")
            }
            Err(e) => e.to_string(),
        };
        Err(Error::Unavailable {
            name: self.name().to_owned(),
            why,
        })
    }
}
