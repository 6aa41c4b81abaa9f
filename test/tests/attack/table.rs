//! The attack table: each request of a node, with the outcome for each target.

use serde_json::{Value, json};

use crate::installation::named;
use crate::target::KEEP;

mod claims;
mod nodes;
mod snapshots;
mod volumes;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
            (Outcome::No(words), Err(why)) if why.contains(&named(words)) => None,
            (Outcome::Yes, Err(why)) => Some(format!("refused: {why}")),
            (Outcome::No(words), Err(why)) => Some(format!("refused, but not as {words:?}: {why}")),
            (Outcome::No(words), Ok(())) => Some(format!("let through, not refused as {words:?}")),
        }
    }
}

/// One kind of request.
#[derive(Clone)]
pub(crate) struct Attack {
    pub(crate) verb: &'static str,
    /// A subresource follows a slash.
    pub(crate) resource: &'static str,
    /// Description for the document.
    pub(crate) what: &'static str,
    /// Merged into the object. `$OWN` and `$OTHER` stand for node names, and the usual names of
    /// driver and topology key for those in this run.
    pub(crate) change: Value,
    /// One per target, in the order of [`crate::target::Target::ALL`].
    pub(crate) outcomes: [Outcome; 4],
}

impl Attack {
    /// A request outside the table, on the node's own object.
    pub(crate) fn of_own(verb: &'static str, resource: &'static str, change: Value) -> Attack {
        rows(verb, resource)("", change, [Outcome::Nothing; 4])
    }
}

/// Resources that may be read.
pub(crate) struct Read {
    pub(crate) resource: &'static str,
    pub(crate) verbs: &'static [&'static str],
    /// Empty means all namespaces. The usual one stands for that of this run.
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
        read("volumeattachments", &["get", "list", "watch"]),
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

/// Makes rows of a verb and a resource.
fn rows(
    verb: &'static str,
    resource: &'static str,
) -> impl Fn(&'static str, Value, [Outcome; 4]) -> Attack {
    move |what, change, outcomes| Attack {
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

/// The outcomes for objects of other nodes, of no node yet, and of other drivers: none may be
/// changed.
#[derive(Clone, Copy)]
struct Others(&'static str, &'static str, &'static str);

impl Others {
    /// Allowed only on the node's own object.
    fn own(self) -> [Outcome; 4] {
        self.but(Outcome::Yes)
    }

    /// Allowed on no object.
    fn never(self, why: &'static str) -> [Outcome; 4] {
        self.but(Outcome::No(why))
    }

    fn but(self, own: Outcome) -> [Outcome; 4] {
        let Others(other, unplaced, foreign) = self;
        let [other, unplaced, foreign] = [other, unplaced, foreign].map(Outcome::No);
        [own, other, unplaced, foreign]
    }
}

fn finalizers(all: &[&str]) -> Value {
    json!({"metadata": {"finalizers": all}})
}

fn no_finalizers() -> Value {
    json!({"metadata": {"finalizers": null}})
}

fn spec(spec: Value) -> Value {
    json!({"spec": spec})
}

fn status(status: Value) -> Value {
    json!({"status": status})
}

fn annotation(key: &str, value: Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

fn label(key: &str, value: &str) -> Value {
    json!({"metadata": {"labels": {key: value}}})
}

/// As much text as the API server accepts in an object's annotations, nearly.
fn long() -> String {
    "x".repeat(200_000)
}

/// What a list of finalizers has after the others, eight times: the policy for all metadata takes it.
fn repeated(others: &[&str], finalizer: &str) -> Value {
    let mut all = others.to_vec();
    all.extend([finalizer; 8]);
    finalizers(&all)
}

/// An owner that does not exist: the garbage collector deletes the dependent object.
fn owner() -> Value {
    json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap",
        "name": "gone", "uid": "00000000-0000-4000-8000-00000000dead"}]}})
}

const NODE_LABEL: &str = "hostloop.csi.dev/node";

/// Another node's label.
fn other_label() -> Value {
    label(NODE_LABEL, "$OTHER")
}

/// No role grants the verb.
const FORBIDDEN: [Outcome; 4] = [Outcome::No(ROLE); 4];

/// Part of the API server's message if a policy refuses, where several do.
const DENIED: &str = "denied request";

/// A time that is in the year 10000 in UTC.
pub(crate) const LATE: &str = "9999-12-31T23:59:59-01:00";

/// A time on the last day of the year 9999: too late for clients that allow for offsets.
const LAST_DAY: &str = "9999-12-31T12:00:00Z";

/// A time that is in the year -1 in UTC.
const EARLY: &str = "0000-01-01T00:00:00+01:00";

/// Part of the API server's message about such times.
const TIME: &str = "only times of the years 0 to 8999";

/// Part of the API server's message about such times of field managers.
const MANAGER_TIME: &str = "field managers with times of the years 0 to 8999";

/// A field manager that owns this field since then.
fn managed(api_version: &str, fields: Value, time: &str) -> Value {
    json!({"metadata": {"managedFields": [{"manager": "x", "operation": "Update",
        "apiVersion": api_version, "fieldsType": "FieldsV1", "fieldsV1": fields, "time": time}]}})
}

/// The prefix of a name that the API server makes: it has no use in an object with a name.
fn name_prefix() -> Value {
    json!({"metadata": {"generateName": long()}})
}

/// The rows of a resource that no role lets a node create or delete. `outcomes` is
/// [`FORBIDDEN`], but for the targets that have no such object.
fn only_changed(resource: &'static str, outcomes: [Outcome; 4]) -> [Attack; 2] {
    [
        rows("delete", resource)("delete it", json!({}), outcomes),
        rows("create", resource)("create one", json!({}), outcomes),
    ]
}
