//! Behaviour of loop devices that the model lacks. The rest is in the script that both kernels run.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use hostloop_driver::kernel::{
    Filesystems, FsType, LoopDevices, LoopSpec, MkfsSpec, file, file_id, loop_path,
};
use loopdev::LoopControl;

use super::scratch::{Scratch, is_detached, lasting};
use crate::testkit::{MI, loop_spec, mount_fs};
use crate::tools::sparse;

#[test]
fn an_exact_minor_can_be_chosen_again_after_a_detach() {
    let s = Scratch::new();
    let (one, other) = (s.image("one", MI), s.image("other", MI));
    let at = |image, minor| {
        s.kernel.loop_attach(&LoopSpec {
            minor: Some(minor),
            ..loop_spec(image)
        })
    };
    // These minors are far from those that others take, and may not exist yet. They are few,
    // because the kernel keeps a device once it is made.
    let (minor, device) = (0..16)
        .map(|i| 4000 + (std::process::id() + i) % 16)
        .find_map(|minor| Some((minor, at(&one, minor).ok()?)))
        .unwrap();
    assert_eq!(device.minor, minor);
    let number = s.kernel.loop_diskseq(minor).unwrap();
    drop(device);
    assert!(is_detached(&s.kernel, &one));
    let device = at(&other, minor).unwrap();
    assert_eq!(device.minor, minor);
    // So a node can tell this device from the one that it knows.
    assert!(number.is_some() && number != s.kernel.loop_diskseq(minor).unwrap());
}

#[test]
fn a_file_that_cannot_do_direct_io_is_attached_buffered() {
    let s = Scratch::new();
    // A reflinked file on blocks larger than the device's can't do direct I/O at 4096.
    let pool = s.image("pool", 400 * MI);
    let device = s.attach(&pool);
    let options = ["-b", "size=16384"].map(str::to_owned);
    let path = device.path();
    let large_blocks = MkfsSpec {
        options: &options,
        ..MkfsSpec::new(&path, FsType::Xfs)
    };
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

/// Claims the free device that the kernel offers next. Until the claim ends, a file can't be
/// attached there, as while the kernel detaches one.
fn claim_free() -> File {
    let control = LoopControl::open().unwrap();
    loop {
        let path = control.next_free().unwrap().path().unwrap();
        let claim = File::options()
            .read(true)
            .custom_flags(libc::O_EXCL)
            .open(&path);
        let attached = Path::new("/sys/block")
            .join(path.file_name().unwrap())
            .join("loop");
        // Another test may have been faster.
        if let Ok(claim) = claim
            && !attached.exists()
        {
            return claim;
        }
    }
}

/// The kernel offers the same free device to all, even while it is busy.
#[test]
fn many_attach_and_detach_at_once_beside_a_busy_device() {
    let s = Scratch::new();
    let images: Vec<_> = (0..16).map(|i| s.image(&i.to_string(), MI)).collect();
    let _busy = claim_free();
    std::thread::scope(|scope| {
        for image in &images {
            let kernel = &s.kernel;
            scope.spawn(move || {
                let id = file_id(image).unwrap();
                for _ in 0..10 {
                    let device = kernel.loop_attach(&lasting(image)).unwrap();
                    let minor = device.minor;
                    drop(device);
                    kernel.loop_detach(minor, id).unwrap();
                }
            });
        }
    });
}
