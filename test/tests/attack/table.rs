//! The attack table: each request of a node, with the outcome for each target.

use serde_json::{Value, json};

use crate::target::{KEEP, Target};

mod claims;
mod nodes;
mod snapshots;
mod volumes;

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The request succeeds.
    Yes,
    /// The request is refused, and the reason contains these words.
    No(&'static str),
    /// No such object exists, or there is nothing to change.
    Nothing,
}

impl Outcome {
    /// How the actual outcome differs, if it does.
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

/// One kind of request.
pub(crate) struct Attack {
    pub(crate) verb: &'static str,
    /// A subresource follows a slash.
    pub(crate) resource: &'static str,
    /// Description for the document.
    pub(crate) what: &'static str,
    /// Merged into the object. `$OWN` and `$OTHER` stand for node names.
    pub(crate) change: Value,
    /// One per target, in the order of [`crate::target::Target::ALL`].
    pub(crate) outcomes: [Outcome; 4],
}

impl Attack {
    /// A request outside the table, on the node's own object.
    pub(crate) fn of_own(verb: &'static str, resource: &'static str, change: Value) -> Attack {
        let outcomes = Target::ALL.map(|_| Outcome::Nothing);
        row(verb, resource, "", change, outcomes)
    }
}

/// Resources that may be read.
pub(crate) struct Read {
    pub(crate) resource: &'static str,
    pub(crate) verbs: &'static [&'static str],
    /// Empty means all namespaces.
    pub(crate) namespace: &'static str,
    /// The object's name, if the role grants only one.
    pub(crate) name: &'static str,
}

impl Read {
    /// Each verb with the resource.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.verbs.iter().map(|verb| (*verb, self.resource))
    }
}

/// Part of the API server's message if no role grants the verb.
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

/// The account's readable resources.
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

/// Resources that the account must not read.
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

/// All rows of the table.
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

/// Allowed only on the node's own object.
fn own(other: &'static str, unplaced: &'static str, foreign: &'static str) -> [Outcome; 4] {
    [
        Outcome::Yes,
        Outcome::No(other),
        Outcome::No(unplaced),
        Outcome::No(foreign),
    ]
}

/// Allowed on no object.
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

/// An owner that does not exist: the garbage collector deletes the dependent object.
fn owner() -> Value {
    json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap",
        "name": "gone", "uid": "00000000-0000-4000-8000-00000000dead"}]}})
}

const NODE_LABEL: &str = "hostloop.csi.dev/node";

/// No role grants the verb.
fn never_granted() -> [Outcome; 4] {
    never(ROLE, [ROLE, ROLE, ROLE])
}

/// No role grants the verb. There is nothing to try it on for the targets in `but`.
fn forbidden(but: &[Target]) -> [Outcome; 4] {
    Target::ALL.map(|target| match but.contains(&target) {
        true => Outcome::Nothing,
        false => Outcome::No(ROLE),
    })
}
