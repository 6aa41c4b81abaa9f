//! Loop devices.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use hostloop_driver::kernel::{
    BLOCK_SIZE, Detached, Error, FsType, Kernel, LoopSpec, file, file_id, loop_path,
};

use super::scratch::{Scratch, is_detached, lasting, spec};

const MIB: u64 = 1 << 20;

#[test]
fn attached_with_4096_byte_blocks_and_direct_io() {
    let s = Scratch::new();
    let image = s.image("image", 8 * MIB);
    let device = s.attach(&image);
    assert!(device.direct_io);
    let info = s.kernel.loop_info(device.minor).unwrap().unwrap();
    assert_eq!(info.backing, Some(file_id(&image).unwrap()));
    assert_eq!(info.backing_path, s.path().join("image").to_str().unwrap());
    assert_eq!((info.size_bytes, info.block_size), (8 * MIB, BLOCK_SIZE));
    assert_eq!(info.backing_rdev, 0);
    assert!(info.direct_io && info.autoclear && !info.read_only);
    assert_eq!(s.kernel.loops_of(info.backing.unwrap()).unwrap(), [info]);
    drop(device);
    assert!(is_detached(&s.kernel, &image));
}

#[test]
fn buffered_when_asked_and_switched_in_use() {
    let s = Scratch::new();
    let image = s.image("image", 8 * MIB);
    let device = s
        .kernel
        .loop_attach(&LoopSpec {
            direct_io: false,
            ..spec(&image)
        })
        .unwrap();
    assert!(!device.direct_io);
    assert!(s.kernel.loop_set_direct_io(&device, true).unwrap());
    assert!(s.kernel.loop_info(device.minor).unwrap().unwrap().direct_io);
    assert!(!s.kernel.loop_set_direct_io(&device, false).unwrap());
}

#[test]
fn read_only_refuses_writes() {
    let s = Scratch::new();
    let image = s.image("image", 8 * MIB);
    let device = s
        .kernel
        .loop_attach(&LoopSpec {
            read_only: true,
            ..spec(&image)
        })
        .unwrap();
    assert!(s.kernel.loop_info(device.minor).unwrap().unwrap().read_only);
    let written = File::options()
        .write(true)
        .open(device.path())
        .and_then(|mut f| f.write_all(&[1; 4096]).and_then(|()| f.sync_all()));
    assert!(written.is_err());
}

#[test]
fn found_by_inode_whatever_its_name() {
    let s = Scratch::new();
    let (one, other) = (s.image("one", MIB), s.image("other", MIB));
    let device = s.attach(&one);
    std::fs::rename(s.path().join("one"), s.path().join("moved")).unwrap();
    std::fs::rename(s.path().join("other"), s.path().join("one")).unwrap();
    let found = s.kernel.loops_of(file_id(&one).unwrap()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].minor, device.minor);
    assert!(
        s.kernel
            .loops_of(file_id(&other).unwrap())
            .unwrap()
            .is_empty()
    );
    std::fs::remove_file(s.path().join("moved")).unwrap();
    let info = s.kernel.loop_info(device.minor).unwrap().unwrap();
    assert_eq!(info.backing, Some(file_id(&one).unwrap()));
    assert!(info.backing_path.ends_with(" (deleted)"), "{info:?}");
    assert_eq!(
        s.kernel
            .loop_detach(device.minor, file_id(&other).unwrap())
            .unwrap(),
        Detached::Gone,
        "another file's device is left alone"
    );
    assert!(s.kernel.loop_info(device.minor).unwrap().is_some());
}

#[test]
fn detaches_now_or_at_the_last_close() {
    let s = Scratch::new();
    let image = s.image("image", MIB);
    let id = file_id(&image).unwrap();
    let device = s.kernel.loop_attach(&lasting(&image)).unwrap();
    let minor = device.minor;
    drop(device);
    assert!(s.kernel.loop_info(minor).unwrap().is_some());
    let held = s.kernel.loop_open(minor, id).unwrap();
    assert_eq!(
        s.kernel.loop_detach(minor, id).unwrap(),
        Detached::WhenClosed
    );
    assert!(s.kernel.loop_info(minor).unwrap().unwrap().autoclear);
    drop(held);
    assert!(is_detached(&s.kernel, &image));
    assert_eq!(s.kernel.loop_detach(minor, id).unwrap(), Detached::Gone);
    assert!(matches!(
        s.kernel.loop_open(minor, id),
        Err(Error::NotFound { .. })
    ));
}

#[test]
fn an_exact_minor_or_none() {
    let s = Scratch::new();
    let (one, other) = (s.image("one", MIB), s.image("other", MIB));
    let at = |image, minor| {
        s.kernel.loop_attach(&LoopSpec {
            minor: Some(minor),
            ..spec(image)
        })
    };
    // Far from those that others take, and perhaps not there yet; few of them, since a device
    // stays once it is made.
    let (minor, device) = (0..16)
        .map(|i| 4000 + (std::process::id() + i) % 16)
        .find_map(|minor| Some((minor, at(&one, minor).ok()?)))
        .unwrap();
    let at = |image| at(image, minor);
    assert_eq!(device.minor, minor);
    assert!(matches!(at(&other), Err(Error::Busy { .. })));
    let info = s.kernel.loop_info(minor).unwrap().unwrap();
    assert_eq!(
        info.backing,
        Some(file_id(&one).unwrap()),
        "its owner keeps it"
    );
    drop(device);
    assert!(is_detached(&s.kernel, &one));
    assert_eq!(at(&other).unwrap().minor, minor);
}

#[test]
fn many_at_once_get_one_each() {
    let s = Scratch::new();
    let images: Vec<File> = (0..12)
        .map(|i| s.image(&format!("image{i}"), MIB))
        .collect();
    let mut minors: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = images
            .iter()
            .map(|image| scope.spawn(|| s.attach(image)))
            .collect();
        let devices: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        for (device, image) in devices.iter().zip(&images) {
            let info = s.kernel.loop_info(device.minor).unwrap().unwrap();
            assert_eq!(info.backing, Some(file_id(image).unwrap()));
        }
        devices.iter().map(|d| d.minor).collect()
    });
    minors.sort_unstable();
    minors.dedup();
    assert_eq!(minors.len(), images.len());
}

#[test]
fn grows_and_reads_ahead() {
    let s = Scratch::new();
    let image = s.image("image", MIB);
    let device = s.attach(&image);
    file::set_len(&image, 3 * MIB).unwrap();
    let size = || {
        s.kernel
            .loop_info(device.minor)
            .unwrap()
            .unwrap()
            .size_bytes
    };
    assert_eq!(size(), MIB);
    s.kernel.loop_grow(&device).unwrap();
    assert_eq!(size(), 3 * MIB);
    s.kernel.loop_set_read_ahead(&device, 512).unwrap();
    let path = format!("/sys/block/loop{}/queue/read_ahead_kb", device.minor);
    assert_eq!(std::fs::read_to_string(path).unwrap().trim(), "512");
    s.kernel.loop_set_read_ahead(&device, 128).unwrap();
    s.kernel.loop_flush(&device).unwrap();
}

#[test]
fn a_loop_over_a_loop_names_the_one_beneath() {
    let s = Scratch::new();
    let image = s.image("image", MIB);
    let below = s.attach(&image);
    let node = File::open(below.path()).unwrap();
    let above = s
        .kernel
        .loop_attach(&LoopSpec {
            read_only: true,
            ..spec(&node)
        })
        .unwrap();
    let info = s.kernel.loop_info(above.minor).unwrap().unwrap();
    assert_eq!(info.backing, Some(file_id(&node).unwrap()));
    assert_eq!(
        info.backing_rdev,
        std::fs::metadata(below.path()).unwrap().rdev()
    );
    assert!(info.read_only);
}

#[test]
fn autoclear_lives_until_the_unmount() {
    let s = Scratch::new();
    let (image, device, at) = s.mounted("image", FsType::Ext4, 16 * MIB);
    drop(device);
    assert_eq!(
        s.kernel.loops_of(file_id(&image).unwrap()).unwrap().len(),
        1
    );
    s.kernel.unmount(&at).unwrap();
    assert!(is_detached(&s.kernel, &image));
}

#[test]
fn without_direct_io_it_says_so() {
    let s = Scratch::new();
    // A reflinked file on blocks larger than the device's can't do direct I/O at 4096.
    let pool = s.image("pool", 400 * MIB);
    let device = s.attach(&pool);
    let options = ["-b", "size=16384"].map(str::to_owned);
    s.kernel
        .mkfs(&hostloop_driver::kernel::MkfsSpec {
            device: &device.path(),
            fs: FsType::Xfs,
            options: &options,
            discard: true,
            uuid: None,
            force: false,
        })
        .unwrap();
    let at = s.dir("pool.mnt");
    s.mount(&device, FsType::Xfs, &at);
    let image = File::create_new(at.join("image")).unwrap();
    image.set_len(8 * MIB).unwrap();
    (&image).write_all(&[1; 65536]).unwrap();
    let image = File::options()
        .read(true)
        .write(true)
        .open(at.join("image"))
        .unwrap();
    let clone = File::create_new(at.join("clone")).unwrap();
    file::clone(&image, &clone).unwrap();
    let volume = s.attach(&image);
    assert!(!volume.direct_io);
    assert!(!s.kernel.loop_info(volume.minor).unwrap().unwrap().direct_io);
    assert!(!s.kernel.loop_set_direct_io(&volume, true).unwrap());
    let read = std::fs::read(loop_path(volume.minor)).unwrap();
    assert_eq!(read[..65536], [1; 65536]);
}
