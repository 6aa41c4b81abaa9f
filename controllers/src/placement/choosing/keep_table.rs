//! Keeps the placement table ([`table`](super::table)) in a ConfigMap for the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::Choosing;
use super::table::{Table, left};
use crate::api::pvc;
use crate::client::ApiError;

/// How often the tables are checked against the room that is left.
const PACE: Duration = Duration::from_secs(1);
/// Maximum age of a table that still holds: a new one may spread claims better. Also the maximum
/// age of the ConfigMap's data in memory: others may have written to it.
const KEPT: Duration = Duration::from_secs(60);

/// Delay after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// Serialized tables, by StorageClass.
type Texts = BTreeMap<String, String>;

/// State of the tables and of the ConfigMap.
#[derive(Debug, Default)]
pub(in crate::placement) struct Kept {
    tables: BTreeMap<String, (Table, Instant)>,
    /// The ConfigMap's data, and when it was read.
    there: Option<(Texts, Instant)>,
}

impl Choosing {
    /// Keeps the table until the future is dropped. Returns at once if no table is configured.
    pub(super) async fn keep_table(&self) {
        let Some(place) = &self.shared.options.table else {
            return;
        };
        let mut kept = Kept::default();
        loop {
            let pause = match self.keep(place, &mut kept).await {
                Ok(()) => PACE,
                Err(error) => {
                    tracing::warn!(%error, "cannot update the placement table");
                    AFTER_FAILURE
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Writes the tables that changed.
    pub(in crate::placement) async fn keep(
        &self,
        place: &TableName,
        kept: &mut Kept,
    ) -> Result<(), ApiError> {
        let now = Instant::now();
        let desired = self.texts(&mut kept.tables, now);
        let fresh = kept
            .there
            .take()
            .filter(|(_, read)| now.saturating_duration_since(*read) < KEPT);
        let (there, read) = match fresh {
            Some(known) => known,
            None => (self.read(place).await?, now),
        };
        let changes = changes(&there, &desired);
        if changes.is_empty() || !self.shared.context.leader.leads() {
            kept.there = Some((there, read));
            return Ok(());
        }
        let classes = changes.len();
        let patch = json!({"data": changes});
        self.shared.kube.merge(&place.object(), patch).await?;
        tracing::info!(classes, "wrote the placement table");
        kept.there = Some((desired, read));
        Ok(())
    }

    async fn read(&self, place: &TableName) -> Result<Texts, ApiError> {
        let found: Option<ConfigMap> = self.shared.kube.get(&place.namespace, &place.name).await?;
        // The administrator creates the ConfigMap together with the policy.
        let found = found.ok_or_else(|| ApiError::NotFound {
            call: format!("get ConfigMap {}/{}", place.namespace, place.name),
        })?;
        Ok(found.data.unwrap_or_default())
    }

    /// The data that should be there: a table for each class of this driver with immediate binding.
    fn texts(&self, tables: &mut BTreeMap<String, (Table, Instant)>, now: Instant) -> Texts {
        let mut texts = Texts::new();
        let mut kept = BTreeMap::new();
        for class in self.shared.context.caches.classes().each() {
            let placed =
                class.provisioner == self.shared.context.driver.name && !pvc::is_delayed(&class);
            if !placed {
                continue;
            }
            let name = class.name_any();
            let candidates = self.candidates(&class);
            let left = left(&candidates, &self.reservations.lock(), now);
            let known = tables.remove(&name).filter(|(table, since)| {
                now.saturating_duration_since(*since) < KEPT && table.holds(&left)
            });
            let Some((table, since)) = known.or_else(|| Some((Table::new(&left)?, now))) else {
                continue;
            };
            texts.insert(name.clone(), table.to_string());
            kept.insert(name, (table, since));
        }
        *tables = kept;
        texts
    }
}

/// Name of the ConfigMap with the placement table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableName {
    /// Namespace of the ConfigMap: the pod's.
    pub namespace: String,
    /// Name of the ConfigMap in that namespace.
    pub name: String,
}

impl TableName {
    fn object(&self) -> ConfigMap {
        let metadata = ObjectMeta {
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            ..ObjectMeta::default()
        };
        ConfigMap {
            metadata,
            ..ConfigMap::default()
        }
    }
}

/// A merge patch from the present data to the desired data.
fn changes(there: &Texts, desired: &Texts) -> Map<String, Value> {
    let gone = there.keys().filter(|class| !desired.contains_key(*class));
    let gone = gone.map(|class| (class.clone(), Value::Null));
    let new = desired
        .iter()
        .filter(|(class, text)| there.get(*class) != Some(text));
    let new = new.map(|(class, text)| (class.clone(), json!(text)));
    gone.chain(new).collect()
}
