//! The cases in which a device or an image is formatted; nothing else is ever formatted.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hostloop_driver::kernel::Mounts;
use hostloop_driver::storage::{Error, VolumeId};

use super::kinds::uuid;
use super::support::*;

const RECORDED: &str = "5f3c9a52-4d1e-4b7a-9c55-0a4f6f1f2b11";

/// Writes a state entry for the pool "p" with only this field.
fn know(world: &World, field: &str, value: &str) {
    let state = &world.options.state_dir;
    std::fs::create_dir_all(state).unwrap();
    let entry = match field {
        "fs_uuid" => format!(r#"{{"id": null, "path": "", "fs_uuid": "{value}"}}"#),
        field => format!(r#"{{"id": null, "path": "", "fs_uuid": null, "{field}": "{value}"}}"#),
    };
    let text = format!(r#"{{"schema": 1, "pools": {{"p": {entry}}}}}"#);
    std::fs::write(state.join("pools.json"), text).unwrap();
}

/// The start of a device, to check that it was not written.
fn beginning(device: &Path) -> Vec<u8> {
    let mut bytes = vec![0; MI as usize];
    let device = File::open(device).unwrap();
    device.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// An XFS with the recorded UUID, as a kill during its mkfs leaves it.
fn half_made(device: &Path) {
    let uuid = format!("uuid={RECORDED}");
    run("mkfs.xfs", &["-q", "-m", &uuid, arg(device)]);
    let in_progress = 126;
    open_rw(device).write_all_at(&[1], in_progress).unwrap();
}

#[test]
fn an_interrupted_mkfs_is_done_again() {
    let disk = Disk::new(GI);
    let mut world = World::at("p", &disk.device);
    half_made(&disk.device);
    know(&world, "mkfs", RECORDED);
    world.open();
    world.pool().alive().unwrap();
    // The new filesystem has the recorded UUID, so that a second kill leaves the same two
    // witnesses.
    assert_eq!(uuid(&disk.device), RECORDED);
    assert_eq!(beginning(&disk.device)[126], 0);
}

/// Without the mark, or with the mark of another mkfs, this mkfs cannot be proven to be the
/// driver's.
#[test]
fn an_unfinished_filesystem_is_refused_without_the_mark() {
    let other = "00000000-4d1e-4b7a-9c55-0a4f6f1f2b11";
    for (field, value) in [("fs_uuid", RECORDED), ("mkfs", other)] {
        let disk = Disk::new(GI);
        let world = World::at("p", &disk.device);
        half_made(&disk.device);
        know(&world, field, value);
        let before = beginning(&disk.device);
        let refused = refusal(&world, &["mkfs did not end"]);
        assert!(matches!(refused, Error::Refused(_)), "{refused}");
        assert!(
            beginning(&disk.device) == before,
            "{field}: it was written to"
        );
    }
}

#[test]
fn an_mkfs_killed_for_real_is_done_again() {
    // Killed after a longer delay each time, until mkfs is done before the kill.
    let least = std::time::Duration::from_millis(3);
    let mut delay = std::time::Duration::ZERO;
    loop {
        // Two filesystems with one UUID can't be mounted at a time, and a namespace with copies of all
        // mounts keeps one for a moment.
        let uuid = uuid::Uuid::new_v4().to_string();
        let disk = Disk::new(GI);
        let mut world = World::at("p", &disk.device);
        know(&world, "mkfs", &uuid);
        let uuid_option = format!("uuid={uuid}");
        let mut mkfs = command("mkfs.xfs")
            .args(["-q", "-m", &uuid_option, arg(&disk.device)])
            .spawn()
            .unwrap();
        std::thread::sleep(delay);
        let done = mkfs.try_wait().unwrap().is_some();
        mkfs.kill().unwrap();
        mkfs.wait().unwrap();
        world.open();
        world.pool().alive().unwrap();
        if done {
            break;
        }
        // A slow mkfs is killed as often as a quick one.
        delay += least.max(delay / 8);
    }
}

/// A pool with a volume that holds data, and the device or file with the filesystem's bytes.
struct Precious {
    world: World,
    volume: VolumeId,
    bytes: PathBuf,
    _disk: Option<Disk>,
}

impl Precious {
    fn new(image: bool) -> Precious {
        let disk = (!image).then(|| Disk::new(GI));
        let mut world = match &disk {
            Some(disk) => World::at("p", &disk.device),
            None => World::new(&["p=DIR/p,image=400Mi"]),
        };
        let bytes = match &disk {
            Some(disk) => disk.device.clone(),
            None => world.dir.path().join("p/p.pool"),
        };
        world.open();
        let volume = world.create(thin("v", MI)).id;
        let precious = Precious {
            world,
            volume,
            bytes,
            _disk: disk,
        };
        let image = open_rw(&precious.image());
        image.write_all_at(b"precious", 4096).unwrap();
        image.sync_all().unwrap();
        precious
    }

    fn image(&self) -> PathBuf {
        let root = self.world.pool().root().to_path_buf();
        root.join(format!("volumes/{}/image", self.volume))
    }

    fn assert_there(&self) {
        let mut read = [0; 8];
        let image = File::open(self.image()).unwrap();
        image.read_exact_at(&mut read, 4096).unwrap();
        assert_eq!(&read, b"precious");
    }
}

/// The node has no entry or only half an entry for the pool, and the filesystem fails to mount
/// once.
#[test]
fn an_adopted_pool_that_does_not_mount_is_an_error_and_is_never_formatted() {
    for image in [false, true] {
        for learned in ["nothing", "fs_uuid", "mkfs"] {
            let mut precious = Precious::new(image);
            let recorded = uuid(&precious.bytes);
            precious.world.unmount();
            let state = precious.world.options.state_dir.join("pools.json");
            match learned {
                "nothing" => std::fs::remove_file(&state).unwrap(),
                // Version 0.1.0 leaves this entry if it is killed right after it adopts the pool.
                field => know(&precious.world, field, &recorded),
            }
            // The root directory's inode, without which the kernel cannot mount the filesystem.
            let root_inode = 64 << 10;
            let device = open_rw(&precious.bytes);
            let mut saved = vec![0; 4096];
            device.read_exact_at(&mut saved, root_inode).unwrap();
            device.write_all_at(&[0; 4096], root_inode).unwrap();
            device.sync_all().unwrap();
            let context = format!("image: {image}, known: {learned}");
            let why = match precious.world.try_open() {
                Ok(pools) => pools.slots().remove(0).state.unwrap_err(),
                Err(e) => e.to_string(),
            };
            let says = ["can't be mounted", "can't be looked at"];
            assert!(says.iter().any(|s| why.contains(s)), "{context}: {why}");
            assert_eq!(uuid(&precious.bytes), recorded, "{context}");
            device.write_all_at(&saved, root_inode).unwrap();
            device.sync_all().unwrap();
            precious.world.open();
            precious.assert_there();
            let state = std::fs::read_to_string(&state).unwrap();
            let is_known = state.contains(&recorded) && !state.contains("mkfs");
            assert!(is_known, "{state}");
        }
    }
}

/// The process is killed while it inspects a pool that is not in the node's state.
#[test]
fn an_interrupted_inspection_is_ended_by_the_next_start() {
    for image in [false, true] {
        let mut precious = Precious::new(image);
        let state = precious.world.options.state_dir.clone();
        let at = state.join("pools/p");
        let device = run("findmnt", &["-n", "-o", "SOURCE", arg(&at)]);
        // The handle acts like a mount: the loop device of an image detaches at its last close.
        let _held = File::open(&device).unwrap();
        precious.world.unmount();
        std::fs::remove_file(state.join("pools.json")).unwrap();
        let options = "ro,norecovery,nosuid,nodev,noexec,noatime";
        run("mount", &["-t", "xfs", "-o", options, &device, arg(&at)]);
        // While a process uses the read-only mount, the pool is not mounted over it.
        let user = File::open(at.join("pool.json")).unwrap();
        assert_missing(&mut precious.world, "mounted read-only");
        drop(user);
        precious.world.open();
        precious.world.create(thin("w", MI));
        precious.assert_there();
    }
}

/// A disk that two nodes see, with a filesystem that one of them has mounted. The other node
/// neither replays its log nor writes a byte.
#[test]
fn the_pool_of_another_node_is_not_written_to() {
    let disk = Disk::new(400 * MI);
    let mut first = World::at("p", &disk.device);
    first.options.node_id = Some("n1".into());
    first.open();
    let at = first.pool().root().to_path_buf();
    // Writes all metadata to its place, which XFS also does on its own within a minute.
    for freeze in ["-f", "-u"] {
        run("xfs_freeze", &[freeze, arg(&at)]);
    }
    let made = first.create(thin("v", MI));
    // Leaves a log that needs replay.
    run("xfs_io", &["-x", "-c", "shutdown -f", arg(&at)]);
    first.unmount();
    let whole = || {
        let output = run("sha256sum", &[arg(&disk.device)]);
        output.split_whitespace().next().unwrap().to_owned()
    };
    let before = whole();
    let mut second = World::at("p", &disk.device);
    second.options.node_id = Some("n2".into());
    // As a node that does not know the pool, and as one that had it before.
    let state = first.options.state_dir.join("pools.json");
    let known = std::fs::read(&state).unwrap();
    for known in [None, Some(known)] {
        if let Some(known) = known {
            std::fs::create_dir_all(&second.options.state_dir).unwrap();
            std::fs::write(second.options.state_dir.join("pools.json"), known).unwrap();
        }
        let refused = refusal(&second, &["node n1", "mount it", "node.json"]);
        assert!(matches!(refused, Error::OtherNode { .. }), "{refused}");
        assert_eq!(whole(), before);
        let mounts = second.kernel.mounts().unwrap();
        let at = second.options.state_dir.join("pools/p");
        let at = at.canonicalize().unwrap();
        assert!(mounts.at(&at).is_none());
    }
    assert_eq!(first.open().volumes()[0].id, made.id);
}

/// Looks like a device encrypted without a header (plain dm-crypt, a detached LUKS header).
#[test]
fn random_bytes_are_refused_and_formatted_if_the_option_says_so() {
    let random = |bytes: usize| {
        let mut random = vec![0; bytes];
        let source = File::open("/dev/urandom").unwrap();
        std::io::Read::read_exact(&mut &source, &mut random).unwrap();
        random
    };
    // Random bytes in the first quarter; after a blank first MiB; only in the last block.
    for (at, length) in [(0, GI / 4), (MI, 4 * MI), (GI - 4096, 4096)] {
        let disk = Disk::new(GI);
        let device = open_rw(&disk.device);
        device.write_all_at(&random(length as usize), at).unwrap();
        device.sync_all().unwrap();
        let before = beginning(&disk.device);
        let world = World::at("p", &disk.device);
        let refused = refusal(
            &world,
            &["without a known signature", "`wipe`", "blkdiscard"],
        );
        assert!(matches!(refused, Error::Refused(_)), "{refused}");
        assert!(beginning(&disk.device) == before, "it was written to");

        let mut world = World::new(&[&format!("p={},wipe", arg(&disk.device))]);
        world.open();
        world.pool().alive().unwrap();
        let made = world.create(thin("v", MI));
        // The option has no effect if it stays in the configuration, even if the pool is not known.
        world.unmount();
        std::fs::remove_file(world.options.state_dir.join("pools.json")).unwrap();
        world.open();
        // Names the reason if the pool is missing.
        world.pool();
        assert_eq!(world.pools().volumes()[0].id, made.id);
    }
}

/// An image file with unknown bytes under the pool's name.
#[test]
fn an_image_of_random_bytes_is_refused() {
    let world = World::new(&["p=DIR/p,image=400Mi"]);
    std::fs::create_dir(world.path("")).unwrap();
    let file = sparse(&world.path("p.pool"), 400 * MI);
    file.write_all_at(b"bytes", 300 * 1000).unwrap();
    refusal(&world, &["without a known signature"]);
}

/// A pool's XFS retries without limit; a volume's XFS gives up.
#[test]
fn a_pools_xfs_waits_for_its_disk() {
    let disk = Disk::new(GI);
    let mut world = World::at("p", &disk.device);
    let name = disk.device.file_name().unwrap().to_str().unwrap();
    let limits = || {
        let limits = ["EIO", "ENOSPC", "default"].map(|kind| {
            ["max_retries", "retry_timeout_seconds"]
                .map(|limit| format!("/sys/fs/xfs/{name}/error/metadata/{kind}/{limit}"))
        });
        limits.concat()
    };
    // The limits of a new mount; those that an older version set; those that an operator set.
    for (set, expected) in [
        (None, "-1"),
        (Some(["1000", "30"]), "-1"),
        (Some(["7"; 2]), "7"),
    ] {
        for (path, value) in limits().iter().zip(set.into_iter().flatten().cycle()) {
            std::fs::write(path, value).unwrap();
        }
        world.open();
        for path in limits() {
            let limit = std::fs::read_to_string(&path).unwrap();
            assert_eq!(limit.trim(), expected, "{set:?}: {path}");
        }
    }
}
