//! Renames that a death or an error kept from being synced: nothing acknowledges them before they
//! are synced.

use std::fs::File;
use std::path::PathBuf;

use hostloop_driver::controller;
use hostloop_driver::kernel::file_changes::{self, FileChange};
use hostloop_driver::kernel::{Filesystems, file};
use hostloop_driver::storage::{Format, FreezeIntent};
use hostloop_fake_kernel::Model;
use hostloop_proto::csi;
use parking_lot::Mutex;

use super::*;
use crate::testkit::{Rig, create_request, mount, refused};

/// The files and directories that were synced. The tests of this program take turns.
static SYNCED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// What others do at a moment.
type Act = Box<dyn FnOnce() + Send>;

/// What others do once, when this file or directory is synced.
static AT_SYNC: Mutex<Option<(PathBuf, Act)>> = Mutex::new(None);

fn hear(change: FileChange<'_>) {
    let FileChange::Synced { on } = change else {
        return;
    };
    let path = file::name_of(on);
    SYNCED.lock().push(path.clone());
    let due = AT_SYNC.lock().take_if(|(at, _)| *at == path);
    if let Some((_, act)) = due {
        act();
    }
}

/// The files and directories that this work syncs.
pub(crate) fn synced_by(work: impl FnOnce()) -> Vec<PathBuf> {
    file_changes::listen(hear);
    SYNCED.lock().clear();
    work();
    std::mem::take(&mut SYNCED.lock())
}

/// Lets others act once, when this file or directory is synced.
pub(crate) fn at_sync(path: PathBuf, act: impl FnOnce() + Send + 'static) {
    file_changes::listen(hear);
    let act: Act = Box::new(act);
    *AT_SYNC.lock() = Some((path, act));
}

/// As over a network, the next rename of the volume's record happens and fails, and the disk can't
/// be read any more. Returns where the volume is then, and where it was.
pub(crate) fn lose_answer(site: &Site, id: impl std::fmt::Display) -> [PathBuf; 2] {
    let entry = directory(site, &format!("volumes/{id}"));
    let lost = [site.root().join("away"), entry.clone()];
    let temporary = entry.join(".volume.json.new");
    let (from, away) = (temporary.clone(), lost[0].clone());
    at_sync(temporary, move || {
        std::fs::rename(from, entry.join("volume.json")).unwrap();
        std::fs::rename(entry, away).unwrap();
    });
    lost
}

/// The pool's directory of this name.
pub(crate) fn directory(site: &Site, name: &str) -> PathBuf {
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

/// One failed fsync keeps the others from nothing, and is repeated. Until then, a deleted volume may
/// come back, so its repeated deletion is not acknowledged.
#[test]
fn a_directory_that_could_not_be_synced_is_synced_later() {
    let _scenario = fail::FailScenario::setup();
    let mut world = World::new();
    let gone = world.site.create(new("gone", None)).id;
    world.pools().delete_volume(&gone).unwrap();
    world.site.close();
    let volumes = directory(&world.site, "volumes");
    fail::cfg("file.sync", "1*return(EIO)->off").unwrap();
    let synced = synced_by(|| {
        world.site.open();
    });
    fail::remove("file.sync");
    assert!(!synced.contains(&volumes), "{synced:?}");
    for other in ["snapshots", "groups", "trash", "."] {
        let other = directory(&world.site, other);
        assert!(synced.contains(&other), "{synced:?}");
    }
    refused!(
        world.pools().delete_volume(&gone),
        Error::Unavailable { .. }
    );
    let synced = synced_by(|| world.site.tend());
    assert!(synced.contains(&volumes), "{synced:?}");
    assert!(world.pools().noted_problems().is_empty());
    refused!(world.pools().delete_volume(&gone), Error::NoVolume(_));
    assert!(synced_by(|| world.site.tend()).is_empty());
}

/// A process died before the last member of a deleted group was synced in its pool, and the next
/// start can't sync that pool either. After a power cut, only the group's record says that the
/// member must go.
#[test]
fn the_record_of_a_deleted_group_waits_until_the_pools_of_its_members_are_synced() {
    let _scenario = fail::FailScenario::setup();
    let mut site = Site::fake(&["a", "b"]);
    let volumes = [
        site.create(new("one", None)).id,
        site.create_in("b", new("two", None)).id,
    ];
    let group = site
        .pools()
        .create_group("group", &volumes, &BTreeMap::new());
    let group = group.unwrap();
    let [record, member] = [
        site.root().join(format!("a/trash/{}", group.id)),
        site.root().join(format!("b/trash/{}", group.snapshots[1])),
    ];
    // The group and the first member are synced in `trash/` and in the directory they were in.
    fail::cfg("file.sync", "4*off->return(EIO)").unwrap();
    site.pools().delete_group(&group.id).unwrap();
    assert!(record.exists() && member.exists());
    site.tend();
    assert!(record.exists(), "the member can't be synced");
    site.close();
    fail::cfg("file.sync", "return(EIO)").unwrap();
    site.open();
    fail::remove("file.sync");
    assert!(record.exists(), "no pool is synced");
    site.pools().tend(0);
    site.pools().settle_groups();
    assert!(
        record.exists(),
        "the pool of the other member is not synced"
    );
    site.pools().tend(1);
    site.pools().settle_groups();
    assert!(!record.exists(), "all pools are synced");
    assert!(site.pools().snapshots().is_empty());
}

/// The pool's own disk is sound.
#[test]
fn a_known_pool_opens_though_the_state_directory_cannot_be_synced() {
    let _scenario = fail::FailScenario::setup();
    let mut world = World::new();
    world.site.close();
    let syncs = count("file.sync", || drop(world.site.start()));
    // The last one is that of the state directory.
    let fails = format!("{}*off->1*return(EIO)->off", syncs - 1);
    fail::cfg("file.sync", &fails).unwrap();
    let noted = world.site.open().noted_problems();
    fail::remove("file.sync");
    let [noted] = &noted[..] else {
        panic!("{noted:?}");
    };
    let why = noted.to_string();
    let state = world.site.options.state_dir.canonicalize().unwrap();
    assert!(why.contains(state.to_str().unwrap()), "{why}");
    assert_eq!(world.pools().volumes().len(), 2);
    world.restart("again");
}

/// A process died while one volume was frozen for a snapshot, and the expansion of another one had
/// not recorded its length. With gigabytes to write back, each fsync of the next start takes long.
#[test]
fn a_start_thaws_before_it_waits_for_the_disk() {
    let _scenario = fail::FailScenario::setup();
    let mut world = World::new();
    let intent = FreezeIntent { since_ns: 1 };
    world
        .site
        .update(world.mounted, |record| record.freeze = Some(intent));
    let root = File::open(world.site.root().join("stage")).unwrap();
    world.site.kernel.freeze(&root).unwrap();
    let image = directory(&world.site, &format!("volumes/{}/image", world.idle));
    let longer = File::options().write(true).open(&image).unwrap();
    longer.set_len(4 * MI).unwrap();
    drop((root, longer));
    world.site.close();

    let before_thaw = Arc::new(Mutex::new(None));
    let noted = before_thaw.clone();
    world.site.kernel.hook("thaw", move |_| {
        *noted.lock() = Some(SYNCED.lock().clone());
        Ok(())
    });
    let synced = synced_by(|| {
        world.site.open();
    });
    assert_eq!(*before_thaw.lock(), Some(Vec::new()));
    assert!(synced.contains(&image), "{synced:?}");
    assert!(!world.site.kernel.is_frozen(world.minor));
    assert_eq!(world.site.volume(world.mounted).freeze, None);
    assert_eq!(world.site.volume(world.idle).capacity_bytes, 4 * MI);
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

    let request = publication(&id);
    die_after(4);
    let died = rig.controller.controller_publish_volume(request.clone());
    fail::remove("effect");
    died.unwrap_err();
    rig.restart();
    let entry = directory(&rig, &format!("volumes/{id}"));
    assert_eq!(synced_by(|| attach(&rig, &request)), [entry]);
    assert!(synced_by(|| attach(&rig, &request)).is_empty());
}

/// Nodes must be able to leave a disk that fails.
#[test]
fn a_volume_that_is_not_published_is_unpublished_on_a_broken_disk() {
    let _scenario = fail::FailScenario::setup();
    let mut rig = Rig::<Model>::new();
    let id = rig.created(create_request("one"));
    let request = publication(&id);
    attach(&rig, &request);
    detach(&rig, &id).unwrap();
    rig.restart();
    fail::cfg("file.sync", "return(EIO)").unwrap();
    for _ in 0..2 {
        detach(&rig, &id).unwrap();
    }
    fail::remove("file.sync");

    // What this process has changed must be synced. The temporary file is synced first.
    attach(&rig, &request);
    fail::cfg("file.sync", "1*off->return(EIO)").unwrap();
    for _ in 0..2 {
        detach(&rig, &id).unwrap_err();
    }
    fail::remove("file.sync");
    let entry = directory(&rig, &format!("volumes/{id}"));
    assert_eq!(synced_by(|| detach(&rig, &id).unwrap()), [entry]);
}

/// The disk was broken when the volume was unpublished, and nothing repeats that call.
#[test]
fn an_unpublication_that_could_not_be_synced_is_synced_later() {
    let _scenario = fail::FailScenario::setup();
    let mut rig = Rig::<Model>::new();
    let id = rig.created(create_request("one"));
    rig.restart();
    let entry = directory(&rig, &format!("volumes/{id}"));
    fail::cfg("file.sync", "return(EIO)").unwrap();
    detach(&rig, &id).unwrap();
    testkit::tend(&rig.node.pools);
    fail::remove("file.sync");
    assert_eq!(synced_by(|| testkit::tend(&rig.node.pools)), [entry]);
    assert!(synced_by(|| testkit::tend(&rig.node.pools)).is_empty());
}

/// It has not renamed the record, so nothing of this process must be synced.
#[test]
fn a_publication_that_changes_nothing_keeps_no_volume_on_a_broken_disk() {
    let _scenario = fail::FailScenario::setup();
    let mut rig = Rig::<Model>::new();
    let id = rig.created(create_request("one"));
    rig.restart();
    let request = publication(&id);
    let record = directory(&rig, &format!("volumes/{id}")).join("volume.json");
    let unreadable = record.with_extension("away");
    for point in ["file.create", "file.write", "file.rename"] {
        // A filesystem that has shut down also answers no read.
        for can_be_read in [true, false] {
            if !can_be_read {
                std::fs::rename(&record, &unreadable).unwrap();
            }
            fail::cfg(point, "return(EIO)").unwrap();
            let refused = rig.controller.controller_publish_volume(request.clone());
            fail::remove(point);
            refused.unwrap_err();
            fail::cfg("file.sync", "return(EIO)").unwrap();
            detach(&rig, &id).unwrap();
            fail::remove("file.sync");
            if !can_be_read {
                std::fs::rename(&unreadable, &record).unwrap();
            }
        }
    }
}

/// The disk may have the publication, and the next process would find it.
#[test]
fn a_publication_that_may_be_on_disk_is_not_gone_before_it_is_written_over() {
    let _scenario = fail::FailScenario::setup();
    let mut rig = Rig::<Model>::new();
    let id = rig.created(create_request("one"));
    let request = publication(&id);
    let [away, entry] = lose_answer(&rig, &id);
    let lost = rig.controller.controller_publish_volume(request);
    lost.unwrap_err();
    std::fs::rename(away, &entry).unwrap();
    let on_disk = std::fs::read_to_string(entry.join("volume.json")).unwrap();
    assert!(on_disk.contains("\"n1\""), "{on_disk}");
    fail::cfg("file.write", "return(EIO)").unwrap();
    detach(&rig, &id).unwrap_err();
    fail::remove("file.write");
    detach(&rig, &id).unwrap();
    rig.restart();
    assert!(rig.record(&id).publications.is_empty());
}

/// The request to publish a volume to the node.
fn publication(id: &str) -> csi::ControllerPublishVolumeRequest {
    csi::ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: "n1".to_owned(),
        volume_capability: Some(mount("ext4")),
        ..Default::default()
    }
}

pub(crate) fn detach(rig: &Rig<Model>, id: &str) -> controller::Result<()> {
    let request = csi::ControllerUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: "n1".to_owned(),
        ..Default::default()
    };
    let detached = rig.controller.controller_unpublish_volume(request);
    detached.map(drop)
}

/// The first staging of a process waits for an fsync. Two devices over an image would corrupt it.
#[test]
fn an_image_that_others_attach_during_an_fsync_gets_no_second_device() {
    let _scenario = fail::FailScenario::setup();
    let mut rig = Rig::<Model>::new();
    let (id, capability) = (rig.created(create_request("one")), mount("ext4"));
    rig.stage(&id, "a", &capability).unwrap();
    rig.unstage(&id, "a").unwrap();
    rig.restart();
    let (kernel, image) = (rig.kernel.clone(), rig.open_image(&id));
    let entry = directory(&rig, &format!("volumes/{id}"));
    at_sync(entry, move || {
        drop(testkit::attach(&*kernel, &image, false));
    });
    let synced = synced_by(|| rig.stage(&id, "a", &capability).unwrap());
    assert!(AT_SYNC.lock().is_none(), "{synced:?}");
    rig.device(&id);
}

fn attach(rig: &Rig<Model>, request: &csi::ControllerPublishVolumeRequest) {
    let attached = rig.controller.controller_publish_volume(request.clone());
    drop(attached.unwrap());
}
