//! How often each call of a volume's life waits for the disk.

use std::fs::File;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hostloop_driver::storage::{Access, Format};
use hostloop_fake_kernel::Model;
use hostloop_proto::csi;

use crate::testkit::{
    MI, Rig, block, capability, create_request, ext4, mount, new_volume, of_volume,
};
use crate::testkit::{from, range};
use crate::{count, new, site};

#[test]
fn each_call_syncs_what_it_must_and_no_more() {
    let _scenario = fail::FailScenario::setup();
    for capability in [mount("ext4"), block()] {
        let rig = Rig::<Model>::new();
        let syncs = |call: &mut dyn FnMut()| count("file.sync", call);
        let mut id = String::new();
        let mut request = create_request("one");
        request.volume_capabilities = vec![capability.clone()];
        // The image, the record, the entry's directory, and the directory of all volumes.
        assert_eq!(
            syncs(&mut || id = rig.created(request.clone())),
            4,
            "create"
        );
        let attach = csi::ControllerPublishVolumeRequest {
            volume_id: id.clone(),
            node_id: "n1".to_owned(),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        };
        let mut attach = || {
            drop(
                rig.controller
                    .controller_publish_volume(attach.clone())
                    .unwrap(),
            )
        };
        assert_eq!(syncs(&mut attach), 2, "attach: the record and its name");
        let mut stage = || rig.stage(&id, "a", &capability).unwrap();
        assert_eq!(syncs(&mut stage), 0, "the first staging");
        for life in 0..2 {
            assert_eq!(syncs(&mut stage), 0, "a repeated staging, life {life}");
            for (target, readonly) in [("rw", false), ("ro", true)] {
                let mut publish = || {
                    rig.publish(&id, "a", target, &capability, readonly)
                        .unwrap()
                };
                assert_eq!(syncs(&mut publish), 0, "publish {target}, life {life}");
            }
            for target in ["rw", "ro"] {
                let mut unpublish = || rig.unpublish(&id, target).unwrap();
                assert_eq!(syncs(&mut unpublish), 0, "unpublish {target}, life {life}");
            }
            assert_eq!(
                syncs(&mut || rig.unstage(&id, "a").unwrap()),
                0,
                "unstage, life {life}"
            );
            assert_eq!(syncs(&mut stage), 0, "stage again, life {life}");
        }
        rig.unstage(&id, "a").unwrap();
        assert_eq!(rig.record(&id).stage, None);
        let detach = csi::ControllerUnpublishVolumeRequest {
            volume_id: id.clone(),
            node_id: "n1".to_owned(),
            ..Default::default()
        };
        let mut detach = || {
            rig.controller
                .controller_unpublish_volume(detach.clone())
                .unwrap();
        };
        assert_eq!(syncs(&mut detach), 2, "detach: the record and its name");
        // The directory of all volumes, and `trash/`.
        assert_eq!(syncs(&mut || rig.delete(&id).unwrap()), 2, "delete");
    }
}

/// `fresh`, `Formatting` and `Done` must survive a power cut. `fresh` is cleared by the write that
/// records the start of formatting, if there is one.
#[test]
fn the_first_staging_syncs_what_it_records_for_good() {
    let _scenario = fail::FailScenario::setup();
    // access, unformatted, fresh → writes of the record, each with two syncs: its file and its name
    let table = [
        (ext4(), false, false, 0),
        (ext4(), false, true, 1),
        (ext4(), true, false, 2),
        (ext4(), true, true, 2),
        (Access::Block, false, false, 0),
        (Access::Block, false, true, 1),
    ];
    for (access, unformatted, fresh, writes) in table {
        let rig = Rig::<Model>::new();
        let capability = capability(&access);
        let what = format!("{access:?}, unformatted: {unformatted}, fresh: {fresh}");
        let new = new_volume(access, 16 * MI);
        let id = if unformatted {
            rig.unformatted(new)
        } else {
            rig.create(new)
        };
        rig.update(id, |record| record.fresh = fresh);
        let before = rig.record(id).format;
        assert_eq!(before == Format::None, unformatted, "{what}");
        let stage = || rig.stage(id, "a", &capability).unwrap();
        assert_eq!(count("file.sync", stage), 2 * writes, "{what}");
        let record = rig.record(id);
        assert!(
            !record.fresh && record.format != Format::None,
            "{what}: {record:?}"
        );
        assert_eq!(count("file.sync", stage), 0, "{what}, staged already");
    }
}

/// An expansion was interrupted, and its process may have died before the fsync of the image.
#[test]
fn a_record_adopts_a_length_that_is_synced() {
    let _scenario = fail::FailScenario::setup();
    let mut site = site("p=DIR/pool");
    site.open();
    let id = site.create(new("one", None)).id;
    let image = site.root().join(format!("pool/volumes/{id}/image"));
    let image = File::options().write(true).open(image).unwrap();
    image.set_len(4 * MI).unwrap();
    // The image, the record and its name. Another start has nothing to write.
    for syncs in [3, 0] {
        site.close();
        // Each start syncs the four directories of entries, the root, and the state directory.
        assert_eq!(count("file.sync", || drop(site.start())), 6 + syncs);
    }
    site.open();
    assert_eq!(site.volume(id).capacity_bytes, 4 * MI);
}

/// The intent to freeze describes the running kernel and needs no sync.
#[test]
fn a_freeze_syncs_nothing() {
    let _scenario = fail::FailScenario::setup();
    let rig = Rig::<Model>::new();
    let id = rig.created(create_request("source"));
    let counts = |state: &str| {
        rig.kernel.take_effects();
        // The image, the record, the entry's directory, and the directory of all snapshots.
        let snapshot = count("file.sync", || drop(rig.snapshot(state, &id).unwrap()));
        let request = csi::CreateVolumeRequest {
            capacity_range: range(8 << 20, 0),
            volume_content_source: from(of_volume(&id)),
            ..create_request(&format!("clone-{state}"))
        };
        let clone = count("file.sync", || drop(rig.created(request)));
        let froze = rig
            .kernel
            .take_effects()
            .iter()
            .filter(|op| **op == "freeze")
            .count();
        (snapshot, clone, froze)
    };
    assert_eq!(counts("idle"), (4, 4, 0));
    rig.stage(&id, "a", &mount("ext4")).unwrap();
    assert_eq!(counts("staged"), (4, 4, 2));
    rig.publish(&id, "a", "p", &mount("ext4"), false).unwrap();
    assert_eq!(counts("published"), (4, 4, 2));
}

#[test]
fn calls_at_once_share_the_syncs_of_directories() {
    const CALLS: usize = 16;
    let _scenario = fail::FailScenario::setup();
    let rig = Rig::<Model>::new();
    // Runs the call for each index at once. A sync takes longer than the threads need to begin.
    let at_once = |call: &(dyn Fn(usize) + Sync)| {
        static SYNCS: AtomicUsize = AtomicUsize::new(0);
        SYNCS.store(0, Ordering::SeqCst);
        fail::cfg_callback("file.sync", || {
            SYNCS.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
        })
        .unwrap();
        let start = Barrier::new(CALLS);
        std::thread::scope(|scope| {
            for i in 0..CALLS {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    call(i);
                });
            }
        });
        fail::remove("file.sync");
        SYNCS.load(Ordering::SeqCst)
    };
    let syncs = at_once(&|i| drop(rig.created(create_request(&format!("v{i}")))));
    // Each call syncs its image, its record and its entry's directory.
    let shared = syncs - 3 * CALLS;
    assert!(
        (1..=CALLS / 2).contains(&shared),
        "create: {shared} syncs of `volumes/`"
    );

    let volumes = rig.node.pools.volumes();
    assert_eq!(volumes.len(), CALLS);
    // A deletion syncs `trash/` and `volumes/`, and nothing of its own.
    let shared = at_once(&|i| rig.delete(&volumes[i].id.to_string()).unwrap());
    assert!(
        (2..=CALLS).contains(&shared),
        "delete: {shared} syncs of two directories"
    );
}
