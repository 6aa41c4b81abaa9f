//! The attack table: what a node tries, and what comes of it by whose object it tries it on.

use serde_json::{Value, json};

use crate::target::{KEEP, Target};

mod claims;
mod nodes;
mod snapshots;
mod volumes;

/// What comes of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is done.
    Yes,
    /// It is refused, with these words.
    No(&'static str),
    /// There is no such object, or nothing to change.
    Nothing,
}

impl Outcome {
    /// What is wrong with what was found, if anything.
    pub(crate) fn differs_from(&self, found: &Result<(), String>) -> Option<String> {
        match (self, found) {
            (Outcome::Yes, Ok(())) | (Outcome::Nothing, _) => None,
            (Outcome::No(words), Err(why)) if why.contains(words) => None,
            (Outcome::Yes, Err(why)) => Some(format!("refused: {why}")),
            (Outcome::No(words), Err(why)) => Some(format!("refused, but not as {words:?}: {why}")),
            (Outcome::No(words), Ok(())) => Some(format!("let through, not refused as {words:?}")),
        }
    }
}

/// One try.
pub(crate) struct Attack {
    pub(crate) verb: &'static str,
    /// A subresource is behind a slash.
    pub(crate) resource: &'static str,
    /// What it changes, in words.
    pub(crate) what: &'static str,
    /// The change, merged into the object. `$OWN` and `$OTHER` are nodes' names.
    pub(crate) change: Value,
    /// By whose object it is: see [`crate::target::Target::ALL`].
    pub(crate) outcomes: [Outcome; 4],
}

impl Attack {
    /// One that is not in the table.
    pub(crate) fn of_own(verb: &'static str, resource: &'static str, change: Value) -> Attack {
        let outcomes = Target::ALL.map(|_| Outcome::Nothing);
        row(verb, resource, "", change, outcomes)
    }
}

/// What may be read.
pub(crate) struct Read {
    pub(crate) resource: &'static str,
    pub(crate) verbs: &'static [&'static str],
    /// Where; empty is everywhere.
    pub(crate) namespace: &'static str,
    /// The name that may be read, where it is one alone.
    pub(crate) name: &'static str,
}

impl Read {
    /// Each verb with the resource.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.verbs.iter().map(|verb| (*verb, self.resource))
    }
}

/// What the API server says where no role grants a verb.
pub(crate) const ROLE: &str = "cannot";

const ALL: &[&str] = &["get", "list", "watch"];

const fn read(resource: &'static str, verbs: &'static [&'static str]) -> Read {
    Read {
        resource,
        verbs,
        namespace: "",
        name: "none",
    }
}

const fn read_in_own_namespace(
    resource: &'static str,
    verbs: &'static [&'static str],
    name: &'static str,
) -> Read {
    Read {
        resource,
        verbs,
        namespace: "hostloop",
        name,
    }
}

/// What the account reads.
pub(crate) fn reads() -> Vec<Read> {
    vec![
        read("persistentvolumes", ALL),
        read("persistentvolumeclaims", ALL),
        read("storageclasses", ALL),
        read("volumeattributesclasses", ALL),
        read("csinodes", ALL),
        read("csidrivers", &["list", "watch"]),
        read("nodes", &["get"]),
        read("pods", &["list", "watch"]),
        read("volumeattachments", &["list", "watch"]),
        read("volumesnapshots", &["get"]),
        read("volumesnapshotcontents", ALL),
        read("volumesnapshotclasses", &["list", "watch"]),
        read("volumegroupsnapshotcontents", ALL),
        read("volumegroupsnapshotclasses", &["list", "watch"]),
        read_in_own_namespace("pods", &["get"], "none"),
        read_in_own_namespace("csistoragecapacities", &["list", "watch"], "none"),
        read_in_own_namespace("leases", &["get"], "hostloop-hostloop-csi-dev"),
    ]
}

/// What it must not read.
pub(crate) fn hidden() -> Vec<Read> {
    vec![
        read("secrets", ALL),
        read_in_own_namespace("secrets", ALL, "none"),
        read_in_own_namespace("configmaps", ALL, "none"),
        read_in_own_namespace("leases", &["list", "watch"], "none"),
        read("nodes", &["list", "watch"]),
    ]
}

fn row(
    verb: &'static str,
    resource: &'static str,
    what: &'static str,
    change: Value,
    outcomes: [Outcome; 4],
) -> Attack {
    Attack {
        verb,
        resource,
        what,
        change,
        outcomes,
    }
}

/// Everything that is tried.
pub(crate) fn attacks() -> Vec<Attack> {
    let parts = [
        volumes::volumes(),
        claims::claims(),
        nodes::attachments(),
        nodes::capacities(),
        snapshots::snapshots(),
        snapshots::contents(),
        snapshots::group_contents(),
        nodes::events(),
        nodes::leases(),
    ];
    parts.into_iter().flatten().collect()
}

/// Its own alone.
fn own(other: &'static str, unplaced: &'static str, foreign: &'static str) -> [Outcome; 4] {
    [
        Outcome::Yes,
        Outcome::No(other),
        Outcome::No(unplaced),
        Outcome::No(foreign),
    ]
}

/// Not even its own.
fn never(why: &'static str, other: [&'static str; 3]) -> [Outcome; 4] {
    let [another, unplaced, foreign] = other;
    [
        Outcome::No(why),
        Outcome::No(another),
        Outcome::No(unplaced),
        Outcome::No(foreign),
    ]
}

fn finalizers(all: &[&str]) -> Value {
    json!({"metadata": {"finalizers": all}})
}

fn annotation(key: &str, value: Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

fn label(key: &str, value: &str) -> Value {
    json!({"metadata": {"labels": {key: value}}})
}

/// An owner that does not exist: the cluster deletes what it owns.
fn owner() -> Value {
    json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap",
        "name": "gone", "uid": "00000000-0000-4000-8000-00000000dead"}]}})
}

const NODE_LABEL: &str = "hostloop.csi.dev/node";

/// No role grants the verb.
fn never_granted() -> [Outcome; 4] {
    never(ROLE, [ROLE, ROLE, ROLE])
}

/// No role grants the verb; but there is nothing to try it on for these.
fn forbidden(but: &[Target]) -> [Outcome; 4] {
    Target::ALL.map(|target| match but.contains(&target) {
        true => Outcome::Nothing,
        false => Outcome::No(ROLE),
    })
}
