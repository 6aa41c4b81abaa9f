//! Groups of volumes on fault disks: one power cut of all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use hostloop_driver::storage::{Consistency, GroupRecord, Result};

use super::*;

/// A node with a pool that clones, and its server of fault disks.
fn cloning_rig(max_freeze: Duration) -> (Rig, DiskServer) {
    let mut site = Rig::site(&["default=DIR/pool,image=4Gi"]);
    site.options.max_freeze = max_freeze;
    let mut configs = Configs::default();
    configs.node.faults = true;
    let rig = Rig::over(site, configs);
    let server = DiskServer::start(&rig);
    (rig, server)
}

/// Two raw block devices in use, with write caches of this size.
fn two_devices(rig: &Rig, cache_bytes: u64) -> [VolumeId; 2] {
    ["a", "b"].map(|at| {
        let id = volume(rig, Access::Block, cache_bytes);
        rig.stage(id, at, &block()).unwrap();
        id
    })
}

fn taken(rig: &Rig, name: &str, volumes: &[VolumeId]) -> Result<Arc<GroupRecord>> {
    let pools = &rig.node.pools;
    pools.create_powercut_group(name, volumes, &Default::default())
}

/// The first byte of each member.
fn first_bytes(rig: &Rig, group: &GroupRecord) -> Vec<u8> {
    let pools = &rig.node.pools;
    let members = group.snapshots.iter().map(|id| {
        let member = pools.snapshot(id).unwrap();
        assert_eq!(member.consistency, Consistency::Powercut);
        let mut found = [0];
        let image = pools.open_snapshot(&member).unwrap();
        image.read_exact_at(&mut found, 0).unwrap();
        found[0]
    });
    members.collect()
}

fn unstage(rig: &Rig, volumes: &[VolumeId; 2]) {
    for (id, at) in volumes.iter().zip(["a", "b"]) {
        rig.unstage_patiently(*id, at);
        rig.assert_detached(*id);
    }
    assert_eq!(client(rig).list().unwrap(), [] as [String; 0]);
}

/// A writer writes each number to one device and then to the other one.
#[test]
fn a_group_is_of_one_instant_and_its_volumes_go_on() {
    let (rig, _server) = cloning_rig(Duration::from_secs(10));
    let volumes = two_devices(&rig, 0);
    let devices = volumes.map(|id| open_direct(&rig, id));
    let stop = AtomicBool::new(false);
    let groups = thread::scope(|scope| {
        scope.spawn(|| {
            for number in (1..=u8::MAX).cycle() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                write_block(&devices[0], number).unwrap();
                write_block(&devices[1], number).unwrap();
            }
        });
        let groups = (0..20).map(|n| taken(&rig, &format!("g-{n}"), &volumes));
        let groups: Vec<_> = groups.collect();
        stop.store(true, Ordering::SeqCst);
        groups
    });
    for group in groups {
        let group = group.unwrap();
        let [one, two] = first_bytes(&rig, &group)[..] else {
            panic!("{group:?}");
        };
        assert!(one == two || one == two % u8::MAX + 1, "{one} and {two}");
        rig.node.pools.delete_group(&group.id).unwrap();
    }
    for (id, device) in volumes.iter().zip(&devices) {
        write_block(device, 7).unwrap();
        assert_eq!(rig.reasons(*id), [] as [String; 0]);
    }
    drop(devices);
    unstage(&rig, &volumes);
}

#[test]
fn a_group_lacks_all_write_caches() {
    let (rig, _server) = cloning_rig(Duration::from_secs(10));
    let volumes = two_devices(&rig, 4 * MI);
    let devices = volumes.map(|id| open_direct(&rig, id));
    for device in &devices {
        write_block(device, 5).unwrap();
        device.sync_all().unwrap();
        write_block(device, 6).unwrap();
    }
    let group = taken(&rig, "g", &volumes).unwrap();
    assert_eq!(first_bytes(&rig, &group), [5, 5]);
    assert!(
        devices
            .iter()
            .all(|device| read_block(device).unwrap() == 6)
    );
    let source = Source::Snapshot(group.snapshots[1]);
    rig.create(copy_of(source, Access::Block, 320 * MI));
    drop(devices);
    unstage(&rig, &volumes);
}

#[test]
fn a_group_that_is_not_of_one_instant_leaves_nothing() {
    let (rig, server) = cloning_rig(Duration::ZERO);
    let volumes = two_devices(&rig, 0);
    let device = open_direct(&rig, volumes[0]);
    let at_rest = volume(&rig, Access::Block, 0);
    let with_another = [volumes[0], at_rest];
    for (members, why) in [
        (&volumes, "of different times (--max-freeze"),
        (&with_another, "start a pod that uses the volume"),
    ] {
        let refused = taken(&rig, "g", members).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
        assert!(rig.node.pools.snapshots().is_empty());
        write_block(&device, 7).unwrap();
    }
    drop(device);
    unstage(&rig, &volumes);
    server.kill();
    let refused = taken(&rig, "g", &volumes).unwrap_err().to_string();
    assert!(refused.contains("fault-disks/sock"), "{refused}");
}
