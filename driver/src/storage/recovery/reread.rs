//! Reads unusable records again: a person may have restored one, or moved its entry out of the
//! pool.

use std::sync::Arc;

use crate::storage::index::{NamedRecord, RecordTable};
use crate::storage::load::{self, Again};
use crate::storage::{About, Pool, Result};

/// Reads the record of this object again. True if it still can't be used.
pub(super) fn is_still_unusable(pool: &Pool, about: &About) -> Result<bool> {
    match about {
        About::Volume(id) => {
            let again = load::again(&pool.layout, *id)?;
            let mut index = pool.index.write();
            // A call may have deleted the volume meanwhile.
            if !index.volumes.is_unusable(*id) {
                return Ok(false);
            }
            match again {
                Again::Sound(mut record) => {
                    index.share(&mut record);
                    index.put_volume(Arc::new(record));
                    Ok(false)
                }
                other => Ok(settle(&mut index.volumes, *id, other)),
            }
        }
        About::Snapshot(id) => {
            let again = load::again(&pool.layout, *id)?;
            Ok(settle(&mut pool.index.write().snapshots, *id, again))
        }
        About::Group(id) => {
            let again = load::again(&pool.layout, *id)?;
            Ok(settle(&mut pool.index.write().groups, *id, again))
        }
        About::Pool | About::File(_) | About::Loop(_) => Ok(false),
    }
}

/// Changes the table to what was read. True if the record still can't be used.
fn settle<R: NamedRecord>(table: &mut RecordTable<R>, id: R::Id, again: Again<R>) -> bool {
    if !table.is_unusable(id) {
        return false;
    }
    match again {
        Again::Sound(record) => table.put(Arc::new(record)),
        Again::Gone => drop(table.take(id)),
        Again::Unusable(unusable) => {
            table.put_unusable(id, unusable);
            return true;
        }
    }
    false
}
