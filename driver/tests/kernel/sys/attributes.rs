//! Attributes of devices in a container with a read-only `/sys`.

use std::fs::read_to_string;
use std::path::Path;

use hostloop_driver::kernel::FsType::Xfs;
use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::kernel::{LoopDevices, Mounts};
use nix::mount::{MsFlags, mount};
use rustix::io::Errno;

use super::scratch::{Scratch, size};
use crate::testkit::mount_fs;
use crate::tools::own_namespace;

/// CRI-O and others mount sysfs read-only in some containers.
#[test]
fn a_read_only_sys_keeps_no_attribute_from_being_set() {
    let s = Scratch::new();
    let (_image, device) = s.made("image", Xfs, size(Xfs));
    let at = s.dir("at");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            own_namespace(&Linux::default(), s.path());
            let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
            mount(None::<&str>, "/sys", None::<&str>, read_only, None::<&str>).unwrap();
            let name = device
                .path()
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            let attribute = format!("/sys/block/{name}/queue/read_ahead_kb");
            let refused = std::fs::write(&attribute, "64").unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));

            s.kernel.check_device_attributes().unwrap();
            s.kernel.loop_set_read_ahead(&device, 64).unwrap();
            assert_eq!(read_to_string(&attribute).unwrap().trim(), "64");
            // The limit on its retries keeps an XFS from hanging in the kernel.
            mount_fs(&s.kernel, &device, &at, Xfs);
            let limits = Path::new("/sys/fs/xfs")
                .join(name)
                .join("error/metadata/EIO");
            let limit = read_to_string(limits.join("retry_timeout_seconds")).unwrap();
            assert_eq!(limit.trim(), "30");
            s.kernel.unmount(&at).unwrap();
        });
    });
}
