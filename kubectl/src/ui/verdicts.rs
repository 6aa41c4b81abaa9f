//! Sends the verdicts of [`verdict`](crate::verdict) about all that the page shows: what is stuck
//! for `status` and `check` is stuck for the page.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hostloop_report::clock::now_ns;
use kube::ResourceExt;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::Out;
use super::message::{Message, ShownVerdict, Tone};
use super::verdict_facts::Evidence;
use crate::status::{ClusterFacts, SnapshotRow, VolumeRow, join};
use crate::verdict::{VolumePhase, group_stuck};

/// The shortest pause between two looks.
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause after a look.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A pause is this many times as long as the look before it.
const FACTOR: u32 = 9;
/// What waits becomes stuck by time alone. After this time, there is a look without a change.
const RENEWAL: Duration = Duration::from_secs(5);

/// Verdicts by the names of the life that each is about.
pub(super) type Verdicts = BTreeMap<Vec<String>, ShownVerdict>;

/// Sends verdicts until the task is dropped, once so many kinds of objects are listed.
pub(super) async fn send(driver: String, kinds: usize, out: Out) {
    let mut known = Verdicts::new();
    let mut changes = out.verdict_facts.changes();
    loop {
        changes.mark_unchanged();
        let started = Instant::now();
        if let Some(evidence) = out.verdict_facts.now(kinds) {
            let driver = driver.clone();
            // A large cluster keeps a processor busy for a while.
            let found = spawn_blocking(move || verdicts(&evidence, &driver, now_ns())).await;
            let Ok(found) = found else { return };
            for message in messages(&known, &found) {
                out.history.add(message);
            }
            known = found;
        }
        let pause = started.elapsed().saturating_mul(FACTOR);
        sleep(pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
        // It is the same whether there is a change or not.
        let _ = timeout(RENEWAL, changes.changed()).await;
    }
}

/// What has changed. Ends come first: another verdict may have one of their names.
pub(super) fn messages(before: &Verdicts, now: &Verdicts) -> Vec<Message> {
    let ended = before
        .keys()
        .filter(|lives| !now.contains_key(*lives))
        .map(|lives| Message::no_verdict(lives));
    let changed = now
        .iter()
        .filter(|(lives, verdict)| before.get(*lives) != Some(*verdict))
        .map(|(lives, verdict)| Message::verdict(lives, verdict));
    ended.chain(changed).collect()
}

/// The verdicts about everything.
pub(super) fn verdicts(evidence: &Evidence, driver: &str, now_ns: u64) -> Verdicts {
    let report = join(&ClusterFacts {
        objects: &evidence.objects,
        nodes: &evidence.nodes,
        driver,
        namespace: None,
        failed_calls: &evidence.failed_calls,
        now_ns,
    });
    let volumes = report.volumes.into_iter().map(of_volume);
    let snapshots = report
        .snapshots
        .into_iter()
        .map(|row| of_snapshot("snapshot", row));
    let groups = group_rows(evidence, now_ns).map(|row| of_snapshot("group", row));
    let mut all: Verdicts = volumes.chain(snapshots).chain(groups).collect();
    // The page has no life of an inline volume that no node reports, or of a bare snapshot.
    all.retain(|lives, _| !lives.is_empty());
    all
}

/// A claim and its volume are one life, which begins as the claim's or the volume's.
fn of_volume(row: VolumeRow) -> (Vec<String>, ShownVerdict) {
    let claim = row.claim_uid.as_ref().map(|uid| format!("claim:{uid}"));
    let volume = row.handle.as_ref().map(|id| format!("volume:{id}"));
    let verdict = ShownVerdict {
        words: row.state_words(),
        tone: volume_tone(&row),
        stuck: row.stuck,
        note: row.note,
    };
    (claim.into_iter().chain(volume).collect(), verdict)
}

fn volume_tone(row: &VolumeRow) -> Tone {
    match row.state {
        _ if row.stuck.is_some() => Tone::Bad,
        VolumePhase::Lost => Tone::Bad,
        VolumePhase::Pending | VolumePhase::Deleting => Tone::Wait,
        VolumePhase::Released => Tone::Gone,
        // It does not work, and nothing is wrong: its claim asks for that.
        _ if row.fault_mark().is_some() => Tone::Wait,
        VolumePhase::Bound
        | VolumePhase::Staged
        | VolumePhase::Published
        | VolumePhase::Available
        | VolumePhase::Unclaimed => Tone::Good,
    }
}

fn of_snapshot(kind: &str, row: SnapshotRow) -> (Vec<String>, ShownVerdict) {
    // If only its content is left, the page knows that it is deleted.
    let is_said = row.name.is_some() || row.stuck.is_some();
    let uid = row.uid.as_ref().filter(|_| is_said);
    let lives = uid.iter().map(|uid| format!("{kind}:{uid}")).collect();
    let tone = match row.ready {
        _ if row.stuck.is_some() => Tone::Bad,
        Some(true) if !row.deleting => Tone::Good,
        _ => Tone::Wait,
    };
    let verdict = ShownVerdict {
        words: row.state_words().to_owned(),
        tone,
        stuck: row.stuck,
        note: None,
    };
    (lives, verdict)
}

/// The groups of snapshots, as rows like those of snapshots.
fn group_rows(evidence: &Evidence, now_ns: u64) -> impl Iterator<Item = SnapshotRow> {
    evidence.groups.iter().map(move |group| {
        let status = group.status.as_ref();
        let bound = status.and_then(|s| s.bound_volume_group_snapshot_content_name.as_ref());
        let bound = bound.or(group
            .spec
            .source
            .volume_group_snapshot_content_name
            .as_ref());
        let content = evidence
            .group_contents
            .iter()
            .find(|content| Some(&content.name_any()) == bound);
        SnapshotRow {
            name: Some(group.name_any()),
            uid: group.uid(),
            ready: status.and_then(|status| status.ready_to_use),
            deleting: group.metadata.deletion_timestamp.is_some(),
            stuck: group_stuck(group, content, &evidence.objects.events, now_ns),
            ..SnapshotRow::default()
        }
    })
}

#[cfg(test)]
mod tests;
