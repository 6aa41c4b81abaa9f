//! A pod at work, and what can be done to its volume meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use hostloop_proto::csi;
use hostloop_proto::csi::controller_client::ControllerClient;
use hostloop_proto::csi::node_client::NodeClient;
use hostloop_proto::csi::volume_usage::Unit;

use crate::status::units::{bytes, shorten};
use crate::survey::Uses;
use crate::sys::{FsType, FsUsage};

use crate::demo::error::{Error, Result};
use crate::demo::orchestrator::{at_least, size};
use crate::demo::pod;
use crate::demo::world::{Volume, World};

use super::life::allocated;

/// How long freed space may take to reach the pool.
const DISCARD_LIMIT: Duration = Duration::from_secs(20);

/// How much the pod writes.
pub(super) fn portion(w: &World) -> u64 {
    (w.setup.bytes / 8).next_multiple_of(1 << 20)
}

/// Writes a file and remembers its checksum.
pub(super) fn write(w: &mut World) -> Result<()> {
    let target = w.volume("data")?.target()?.clone();
    let (id, len) = (w.volume("data")?.id.clone(), portion(w));
    let before = allocated(w, &id)?.unwrap_or_default();
    let digest = pod::write_random(&target.join("file"), 0, len)?;
    pod::sync(&target)?;
    w.narrator.fact(
        "wrote",
        format!("file: {}, sha256 {}", bytes(len), shorten(&digest)),
    );
    w.digests.insert("file", digest);
    w.look()?;
    let grown = allocated(w, &id)?
        .unwrap_or_default()
        .saturating_sub(before);
    // A little of it may lie where mkfs wrote; the filesystem's own bookkeeping comes on top.
    let fits = grown >= len * 9 / 10 && grown <= len + len / 2 + (16 << 20);
    w.narrator
        .check(format!("the image has grown by {}", bytes(grown)), fits);
    Ok(())
}

/// Asks for usage and health, and compares with what the kernel says.
pub(super) fn stats(w: &mut World) -> Result<()> {
    let volume = w.volume("data")?.clone();
    let target = volume.target()?.clone();
    let request = csi::NodeGetVolumeStatsRequest {
        volume_id: volume.id.clone(),
        volume_path: target.display().to_string(),
        ..csi::NodeGetVolumeStatsRequest::default()
    };
    let stats = w.call("NodeGetVolumeStats", "data", async |channel| {
        NodeClient::new(channel)
            .node_get_volume_stats(request)
            .await
    })?;
    let df = w.kernel.usage(&target)?;
    for usage in &stats.usage {
        let text = |n: i64| match usage.unit() {
            Unit::Bytes => bytes(size(n)),
            _ => n.to_string(),
        };
        let unit = usage.unit().as_str_name().to_lowercase();
        let (total, used, free) = (usage.total, usage.used, usage.available);
        let text = format!(
            "{} of {} used, {} free",
            text(used),
            text(total),
            text(free)
        );
        w.narrator.fact(&unit, text);
    }
    let told = stats.usage.iter().find(|u| u.unit() == Unit::Bytes);
    let agrees = told.is_some_and(|u| size(u.total) == df.total_bytes);
    w.narrator.check("that is what df says", agrees);
    health(w, &volume.id, &target)
}

fn health(w: &mut World, id: &str, target: &Path) -> Result<()> {
    let staging = w.volume("data")?.staging.clone().unwrap_or_default();
    let request = csi::NodeGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        volume_publish_path: target.display().to_string(),
        staging_target_path: staging.display().to_string(),
    };
    let of_volume = w.call("NodeGetVolumeHealth", "data", async |channel| {
        NodeClient::new(channel)
            .node_get_volume_health(request)
            .await
    })?;
    let request = csi::NodeGetStorageHealthRequest::default();
    let of_storage = w.call("NodeGetStorageHealth", "", async |channel| {
        NodeClient::new(channel)
            .node_get_storage_health(request)
            .await
    })?;
    let entries = of_volume
        .volume_health
        .map(|h| h.health_statuses)
        .unwrap_or_default();
    for entry in &entries {
        w.narrator
            .fact("ill", format!("{}: {}", entry.reason, entry.message));
    }
    for entry in &of_storage.backend_health {
        w.narrator
            .fact("ill", format!("{}: {}", entry.reason, entry.message));
    }
    w.narrator
        .check("nothing is wrong with the volume", entries.is_empty());
    let well = of_storage.backend_health.is_empty();
    w.narrator.check("nothing is wrong with the storage", well);
    Ok(())
}

fn df(w: &World, path: &Path) -> Result<FsUsage> {
    Ok(w.kernel.usage(path)?)
}

fn df_text(df: &FsUsage) -> String {
    let used = df.total_bytes - df.free_bytes;
    format!("{} in all, {} used", bytes(df.total_bytes), bytes(used))
}

/// Doubles the volume.
pub(super) fn expand(w: &mut World) -> Result<()> {
    let volume = w.volume("data")?.clone();
    let before = df(w, volume.target()?)?;
    w.narrator
        .fact("df", format!("before: {}", df_text(&before)));
    let wanted = volume.bytes * 2;
    let request = csi::ControllerExpandVolumeRequest {
        volume_id: volume.id.clone(),
        capacity_range: at_least(wanted),
        volume_capability: Some(volume.capability.clone()),
        ..csi::ControllerExpandVolumeRequest::default()
    };
    let about = format!("data to {}", bytes(wanted));
    let grown = w.call("ControllerExpandVolume", about, async |channel| {
        ControllerClient::new(channel)
            .controller_expand_volume(request)
            .await
    })?;
    let asked = grown.node_expansion_required;
    w.narrator.check("the node is to follow", asked);
    let now = size(grown.capacity_bytes);
    w.volume_mut("data")?.bytes = now;
    if w.setup.fs == FsType::Ext4 && !w.setup.ext4_grows {
        restage(w)?;
    } else {
        expand_on_node(w, &volume, now)?;
    }
    let target = w.volume("data")?.target()?.clone();
    let after = df(w, &target)?;
    w.narrator.fact("df", format!("after: {}", df_text(&after)));
    w.look()?;
    let doubled = after.total_bytes >= before.total_bytes + volume.bytes * 9 / 10;
    w.narrator.check("the filesystem has the new size", doubled);
    let kept = pod::checksum(&target.join("file"), None)?;
    let same = w.digests.get("file") == Some(&kept);
    w.narrator.check("the file is what it was", same);
    Ok(())
}

fn expand_on_node(w: &mut World, volume: &Volume, bytes: u64) -> Result<()> {
    let staging = volume.staging.clone().unwrap_or_default();
    let request = csi::NodeExpandVolumeRequest {
        volume_id: volume.id.clone(),
        volume_path: volume.target()?.display().to_string(),
        capacity_range: at_least(bytes),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(volume.capability.clone()),
        ..csi::NodeExpandVolumeRequest::default()
    };
    w.call("NodeExpandVolume", "data", async |channel| {
        NodeClient::new(channel).node_expand_volume(request).await
    })?;
    Ok(())
}

/// Where the kernel grows no mounted ext4, the pod is stopped for it.
fn restage(w: &mut World) -> Result<()> {
    let why = "this process lacks CAP_SYS_RESOURCE: the pod is stopped, and ext4 grows unmounted";
    w.narrator.fact("note", why);
    let pods: Vec<String> = w.volume("data")?.targets.keys().cloned().collect();
    for pod in pods {
        w.unpublish("data", &pod)?;
    }
    w.unstage("data")?;
    w.stage("data")?;
    w.publish("data", false)?;
    Ok(())
}

/// Sets read-ahead and discard, and sees freed space come back.
pub(super) fn modify(w: &mut World) -> Result<()> {
    let volume = w.volume("data")?.clone();
    let target = volume.target()?.clone();
    let before = read_ahead(w, &volume.id)?;
    let parameters: &[(&str, &str)] = match w.setup.fs {
        FsType::Xfs => &[("readAheadKiB", "1024")],
        FsType::Ext4 | FsType::Btrfs => &[("readAheadKiB", "1024"), ("discard", "true")],
    };
    let owned = parameters
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    let request = csi::ControllerModifyVolumeRequest {
        volume_id: volume.id.clone(),
        mutable_parameters: owned.collect(),
        ..csi::ControllerModifyVolumeRequest::default()
    };
    let about: Vec<String> = parameters.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let about = format!("data: {}", about.join(" "));
    w.call("ControllerModifyVolume", about, async |channel| {
        ControllerClient::new(channel)
            .controller_modify_volume(request)
            .await
    })?;
    let after = read_ahead(w, &volume.id)?;
    w.narrator
        .fact("queue", format!("read_ahead_kb {before} → {after}"));
    w.look()?;
    w.narrator
        .check("the loop device reads 1024 KiB ahead", after == "1024");
    give_back(w, &volume.id, &target)
}

/// Writes a file, deletes it, and waits for its space to reach the pool.
fn give_back(w: &mut World, id: &str, target: &Path) -> Result<()> {
    let (path, len) = (target.join("scrap"), portion(w));
    pod::write_random(&path, 0, len)?;
    pod::sync(target)?;
    let full = allocated(w, id)?.unwrap_or_default();
    std::fs::remove_file(&path).map_err(Error::io("unlink", &path))?;
    if w.setup.fs == FsType::Btrfs {
        pod::sync(target)?;
        w.kernel.trim(target)?;
        w.narrator.fact(
            "note",
            "btrfs gives it back minutes later, or at once by fstrim, as here",
        );
    }
    let began = Instant::now();
    let mut now = full;
    while now + len * 3 / 4 > full && began.elapsed() < DISCARD_LIMIT {
        pod::sync(target)?;
        w.client.go_on()?;
        std::thread::sleep(Duration::from_millis(50));
        now = allocated(w, id)?.unwrap_or_default();
    }
    let text = format!(
        "{} written and deleted: image {} → {}",
        bytes(len),
        bytes(full),
        bytes(now)
    );
    w.narrator.fact("space", text);
    w.narrator
        .check("the space is the pool's again", now + len * 3 / 4 <= full);
    Ok(())
}

fn read_ahead(w: &World, id: &str) -> Result<String> {
    let survey = w.survey()?;
    let uses = Uses::of(&survey);
    let loops = uses.over_volume(id);
    let first = loops
        .first()
        .ok_or(Error::NeverMade("the volume's loop device"))?;
    let path = format!("/sys/block/loop{}/queue/read_ahead_kb", first.device.minor);
    let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    Ok(text.trim_end().to_owned())
}
