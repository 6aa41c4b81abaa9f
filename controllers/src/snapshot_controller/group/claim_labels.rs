//! The labels of claims in namespaces with groups. Each group selects among all claims of its
//! namespace, and a cached claim takes long to decompress. So the labels of a namespace's claims are
//! read once, when a group there first needs them, and then follow the watch. A user can make any number
//! of claims with any number of labels: those of a namespace with too many are read for each group.

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

/// The most bytes of labels that are kept of a namespace: those of ten thousand ordinary claims. In maps, they
/// take twice the memory.
const MOST: usize = 4 << 20;

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
    /// The bytes of their labels.
    size: usize,
    /// True if there were too many: none is kept.
    is_too_large: bool,
    /// The claims that the watch reported before all were read.
    reported: HashSet<Arc<str>>,
    /// Set once all are read.
    read: Arc<OnceCell<()>>,
    used: Instant,
}

impl Entry {
    fn of(claim: &PersistentVolumeClaim) -> Self {
        Entry { labels: claim.labels().clone(), is_bound: pvc::is_bound(claim) }
    }

    fn size(&self) -> usize {
        self.labels.iter().map(|(key, value)| key.len() + value.len()).sum()
    }
}

impl Namespace {
    fn new() -> Self {
        Namespace {
            claims: BTreeMap::new(),
            size: 0,
            is_too_large: false,
            reported: HashSet::new(),
            read: Arc::default(),
            used: Instant::now(),
        }
    }

    fn put(&mut self, claim: &PersistentVolumeClaim) {
        if self.is_too_large {
            return;
        }
        let entry = Entry::of(claim);
        self.size += entry.size();
        if let Some(old) = self.claims.insert(claim.name_any().into(), Arc::new(entry)) {
            self.size -= old.size();
        }
        if self.size > MOST {
            self.is_too_large = true;
            self.claims = BTreeMap::new();
        }
    }

    fn report(&mut self, change: &Change<PersistentVolumeClaim>) {
        let name: Arc<str> = change.object().name_any().into();
        match change {
            Change::Applied { new, .. } => self.put(new),
            Change::Deleted(_) => {
                let old = self.claims.remove(&name);
                self.size -= old.map_or(0, |old| old.size());
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
        let known = {
            let namespaces = self.namespaces.lock();
            let known = namespaces.get(namespace);
            known.filter(|known| !known.is_too_large).map(|known| known.claims.clone())
        };
        let Some(known) = known else {
            let cached = self.claims.each_in(namespace);
            let cached = cached.map(|it| (it.name_any().into(), Arc::new(Entry::of(&it))));
            return fitting(cached, selector).await;
        };
        fitting(known.into_iter(), selector).await
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

/// The names of the claims that a selector fits, or of the first one that is not bound.
async fn fitting(
    claims: impl Iterator<Item = (Arc<str>, Arc<Entry>)>,
    selector: &Selector,
) -> Vec<Arc<str>> {
    let mut selected = Vec::new();
    for (number, (name, claim)) in claims.enumerate() {
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

#[cfg(test)]
mod tests;
