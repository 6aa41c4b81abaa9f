//! Faults of one file of a filesystem on a fault disk.

use hostloop_controllers::claim_faults::FaultReport;
use rustix::fs::{FallocateFlags, fallocate};

use super::*;

/// A file, without page cache.
fn direct(path: &Path) -> File {
    File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap()
}

fn read_at(file: &File, offset: u64) -> io::Result<u8> {
    let mut block = Block([0; 4096]);
    file.read_exact_at(&mut block.0, offset)?;
    Ok(block.0[0])
}

fn write_at(file: &File, byte: u8, offset: u64) -> io::Result<()> {
    file.write_all_at(&Block([byte; 4096]).0, offset)
}

fn errno<T>(done: io::Result<T>) -> Option<i32> {
    done.err().and_then(|e| e.raw_os_error())
}

/// What the driver says to this annotation.
fn report(rig: &Rig, id: VolumeId, annotation: &str) -> FaultReport {
    let requested = ClaimFault::parse(annotation).unwrap();
    faults::reconcile(&rig.node.pools, &id.to_string(), Some(&requested)).unwrap()
}

/// Writes a file of a MiB, and leaves it to the kernel when.
fn write_file(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, vec![1; MI as usize]).unwrap();
}

#[test]
fn a_fault_takes_one_file_alone() {
    for fs in [FsType::Ext4, FsType::Xfs] {
        let (rig, _server) = rig();
        let id = volume(&rig, on(fs), 0);
        rig.stage(id, "a", &mount(fs)).unwrap();
        let at = rig.staging("a");
        let (one, two) = (at.join("dir/one"), at.join("two"));
        write_file(&one);
        write_file(&two);
        // The blocks of the file are chosen when the fault begins, if not before.
        assert_eq!(
            ask(&rig, id, Some("eio,op=read,file=dir/one")),
            FaultState::Active,
            "{fs}"
        );
        for path in [&one, &two] {
            File::open(path).unwrap().sync_all().unwrap();
        }
        let (one, two) = (direct(&one), direct(&two));
        for offset in [0, 64 << 10, MI - 4096] {
            assert_eq!(errno(read_at(&one, offset)), Some(libc::EIO), "{fs}");
            assert_eq!(read_at(&two, offset).unwrap(), 1, "{fs}");
        }
        write_at(&one, 2, 0).unwrap();
        assert_eq!(rig.reasons(id), ["FaultInjected"], "{fs}");

        // Another fault, of a part of the file, takes the place of the first one.
        let part = "enospc,op=write,file=dir/one,range=64Ki-128Ki";
        assert_eq!(ask(&rig, id, Some(part)), FaultState::Active, "{fs}");
        assert_eq!(read_at(&one, 0).unwrap(), 2, "{fs}");
        for (offset, expected) in [
            (0, None),
            (60 << 10, None),
            (64 << 10, Some(libc::ENOSPC)),
            (124 << 10, Some(libc::ENOSPC)),
            (128 << 10, None),
        ] {
            let found = errno(write_at(&one, 3, offset));
            assert_eq!(found, expected, "{fs}: {offset}");
        }
        write_at(&two, 3, 64 << 10).unwrap();
        // A limit of the disk leaves the fault as it is.
        rig.modify(&id.to_string(), "wiops=1000").unwrap();
        assert_eq!(errno(write_at(&one, 3, 64 << 10)), Some(libc::ENOSPC));

        assert_eq!(ask(&rig, id, None), FaultState::Healed, "{fs}");
        assert_eq!(read_at(&one, 64 << 10).unwrap(), 1, "{fs}");
        write_at(&one, 4, 64 << 10).unwrap();
        drop((one, two));
        rig.unstage_patiently(id, "a");
        assert_ended(&rig, id);
    }
}

/// A restart and another staging keep the bytes that the fault began with.
#[test]
fn a_fault_of_a_file_outlives_a_staging() {
    let (rig, _server) = rig();
    let id = volume(&rig, ext4(), 0);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    let file = rig.staging("a").join("file");
    write_file(&file);
    let fault = Some("slow=400ms,op=read,file=file");
    assert_eq!(ask(&rig, id, fault), FaultState::Active);
    let rig = rig.restarted();
    assert_eq!(ask(&rig, id, fault), FaultState::Active);
    rig.unstage_patiently(id, "a");
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_eq!(ask(&rig, id, fault), FaultState::Active);
    let begin = Instant::now();
    read_at(&direct(&file), 0).unwrap();
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(400), "{took:?}");
    assert_eq!(ask(&rig, id, None), FaultState::Healed);
    rig.unstage_patiently(id, "a");
    assert_ended(&rig, id);
}

#[test]
fn a_file_that_cannot_be_named_is_refused() {
    for fs in FsType::ALL {
        let (rig, _server) = rig();
        let id = volume(&rig, on(fs), 0);
        rig.stage(id, "a", &mount(fs)).unwrap();
        let at = rig.staging("a");
        write_file(&at.join("dir/file"));
        std::os::unix::fs::symlink("dir", at.join("link")).unwrap();
        // Every other block of it is given back.
        write_file(&at.join("pieces"));
        let pieces = File::options().write(true).open(at.join("pieces")).unwrap();
        pieces.set_len(8 * MI).unwrap();
        fallocate(&pieces, FallocateFlags::empty(), 0, 8 * MI).unwrap();
        for block in (1..2048).step_by(2) {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&pieces, punch, block * 4096, 4096).unwrap();
        }
        drop(pieces);
        for (file, why) in [
            ("missing", "no regular file"),
            ("dir", "no regular file"),
            ("link/file", "no regular file"),
            ("pieces", "more than 256 pieces"),
            ("dir/file,range=1Gi-2Gi", "has no blocks"),
        ] {
            let report = report(&rig, id, &format!("eio,file={file}"));
            assert_eq!(report.state, FaultState::Refused, "{fs}: {file}");
            let why = if fs == FsType::Btrfs { "a btrfs" } else { why };
            assert!(report.message.contains(why), "{fs}: {}", report.message);
            assert_eq!(rig.record(id).fault, None, "{fs}");
        }
        rig.unstage_patiently(id, "a");
        assert_ended(&rig, id);
    }
}
