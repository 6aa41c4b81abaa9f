//! Renames that a death or an error kept from being synced: nothing acknowledges them before they
//! are synced.

use std::path::PathBuf;

use hostloop_driver::kernel::file;
use hostloop_driver::kernel::file_changes::{self, FileChange};
use hostloop_driver::storage::Format;
use hostloop_fake_kernel::Model;
use hostloop_proto::csi;
use parking_lot::Mutex;

use super::*;
use crate::testkit::{Rig, create_request, mount};

/// The files and directories that were synced. The tests of this program take turns.
static SYNCED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn hear(change: FileChange<'_>) {
    if let FileChange::Synced { on } = change {
        SYNCED.lock().push(file::name_of(on));
    }
}

/// The files and directories that this work syncs.
fn synced_by(work: impl FnOnce()) -> Vec<PathBuf> {
    file_changes::listen(hear);
    SYNCED.lock().clear();
    work();
    std::mem::take(&mut SYNCED.lock())
}

/// The pool's directory of this name.
fn directory(site: &Site, name: &str) -> PathBuf {
    site.path(name).canonicalize().unwrap()
}

/// Lets the effects after the first ones fail, as if the process had died there.
fn die_after(effects: usize) {
    fail::cfg("effect", &format!("{effects}*off->return(EIO)")).unwrap();
}

/// An operation, the directory that is not synced, and where its entry is then.
struct Death {
    name: &'static str,
    operation: fn(&World) -> Result<()>,
    /// Its effects before the death; by default all but the last one, which is the fsync.
    effects: Option<usize>,
    unsynced: &'static str,
}

const DEATHS: [Death; 4] = [
    Death {
        name: "create",
        operation: |w| create(w, new("new", None)),
        effects: None,
        unsynced: "volumes",
    },
    Death {
        name: "snapshot",
        operation: |w| {
            let taken = w.pools().create_snapshot(&w.idle, "new", &BTreeMap::new());
            taken.map(drop)
        },
        effects: None,
        unsynced: "snapshots",
    },
    Death {
        name: "group",
        operation: |w| {
            let made = w.pools().create_group("new", &[w.idle], &BTreeMap::new());
            made.map(drop)
        },
        effects: None,
        unsynced: "groups",
    },
    Death {
        name: "delete",
        operation: |w| w.pools().delete_volume(&w.idle),
        effects: Some(1),
        unsynced: "trash",
    },
];

/// The process dies between the rename of an entry and the fsync of its directory.
#[test]
fn a_start_syncs_the_renames_of_a_process_that_died() {
    let _scenario = fail::FailScenario::setup();
    for death in DEATHS {
        let (name, operation) = (death.name, death.operation);
        let mut world = World::new();
        let effects = match death.effects {
            Some(effects) => effects,
            None => {
                let other = World::new();
                effects_of(|| operation(&other)) - 1
            }
        };
        let before = world.site.entries();
        let unsynced = directory(&world.site, death.unsynced);
        let mut died = Ok(());
        let synced = synced_by(|| {
            die_after(effects);
            died = operation(&world);
            fail::remove("effect");
        });
        assert!(died.is_err(), "{name}");
        assert!(!synced.contains(&unsynced), "{name}: {synced:?}");
        let entries = world.site.entries();
        let moved = entries.iter().find(|entry| !before.contains(entry));
        let moved = moved.map_or("", String::as_str);
        assert!(moved.starts_with(death.unsynced), "{name}: {entries:?}");

        let synced = synced_by(|| world.restart(name));
        for served in ["volumes", "snapshots", "groups", "trash", "."] {
            let served = directory(&world.site, served);
            assert!(synced.contains(&served), "{name}: {synced:?}");
        }
        let state = world.site.options.state_dir.canonicalize().unwrap();
        assert!(synced.contains(&state), "{name}: {synced:?}");
    }
}

/// Where a power cut may halve a rename, what an entry has left is synced, too.
#[test]
fn a_start_syncs_incoming_on_a_filesystem_without_a_journal() {
    let _scenario = fail::FailScenario::setup();
    for without_journal in [false, true] {
        let mut site = site("p=DIR/pool");
        if without_journal {
            site.kernel.lose_journal();
        }
        site.open();
        site.close();
        let incoming = directory(&site, "incoming");
        let synced = synced_by(|| drop(site.start()));
        assert_eq!(synced.contains(&incoming), without_journal, "{synced:?}");
    }
}

/// A pool that can't sync its directories opens, for pods must be able to leave. It says so.
#[test]
fn a_pool_whose_directories_cannot_be_synced_is_noted() {
    let _scenario = fail::FailScenario::setup();
    let mut world = World::new();
    world.site.close();
    fail::cfg("file.sync", "1*return(EIO)->off").unwrap();
    let noted = world.site.open().noted_problems();
    fail::remove("file.sync");
    let [noted] = &noted[..] else {
        panic!("{noted:?}");
    };
    let why = noted.to_string();
    assert!(why.contains("may not survive a power cut"), "{why}");
    assert_eq!(world.pools().volumes().len(), 2);
    world.restart("again");
}

type Change = fn(&mut VolumeRecord);

/// The changes of the first update after a death, and how often that update syncs.
const FIRST_UPDATES: [(&str, Change, usize); 3] = [
    ("nothing", |_| {}, 1),
    (
        "the state in the running kernel",
        |record| {
            let capability = testkit::mounted();
            record.stage = Some(testkit::stage_at("/stage", capability, None));
        },
        1,
    ),
    ("the record", |record| record.requested_bytes = Some(1), 2),
];

/// A record is renamed, and the process dies before the fsync of its name.
#[test]
fn the_first_update_after_a_death_syncs_the_record() {
    let _scenario = fail::FailScenario::setup();
    for (name, change, expected) in FIRST_UPDATES {
        let mut site = site("p=DIR/pool");
        site.open();
        let id = site.create(new("one", None)).id;
        // The temporary file, its content, its fsync, and its rename.
        die_after(4);
        let died = make_raw(&site, id);
        fail::remove("effect");
        assert!(died.is_err(), "{name}");
        site.open();
        assert_eq!(site.volume(id).format, Format::Raw, "{name}");

        let entry = directory(&site, &format!("volumes/{id}"));
        let mut syncs = 0;
        let synced = synced_by(|| {
            syncs = count("file.sync", || drop(site.update(id, change)));
        });
        assert_eq!(syncs, expected, "{name}");
        assert_eq!(synced.last(), Some(&entry), "{name}: {synced:?}");
        let again = count("file.sync", || drop(site.update(id, |_| {})));
        assert_eq!(again, 0, "{name}, again");
    }
}

fn make_raw(site: &Site, id: VolumeId) -> Result<()> {
    let pools = site.pools();
    let made = pools.update_volume(&id, |record| record.format = Format::Raw);
    made.map(drop)
}

/// The fsync of a record's name fails, and the index follows the record on disk.
#[test]
fn a_repeated_update_syncs_what_the_failed_one_has_not() {
    let _scenario = fail::FailScenario::setup();
    let site = Site::fake(&["p"]);
    let id = site.create(new("one", None)).id;
    let entry = directory(&site, &format!("volumes/{id}"));
    // The temporary file is synced first.
    fail::cfg("file.sync", "1*off->2*return(EIO)->off").unwrap();
    make_raw(&site, id).unwrap_err();
    assert_eq!(site.volume(id).format, Format::Raw);
    make_raw(&site, id).unwrap_err();
    fail::remove("file.sync");
    assert_eq!(synced_by(|| make_raw(&site, id).unwrap()), [entry]);
    assert!(synced_by(|| make_raw(&site, id).unwrap()).is_empty());
}

/// The entry is moved to `trash/`, and one of the two fsyncs fails.
#[test]
fn a_repeated_deletion_syncs_what_the_failed_one_has_not() {
    let _scenario = fail::FailScenario::setup();
    for n in 0..2 {
        let site = Site::fake(&["p"]);
        let id = site.create(new("one", None)).id;
        let directories = ["trash", "volumes"].map(|name| directory(&site, name));
        fail::cfg("file.sync", &format!("{n}*off->2*return(EIO)->off")).unwrap();
        for _ in 0..2 {
            site.pools().delete_volume(&id).unwrap_err();
        }
        fail::remove("file.sync");
        let synced = synced_by(|| site.pools().delete_volume(&id).unwrap());
        assert_eq!(synced, directories, "{n}");
        assert!(site.entries().is_empty(), "{n}");
    }
}

/// CreateVolume and ControllerPublishVolume answer from what a dead process has left.
#[test]
fn a_call_that_is_repeated_after_a_death_acknowledges_what_is_synced() {
    let _scenario = fail::FailScenario::setup();
    let request = create_request("one");
    let other = Rig::<Model>::new();
    let effects = count("effect", || drop(other.created(request.clone())));
    let mut rig = Rig::<Model>::new();
    die_after(effects - 1);
    rig.try_create(request.clone()).unwrap_err();
    fail::remove("effect");
    let volumes = directory(&rig, "volumes");
    let synced = synced_by(|| rig.restart());
    assert!(synced.contains(&volumes), "{synced:?}");
    let left = rig.node.pools.volumes();
    let id = rig.created(request);
    assert_eq!(
        left.iter().map(|v| v.id.to_string()).collect::<Vec<_>>(),
        std::slice::from_ref(&id)
    );

    let request = csi::ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: "n1".to_owned(),
        volume_capability: Some(mount("ext4")),
        ..Default::default()
    };
    die_after(4);
    let died = rig.controller.controller_publish_volume(request.clone());
    fail::remove("effect");
    died.unwrap_err();
    rig.restart();
    let entry = directory(&rig, &format!("volumes/{id}"));
    assert_eq!(synced_by(|| attach(&rig, &request)), [entry]);
    assert!(synced_by(|| attach(&rig, &request)).is_empty());
}

fn attach(rig: &Rig<Model>, request: &csi::ControllerPublishVolumeRequest) {
    let attached = rig.controller.controller_publish_volume(request.clone());
    drop(attached.unwrap());
}
