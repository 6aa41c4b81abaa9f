//! Snapshots, restores and clones.

use std::time::Instant;

use hostloop_proto::csi;
use hostloop_proto::csi::controller_client::ControllerClient;

use crate::status::units::{bytes, shorten, took};

use crate::demo::error::{Error, Result};
use crate::demo::orchestrator::{Want, from_snapshot, from_volume};
use crate::demo::pod;
use crate::demo::world::World;

use super::data::portion;

/// Where in the file the second write goes.
const PATCH_OFFSET: u64 = 1 << 20;
/// How much of it.
const PATCH_BYTES: u64 = 256 << 10;

/// CreateSnapshot of the first volume, under a name of the story.
pub(super) fn take(w: &mut World, name: &'static str) -> Result<()> {
    let request = csi::CreateSnapshotRequest {
        source_volume_id: w.volume("data")?.id.clone(),
        name: format!("snapshot-{}", uuid::Uuid::new_v4()),
        ..csi::CreateSnapshotRequest::default()
    };
    let about = format!("{name}, of data");
    let answer = w.call("CreateSnapshot", about, async |channel| {
        ControllerClient::new(channel)
            .create_snapshot(request)
            .await
    })?;
    let taken = answer
        .snapshot
        .ok_or_else(Error::lacks("CreateSnapshot", "a snapshot"))?;
    w.aliases.insert(taken.snapshot_id.clone(), name.to_owned());
    w.narrator.check("it is ready to use", taken.ready_to_use);
    w.snapshots.insert(name, taken);
    Ok(())
}

/// What is used in the pool.
fn pool_used(w: &World) -> Result<u64> {
    let survey = w.survey()?;
    let usage = survey
        .contents()
        .next()
        .map(|(_, c)| c.usage)
        .unwrap_or_default();
    Ok(usage.total_bytes - usage.free_bytes)
}

/// Takes the first snapshot.
pub(super) fn snapshot(w: &mut World) -> Result<()> {
    let before = pool_used(w)?;
    take(w, "monday")?;
    let grown = pool_used(w)?.saturating_sub(before);
    let shares = w.reflinks()?;
    w.look()?;
    let text = match shares {
        true => "its blocks are shared with the volume",
        false => "the pool can't share blocks: its data is a copy",
    };
    w.narrator
        .fact("pool", format!("{} more in use: {text}", bytes(grown)));
    if shares {
        w.narrator.check(
            "the pool has hardly given anything for it",
            grown <= 4 << 20,
        );
    }
    Ok(())
}

/// Changes the first file and writes a second one.
pub(super) fn write_more(w: &mut World) -> Result<()> {
    let target = w.volume("data")?.target()?.clone();
    let (file, second) = (target.join("file"), target.join("second"));
    pod::write_random(&file, PATCH_OFFSET, PATCH_BYTES)?;
    let len = portion(w) / 4;
    let digest = pod::write_random(&second, 0, len)?;
    pod::sync(&target)?;
    let text = format!(
        "file: {} at offset {}; ",
        bytes(PATCH_BYTES),
        bytes(PATCH_OFFSET)
    );
    let text = text + &format!("second: {}, sha256 {}", bytes(len), shorten(&digest));
    w.narrator.fact("wrote", text);
    let changed = pod::checksum(&file, None)?;
    w.look()?;
    w.narrator.check(
        "the file is not what it was",
        w.digests.get("file") != Some(&changed),
    );
    w.digests.insert("file, changed", changed);
    w.digests.insert("second", digest);
    Ok(())
}

/// Restores the snapshot to a volume half as large again.
pub(super) fn restore(w: &mut World) -> Result<()> {
    let source = from_snapshot(&w.snapshot("monday")?.snapshot_id);
    let wanted = w.volume("data")?.bytes * 3 / 2;
    let began = Instant::now();
    w.create(
        "restored",
        &Want {
            bytes: wanted,
            source,
            note: " from monday",
            ..Want::default()
        },
    )?;
    let target = w.bring_up("restored")?;
    let time = took(began.elapsed());
    w.look()?;
    let df = w.kernel.usage(&target)?;
    let text = format!(
        "{} in all; from the call to the pod in {time}",
        bytes(df.total_bytes)
    );
    w.narrator.fact("df", text);
    let same = Some(&pod::checksum(&target.join("file"), None)?) == w.digests.get("file");
    w.narrator
        .check("the file is as it was at the snapshot", same);
    let absent = !target.join("second").exists();
    w.narrator
        .check("what was written later is not in it", absent);
    w.narrator.check(
        "the filesystem has grown",
        df.total_bytes >= wanted * 9 / 10,
    );
    Ok(())
}

/// Clones the volume as it is.
pub(super) fn clone(w: &mut World) -> Result<()> {
    let source = w.volume("data")?;
    let want = Want {
        bytes: source.bytes,
        source: from_volume(&source.id),
        note: " from data",
        ..Want::default()
    };
    w.create("clone", &want)?;
    let target = w.bring_up("clone")?;
    w.look()?;
    for (file, known, what) in [
        ("file", "file, changed", "the changed file is in it"),
        ("second", "second", "the second file is in it"),
    ] {
        let digest = pod::checksum(&target.join(file), None)?;
        let same = w.digests.get(known) == Some(&digest);
        w.narrator.check(what, same);
    }
    let own = target.join("own");
    pod::write_random(&own, 0, 4096)?;
    let apart = !w.volume("data")?.target()?.join("own").exists();
    w.narrator
        .check("what is written to one is not in the other", apart);
    Ok(())
}
