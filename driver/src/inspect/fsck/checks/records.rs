//! Records, names and strays.

use std::collections::BTreeMap;

use crate::inspect::inventory::{
    Area, Contents, Item, Leftover, PoolSurvey, Survey, Unreadable, readable,
};
use crate::storage::PoolId;

use super::{Kind, Problem, Repair, Severity, person, problem, unless_running};

/// Finds records that can't be read or are in the wrong place, foreign entries, and leftovers.
pub(super) fn check(pool: &PoolSurvey, contents: &Contents, found: &mut Vec<Problem>) {
    let mut add = |bad: Option<Problem>| found.extend(bad);
    for i in &contents.volumes {
        add(item(contents, i, |v| v.id.pool()));
    }
    for i in &contents.snapshots {
        add(item(contents, i, |s| s.id.pool()));
    }
    for i in &contents.groups {
        add(item(contents, i, |g| g.id.pool()));
    }
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

/// Checks one record. `pool_of` returns the pool in its ID.
fn item<R>(contents: &Contents, item: &Item<R>, pool_of: impl Fn(&R) -> PoolId) -> Option<Problem> {
    let record = match &item.record {
        Ok(record) => record,
        Err(why) => return Some(unreadable(item, why)),
    };
    let pool = pool_of(record);
    (pool != contents.id).then(|| {
        misplaced(
            &item.name,
            format!("belongs to pool {pool}, and this is {}", contents.id),
        )
    })
}

fn misplaced(name: &str, what: String) -> Problem {
    let repair = person("find out who moved it, and move it back");
    problem(Severity::Error, Kind::RecordMisplaced, name, what, repair)
}

fn unreadable<R>(item: &Item<R>, why: &Unreadable) -> Problem {
    let kind = match why {
        Unreadable::Missing => Kind::RecordMissing,
        Unreadable::Newer(_) => Kind::RecordNewer,
        Unreadable::Misplaced(id) => {
            return misplaced(&item.name, format!("holds the record of {id}"));
        }
        Unreadable::Damaged(_) => Kind::RecordUnreadable,
    };
    let what = match why {
        Unreadable::Missing if item.image.is_some() => "has no record, and an image".to_owned(),
        Unreadable::Missing => "has no record".to_owned(),
        _ => format!("can't be read: its record {why}"),
    };
    problem(
        Severity::Error,
        kind,
        &item.name,
        what,
        person(why.advice()),
    )
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
