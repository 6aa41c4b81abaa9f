//! Loop devices: what the model can't show. The rest is in the script that both kernels run.

use std::fs::File;
use std::io::Write;

use hostloop_driver::kernel::{FsType, Kernel, LoopSpec, MkfsSpec, file, file_id, loop_path};

use super::scratch::{Scratch, is_detached};
use crate::testkit::{MI, loop_spec, mkfs_spec, mount_fs};
use crate::tools::sparse;

#[test]
fn read_only_refuses_writes() {
    let s = Scratch::new();
    let image = s.image("image", 8 * MI);
    let read_only = LoopSpec { read_only: true, ..loop_spec(&image) };
    let device = s.kernel.loop_attach(&read_only).unwrap();
    assert!(s.kernel.loop_info(device.minor).unwrap().unwrap().read_only);
    let written = File::options()
        .write(true)
        .open(device.path())
        .and_then(|mut f| f.write_all(&[1; 4096]).and_then(|()| f.sync_all()));
    assert!(written.is_err());
}

#[test]
fn an_exact_minor_can_be_chosen_again_after_a_detach() {
    let s = Scratch::new();
    let (one, other) = (s.image("one", MI), s.image("other", MI));
    let at =
        |image, minor| s.kernel.loop_attach(&LoopSpec { minor: Some(minor), ..loop_spec(image) });
    // Far from those that others take, and perhaps not there yet; few of them, since a device
    // stays once it is made.
    let (minor, device) = (0..16)
        .map(|i| 4000 + (std::process::id() + i) % 16)
        .find_map(|minor| Some((minor, at(&one, minor).ok()?)))
        .unwrap();
    assert_eq!(device.minor, minor);
    drop(device);
    assert!(is_detached(&s.kernel, &one));
    assert_eq!(at(&other, minor).unwrap().minor, minor);
}

#[test]
fn concurrent_attaches_get_one_device_each() {
    let s = Scratch::new();
    let image = |i| s.image(&format!("image{i}"), MI);
    let images: Vec<File> = (0..12).map(image).collect();
    let mut minors: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = images.iter().map(|image| scope.spawn(|| s.attach(image))).collect();
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
fn read_ahead_is_set() {
    let s = Scratch::new();
    let image = s.image("image", MI);
    let device = s.attach(&image);
    let path = format!("/sys/block/loop{}/queue/read_ahead_kb", device.minor);
    for kib in [512, 128] {
        s.kernel.loop_set_read_ahead(&device, kib).unwrap();
        let set = std::fs::read_to_string(&path).unwrap();
        assert_eq!(set.trim(), kib.to_string());
    }
}

#[test]
fn a_file_that_cannot_do_direct_io_is_attached_buffered() {
    let s = Scratch::new();
    // A reflinked file on blocks larger than the device's can't do direct I/O at 4096.
    let pool = s.image("pool", 400 * MI);
    let device = s.attach(&pool);
    let options = ["-b", "size=16384"].map(str::to_owned);
    let path = device.path();
    let large_blocks = MkfsSpec { options: &options, ..mkfs_spec(&path, FsType::Xfs) };
    s.kernel.mkfs(&large_blocks).unwrap();
    let at = s.dir("pool.mnt");
    mount_fs(&s.kernel, &device, &at, FsType::Xfs);
    let image = sparse(&at.join("image"), 8 * MI);
    (&image).write_all(&[1; 65536]).unwrap();
    file::clone(&image, &sparse(&at.join("clone"), 0)).unwrap();
    let volume = s.attach(&image);
    assert!(!volume.direct_io);
    assert!(!s.kernel.loop_info(volume.minor).unwrap().unwrap().direct_io);
    assert!(!s.kernel.loop_set_direct_io(&volume, true).unwrap());
    let read = std::fs::read(loop_path(volume.minor)).unwrap();
    assert_eq!(read[..65536], [1; 65536]);
}
