//! Records that version 0.1.0 wrote (`v0.1.0/`, kept unchanged). This version reads them. As long
//! as it writes their fields back unchanged, version 0.1.0 can read the records of this version.
//! Version 0.1.0 ignores `state.json`, and takes a volume with one for unstaged.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::storage::encoding::encode;
use crate::storage::load::read_one;
use crate::storage::record_io::*;
use crate::storage::{Format, NewVolume, Source};
use crate::testkit::{Site, new};

fn frozen() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/storage/record_io/v0.1.0")
}

/// The record texts of one kind, by entry name.
fn entries(folder: &str, record: &str) -> BTreeMap<String, String> {
    texts(&frozen().join("pool").join(folder), record)
}

fn texts(folder: &Path, record: &str) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let record = std::fs::read_to_string(entry.path().join(record)).unwrap();
        (entry.file_name().into_string().unwrap(), record)
    });
    entries.collect()
}

fn read_and_written_back<R: Record>(at_least: usize) -> Vec<R> {
    let entries = entries(R::KIND.name(), R::FILE);
    let read = entries.into_iter().map(|(entry, text)| {
        let id = entry.parse::<R::Id>().ok().unwrap();
        let record: R = decode(text.as_bytes(), id).unwrap();
        let written = String::from_utf8(encode(&record, R::FILE).unwrap()).unwrap();
        assert_eq!(written, text, "{entry}");
        record
    });
    let read: Vec<R> = read.collect();
    assert!(read.len() >= at_least);
    read
}

#[test]
fn records_of_version_0_1_0_are_read_and_written_back_the_same() {
    let volumes: Vec<VolumeRecord> = read_and_written_back(6);
    let any = |is: fn(&VolumeRecord) -> bool| assert!(volumes.iter().any(is));
    any(|v| {
        v.stage
            .as_ref()
            .is_some_and(|s| s.read_only_loops.len() == 1)
    });
    any(|v| v.fresh && v.inline.is_some() && !v.mkfs_options.is_empty());
    any(|v| v.freeze.is_some());
    any(|v| matches!(v.format, Format::Formatting(_)));
    any(|v| matches!(v.source.as_deref(), Some(Source::Volume(_))));
    any(|v| matches!(v.source.as_deref(), Some(Source::Snapshot(_))));
    any(|v| v.format == Format::Raw && v.stage.is_some());
    let snapshots: Vec<SnapshotRecord> = read_and_written_back(4);
    assert_eq!(snapshots.iter().filter(|s| s.group.is_some()).count(), 2);
    let groups: Vec<GroupRecord> = read_and_written_back(1);
    assert_eq!(groups[0].snapshots.len(), 2);
}

/// Version 0.1.0 refuses a record with a field that it does not know.
#[test]
fn an_inline_volume_with_the_namespace_of_its_pod_has_no_new_field() {
    let site = Site::fake(&["a"]);
    let key = "csi.storage.k8s.io/pod.namespace".to_owned();
    let volume = site.create(NewVolume {
        parameters: BTreeMap::from([(key, "a".to_owned())]),
        inline: Some("csi-1".to_owned()),
        ..new("csi-1")
    });
    let written = serde_json::to_value(volume.durable()).unwrap();
    let older: Vec<serde_json::Value> = entries("volumes", "volume.json")
        .values()
        .map(|text| serde_json::from_str(text).unwrap())
        .collect();
    for field in written.as_object().unwrap().keys() {
        let known = older.iter().any(|record| record.get(field).is_some());
        assert!(known, "{field}");
    }
}

/// Three volumes of version 0.1.0, as this version writes them (`with-state/`, kept unchanged).
#[test]
fn a_state_beside_its_record_is_read_and_written_back_the_same() {
    let boot = "6e6c8c2c-5b5a-4b60-8a0e-0f2f8f3b7f10";
    let folder = frozen().with_file_name("with-state");
    let older = entries("volumes", "volume.json");
    let mut states = 0;
    for (entry, text) in texts(&folder, "volume.json") {
        let decoded = |text: &str| decode::<VolumeRecord>(text.as_bytes(), entry.parse().unwrap());
        let mut record = decoded(&text).unwrap();
        let dir = folder.join(&entry);
        let open = File::open(&dir).unwrap();
        record.add_state(open.as_fd(), Path::new("state.json"), boot);
        assert_eq!(record, decoded(&older[&entry]).unwrap(), "nothing is lost");
        let written = encode(&record.durable(), "volume.json").unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), text, "{entry}");
        let state = std::fs::read(dir.join("state.json")).ok();
        assert_eq!(
            state_until_reboot::encode(&record, boot).unwrap(),
            state,
            "{entry}"
        );
        states += state.iter().count();
    }
    assert_eq!(states, 2);
}

/// A site with the pool of version 0.1.0 in its first directory, and with this state file.
fn laid_out(state: &str) -> Site {
    let mut site = Site::fake(&["default"]);
    site.close();
    let root = site.path("");
    std::fs::remove_dir_all(&root).unwrap();
    let copy = |text: &str, to: PathBuf| {
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::write(to, text).unwrap();
    };
    let image = |to: PathBuf, bytes| {
        let image = File::create(to.join("image")).unwrap();
        image.set_len(bytes).unwrap();
    };
    for (folder, record, size) in [
        ("volumes", "volume.json", Some("capacity_bytes")),
        ("snapshots", "snapshot.json", Some("size_bytes")),
        ("groups", "group.json", None),
    ] {
        for (entry, text) in entries(folder, record) {
            let to = root.join(folder).join(entry);
            copy(&text, to.join(record));
            if let Some(size) = size {
                image(to, peek(text.as_bytes(), size).unwrap().as_u64().unwrap());
            }
        }
    }
    let file = |name: &str| std::fs::read_to_string(frozen().join(name)).unwrap();
    copy(&file("pool/pool.json"), root.join("pool.json"));
    let state_dir = site.options.state_dir.clone();
    copy(&file(state), state_dir.join("pools.json"));
    site
}

#[test]
fn a_pool_of_version_0_1_0_opens() {
    for state in ["state/pools.json", "state/pools-before-id.json"] {
        let mut site = laid_out(state);
        // The site opens as the node that made the pool; version 0.1.0 recorded no node.
        site.options.node_id = Some("node-1".to_owned());
        let identity = std::fs::read(site.path("pool.json")).unwrap();
        let pools = site.open();
        let layout = &pools.named(None).unwrap().layout;
        // The inline volume was never published, so recovery deletes it.
        assert_eq!(pools.volumes().len(), 5, "{state}");
        assert_eq!(pools.snapshots().len(), 4, "{state}");
        assert_eq!(pools.groups().len(), 1, "{state}");
        // Recovery found nothing staged or frozen.
        for volume in pools.volumes() {
            let stored = read_one::<VolumeRecord>(layout, volume.id).unwrap();
            assert_eq!((stored.stage, stored.freeze), (None, None), "{state}");
        }
        assert!(
            pools.noted_problems().is_empty(),
            "{:?}",
            pools.noted_problems()
        );
        // The identity is unchanged, so version 0.1.0 can still open the pool.
        assert_eq!(std::fs::read(site.path("pool.json")).unwrap(), identity);
        let state = site.options.state_dir.join("pools.json");
        let state: serde_json::Value =
            serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
        let keys = state["pools"]["default"].as_object().unwrap().keys();
        assert_eq!(keys.collect::<Vec<_>>(), ["fs_uuid", "id", "path"]);
    }
}

#[test]
fn what_a_newer_version_wrote_is_refused_and_left_as_it_is() {
    let newer = |text: &str| text.replace("\"schema\": 1", "\"schema\": 2, \"novelty\": {}");
    for name in ["pool.json", "pools.json"] {
        let site = laid_out("state/pools.json");
        let file = match name {
            "pool.json" => site.path(name),
            _ => site.options.state_dir.join(name),
        };
        let text = newer(&std::fs::read_to_string(&file).unwrap());
        std::fs::write(&file, &text).unwrap();
        let why = match site.try_open() {
            Ok(pools) => pools.slots().remove(0).state.unwrap_err(),
            Err(e) => e.to_string(),
        };
        assert!(
            why.contains("a newer version of hostloop wrote it"),
            "{why}"
        );
        assert!(why.contains(name), "{why}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }
}
