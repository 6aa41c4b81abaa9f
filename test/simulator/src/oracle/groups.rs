//! Groups of snapshots: what is ready is whole and of one instant, what is deleted goes with its
//! members, and what is to be kept stays.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::machine::Contents;
use crate::model::view::{group_reference, is_deleting, is_unbound, items, name, text, uid};
use crate::oracle::Oracle;
use crate::oracle::advice::{Advice, said_of_group, unready};
use crate::oracle::departures::is_group_out_of_reach;
use crate::oracle::kept::Kept;
use crate::oracle::lost::Lost;
use crate::oracle::objects::{Objects, state};
use crate::trace;

/// Checks that no group is lost that was to be kept, by the contents of all groups.
pub(super) fn check(
    kept: &mut Kept,
    contents: &[Arc<Value>],
    data: &BTreeSet<String>,
    lost: &BTreeSet<String>,
) {
    // One that is deleted while its group is being taken gets its handle, and goes at once. A content
    // that is there says it after one that went.
    for content in kept.gone.take().iter().chain(contents) {
        let handle = text(content, "/status/volumeGroupSnapshotHandle");
        if data.contains(handle) {
            let is_kept = content["spec"]["deletionPolicy"] == "Retain";
            kept.note(handle, is_kept);
        }
    }
    kept.check("group", data, lost);
}

/// A member of a group that is ready.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// Its data is in a pool.
    has_data: bool,
    /// Its snapshot is there and ready.
    is_ready: bool,
    /// When it was taken, in nanoseconds.
    taken: Option<i64>,
}

/// What is wrong with a ready group of so many volumes.
fn flaw(volumes: usize, members: &[Member]) -> Option<String> {
    if members.len() != volumes {
        let members = members.len();
        return Some(format!(
            "is ready with {members} members of {volumes} volumes"
        ));
    }
    if members.iter().any(|member| !member.has_data) {
        return Some("is ready, and the data of a member is gone".to_owned());
    }
    if members.iter().any(|member| !member.is_ready) {
        return Some("is ready, and a member is missing or not ready".to_owned());
    }
    let instants: BTreeSet<_> = members.iter().map(|member| member.taken).collect();
    (instants.len() > 1).then(|| format!("has members of several instants: {instants:?}"))
}

impl Objects {
    /// The group that a snapshot is a member of, if it exists.
    pub(super) fn group_of(&self, snapshot: &Value) -> Option<&Value> {
        let group = text(group_reference(snapshot)?, "/uid");
        let mut groups = self.groups.iter().map(|one| &**one);
        groups.find(|one| uid(one) == group)
    }

    /// The members of a group.
    fn members<'a>(&'a self, group: &'a Value) -> impl Iterator<Item = &'a Value> {
        self.snapshots.iter().filter(move |snapshot| {
            group_reference(snapshot).is_some_and(|it| text(it, "/uid") == uid(group))
        })
    }

    /// The content of a group.
    pub(super) fn group_content(&self, group: &Value) -> Option<&Value> {
        let mut contents = self.group_contents.iter().map(|one| &**one);
        contents.find(|one| text(one, "/spec/volumeGroupSnapshotRef/uid") == uid(group))
    }

    /// True if a claim waits for the data of a member. As long as a member is not deleted, each
    /// claim counts.
    fn is_restored(&self, member: &Value) -> bool {
        let is_open = !is_deleting(member) && member["status"]["readyToUse"] == true;
        self.is_awaited(member)
            || is_open
                && self.claims.iter().any(|claim| {
                    is_unbound(claim) && self.source(claim).is_some_and(|it| uid(it) == uid(member))
                })
    }
}

/// Checks after a quiet time that each group is ready, or says what to do, or is gone with its
/// members.
pub(super) fn are_done(cluster: &Cluster, objects: &Objects, lost: &Lost, advice: Advice) {
    for group in &objects.groups {
        if let Some(problem) = problem(cluster, objects, group, (lost, advice)) {
            trace::violation(format!(
                "group {} {problem}: {}; {}",
                name(group),
                state(group),
                objects.history(group)
            ));
        }
    }
    let members = objects.snapshots.iter();
    for member in members.filter(|snapshot| group_reference(snapshot).is_some()) {
        match objects.group_of(member) {
            None if !is_deleting(member) => trace::violation(format!(
                "a member is left of a group that is gone: {}: {}",
                name(member),
                state(member)
            )),
            // Members are deleted with their group alone. An event may be older than a backup.
            Some(group)
                if is_deleting(member)
                    && !is_deleting(group)
                    && objects.reasons(member).is_empty()
                    && lost.since.is_none() =>
            {
                trace::violation(format!(
                    "member {} is deleted and stays, and nothing says why: {}",
                    name(member),
                    state(member)
                ));
            }
            _ => {}
        }
    }
}

/// What is wrong with a group.
fn problem(
    cluster: &Cluster,
    objects: &Objects,
    group: &Value,
    (lost, advice): (&Lost, Advice),
) -> Option<String> {
    if is_deleting(group) {
        let is_kept = objects
            .members(group)
            .any(|member| objects.is_restored(member));
        return (!is_kept).then(|| "is not gone, and no claim waits for a member".to_owned());
    }
    let content = objects.group_content(group);
    if group["status"]["readyToUse"] == true {
        let Some(content) = content else {
            return Some("is ready without a content".to_owned());
        };
        let volumes = items(content, "/spec/source/volumeHandles").count();
        return flaw(volumes, &listed(cluster, objects, (group, content), lost));
    }
    let is_out_of_reach = is_group_out_of_reach(cluster, objects, group);
    let why = unready(is_out_of_reach, &said_of_group(objects, group), advice);
    why.map(|why| format!("is not ready, and {why}"))
}

/// The members that the content of a group lists.
fn listed(
    cluster: &Cluster,
    objects: &Objects,
    (group, content): (&Value, &Value),
    lost: &Lost,
) -> Vec<Member> {
    let (pool, unreadable) = (cluster.handles(), cluster.unreadable());
    let listed = items(content, "/status/volumeSnapshotInfoList");
    let members = listed.map(|info| {
        let handle = text(info, "/snapshotHandle");
        let is_lost = lost.data.contains(handle);
        let found = objects.members(group).find_map(|snapshot| {
            let content = objects.content(snapshot)?;
            let is_it = text(content, "/status/snapshotHandle") == handle;
            is_it.then_some((snapshot, content))
        });
        Member {
            has_data: is_lost || pool.contains(handle),
            is_ready: found.is_some_and(|(snapshot, _)| {
                is_lost || unreadable.contains(handle) || snapshot["status"]["readyToUse"] == true
            }),
            taken: found.and_then(|(_, content)| content["status"]["creationTime"].as_i64()),
        }
    });
    members.collect()
}

/// Checks after everything was deleted that no group is left but those that were to be kept.
pub(super) fn are_deleted(oracle: &Oracle, contents: &Contents) {
    for group in &contents.groups {
        let handle = group.id.to_string();
        let is_kept = oracle.groups.is_kept(&handle);
        let is_lost = oracle.has_lost_object(&handle)
            || (is_kept.is_none() && oracle.lost.was_taken_for_lost(&group.name));
        if is_kept != Some(true) && !is_lost {
            trace::violation(format!("left in the pool: group {}", group.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const WHOLE: Member = Member {
        has_data: true,
        is_ready: true,
        taken: Some(7),
    };

    #[rstest]
    #[case::whole(2, &[WHOLE, WHOLE], None)]
    #[case::too_few(2, &[WHOLE], Some("is ready with 1 members of 2 volumes"))]
    #[case::lost(
        2,
        &[WHOLE, Member { has_data: false, ..WHOLE }],
        Some("is ready, and the data of a member is gone")
    )]
    #[case::unready(
        1,
        &[Member { is_ready: false, ..WHOLE }],
        Some("is ready, and a member is missing or not ready")
    )]
    #[case::later(
        2,
        &[WHOLE, Member { taken: Some(8), ..WHOLE }],
        Some("has members of several instants: {Some(7), Some(8)}")
    )]
    fn flaws_of_ready_groups(
        #[case] volumes: usize,
        #[case] members: &[Member],
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(flaw(volumes, members).as_deref(), expected);
    }

    fn content(policy: &str) -> Value {
        json!({"spec": {"deletionPolicy": policy}, "status": {"volumeGroupSnapshotHandle": "g"}})
    }

    #[test]
    fn a_content_that_went_since_the_last_look_says_whether_its_group_stays() {
        let (data, lost) = (BTreeSet::from(["g".to_owned()]), BTreeSet::new());
        for (gone, left, expected) in [
            ("Retain", None, true),
            ("Delete", None, false),
            ("Retain", Some("Delete"), false),
            ("Delete", Some("Retain"), true),
        ] {
            let mut kept = Kept::default();
            check(&mut kept, &[], &data, &lost);
            assert_eq!(kept.is_kept("g"), None, "before its group was there");
            kept.gone.add(content(gone));
            let left: Vec<_> = left.map(content).into_iter().map(Arc::new).collect();
            check(&mut kept, &left, &data, &lost);
            assert_eq!(kept.is_kept("g"), Some(expected), "{gone} {left:?}");
        }
    }
}
