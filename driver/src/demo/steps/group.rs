//! Two volumes at one moment.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hostloop_proto::csi;
use hostloop_proto::csi::group_controller_client::GroupControllerClient;

use crate::status::units::{count, took};

use crate::demo::error::{Error, Result};
use crate::demo::orchestrator::{Want, from_snapshot};
use crate::demo::pod;
use crate::demo::world::World;

/// Numbers written before the snapshot is asked for, so that it falls into the middle of it.
const HEAD_START: u64 = 20;
const LIMIT: Duration = Duration::from_secs(30);
/// The file the numbers go to.
const NUMBER: &str = "number";

/// Writes numbers to two volumes while a group snapshot is taken of both, and reads them back out
/// of it.
pub(super) fn group(w: &mut World) -> Result<()> {
    w.create(
        "journal",
        &Want {
            bytes: w.setup.bytes,
            ..Want::default()
        },
    )?;
    let journal = w.bring_up("journal")?;
    let data = w.volume("data")?.target()?.clone();
    let writer = Writer::start([data.join(NUMBER), journal.join(NUMBER)]);
    let answer = take(w, &writer);
    let wrote = writer.stop();
    let group = answer?;
    let wrote = wrote?;
    let text = format!(
        "{} numbers, {} the longest to wait for one",
        wrote.pairs,
        took(wrote.longest)
    );
    w.narrator.fact("writer", text);
    w.look()?;
    w.narrator.check("it is ready to use", group.ready_to_use);
    let numbers = numbers(w, &group)?;
    let text = format!("data {}, journal {}", numbers[0], numbers[1]);
    w.narrator.fact("caught", text);
    w.narrator
        .check("both are of one moment", one_moment(numbers));
    let last = wrote.pairs;
    w.narrator
        .check("it fell into the middle of the writing", numbers[0] < last);
    Ok(())
}

/// The first is written first: it is equal to the second, or one ahead.
fn one_moment([first, second]: [u64; 2]) -> bool {
    first == second || first == second + 1
}

fn take(w: &mut World, writer: &Writer) -> Result<csi::VolumeGroupSnapshot> {
    writer.wait_for(HEAD_START)?;
    let request = csi::CreateVolumeGroupSnapshotRequest {
        name: format!("groupsnapshot-{}", uuid::Uuid::new_v4()),
        source_volume_ids: vec![
            w.volume("data")?.id.clone(),
            w.volume("journal")?.id.clone(),
        ],
        ..csi::CreateVolumeGroupSnapshotRequest::default()
    };
    let about = "both, of data and journal";
    let answer = w.call("CreateVolumeGroupSnapshot", about, async |channel| {
        GroupControllerClient::new(channel)
            .create_volume_group_snapshot(request)
            .await
    })?;
    let rpc = "CreateVolumeGroupSnapshot";
    let group = answer
        .group_snapshot
        .ok_or_else(Error::lacks(rpc, "a group snapshot"))?;
    w.aliases
        .insert(group.group_snapshot_id.clone(), "both".to_owned());
    w.group = Some(group.clone());
    for snapshot in &group.snapshots {
        let of = w.alias(&snapshot.source_volume_id);
        w.aliases
            .insert(snapshot.snapshot_id.clone(), format!("both/{of}"));
    }
    // The writer goes on for a while, so that a number too many would show.
    writer.wait_for(writer.pairs() + HEAD_START)?;
    Ok(group)
}

/// Restores the group's snapshots, reads the numbers, and takes the volumes down again.
fn numbers(w: &mut World, group: &csi::VolumeGroupSnapshot) -> Result<[u64; 2]> {
    let mut numbers = [0; 2];
    for (i, (of, name)) in [("data", "data-then"), ("journal", "journal-then")]
        .into_iter()
        .enumerate()
    {
        let source = &w.volume(of)?.id;
        let snapshot = group
            .snapshots
            .iter()
            .find(|s| s.source_volume_id == *source);
        let snapshot =
            snapshot.ok_or_else(Error::lacks("CreateVolumeGroupSnapshot", "a member"))?;
        let want = Want {
            bytes: w.volume(of)?.bytes,
            source: from_snapshot(&snapshot.snapshot_id),
            note: " from the group",
            ..Want::default()
        };
        w.create(name, &want)?;
        let target = w.bring_up(name)?;
        numbers[i] = pod::number(&target.join(NUMBER))?;
        w.take_down(name)?;
    }
    Ok(numbers)
}

/// A program that writes a number to one file and then to the other, and counts on.
struct Writer {
    stop: Arc<AtomicBool>,
    pairs: Arc<std::sync::atomic::AtomicU64>,
    thread: JoinHandle<std::io::Result<Duration>>,
}

/// What it did.
struct Wrote {
    pairs: u64,
    longest: Duration,
}

impl Writer {
    fn start(files: [PathBuf; 2]) -> Writer {
        let (stop, pairs) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stopped, counter) = (stop.clone(), Arc::clone(&pairs));
        let thread = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            let mut n = 0;
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                n += 1;
                for file in &files {
                    pod::put_number(file, n)?;
                }
                longest = longest.max(began.elapsed());
                std::sync::atomic::AtomicU64::store(&counter, n, Ordering::Relaxed);
            }
            Ok(longest)
        });
        Writer {
            stop,
            pairs,
            thread,
        }
    }

    fn pairs(&self) -> u64 {
        self.pairs.load(Ordering::Relaxed)
    }

    fn wait_for(&self, n: u64) -> Result<()> {
        let began = Instant::now();
        while self.pairs() < n {
            if began.elapsed() > LIMIT || self.thread.is_finished() {
                return Err(Error::Waited {
                    what: format!("{} written to two volumes", count(n as usize, "number")),
                    seconds: began.elapsed().as_secs(),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn stop(self) -> Result<Wrote> {
        self.stop.store(true, Ordering::Relaxed);
        let pairs = self.pairs;
        match self.thread.join() {
            Ok(longest) => Ok(Wrote {
                longest: longest.map_err(Error::io("write", NUMBER))?,
                pairs: pairs.load(Ordering::Relaxed),
            }),
            Err(_) => Err(Error::NeverMade("the writer's end")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_moment_is_equal_or_one_ahead() {
        for (numbers, so) in [
            ([7, 7], true),
            ([8, 7], true),
            ([7, 8], false),
            ([9, 7], false),
        ] {
            assert_eq!(one_moment(numbers), so, "{numbers:?}");
        }
    }

    #[test]
    fn the_writer_counts_and_stops() {
        let dir = tempfile::tempdir().unwrap();
        let files = [dir.path().join("a"), dir.path().join("b")];
        let writer = Writer::start(files.clone());
        writer.wait_for(3).unwrap();
        let wrote = writer.stop().unwrap();
        assert!(wrote.pairs >= 3);
        for file in files {
            assert_eq!(pod::number(&file).unwrap(), wrote.pairs);
        }
    }
}
