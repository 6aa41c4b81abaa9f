//! The labels of claims in namespaces with groups. Each group selects among all claims of its
//! namespace, and a cached claim takes long to decompress. So the labels of a namespace's claims are
//! read once, when a group there first needs them, and then follow the watch.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::api::pvc;
use crate::cache::{Change, Store};
use crate::queue::rest;

/// How long the labels of a namespace are kept after their last use.
const KEPT: Duration = Duration::from_secs(900);

/// What selectors and their groups ask of a claim.
#[derive(Debug)]
struct Entry {
    labels: BTreeMap<String, String>,
    is_bound: bool,
}

/// The claims of a namespace.
struct Namespace {
    /// By name.
    claims: BTreeMap<Arc<str>, Arc<Entry>>,
    /// The claims that the watch reported before all were read.
    reported: HashSet<Arc<str>>,
    /// Set once all are read.
    read: Arc<OnceCell<()>>,
    used: Instant,
}

impl Namespace {
    fn new() -> Self {
        Namespace {
            claims: BTreeMap::new(),
            reported: HashSet::new(),
            read: Arc::default(),
            used: Instant::now(),
        }
    }

    fn put(&mut self, claim: &PersistentVolumeClaim) {
        let entry = Entry { labels: claim.labels().clone(), is_bound: pvc::is_bound(claim) };
        self.claims.insert(claim.name_any().into(), Arc::new(entry));
    }

    fn report(&mut self, change: &Change<PersistentVolumeClaim>) {
        let name: Arc<str> = change.object().name_any().into();
        match change {
            Change::Applied { new, .. } => self.put(new),
            Change::Deleted(_) => {
                self.claims.remove(&name);
            }
        }
        if !self.read.initialized() {
            self.reported.insert(name);
        }
    }
}

type Namespaces = Arc<Mutex<HashMap<String, Namespace>>>;

/// The labels of the claims in some namespaces. Clones share them.
#[derive(Clone)]
pub(in crate::snapshot_controller) struct ClaimLabels {
    claims: Store<PersistentVolumeClaim>,
    namespaces: Namespaces,
}

impl ClaimLabels {
    /// Follows the claims of this watch.
    pub(in crate::snapshot_controller) fn new(claims: Store<PersistentVolumeClaim>) -> Self {
        let namespaces = Namespaces::default();
        let followed = namespaces.clone();
        claims.on_change(move |change| {
            let mut namespaces = followed.lock();
            let namespace = change.object().metadata.namespace.as_deref().unwrap_or_default();
            if let Some(known) = namespaces.get_mut(namespace) {
                known.report(change);
            }
        });
        ClaimLabels { claims, namespaces }
    }

    /// The names of the claims that a selector fits. If one of them is not bound, only that one:
    /// the group has to wait for it.
    pub(super) async fn select(&self, namespace: &str, selector: &Selector) -> Vec<Arc<str>> {
        let read = self.reading(namespace);
        read.get_or_init(|| self.read(namespace)).await;
        let known = self.namespaces.lock().get(namespace).map(|known| known.claims.clone());
        let mut selected = Vec::new();
        for (number, (name, claim)) in known.unwrap_or_default().into_iter().enumerate() {
            if selector.matches(&claim.labels) {
                if !claim.is_bound {
                    return vec![name];
                }
                selected.push(name);
            }
            rest(number).await;
        }
        selected
    }

    fn reading(&self, namespace: &str) -> Arc<OnceCell<()>> {
        let mut namespaces = self.namespaces.lock();
        namespaces.retain(|name, known| name == namespace || known.used.elapsed() < KEPT);
        let known = namespaces.entry(namespace.to_owned()).or_insert_with(Namespace::new);
        known.used = Instant::now();
        known.read.clone()
    }

    /// Reads the claims of a namespace, except those that the watch reports meanwhile.
    async fn read(&self, namespace: &str) {
        for (number, claim) in self.claims.each_in(namespace).enumerate() {
            if let Some(known) = self.namespaces.lock().get_mut(namespace)
                && !known.reported.contains(&*claim.name_any())
            {
                known.put(&claim);
            }
            rest(number).await;
        }
        if let Some(known) = self.namespaces.lock().get_mut(namespace) {
            known.reported = HashSet::new();
        }
    }
}

#[cfg(test)]
mod tests;
