//! Volumes on fault disks, which a process of its own serves.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use hostloop_controllers::api::claim_fault::ClaimFault;
use hostloop_controllers::claim_faults::FaultState;
use hostloop_driver::faults;
use hostloop_driver::inspect::fsck::examine;
use hostloop_driver::inspect::inventory::Survey;
use hostloop_driver::inspect::status::report_of;
use hostloop_driver::kernel::{FsType, forget_stand_in, image_of, loop_path, stand_in};
use hostloop_driver::storage::{Access, FaultDiskRecord, NewVolume, Source, VolumeId};
use hostloop_fault_disk::client::Client;
use hostloop_fault_disk::rules::{DiskError, Effect, Rule};
use hostloop_fault_disk::{Error, FaultDisk, Settings};

use super::Rig;
use crate::testkit::*;
use crate::tools::{command, until};

mod files;
mod groups;

/// The process that serves fault disks. Dropping it kills it.
struct DiskServer(Child);

impl DiskServer {
    fn start(rig: &Rig) -> DiskServer {
        DiskServer::start_with(rig, "512Mi")
    }

    /// A server with this much memory for its disks.
    fn start_with(rig: &Rig, memory: &str) -> DiskServer {
        fs::create_dir_all(&rig.options.state_dir).unwrap();
        let socket = socket(rig);
        let mut command = command(env!("CARGO_BIN_EXE_hostloop"));
        command
            .arg("fault-disks")
            .arg("--socket")
            .arg(&socket)
            .args(["--memory", memory])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let server = DiskServer(command.spawn().unwrap());
        until("the server of fault disks listens", || {
            Client::connect(&socket).is_ok()
        });
        server
    }

    fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for DiskServer {
    fn drop(&mut self) {
        self.end();
    }
}

fn socket(rig: &Rig) -> PathBuf {
    rig.options.state_dir.join("fault-disks/sock")
}

fn client(rig: &Rig) -> Client {
    Client::connect(&socket(rig)).unwrap()
}

/// A node that serves faults, and its server of fault disks.
fn rig() -> (Rig, DiskServer) {
    let rig = rig_without_server();
    let server = DiskServer::start(&rig);
    (rig, server)
}

fn rig_without_server() -> Rig {
    let mut configs = Configs::default();
    configs.node.faults = true;
    Rig::over(Rig::site(&["default=DIR/pool"]), configs)
}

fn volume(rig: &Rig, access: Access, cache_bytes: u64) -> VolumeId {
    rig.create(NewVolume {
        fault_disk: Some(FaultDiskRecord {
            cache_bytes,
            ..FaultDiskRecord::default()
        }),
        ..new_volume(access, 320 * MI)
    })
}

/// Writes a file, and syncs it and its directory if asked to.
fn write(path: &Path, content: &str, sync: bool) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content.as_bytes())?;
    if sync {
        file.sync_all()?;
        File::open(path.parent().unwrap())?.sync_all()?;
    }
    Ok(())
}

/// Nothing is left of the use of a volume, and its disk has ended.
fn assert_ended(rig: &Rig, id: VolumeId) {
    rig.assert_detached(id);
    rig.assert_clean(id);
    assert_eq!(client(rig).list().unwrap(), [] as [String; 0]);
}

#[test]
fn a_filesystem_on_a_fault_disk_is_used_as_any_other() {
    for fs in FsType::ALL {
        let (rig, _server) = rig();
        let id = volume(&rig, on(fs), 4 * MI);
        rig.stage(id, "a", &mount(fs)).unwrap();
        rig.publish(id, "a", "p", &mount(fs), false).unwrap();
        let device = rig.device(id);
        assert_eq!(device.backing_path, format!("/{id}"), "{fs}");
        assert!(device.direct_io, "{fs}");
        assert_eq!(rig.reasons(id), [] as [String; 0], "{fs}");
        write(&rig.target("p").join("file"), "content", false).unwrap();
        // Each call may come twice.
        rig.stage(id, "a", &mount(fs)).unwrap();
        rig.unpublish(id, "p").unwrap();
        rig.unstage_patiently(id, "a");
        rig.unstage(id, "a").unwrap();
        assert_ended(&rig, id);
        rig.stage(id, "a", &mount(fs)).unwrap();
        let found = fs::read_to_string(rig.staging("a").join("file"));
        assert_eq!(found.unwrap(), "content", "{fs}");
        rig.unstage_patiently(id, "a");
        assert_ended(&rig, id);
    }
}

#[test]
fn a_raw_block_device_on_a_fault_disk_fails_and_heals() {
    let (rig, _server) = rig();
    let id = volume(&rig, Access::Block, 0);
    rig.stage(id, "b", &block()).unwrap();
    rig.publish(id, "b", "q", &block(), false).unwrap();
    let device = File::options()
        .read(true)
        .write(true)
        .open(loop_path(rig.device(id).minor))
        .unwrap();
    let rule = Rule {
        operations: Vec::new(),
        bytes: None,
        share: 1.0,
        effect: Effect::Fail(DiskError::Io),
    };
    let settings = Settings {
        rules: vec![rule],
        ..Settings::default()
    };
    client(&rig).set(&id.to_string(), &settings).unwrap();
    device.write_all_at(&[7; 4096], 0).unwrap();
    assert_eq!(
        device.sync_all().unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    client(&rig)
        .set(&id.to_string(), &Settings::default())
        .unwrap();
    device.write_all_at(&[8; 4096], 0).unwrap();
    device.sync_all().unwrap();
    drop(device);
    rig.unpublish(id, "q").unwrap();
    rig.unstage_patiently(id, "b");
    assert_ended(&rig, id);
    let mut found = [0; 4096];
    rig.open_image(id).read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found, [8; 4096]);
}

#[test]
fn limits_change_in_use_and_stay() {
    let (rig, _server) = rig();
    let id = volume(&rig, ext4(), 0);
    rig.modify(&id.to_string(), "wiops=500").unwrap();
    rig.stage(id, "a", &mount("ext4")).unwrap();
    let wiops = || {
        let state = client(&rig).state(&id.to_string()).unwrap();
        (state.settings.limits.riops, state.settings.limits.wiops)
    };
    assert_eq!(wiops(), (None, Some(500)));
    rig.modify(&id.to_string(), "riops=200 wiops=0").unwrap();
    assert_eq!(wiops(), (Some(200), None));
    rig.unstage_patiently(id, "a");
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_eq!(wiops(), (Some(200), None));
    rig.unstage_patiently(id, "a");
    assert_ended(&rig, id);
}

/// The process that looks knows nothing but the record.
#[test]
fn a_restarted_driver_and_fsck_find_the_device() {
    let (rig, _server) = rig();
    let id = volume(&rig, ext4(), 4 * MI);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    let minor = rig.device(id).minor;
    let disk = rig.record(id).stage.as_ref().unwrap().disk.unwrap();
    let forget = || {
        forget_stand_in(disk.file);
        assert!(rig.loops(id).is_empty(), "only the record knows the device");
    };
    forget();
    let found = examine(&rig.specs, &rig.options, rig.kernel.clone(), false).unwrap();
    let mut own = found.problems;
    own.retain(|problem| problem.object.contains(&id.to_string()));
    assert!(own.is_empty(), "{own:?}");
    forget();
    let rig = rig.restarted();
    assert_eq!(rig.device(id).minor, minor);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_eq!(rig.reasons(id), [] as [String; 0]);
    rig.unstage_patiently(id, "a");
    assert_ended(&rig, id);
}

#[test]
fn a_disk_that_has_ended_stands_in_for_nothing() {
    let (rig, _server) = rig();
    let id = volume(&rig, Access::Block, 0);
    rig.stage(id, "b", &block()).unwrap();
    let disk = rig.record(id).stage.as_ref().unwrap().disk.unwrap();
    assert_eq!(image_of(disk.file), disk.image);
    rig.unstage_patiently(id, "b");
    assert_eq!(image_of(disk.file), disk.file);
    // As after a staging that failed while the disk was still writing.
    stand_in(disk.file, disk.image);
    rig.stage(id, "b", &block()).unwrap();
    assert_eq!(image_of(disk.file), disk.file);
    assert_eq!(rig.loops(id).len(), 1);
    rig.unstage_patiently(id, "b");
    assert_ended(&rig, id);
}

#[test]
fn a_server_that_dies_is_a_power_cut() {
    for fs in FsType::ALL {
        let (rig, server) = rig();
        let id = volume(&rig, on(fs), 4 * MI);
        rig.stage(id, "a", &mount(fs)).unwrap();
        let at = rig.staging("a");
        write(&at.join("synced"), "content", true).unwrap();
        server.kill();
        assert!(write(&at.join("more"), "more", true).is_err(), "{fs}");
        let gone = "FaultDiskGone".to_owned();
        assert!(rig.reasons(id).contains(&gone), "{fs}");
        let server = DiskServer::start(&rig);
        assert!(rig.reasons(id).contains(&gone), "{fs}: another server");
        let refused = rig.stage(id, "a", &mount(fs)).unwrap_err();
        assert!(refused.to_string().contains("power cut"), "{fs}: {refused}");
        rig.unstage_patiently(id, "a");
        assert_ended(&rig, id);
        rig.stage(id, "a", &mount(fs)).unwrap();
        let found = fs::read_to_string(at.join("synced"));
        assert_eq!(found.unwrap(), "content", "{fs}");
        assert_eq!(rig.reasons(id), [] as [String; 0], "{fs}");
        rig.unstage_patiently(id, "a");
        assert_ended(&rig, id);
        drop(server);
    }
}

#[test]
fn a_volume_without_a_server_waits_for_it() {
    let (rig, server) = rig();
    let id = volume(&rig, ext4(), 0);
    server.kill();
    let refused = rig.stage(id, "a", &mount("ext4")).unwrap_err();
    assert!(
        refused.to_string().contains("fault-disks/sock"),
        "{refused}"
    );
    rig.assert_clean(id);
    let _server = DiskServer::start(&rig);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    rig.unstage_patiently(id, "a");
    assert_ended(&rig, id);
}

#[test]
fn the_claims_of_a_namespace_leave_half_of_the_memory_to_others() {
    let rig = rig_without_server();
    let memory = 4 * FaultDisk::memory(0);
    let _server = DiskServer::start_with(&rig, &memory.to_string());
    let claim = |namespace: &str| {
        let key = "csi.storage.k8s.io/pvc/namespace".to_owned();
        rig.create(NewVolume {
            parameters: [(key, namespace.to_owned())].into(),
            fault_disk: Some(FaultDiskRecord::default()),
            ..new_volume(Access::Block, 64 * MI)
        })
    };
    let [one, two, three] = ["a"; 3].map(claim);
    let other = claim("b");
    rig.stage(one, "one", &block()).unwrap();
    rig.stage(two, "two", &block()).unwrap();
    let refused = rig.stage(three, "three", &block()).unwrap_err();
    assert!(refused.to_string().contains("namespace a"), "{refused}");
    rig.stage(other, "other", &block()).unwrap();
    rig.unstage_patiently(one, "one");
    rig.stage(three, "three", &block()).unwrap();
    for (id, at) in [(two, "two"), (three, "three"), (other, "other")] {
        rig.unstage_patiently(id, at);
    }
    assert_ended(&rig, one);
}

#[test]
fn a_volume_on_a_fault_disk_grows_in_use() {
    let (rig, _server) = rig();
    let id = volume(&rig, on(FsType::Xfs), 0);
    rig.stage(id, "a", &mount("xfs")).unwrap();
    let bytes = 400 * MI;
    rig.grow(&id.to_string(), range(bytes as i64, 0)).unwrap();
    let at = rig.staging("a");
    assert_eq!(rig.expand(id, &at, bytes).unwrap(), bytes);
    assert_eq!(rig.device(id).size_bytes, bytes);
    assert_eq!(rig.reasons(id), [] as [String; 0]);
    rig.unstage_patiently(id, "a");
    assert_ended(&rig, id);
}

/// The write cache of a fault disk is a part of it: a frozen snapshot flushes it, a power cut loses it.
#[test]
fn a_snapshot_has_the_write_cache_unless_it_is_a_power_cut() {
    let site = Rig::site(&["default=DIR/pool,image=4Gi"]);
    let mut configs = Configs::default();
    configs.node.faults = true;
    let rig = Rig::over(site, configs);
    let _server = DiskServer::start(&rig);
    let id = volume(&rig, Access::Block, 4 * MI);
    rig.stage(id, "b", &block()).unwrap();
    let device = open_direct(&rig, id);
    write_block(&device, 5).unwrap();
    let pools = &rig.node.pools;
    let cut = pools.create_powercut(&id, "cut", &Default::default());
    let frozen = pools.create_snapshot(&id, "frozen", &Default::default());
    for (snapshot, expected) in [(cut, 0), (frozen, 5)] {
        let snapshot = snapshot.unwrap();
        let mut found = [9; 4096];
        let image = pools.open_snapshot(&snapshot).unwrap();
        image.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found, [expected; 4096], "{}", snapshot.name);
        let source = Source::Snapshot(snapshot.id);
        let copy = rig.create(copy_of(source, Access::Block, 320 * MI));
        assert_eq!(rig.record(copy).fault_disk, None, "its class has none");
    }
    drop(device);
    rig.unstage_patiently(id, "b");
    assert_eq!(client(&rig).list().unwrap(), [] as [String; 0]);
}

/// A block for direct I/O, which must be aligned in memory, too.
#[repr(align(4096))]
struct Block([u8; 4096]);

/// Writes the first block of a device.
fn write_block(device: &File, byte: u8) -> io::Result<()> {
    device.write_all_at(&Block([byte; 4096]).0, 0)
}

/// Reads the first byte of a device.
fn read_block(device: &File) -> io::Result<u8> {
    let mut block = Block([0; 4096]);
    device.read_exact_at(&mut block.0, 0)?;
    Ok(block.0[0])
}

/// The device of a volume, without page cache.
fn open_direct(rig: &Rig, id: VolumeId) -> File {
    File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(loop_path(rig.device(id).minor))
        .unwrap()
}

/// Reconciles a volume with an annotation.
fn ask(rig: &Rig, id: VolumeId, annotation: Option<&str>) -> FaultState {
    let wanted = annotation.map(|text| ClaimFault::parse(text).unwrap());
    let report = faults::reconcile(&rig.node.pools, &id.to_string(), wanted.as_ref());
    report.unwrap().state
}

#[test]
fn a_claim_makes_operations_fail_and_wait() {
    let (rig, _server) = rig();
    let id = volume(&rig, Access::Block, 0);
    rig.stage(id, "b", &block()).unwrap();
    let device = open_direct(&rig, id);
    write_block(&device, 1).unwrap();
    for (fault, errno) in [
        ("eio,op=write", libc::EIO),
        ("enospc,op=write,share=1", libc::ENOSPC),
    ] {
        assert_eq!(ask(&rig, id, Some(fault)), FaultState::Active, "{fault}");
        let failed = write_block(&device, 2).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(errno), "{fault}");
        assert_eq!(read_block(&device).unwrap(), 1, "{fault}");
        assert_eq!(rig.reasons(id), ["FaultInjected"], "{fault}");
        assert_eq!(ask(&rig, id, None), FaultState::Healed, "{fault}");
    }
    let delay = Duration::from_millis(300);
    assert_eq!(ask(&rig, id, Some("slow=300ms")), FaultState::Active);
    let begin = Instant::now();
    write_block(&device, 3).unwrap();
    assert!(begin.elapsed() >= delay, "{:?}", begin.elapsed());
    // Limits and faults are of one disk, and change apart from each other.
    rig.modify(&id.to_string(), "wiops=1000").unwrap();
    let settings = client(&rig).state(&id.to_string()).unwrap().settings;
    assert_eq!(
        (settings.rules.len(), settings.limits.wiops),
        (1, Some(1000))
    );
    assert_eq!(ask(&rig, id, None), FaultState::Healed);
    let settings = client(&rig).state(&id.to_string()).unwrap().settings;
    assert_eq!(
        (settings.rules.len(), settings.limits.wiops),
        (0, Some(1000))
    );
    drop(device);
    rig.unstage_patiently(id, "b");
    assert_ended(&rig, id);
}

/// Otherwise each operation of the unmount would come late, and the fault could not end meanwhile.
#[test]
fn a_slow_disk_does_not_delay_its_unstaging() {
    let (rig, _server) = rig();
    let id = volume(&rig, ext4(), 0);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    write(&rig.staging("a").join("file"), "content", false).unwrap();
    assert_eq!(ask(&rig, id, Some("slow=10s")), FaultState::Active);
    let begin = Instant::now();
    rig.unstage_patiently(id, "a");
    // One operation may have begun before.
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_ended(&rig, id);
}

#[test]
fn a_power_cut_of_the_disk_loses_its_write_cache() {
    let (rig, _server) = rig();
    let id = volume(&rig, Access::Block, 4 * MI);
    rig.stage(id, "b", &block()).unwrap();
    let device = open_direct(&rig, id);
    write_block(&device, 5).unwrap();
    device.sync_all().unwrap();
    write_block(&device, 6).unwrap();
    let cut = Some("powercut,loss=all");
    assert_eq!(ask(&rig, id, cut), FaultState::Active);
    assert!(write_block(&device, 7).is_err());
    assert_eq!(rig.reasons(id), ["FaultInjected"]);
    assert_eq!(ask(&rig, id, cut), FaultState::Over);
    // The status says so, too, though there is no filesystem that does.
    let survey = Survey::take(&rig.specs, &rig.options.state_dir, &*rig.kernel).unwrap();
    let shown = report_of(&survey).volumes.remove(0).fault.unwrap();
    assert_eq!(shown.state, "stopped");
    drop(device);
    let refused = rig.stage(id, "b", &block()).unwrap_err();
    assert!(refused.to_string().contains("power cut"), "{refused}");
    assert_eq!(ask(&rig, id, None), FaultState::NeedsRestage);
    rig.unstage_patiently(id, "b");
    assert_ended(&rig, id);
    rig.stage(id, "b", &block()).unwrap();
    assert_eq!(read_block(&open_direct(&rig, id)).unwrap(), 5);
    rig.unstage_patiently(id, "b");
    assert_ended(&rig, id);
}

#[test]
fn without_the_flag_no_fault_disk_is_served() {
    let (rig, _server) = rig();
    let id = volume(&rig, ext4(), 0);
    let strict = Rig::over(Rig::site(&["default=DIR/pool"]), Configs::default());
    let other = volume(&strict, ext4(), 0);
    let refused = strict.stage(other, "a", &mount("ext4")).unwrap_err();
    assert!(refused.to_string().contains("--enable-faults"), "{refused}");
    strict.assert_clean(other);
    let unknown = client(&rig).state(&id.to_string()).unwrap_err();
    assert!(matches!(unknown, Error::NotFound(_)), "{unknown}");
}
