//! The model's loop devices, as [`LoopDevices`].

use std::path::Path;

use hostloop_kernel::file::name_of;
use hostloop_kernel::{
    Detached, Error, FileId, KnownLoops, LoopDevice, LoopDevices, LoopInfo, LoopScope, LoopSpec,
    Result, loop_path,
};

use super::Model;
use super::state::State;

impl LoopDevices for Model {
    fn boot_id(&self) -> Result<String> {
        Ok(format!("boot-{}", self.script.lock().boots + 1))
    }

    fn loop_attach(&self, spec: &LoopSpec<'_>) -> Result<LoopDevice> {
        self.act("loop.attach", &name_of(spec.backing), |s| s.attach(spec))
    }

    fn loops(&self) -> Result<Vec<LoopInfo>> {
        self.ask("loops", Path::new("/sys/block"), |s| {
            Ok(s.loops.keys().filter_map(|minor| s.info(*minor)).collect())
        })
    }

    /// The model knows all of its devices, always as they are.
    fn known_loops(&self, _scope: LoopScope<'_>) -> Result<KnownLoops> {
        Ok(self.loops()?.into())
    }

    /// The model has nothing to forget. A test may have a hook here.
    fn forget_loops(&self) {
        let _ = self.enter("forget_loops", Path::new(""), false);
    }

    /// A look of the model is never old.
    fn confirm_loops(&self, _loops: &[&LoopInfo]) -> bool {
        true
    }

    fn loop_info(&self, minor: u32) -> Result<Option<LoopInfo>> {
        self.ask("loop_info", &loop_path(minor), |s| Ok(s.info(minor)))
    }

    fn loop_diskseq(&self, minor: u32) -> Result<Option<u64>> {
        self.ask("loop_diskseq", &loop_path(minor), |s| {
            Ok(s.loops.get(&minor).map(|slot| slot.diskseq))
        })
    }

    fn loop_open(&self, minor: u32, backing: FileId) -> Result<LoopDevice> {
        let path = loop_path(minor);
        self.ask("loop_open", &path, |s| match s.loops.get(&minor) {
            Some(slot) if slot.silent => Err(Error::errno("LOOP_GET_STATUS64", &path, libc::EIO)),
            Some(slot) if slot.backing == backing => s.open(minor),
            _ => Err(Error::errno("open", &path, libc::ENOENT)),
        })
    }

    fn loop_detach(&self, minor: u32, backing: FileId) -> Result<Detached> {
        let path = loop_path(minor);
        self.detach(minor, |s| match s.loops.get(&minor) {
            Some(slot) if slot.silent => Err(Error::errno("LOOP_GET_STATUS64", &path, libc::EIO)),
            slot => Ok(slot.is_some_and(|slot| slot.backing == backing)),
        })
    }

    fn loop_detach_silent(&self, minor: u32, backing_path: &str) -> Result<Detached> {
        self.detach(minor, |s| {
            let info = s.info(minor);
            Ok(info.is_some_and(|info| info.backing_path == backing_path))
        })
    }

    fn loop_size(&self, device: &LoopDevice) -> Result<u64> {
        self.ask("loop_size", &device.path(), |s| {
            Ok(s.info(device.minor).map_or(0, |l| l.size_bytes))
        })
    }

    fn loop_grow(&self, device: &LoopDevice) -> Result<()> {
        self.act("loop.grow", &device.path(), |s| s.resize(device.minor))
    }

    fn loop_limit(&self, device: &LoopDevice, bytes: u64) -> Result<()> {
        self.act("loop.limit", &device.path(), |s| {
            s.slot(device.minor, "LOOP_SET_STATUS64")?.size_limit = bytes;
            s.resize(device.minor)
        })
    }

    fn loop_set_direct_io(&self, device: &LoopDevice, on: bool) -> Result<bool> {
        self.act("loop.direct-io", &device.path(), |s| {
            let buffered = s.buffered.clone();
            let slot = s.slot(device.minor, "LOOP_SET_DIRECT_IO")?;
            slot.direct_io = on && !buffered.contains(&slot.backing);
            Ok(slot.direct_io)
        })
    }

    fn loop_set_read_ahead(&self, device: &LoopDevice, kib: u32) -> Result<()> {
        let read_only = self.script.lock().attributes_read_only;
        self.act("loop.read-ahead", &device.path(), |s| {
            let slot = s.slot(device.minor, "read_ahead_kb")?;
            if !read_only {
                slot.read_ahead_kib = kib;
            }
            Ok(())
        })
    }

    fn check_device_attributes(&self) -> Result<()> {
        if self.script.lock().attributes_read_only {
            return Err(Error::errno("open for writing", "/sys/block", libc::EROFS));
        }
        Ok(())
    }

    /// Nothing but this process uses the model's devices.
    fn holders(&self, _device: &Path) -> Vec<String> {
        Vec::new()
    }

    fn is_claimed(&self, device: &Path) -> Result<bool> {
        self.ask("is_claimed", device, |s| {
            Ok(s.is_mounted(device) && !s.is_passed_over(device))
        })
    }

    fn loop_flush(&self, device: &LoopDevice) -> Result<()> {
        self.act("loop.flush", &device.path(), |s| {
            s.slot(device.minor, "fsync").map(drop)
        })
    }

    fn loop_writes(&self, minor: u32) -> Result<u64> {
        self.ask("loop_writes", &loop_path(minor), |s| {
            s.slot(minor, "stat").map(|_| 0)
        })
    }

    fn loop_drop_cache(&self, device: &LoopDevice) -> Result<()> {
        self.act("loop.drop-cache", &device.path(), |s| {
            s.slot(device.minor, "drop").map(drop)
        })
    }
}

impl Model {
    /// Detaches a device if `same` confirms that it is the expected one.
    fn detach(&self, minor: u32, same: impl Fn(&State) -> Result<bool>) -> Result<Detached> {
        if !self.settled(|s| same(s))? {
            return Ok(Detached::Gone);
        }
        self.act("loop.detach", &loop_path(minor), |s| {
            if !same(s)? {
                return Ok(Detached::Gone);
            }
            // The flag stays set while the device is held: it then detaches at its last close.
            s.slot(minor, "LOOP_CLR_FD")?.autoclear = true;
            s.settle();
            Ok(if s.loops.contains_key(&minor) {
                Detached::WhenClosed
            } else {
                Detached::Gone
            })
        })
    }
}
