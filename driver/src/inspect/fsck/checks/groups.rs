//! Groups and their members.

use crate::inspect::inventory::{Contents, Survey};

use super::{Kind, Problem, Repair, Severity, person, problem, readable, snapshot_there};

/// Members without their group, and groups without a member. What may be in a pool that can't be
/// read is not missed. A snapshot whose volume is gone is in order: it outlives it.
pub(super) fn check(survey: &Survey, contents: &Contents, found: &mut Vec<Problem>) {
    for item in &contents.snapshots {
        let group = item.record.as_ref().ok().and_then(|s| s.group);
        let Some(group) = group.filter(|g| readable(survey, g.pool())) else {
            continue;
        };
        let name = group.to_string();
        let there = survey
            .contents()
            .any(|(_, c)| c.groups.iter().any(|g| g.name == name));
        if !there {
            // On its way in or out its record is there, and says what is to be freed.
            let mut leftovers = survey.contents().flat_map(|(_, c)| &c.leftovers);
            let (why, repair) = match leftovers.any(|l| l.name == name) {
                true => ("was never finished, or is half deleted", Repair::Recovery),
                false => (
                    "is not there",
                    person(
                        "put the group's record back, or delete the snapshot if nobody needs it",
                    ),
                ),
            };
            found.push(problem(
                Severity::Warning,
                Kind::GroupMissing,
                &item.name,
                format!("is of {group}, which {why}"),
                repair,
            ));
        }
    }
    for item in &contents.groups {
        let Ok(group) = &item.record else { continue };
        let gone: Vec<String> = group
            .snapshots
            .iter()
            .filter(|s| readable(survey, s.pool()) && !snapshot_there(survey, &s.to_string()))
            .map(ToString::to_string)
            .collect();
        if !gone.is_empty() {
            found.push(problem(
                Severity::Error,
                Kind::GroupIncomplete,
                &item.name,
                format!("lacks {}", gone.join(", ")),
                person("delete the group: it can't be restored whole"),
            ));
        }
    }
}
