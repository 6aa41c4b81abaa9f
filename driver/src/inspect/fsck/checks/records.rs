//! Records, names and strays.

use std::collections::BTreeMap;

use super::{
    ProblemKind, Repair, ReportedProblem, Severity, Subject, person, problem, unless_running,
};
use crate::diagnose::Problem;
use crate::inspect::inventory::{
    Area, Contents, Item, Leftover, PoolSurvey, Survey, UnusableRecord, readable,
};

/// Finds records that can't be read or are in the wrong place, foreign entries, and leftovers.
pub(super) fn check(pool: &PoolSurvey, contents: &Contents, found: &mut Vec<ReportedProblem>) {
    found.extend(contents.volumes.iter().filter_map(|i| item(pool, i)));
    found.extend(contents.snapshots.iter().filter_map(|i| item(pool, i)));
    found.extend(contents.groups.iter().filter_map(|i| item(pool, i)));
    let unknown_files = contents.unknown_files.iter();
    let unknown_files = unknown_files.map(|path| Subject::entry(pool, path.display()));
    found.extend(unknown_files.filter_map(|subject| subject.report(&Problem::UnknownFile)));
    found.extend(contents.leftovers.iter().map(|l| leftover(pool, l)));
}

/// Checks one record: whether it can be read, and is in its place.
fn item<R>(pool: &PoolSurvey, item: &Item<R>) -> Option<ReportedProblem> {
    let why = item.record.as_ref().err()?;
    let subject = Subject::entry(pool, &item.name);
    let mut reported = subject.report(&Problem::RecordUnusable(why.clone()))?;
    if *why == UnusableRecord::Missing && item.image.is_some() {
        reported.what.push_str(", and its image is there");
    }
    Some(reported)
}

fn leftover(pool: &PoolSurvey, leftover: &Leftover) -> ReportedProblem {
    let what = match leftover.area {
        Area::Incoming => "it was never finished",
        Area::Trash => "it is deleted and not freed yet",
    };
    problem(
        unless_running(pool, Severity::Warning),
        ProblemKind::Leftover,
        format!("{}/{}", leftover.area, leftover.name),
        what,
        Repair::Recovery,
    )
}

/// The IDs of each name, by the kind of object and the name.
type Names<'a> = BTreeMap<(&'a str, &'a str), Vec<String>>;

fn add<'a>(names: &mut Names<'a>, what: &'a str, name: &'a str, id: String) {
    names.entry((what, name)).or_default().push(id);
}

/// Finds volumes, snapshots or groups with the same name, and volumes with the same inline handle,
/// across all pools. A repeated request could not identify the object.
pub(super) fn duplicates(survey: &Survey, found: &mut Vec<ReportedProblem>) {
    let mut names = Names::new();
    for (_, contents) in survey.contents() {
        for (v, _) in readable(&contents.volumes) {
            add(&mut names, "volume", &v.name, v.id.to_string());
            if let Some(handle) = &v.inline {
                add(&mut names, "inline volume", handle, v.id.to_string());
            }
        }
        for (s, _) in readable(&contents.snapshots) {
            add(&mut names, "snapshot", &s.name, s.id.to_string());
        }
        for (g, _) in readable(&contents.groups) {
            add(&mut names, "group snapshot", &g.name, g.id.to_string());
        }
    }
    let doubled = names.into_iter().filter(|(_, ids)| ids.len() > 1);
    found.extend(doubled.map(|((what, name), ids)| {
        problem(
            Severity::Error,
            ProblemKind::DuplicateName,
            ids.join(", "),
            format!("they are each the {what} named {name:?}"),
            person("find out which one is in use, and delete the other"),
        )
    }));
}
