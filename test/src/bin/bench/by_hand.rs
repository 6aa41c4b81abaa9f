//! The system calls of a volume's life on an ext4 image, without the driver.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use hostloop_test::machine::{run, text};
use hostloop_test::pools::PoolFixture;
use hostloop_test::scratch::Scratch;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde::{Deserialize, Serialize};

use crate::attached::BYTES;
use crate::bare_loop;
use crate::measure::timed;
use crate::stage::image_beside;

/// A system call that no driver can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    Configure,
    Mount,
    Bind,
    Unbind,
    Unmount,
    Clear,
}

impl Step {
    pub(crate) const ALL: [Step; 6] = [
        Step::Configure,
        Step::Mount,
        Step::Bind,
        Step::Unbind,
        Step::Unmount,
        Step::Clear,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Step::Configure => "LOOP_CONFIGURE",
            Step::Mount => "mount of ext4",
            Step::Bind => "bind mount",
            Step::Unbind => "umount of a bind mount",
            Step::Unmount => "umount of ext4",
            Step::Clear => "detach of a loop device",
        }
    }
}

/// An ext4 image beside the pool's folders, to attach and mount without the driver.
pub(crate) struct ByHand {
    image: File,
    mounted: PathBuf,
    bound: PathBuf,
}

impl ByHand {
    pub(crate) fn new(pool: &PoolFixture, scratch: &Scratch, name: &str) -> ByHand {
        let path = image_beside(pool.root(), name, BYTES);
        // The loop device has blocks of this size.
        run("mkfs.ext4", &["-q", "-F", "-b", "4096", text(&path)]);
        let image = File::options().read(true).write(true).open(&path);
        ByHand {
            image: image.expect("the image is there"),
            mounted: scratch.dir(name),
            bound: scratch.dir(&format!("{name}-bound")),
        }
    }

    /// Attaches, mounts and binds the image, and undoes it. Returns milliseconds of each step.
    pub(crate) fn steps(&self) -> [(Step, f64); 6] {
        let ByHand {
            image,
            mounted,
            bound,
        } = self;
        let mut attached = None;
        let configure = timed(|| {
            attached = Some(loop {
                match bare_loop::attach(image) {
                    // Another thread was given the same free device.
                    Err(error) if error.kind() == ErrorKind::ResourceBusy => continue,
                    attached => break attached.expect("it attaches"),
                }
            });
        });
        let (minor, writable) = attached.expect("it was attached");
        let source = bare_loop::path(minor);
        // Some kernels refuse to mount a device that is open for writing.
        let device = File::open(&source).expect("the device is there");
        drop(writable);
        let mount_at = |from: &Path, at: &Path, fs, flags| {
            let none = None::<&str>;
            timed(|| mount(Some(from), at, fs, flags, none).expect("it can be mounted"))
        };
        let unmount = |at: &Path| {
            timed(|| umount2(at, MntFlags::UMOUNT_NOFOLLOW).expect("it can be unmounted"))
        };
        let mount = mount_at(&source, mounted, Some("ext4"), MsFlags::empty());
        let bind = mount_at(mounted, bound, None, MsFlags::MS_BIND);
        let unbind = unmount(bound);
        let unmount = unmount(mounted);
        // Closing the last handle detaches the device.
        let clear = timed(|| drop(device));
        [
            (Step::Configure, configure),
            (Step::Mount, mount),
            (Step::Bind, bind),
            (Step::Unbind, unbind),
            (Step::Unmount, unmount),
            (Step::Clear, clear),
        ]
    }

    /// The kernel steps of NodeStageVolume and NodeUnstageVolume. The bind mount is 1 % of them.
    pub(crate) fn cycle(&self) {
        self.steps();
    }
}
