//! The driver's knowledge of its volumes that CSI can't express.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A volume in the driver's records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InventoryEntry {
    /// Volume ID in CSI.
    pub id: String,
    /// Name from the CreateVolume request.
    pub name: String,
    /// True if the volume has never held data: it was created without a source, and never published
    /// or staged.
    pub is_empty: bool,
    /// True if the volume is staged, as far as the driver knows.
    pub staged: bool,
    /// True if all nodes of a kernel can use the volume. Then the driver stages it itself, for as long
    /// as it is published to any of them.
    pub shared: bool,
    /// True if the volume is an inline ephemeral volume of a pod, which has no PersistentVolume.
    pub inline: bool,
}

type Ask = dyn Fn() -> Result<Vec<InventoryEntry>, String> + Send + Sync;

/// Lists the volumes of a driver in the same process. Without one, the list is unknown. Clones
/// share the callback.
#[derive(Clone, Default)]
pub struct Inventory(Option<Arc<Ask>>);

impl Inventory {
    /// `ask` is called for each list and must not take long. It returns an error if the list is
    /// incomplete.
    pub fn reported(
        ask: impl Fn() -> Result<Vec<InventoryEntry>, String> + Send + Sync + 'static,
    ) -> Self {
        Inventory(Some(Arc::new(ask)))
    }

    /// The present volumes, by ID. `None` if the driver is not in this process.
    pub fn volumes(&self) -> Result<Option<BTreeMap<String, InventoryEntry>>, String> {
        let Some(ask) = &self.0 else { return Ok(None) };
        let volumes = ask()?.into_iter();
        Ok(Some(
            volumes.map(|volume| (volume.id.clone(), volume)).collect(),
        ))
    }
}
