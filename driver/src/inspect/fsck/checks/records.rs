//! Records, names and strays.

use std::collections::BTreeMap;

use super::{Kind, Problem, Repair, Severity, person, problem, unless_running};
use crate::inspect::inventory::{
    Area, Contents, Item, Leftover, PoolSurvey, Survey, Unreadable, readable,
};

/// Finds records that can't be read or are in the wrong place, foreign entries, and leftovers.
pub(super) fn check(pool: &PoolSurvey, contents: &Contents, found: &mut Vec<Problem>) {
    found.extend(contents.volumes.iter().filter_map(|i| item(contents, i)));
    found.extend(contents.snapshots.iter().filter_map(|i| item(contents, i)));
    found.extend(contents.groups.iter().filter_map(|i| item(contents, i)));
    found.extend(contents.strangers.iter().map(|path| {
        problem(
            Severity::Warning,
            Kind::Stranger,
            path.display(),
            "is nothing the driver made",
            person("move it out of the pool"),
        )
    }));
    found.extend(contents.leftovers.iter().map(|l| leftover(pool, l)));
}

/// Checks one record: whether it can be read, and is in its place.
fn item<R>(contents: &Contents, item: &Item<R>) -> Option<Problem> {
    let why = item.record.as_ref().err()?;
    let (kind, what) = match why {
        Unreadable::Missing if item.image.is_some() => (
            Kind::RecordMissing,
            "has no record, and an image".to_owned(),
        ),
        Unreadable::Missing => (Kind::RecordMissing, "has no record".to_owned()),
        Unreadable::Newer(_) => (
            Kind::RecordNewer,
            format!("can't be read: its record {why}"),
        ),
        Unreadable::Misplaced(id) => (Kind::RecordMisplaced, format!("holds the record of {id}")),
        Unreadable::OtherPool(pool) => (
            Kind::RecordMisplaced,
            format!("belongs to pool {pool}, and this is {}", contents.id),
        ),
        Unreadable::Damaged(_) => (
            Kind::RecordUnreadable,
            format!("can't be read: its record {why}"),
        ),
    };
    let repair = person(why.advice());
    Some(problem(Severity::Error, kind, &item.name, what, repair))
}

fn leftover(pool: &PoolSurvey, leftover: &Leftover) -> Problem {
    let what = match leftover.area {
        Area::Incoming => "was never finished",
        Area::Trash => "is deleted and not freed yet",
    };
    problem(
        unless_running(pool, Severity::Warning),
        Kind::Leftover,
        format!("{}/{}", leftover.area, leftover.name),
        what,
        Repair::Recovery,
    )
}

/// Finds volumes, snapshots or groups with the same name, and volumes with the same inline handle,
/// across all pools. A repeated request could not identify the object.
pub(super) fn duplicates(survey: &Survey, found: &mut Vec<Problem>) {
    let mut names: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    let mut add = |what, name, id: String| names.entry((what, name)).or_default().push(id);
    for (_, contents) in survey.contents() {
        for (v, _) in readable(&contents.volumes) {
            add("volume", &*v.name, v.id.to_string());
            if let Some(handle) = &v.inline {
                add("inline volume", handle, v.id.to_string());
            }
        }
        for (s, _) in readable(&contents.snapshots) {
            add("snapshot", &s.name, s.id.to_string());
        }
        for (g, _) in readable(&contents.groups) {
            add("group snapshot", &g.name, g.id.to_string());
        }
    }
    let doubled = names.into_iter().filter(|(_, ids)| ids.len() > 1);
    found.extend(doubled.map(|((what, name), ids)| {
        problem(
            Severity::Error,
            Kind::DuplicateName,
            ids.join(", "),
            format!("are each the {what} named {name:?}"),
            person("find out which one is in use, and delete the other"),
        )
    }));
}
