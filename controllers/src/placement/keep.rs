//! Keeping the table the API server places claims by ([`table`](super::table)).

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::Placement;
use super::table::{Table, left};
use crate::api::pvc;
use crate::runtime::ApiError;

/// How often it is looked at whether tables hold.
const PACE: Duration = Duration::from_secs(1);
/// How long one that holds is kept, though a better one might be made; and how long nobody looks
/// whether somebody else has written to it.
const KEPT: Duration = Duration::from_secs(60);

/// How long after a failure it is tried again.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// The texts of tables, by classes.
type Texts = BTreeMap<String, String>;

/// What is known of the ConfigMap.
#[derive(Debug, Default)]
pub(super) struct Kept {
    tables: BTreeMap<String, (Table, Instant)>,
    /// What is in it, and when that was read.
    there: Option<(Texts, Instant)>,
}

impl Placement {
    /// Keeps the table until dropped, if there is to be one.
    pub(super) async fn keep_table(&self) {
        let Some(place) = &self.options.table else {
            return;
        };
        let mut kept = Kept::default();
        loop {
            let pause = match self.keep(place, &mut kept).await {
                Ok(()) => PACE,
                Err(error) => {
                    tracing::warn!(%error, "the API server is not told where claims are to go");
                    AFTER_FAILURE
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Writes what has changed.
    pub(super) async fn keep(&self, place: &Place, kept: &mut Kept) -> Result<(), ApiError> {
        let now = Instant::now();
        let wanted = self.texts(&mut kept.tables, now);
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < KEPT;
        let (there, read) = match kept.there.take().filter(|(_, read)| is_fresh(*read)) {
            Some(known) => known,
            None => (self.read(place).await?, now),
        };
        let changes = changes(&there, &wanted);
        if changes.is_empty() || !self.context.leader.leads() {
            kept.there = Some((there, read));
            return Ok(());
        }
        let classes = changes.len();
        let patch = json!({"data": changes});
        self.kube.merge(&place.object(), patch).await?;
        tracing::info!(classes, "the API server is told where claims are to go");
        kept.there = Some((wanted, read));
        Ok(())
    }

    async fn read(&self, place: &Place) -> Result<Texts, ApiError> {
        let found: Option<ConfigMap> = self.kube.get(&place.namespace, &place.name).await?;
        // Whoever put the policy in force makes it.
        let found = found.ok_or_else(|| ApiError::NotFound {
            call: format!("get ConfigMap {}/{}", place.namespace, place.name),
        })?;
        Ok(found.data.unwrap_or_default())
    }

    /// What is to be in it: of each class whose claims the leader places.
    fn texts(&self, tables: &mut BTreeMap<String, (Table, Instant)>, now: Instant) -> Texts {
        let mut texts = Texts::new();
        let mut kept = BTreeMap::new();
        for class in self.context.caches.classes().each() {
            let placed = class.provisioner == self.context.driver.name && !pvc::is_delayed(&class);
            if !placed {
                continue;
            }
            let name = class.name_any();
            let candidates = self.candidates(&class);
            let left = left(&candidates, &self.reservations(), now);
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

/// The ConfigMap of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its namespace: the pod's.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Place {
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

/// A merge patch from what is there to what is wanted.
fn changes(there: &Texts, wanted: &Texts) -> Map<String, Value> {
    let gone = there.keys().filter(|class| !wanted.contains_key(*class));
    let gone = gone.map(|class| (class.clone(), Value::Null));
    let new = wanted
        .iter()
        .filter(|(class, text)| there.get(*class) != Some(text));
    let new = new.map(|(class, text)| (class.clone(), json!(text)));
    gone.chain(new).collect()
}
