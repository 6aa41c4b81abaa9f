//! The claims that group selectors fit. Each group selects among all claims of its namespace, and a
//! cached claim takes long to decompress. So the claims of a namespace are indexed by their labels
//! when a group there first needs them, and the index then follows the watch.
//!
//! The index has numbers instead of labels, of a few labels for each claim, and of so many claims
//! ([`MAX_ENTRIES`]): a user can make many claims with long labels. Without an index, a group reads
//! all claims of its namespace. The claims that an index finds are candidates: a selector decides.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::api::pvc;
use crate::cache::{Change, Store};
use crate::queue::yield_sometimes;
use crate::snapshots::VolumeGroupSnapshot;

/// How long the index of a namespace is kept after its last use.
const KEPT: Duration = Duration::from_secs(900);
/// The labels of a claim that are indexed. A claim with more is a candidate of every selector.
const MAX_LABELS: usize = 16;
/// The entries of all indexes: about 8 MiB, and 16 MiB more for the longest names. Beyond them, the
/// namespace with the most has no index.
const MAX_ENTRIES: usize = 128 * 1024;

/// A label that a claim must have for a selector to fit it: its key, and the values it may have.
/// `None` if the selector names no such label.
pub(in crate::snapshot_controller) fn required(
    selector: &LabelSelector,
) -> Option<(&str, Vec<&str>)> {
    let mut equal = selector.match_labels.iter().flatten();
    if let Some((key, value)) = equal.next() {
        return Some((key, vec![value]));
    }
    let mut expressions = selector.match_expressions.iter().flatten();
    let within = expressions.find(|expression| expression.operator == "In")?;
    let values = within.values.iter().flatten().map(String::as_str);
    Some((&within.key, values.collect()))
}

/// The values of a required label for each of which a group has a key ([`awaited_labels`]).
const MAX_VALUES: usize = 16;

/// The keys of an index: the labels of which a claim needs one to be of a group that is not ready,
/// with the group's namespace. [`any_label`] if its selector fits claims with other labels, too.
pub(in crate::snapshot_controller) fn awaited_labels(group: &VolumeGroupSnapshot) -> Vec<String> {
    let Some(selector) = &group.spec.source.selector else {
        return Vec::new();
    };
    let status = group.status.as_ref();
    if status.and_then(|status| status.ready_to_use) == Some(true) {
        return Vec::new();
    }
    let namespace = group.namespace().unwrap_or_default();
    match required(selector) {
        Some((key, values)) if values.len() <= MAX_VALUES => values
            .into_iter()
            .map(|value| label(&namespace, key, value))
            .collect(),
        _ => vec![any_label(&namespace)],
    }
}

/// The key of [`awaited_labels`] for a label.
pub(in crate::snapshot_controller) fn label(namespace: &str, key: &str, value: &str) -> String {
    format!("{namespace}/{key}={value}")
}

/// The key of [`awaited_labels`] for any label.
pub(in crate::snapshot_controller) fn any_label(namespace: &str) -> String {
    format!("{namespace}/")
}

/// An entry of an index: the number of a label, whether the claim is bound, and its name. So those
/// that are not bound come first.
type IndexEntry = (u64, bool, Arc<str>);

/// The number of all claims of a namespace.
const ALL: u64 = 0;
/// The number of those with too many labels.
const MANY: u64 = 1;

/// The claims of a namespace.
struct Namespace {
    /// `None` if they have too many entries.
    entries: Option<BTreeSet<IndexEntry>>,
    /// The claims that the watch reported before all were read.
    reported: HashSet<Arc<str>>,
    /// Set once all are read.
    read: Arc<OnceCell<()>>,
    used: Instant,
}

impl Namespace {
    fn new() -> Self {
        Namespace {
            entries: Some(BTreeSet::new()),
            reported: HashSet::new(),
            read: Arc::default(),
            used: Instant::now(),
        }
    }

    fn len(&self) -> usize {
        self.entries.as_ref().map_or(0, BTreeSet::len)
    }
}

/// The indexes of all namespaces that have one.
#[derive(Default)]
struct Indexes {
    namespaces: HashMap<String, Namespace>,
    /// Numbers labels, so that no user can find two labels of one number.
    hasher: RandomState,
    /// The entries of all namespaces.
    entries: usize,
}

impl Indexes {
    fn number(&self, key: &str, value: &str) -> u64 {
        self.hasher.hash_one((key, value)).max(MANY + 1)
    }

    /// The entries of a claim.
    fn entries(&self, claim: &PersistentVolumeClaim) -> Vec<IndexEntry> {
        let (name, is_bound): (Arc<str>, _) = (claim.name_any().into(), pvc::is_bound(claim));
        let labels = claim.labels();
        let mut numbers = vec![ALL];
        if labels.len() > MAX_LABELS {
            numbers.push(MANY);
        } else {
            numbers.extend(labels.iter().map(|(key, value)| self.number(key, value)));
        }
        numbers
            .into_iter()
            .map(|number| (number, is_bound, name.clone()))
            .collect()
    }

    fn change(
        &mut self,
        namespace: &str,
        old: Option<&PersistentVolumeClaim>,
        new: Option<&PersistentVolumeClaim>,
    ) {
        let old = old.map_or_else(Vec::new, |old| self.entries(old));
        let new = new.map_or_else(Vec::new, |new| self.entries(new));
        let known = self.namespaces.get_mut(namespace);
        let Some(entries) = known.and_then(|known| known.entries.as_mut()) else {
            return;
        };
        let before = entries.len();
        for entry in &old {
            entries.remove(entry);
        }
        entries.extend(new);
        self.entries = self.entries + entries.len() - before;
    }

    /// Drops the largest indexes while there are more entries than this.
    fn limit(&mut self, max: usize) {
        while self.entries > max {
            let largest = self
                .namespaces
                .iter_mut()
                .max_by_key(|(_, known)| known.len());
            let Some((namespace, known)) = largest else {
                return;
            };
            tracing::info!(
                namespace,
                entries = known.len(),
                "too many claims for an index"
            );
            self.entries -= known.len();
            known.entries = None;
        }
    }

    /// The numbers of the claims that may have one of these labels; of all without a label. Each is
    /// there once, because a selector may repeat a value hundreds of times.
    fn numbers(&self, label: Option<(&str, Vec<&str>)>) -> BTreeSet<u64> {
        let Some((key, values)) = label else {
            return BTreeSet::from([ALL]);
        };
        let numbers = values.into_iter().map(|value| self.number(key, value));
        numbers.chain([MANY]).collect()
    }

    /// The names of the claims that may have one of these labels; all without a label. Those that are
    /// not bound come first. `None` without an index.
    fn candidates(
        &self,
        namespace: &str,
        label: Option<(&str, Vec<&str>)>,
    ) -> Option<Vec<Arc<str>>> {
        let entries = self.namespaces.get(namespace)?.entries.as_ref()?;
        let numbers = self.numbers(label);
        let (free, bound) = (
            names(entries, &numbers, false),
            names(entries, &numbers, true),
        );
        Some(free.into_iter().chain(bound).collect())
    }
}

/// The names of the claims with entries of these numbers, each once.
fn names(
    entries: &BTreeSet<IndexEntry>,
    numbers: &BTreeSet<u64>,
    is_bound: bool,
) -> BTreeSet<Arc<str>> {
    let mut names = BTreeSet::new();
    for number in numbers {
        let from = (*number, is_bound, Arc::default());
        let of_number = entries
            .range::<IndexEntry, _>(from..)
            .take_while(|entry| (entry.0, entry.1) == (*number, is_bound));
        names.extend(of_number.map(|entry| entry.2.clone()));
    }
    names
}

/// The claims of some namespaces by their labels. Clones share them.
#[derive(Clone)]
pub(in crate::snapshot_controller) struct ClaimsByLabel {
    claims: Store<PersistentVolumeClaim>,
    indexes: Arc<Mutex<Indexes>>,
    max: usize,
}

impl ClaimsByLabel {
    /// Follows the claims of this watch.
    pub(in crate::snapshot_controller) fn new(claims: Store<PersistentVolumeClaim>) -> Self {
        ClaimsByLabel::limited(claims, MAX_ENTRIES)
    }

    fn limited(claims: Store<PersistentVolumeClaim>, max: usize) -> Self {
        let indexes = Arc::new(Mutex::new(Indexes::default()));
        let followed = indexes.clone();
        claims.on_change(move |change| {
            let claim = change.object();
            let mut indexes = followed.lock();
            let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
            let known = indexes.namespaces.get_mut(namespace);
            let Some(known) = known.filter(|known| known.entries.is_some()) else {
                return;
            };
            if !known.read.initialized() {
                known.reported.insert(claim.name_any().into());
            }
            match change {
                Change::Applied { old, new } => {
                    indexes.change(namespace, old.as_deref(), Some(new));
                }
                Change::Deleted(old) => indexes.change(namespace, Some(old), None),
            }
            indexes.limit(max);
        });
        ClaimsByLabel {
            claims,
            indexes,
            max,
        }
    }

    /// The claims of a namespace that a selector fits, read one by one. Of the claims that an index
    /// finds, those that are not bound come first: a group has to wait for them.
    pub(super) async fn select(
        &self,
        namespace: &str,
        label: Option<(&str, Vec<&str>)>,
        selector: Selector,
    ) -> impl Iterator<Item = Option<Arc<PersistentVolumeClaim>>> + Send + use<> {
        let read = self.reading(namespace);
        read.get_or_init(|| self.read(namespace)).await;
        let candidates = self.indexes.lock().candidates(namespace, label);
        let (claims, of) = (self.claims.clone(), namespace.to_owned());
        let indexed = candidates
            .map(move |names| names.into_iter().map(move |name| claims.get_in(&of, &name)));
        let each = indexed
            .is_none()
            .then(|| self.claims.each_in(namespace).map(Some));
        let all = indexed
            .into_iter()
            .flatten()
            .chain(each.into_iter().flatten());
        all.map(move |claim| claim.filter(|claim| selector.matches(claim.labels())))
    }

    fn reading(&self, namespace: &str) -> Arc<OnceCell<()>> {
        let mut indexes = self.indexes.lock();
        let forgotten: usize = indexes
            .namespaces
            .extract_if(|name, known| name != namespace && known.used.elapsed() >= KEPT)
            .map(|(_, known)| known.len())
            .sum();
        indexes.entries -= forgotten;
        let known = indexes
            .namespaces
            .entry(namespace.to_owned())
            .or_insert_with(Namespace::new);
        known.used = Instant::now();
        known.read.clone()
    }

    /// Reads the claims of a namespace, except those that the watch reports meanwhile, while it may
    /// have an index.
    async fn read(&self, namespace: &str) {
        for (number, claim) in self.claims.each_in(namespace).enumerate() {
            if !self.enter(namespace, &claim) {
                break;
            }
            yield_sometimes(number).await;
        }
        if let Some(known) = self.indexes.lock().namespaces.get_mut(namespace) {
            known.reported = HashSet::new();
        }
    }

    /// Enters a claim as it was read. False if its namespace has no index any more.
    fn enter(&self, namespace: &str, claim: &PersistentVolumeClaim) -> bool {
        let mut indexes = self.indexes.lock();
        let known = indexes
            .namespaces
            .get(namespace)
            .filter(|known| known.entries.is_some());
        let Some(known) = known else { return false };
        if !known.reported.contains(&*claim.name_any()) {
            indexes.change(namespace, None, Some(claim));
            indexes.limit(self.max);
        }
        true
    }
}

#[cfg(test)]
mod tests;
