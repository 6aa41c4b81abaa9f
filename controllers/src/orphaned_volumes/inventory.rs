//! What a driver knows of its volumes and CSI has no words for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A volume as its driver keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InventoryEntry {
    /// Its ID.
    pub id: String,
    /// The name it was made by.
    pub name: String,
    /// It has never been published or staged: nobody has ever written to it.
    pub fresh: bool,
    /// It is staged, as far as the driver knows.
    pub staged: bool,
    /// It is a pod's own, and has no object.
    pub inline: bool,
}

type Ask = dyn Fn() -> Result<Vec<InventoryEntry>, String> + Send + Sync;

/// The volumes there are, as told by whoever runs the driver in the same process. Clones are the
/// same.
#[derive(Clone, Default)]
pub struct Inventory(Option<Arc<Ask>>);

impl fmt::Debug for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = self.0.is_some();
        f.debug_struct("Inventory").field("told", &told).finish()
    }
}

impl Inventory {
    /// Asked for each time; it must not take long. An error is for a list that is not whole.
    pub fn told(
        ask: impl Fn() -> Result<Vec<InventoryEntry>, String> + Send + Sync + 'static,
    ) -> Self {
        Inventory(Some(Arc::new(ask)))
    }

    /// The volumes there are now, by ID; `None` if nobody tells.
    pub fn volumes(&self) -> Result<Option<BTreeMap<String, InventoryEntry>>, String> {
        let Some(ask) = &self.0 else { return Ok(None) };
        let volumes = ask()?.into_iter();
        Ok(Some(
            volumes.map(|volume| (volume.id.clone(), volume)).collect(),
        ))
    }
}
