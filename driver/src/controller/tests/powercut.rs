//! Snapshots that are power cuts, by the parameter `consistency` of their class.

use hostloop_fake_kernel::Stamps;
use hostloop_fault_disk::protocol::Answer;
use hostloop_proto::csi;

use super::bench::*;
use crate::controller::{Config, Controller, Result};
use crate::fault_disks::testing::answer_in_turn;
use crate::storage::{Consistency, CutMark, ExplorationId, FaultDiskRecord};

const POWERCUT: &str = "consistency=powercut";

/// Pools that clone files, or copy them.
fn bench(reflinks: bool) -> Bench {
    let bench = Bench::new();
    bench.kernel.set_reflinks(reflinks);
    bench.restart(|_| {})
}

fn taken(bench: &Bench, name: &str, volume: &str, parameters: &str) -> Result<csi::Snapshot> {
    bench.snapshot_as(name, volume, |request| {
        request.parameters = pairs(parameters);
    })
}

fn stamps(bench: &Bench, volume: &str) -> Stamps {
    bench.kernel.stamps_at(&bench.staging(volume)).unwrap().1
}

#[test]
fn a_power_cut_has_what_was_synced_and_touches_nothing() {
    let bench = bench(true);
    let volume = bench.create("a");
    bench.stage(&volume);
    let at = bench.staging(&volume);
    bench.kernel.write_stamp(&at, 1).unwrap();
    bench.kernel.sync_stamp(&at).unwrap();
    bench.kernel.write_stamp(&at, 2).unwrap();
    let record = bench.record(&volume);

    let cut = taken(&bench, "cut", &volume, POWERCUT).unwrap();
    let effects = bench.kernel.take_effects();
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(bench.record(&volume), record);
    let unsynced = Stamps {
        written: 2,
        synced: 1,
    };
    assert_eq!(stamps(&bench, &volume), unsynced);

    let frozen = taken(&bench, "frozen", &volume, "").unwrap();
    assert!(bench.kernel.take_effects().contains(&"freeze"));
    for (name, snapshot, written) in [("b", &cut, 1), ("c", &frozen, 2)] {
        assert!(snapshot.ready_to_use);
        let source = of_snapshot(&snapshot.snapshot_id);
        let restored = bench.create_from(name, source).unwrap().volume_id;
        bench.stage(&restored);
        assert_eq!(stamps(&bench, &restored).written, written, "{name}");
    }
}

/// The answer to a repeated call is the same after a restart, from the record.
#[test]
fn one_name_is_never_a_power_cut_and_a_frozen_snapshot() {
    let mut bench = bench(true);
    let volume = bench.create("a");
    let cut = taken(&bench, "cut", &volume, POWERCUT).unwrap();
    let frozen = taken(&bench, "frozen", &volume, "").unwrap();
    for _ in 0..2 {
        for (name, parameters, expected) in [
            ("cut", POWERCUT, Some(&cut)),
            ("cut", "", None),
            ("cut", "consistency=frozen", None),
            ("frozen", "", Some(&frozen)),
            ("frozen", "consistency=frozen", Some(&frozen)),
            ("frozen", POWERCUT, None),
        ] {
            let again = taken(&bench, name, &volume, parameters);
            match expected {
                Some(expected) => assert_eq!(again.unwrap(), *expected, "{name} {parameters}"),
                None => assert_answer(again, "AlreadyExists"),
            }
        }
        bench = bench.restart(|_| {});
    }
}

/// It would expire. By its ID, it is a snapshot like any other.
#[test]
fn the_name_of_a_cut_is_taken_until_it_is_kept() {
    let bench = bench(true);
    let volume = bench.create("a");
    bench.stage(&volume);
    let mark = CutMark {
        exploration: ExplorationId::generate(),
        number: 1,
        expires_ns: u64::MAX,
    };
    let pools = &bench.controller.pools;
    let cut = pools.take_cut(&volume.parse().unwrap(), mark).unwrap();
    let (id, name) = (cut.record.id.to_string(), cut.record.name.clone());
    assert_eq!(
        bench.snapshot_ids(&id, "").unwrap(),
        std::slice::from_ref(&id)
    );
    assert_answer(taken(&bench, &name, &volume, POWERCUT), "AlreadyExists");
    bench.create_from("b", of_snapshot(&id)).unwrap();
    pools.keep_cut(&cut.record.id).unwrap();
    let again = taken(&bench, &name, &volume, POWERCUT).unwrap();
    assert_eq!(again.snapshot_id, id);
}

fn request(volume: &str) -> csi::CreateSnapshotRequest {
    csi::CreateSnapshotRequest {
        name: "cut".to_owned(),
        source_volume_id: volume.to_owned(),
        parameters: pairs(POWERCUT),
        ..Default::default()
    }
}

/// The same services without `--enable-faults`.
fn without_faults(bench: &Bench) -> Controller {
    let config = Config {
        faults: false,
        ..bench.controller.config.clone()
    };
    Controller::new(bench.controller.pools.clone(), config)
}

#[test]
fn without_the_flag_it_is_refused_by_name() {
    let bench = bench(true);
    let volume = bench.create("a");
    let strict = without_faults(&bench);
    assert!(strict.refuses_snapshot(&request(&volume)));
    let refused = strict.create_snapshot(request(&volume)).unwrap_err();
    assert!(refused.to_string().contains("--enable-faults"), "{refused}");
    assert_answer::<()>(Err(refused), r#"parameters["consistency"]"#);
    assert!(bench.snapshot_ids("", "").unwrap().is_empty());

    // The call was answered before, and only the answer was lost.
    let cut = taken(&bench, "cut", &volume, POWERCUT).unwrap();
    let again = strict.create_snapshot(request(&volume)).unwrap();
    assert_eq!(again.snapshot.unwrap(), cut);
}

#[test]
fn a_pool_that_would_copy_refuses_it() {
    let bench = bench(false);
    let volume = bench.create("a");
    bench.stage(&volume);
    assert!(bench.controller.refuses_snapshot(&request(&volume)));
    let refused = bench
        .controller
        .create_snapshot(request(&volume))
        .unwrap_err();
    let why = refused.to_string();
    for word in ["consistency", "powercut", "pool default", "reflinks"] {
        assert!(why.contains(word), "{why}");
    }
    assert_answer::<()>(Err(refused), "FailedPrecondition");
    assert!(bench.kernel.take_effects().is_empty());
    assert!(bench.snapshot_ids("", "").unwrap().is_empty());
    // A frozen one is copied.
    taken(&bench, "frozen", &volume, "consistency=frozen").unwrap();
}

fn group(volumes: &[String]) -> csi::CreateVolumeGroupSnapshotRequest {
    csi::CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids: volumes.to_vec(),
        parameters: pairs(POWERCUT),
        ..Default::default()
    }
}

/// Makes a volume one that is on a fault disk.
fn put_on_fault_disk(bench: &Bench, volume: &str) {
    let disk = Box::new(FaultDiskRecord::default());
    bench.update(volume.parse().unwrap(), |record| {
        record.fault_disk = Some(disk)
    });
}

#[test]
fn a_group_of_fault_disks_is_one_power_cut() {
    let bench = bench(true);
    let volumes = ["a", "b"].map(|name| bench.create(name));
    volumes
        .iter()
        .for_each(|volume| put_on_fault_disk(&bench, volume));
    let (request, state_dir) = (group(&volumes), &bench.options.state_dir);
    assert!(!bench.controller.refuses_group(&request));
    assert!(without_faults(&bench).refuses_group(&request));

    let too_long = "the disks were held for 10s, and then no longer";
    let too_long = [Answer::Held, Answer::Refused(too_long.to_owned())];
    let unused = [Answer::NotFound(volumes[1].clone())];
    for (answers, why) in [
        (&[][..], "fault-disks/sock"),
        (&unused[..], "start a pod that uses the volume"),
        (&too_long[..], "of different times"),
    ] {
        if !answers.is_empty() {
            answer_in_turn(state_dir, answers);
        }
        let refused = bench
            .controller
            .create_volume_group_snapshot(request.clone());
        let refused = refused.unwrap_err();
        for word in [r#"parameters["consistency"]"#, why] {
            assert!(refused.to_string().contains(word), "{refused}");
        }
        assert_answer::<()>(Err(refused), "FailedPrecondition");
        assert!(bench.snapshot_ids("", "").unwrap().is_empty());
    }

    bench.kernel.take_effects();
    answer_in_turn(state_dir, &[Answer::Held, Answer::Done]);
    let taken = bench
        .controller
        .create_volume_group_snapshot(request.clone());
    let taken = taken.unwrap().group_snapshot.unwrap();
    assert!(!bench.kernel.take_effects().contains(&"freeze"));
    assert_eq!(taken.snapshots.len(), volumes.len());
    for snapshot in &taken.snapshots {
        let id = snapshot.snapshot_id.parse().unwrap();
        let record = bench.controller.pools.snapshot(&id).unwrap();
        assert_eq!(record.consistency, Consistency::Powercut);
    }
    // Only the answer was lost.
    let again = without_faults(&bench).create_volume_group_snapshot(request);
    assert_eq!(again.unwrap().group_snapshot.unwrap(), taken);
    let frozen = csi::CreateVolumeGroupSnapshotRequest {
        parameters: Default::default(),
        ..group(&volumes)
    };
    let other = bench.controller.create_volume_group_snapshot(frozen);
    assert_answer(other, "AlreadyExists");
}

#[test]
fn a_group_with_another_disk_is_no_power_cut() {
    let bench = bench(true);
    let volumes = ["a", "b"].map(|name| bench.create(name));
    put_on_fault_disk(&bench, &volumes[0]);
    let request = group(&volumes);
    assert!(bench.controller.refuses_group(&request));
    let refused = bench.controller.create_volume_group_snapshot(request);
    let refused = refused.unwrap_err();
    for word in ["single snapshots", &volumes[1], "faultDisk"] {
        assert!(refused.to_string().contains(word), "{refused}");
    }
    assert_answer::<()>(Err(refused), r#"parameters["consistency"]"#);
    assert!(bench.snapshot_ids("", "").unwrap().is_empty());
}
