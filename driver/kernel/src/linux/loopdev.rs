//! Loop devices: attaches with one call, finds devices by backing file, and verifies each detach.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use linux_raw_sys::loop_device::loop_info64;
use loopdev::LoopControl;

use super::asking::{Asking, PATIENCE};
use super::ioctl::{self, flags};
use super::uevents::{DeviceChanges, Uevents};
use super::{Linux, attributes, device_size, read_attribute, sysfs};
use crate::failpoint::effect;
use crate::stand_ins;
use crate::under_way::UnderWayGuard;
use crate::{
    BLOCK_SIZE, Detached, Error, FileId, LoopDevice, LoopDevices, LoopInfo, LoopScope, LoopSpec,
    Mounts, Result, file_id, loop_path,
};

mod device_nodes;
mod diskseq;
mod writes;

pub(super) use device_nodes::keep_spares;
use device_nodes::open_node;
pub(super) use diskseq::diskseq;
pub(super) use writes::writes;

/// How many minors an attach tries. Another process may take the offered device before the attach,
/// but hardly so many times in a row.
const ATTEMPTS: u32 = 128;

/// Opens `/dev/loop-control`.
pub(super) fn control() -> Result<LoopControl> {
    LoopControl::open().map_err(|e| Error::io("open", "/dev/loop-control", e))
}

pub(super) fn attach(linux: &Linux, spec: &LoopSpec<'_>) -> Result<LoopDevice> {
    let (minor, configured) = match spec.minor {
        Some(minor) => (minor, attach_there(linux, spec, minor)?),
        None => attach_free(linux, spec)?,
    };
    let held = hold(linux, minor, spec);
    // Only now: closing the last handle would detach an autoclear device.
    drop(configured);
    if held.is_err() {
        // No other code knows the device yet. Report the first error, not this one.
        let _ = file_id(spec.backing).and_then(|backing| detach(linux, minor, backing));
    }
    held
}

/// Opens the device that callers hold, for reading only. A writer blocks a mount if the kernel
/// protects mounted devices (CONFIG_BLK_DEV_WRITE_MOUNTED=n).
fn hold(linux: &Linux, minor: u32, spec: &LoopSpec<'_>) -> Result<LoopDevice> {
    let file = open_node(linux.dev_makes_nodes(), minor, false)?;
    let direct_io = direct_io(minor)?;
    if spec.direct_io && !direct_io {
        tracing::warn!(
            device = %loop_path(minor).display(), label = spec.label,
            "the backing file can't do direct I/O: attached buffered"
        );
    }
    if !linux.dev_makes_nodes() {
        // The look keeps spare nodes, one of which this device may have taken.
        linux.known_loops(LoopScope::All)?;
    }
    Ok(LoopDevice {
        minor,
        direct_io,
        file,
    })
}

/// Opens the kernel's messages, and attaches a loop device for an instant to see that the kernel
/// announces it. `None` if it does not.
pub(super) fn proved_uevents(linux: &Linux) -> Option<Uevents> {
    let uevents = Uevents::open().ok()?;
    let backing = rustix::fs::memfd_create("hostloop", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
    rustix::fs::ftruncate(&backing, BLOCK_SIZE.into()).ok()?;
    let control = control().ok()?;
    let with = ioctl::Configure {
        backing: backing.as_fd(),
        block_size: BLOCK_SIZE,
        flags: flags::AUTOCLEAR,
        label: "hostloop looks for uevents",
        offset: 0,
    };
    let (minor, _device) = first_free(
        || offered(&control),
        |minor| enter(linux, minor),
        |minor| {
            add(minor)?;
            let device = open_node(linux.dev_makes_nodes(), minor, true)?;
            let attached = ioctl::loop_configure(&device, &with);
            attached.map_err(|e| Error::io("LOOP_CONFIGURE", loop_path(minor), e))?;
            Ok(device)
        },
    )
    .ok()?;
    let announced = match uevents.drain().ok()? {
        DeviceChanges::Loops(minors) => minors.contains(&minor),
        DeviceChanges::Unknown => false,
    };
    announced.then_some(uevents)
}

/// Opening a block device with O_EXCL claims it, and only one opener at a time can claim it.
pub(super) fn is_claimed(device: &Path) -> Result<bool> {
    let mut options = OpenOptions::new();
    match options.read(true).custom_flags(libc::O_EXCL).open(device) {
        Ok(_) => Ok(false),
        Err(e) if is(&e, libc::EBUSY) => Ok(true),
        Err(e) => Err(Error::io("open", device, e)),
    }
}

fn attach_free(linux: &Linux, spec: &LoopSpec<'_>) -> Result<(u32, File)> {
    let control = control()?;
    // A leftover bind of the device node would expose this file.
    let mounts = linux.known_mounts()?;
    first_free(
        || offered(&control),
        |minor| {
            let is_bound = mounts.of_loop_node(minor).next().is_some();
            if is_bound { None } else { enter(linux, minor) }
        },
        |minor| attach_at(linux, spec, minor),
    )
}

/// The minor that the kernel offers to attach a file at.
fn offered(control: &LoopControl) -> Result<u32> {
    let free = ioctl::loop_get_free(control);
    free.map_err(|e| Error::io("LOOP_CTL_GET_FREE", "/dev/loop-control", e))
}

/// Keeps other threads from this minor. `None` if one of them attaches a file there, or one is
/// attached.
fn enter(linux: &Linux, minor: u32) -> Option<UnderWayGuard<'_, u32>> {
    let entered = linux.attaching.enter(minor);
    // The kernel refuses one that is attached after all.
    entered.filter(|_| !sysfs(minor, "loop/backing_file").exists())
}

/// Attaches at the first minor, from the one that the kernel offers, that `enter` admits and
/// `attach` does not find taken.
fn first_free<E, T>(
    offer: impl Fn() -> Result<u32>,
    enter: impl Fn(u32) -> Option<E>,
    mut attach: impl FnMut(u32) -> Result<T>,
) -> Result<(u32, T)> {
    // A device that the kernel is detaching stays busy for milliseconds.
    let mut refused = HashSet::new();
    for _ in 0..ATTEMPTS {
        let mut usable = (offer()?..).filter(|minor| !refused.contains(minor));
        let Some((minor, _attempt)) = usable.find_map(|minor| Some((minor, enter(minor)?))) else {
            break;
        };
        match attach(minor) {
            // Another process took the device, or the kernel is detaching it. Never clear it: it
            // belongs to that process.
            Err(Error::Busy { .. }) => {}
            Err(Error::Io { ref source, .. }) if is(source, libc::ENXIO) => {}
            other => return other.map(|attached| (minor, attached)),
        }
        refused.insert(minor);
    }
    Err(Error::errno(
        "LOOP_CONFIGURE",
        "/dev/loop-control",
        libc::EBUSY,
    ))
}

/// Attaches at this minor and no other. A device that the kernel is still detaching is busy for
/// milliseconds, without a file that sysfs shows.
fn attach_there(linux: &Linux, spec: &LoopSpec<'_>, minor: u32) -> Result<File> {
    for pause in [1, 2, 5, 10, 20, 40] {
        match attach_at(linux, spec, minor) {
            Err(Error::Busy { .. }) if !is_attached(minor) => sleep(Duration::from_millis(pause)),
            attached => return attached,
        }
    }
    attach_at(linux, spec, minor)
}

fn attach_at(linux: &Linux, spec: &LoopSpec<'_>, minor: u32) -> Result<File> {
    add(minor)?;
    configure(linux, spec, minor)
}

/// Makes the device with this minor, unless it exists.
fn add(minor: u32) -> Result<()> {
    if sysfs(minor, "").exists() {
        return Ok(());
    }
    let control = control()?;
    match effect("loop.add").and_then(|()| ioctl::loop_add(&control, minor)) {
        Err(e) if is(&e, libc::EEXIST) => Ok(()),
        added => added.map_err(|e| Error::io("LOOP_CTL_ADD", loop_path(minor), e)),
    }
}

/// Calls LOOP_CONFIGURE and returns the open device. The open handle keeps it attached.
fn configure(linux: &Linux, spec: &LoopSpec<'_>, minor: u32) -> Result<File> {
    // The kernel configures a device read-only if it is open only for reading.
    let device = open_node(linux.dev_makes_nodes(), minor, !spec.read_only)?;
    let wanted = [
        (spec.read_only, flags::READ_ONLY),
        (spec.autoclear, flags::AUTOCLEAR),
        (spec.direct_io, flags::DIRECT_IO),
    ]
    .into_iter()
    .fold(0, |all, (on, flag)| if on { all | flag } else { all });
    let mut with = ioctl::Configure {
        backing: spec.backing.as_fd(),
        block_size: BLOCK_SIZE,
        flags: wanted,
        label: spec.label,
        offset: spec.offset,
    };
    let mut done = effect("loop.attach").and_then(|()| ioctl::loop_configure(&device, &with));
    // If direct I/O is impossible, some kernels fail with EINVAL and others continue without it.
    if matches!(&done, Err(e) if is(e, libc::EINVAL)) && spec.direct_io {
        with.flags &= !flags::DIRECT_IO;
        done = ioctl::loop_configure(&device, &with);
    }
    done.map_err(|e| Error::io("LOOP_CONFIGURE", loop_path(minor), e))?;
    Ok(device)
}

/// Minors of the attached devices, in order.
pub(super) fn attached_minors() -> Result<Vec<u32>> {
    const BLOCK_DEVICES: &str = "/sys/block";
    let listed =
        std::fs::read_dir(BLOCK_DEVICES).and_then(|all| all.collect::<io::Result<Vec<_>>>());
    let mut minors = Vec::new();
    for entry in listed.map_err(|e| Error::io("readdir", BLOCK_DEVICES, e))? {
        let name = entry.file_name();
        let minor = name
            .to_str()
            .and_then(|name| name.strip_prefix("loop")?.parse().ok());
        minors.extend(minor.filter(|minor| is_attached(*minor)));
    }
    minors.sort_unstable();
    Ok(minors)
}

fn is_attached(minor: u32) -> bool {
    attributes::may_exist(&sysfs(minor, "loop/backing_file"))
}

/// Queries the devices that the scope needs. Of others it reads the path only: an open would wait
/// for a concurrent attach or detach of that device, and delay its detach. Leaves out devices
/// without a backing file.
pub(super) fn infos_in(linux: &Linux, minors: &[u32], scope: LoopScope<'_>) -> Vec<LoopInfo> {
    let (mut needed, mut found) = (Vec::new(), Vec::new());
    for minor in minors.iter().copied() {
        match backing_path(minor) {
            Ok(None) => {}
            Ok(Some(backing_path)) if !scope.needs(minor, &backing_path) => {
                found.push(LoopInfo {
                    minor,
                    backing_path,
                    ..LoopInfo::default()
                });
            }
            _ => needed.push(minor),
        }
    }
    if !needed.is_empty() {
        found.extend(infos(linux, &needed));
    }
    found
}

/// Queries these devices, and leaves out those without a backing file. A device that fails or hangs
/// does not hide the others.
pub(super) fn infos(linux: &Linux, minors: &[u32]) -> Vec<LoopInfo> {
    let makes_nodes = linux.dev_makes_nodes();
    let answers = linux
        .asking
        .ask(minors, move |minor| info(makes_nodes, minor));
    let known = answers.into_iter().filter_map(|(minor, answer)| {
        let why = match answer {
            Some(Ok(info)) => return info,
            Some(Err(e)) => e.to_string(),
            None => "it does not answer".to_owned(),
        };
        let silent = silent_info(minor)?;
        tracing::debug!(device = %loop_path(minor).display(), why, "can't query a loop device");
        Some(silent)
    });
    known.collect()
}

/// Opens a device to query it. This is safe even if the kernel is about to detach the device: it
/// then detaches it when this handle closes.
fn info(makes_nodes: bool, minor: u32) -> Result<Option<LoopInfo>> {
    if !is_attached(minor) {
        return Ok(None);
    }
    let Some((device, status)) = status(makes_nodes, minor)? else {
        return Ok(None);
    };
    // Read while the device is open: until then, another file may have been attached.
    let Some(backing_path) = backing_path(minor)? else {
        return Ok(None);
    };
    let path = loop_path(minor);
    let label = status.lo_file_name.split(|b| *b == 0).next();
    Ok(Some(LoopInfo {
        minor,
        backing: Some(backing_of(&status)),
        backing_rdev: status.lo_rdevice,
        backing_path,
        offset: status.lo_offset,
        size_limit: status.lo_sizelimit,
        label: String::from_utf8_lossy(label.unwrap_or_default()).into_owned(),
        size_bytes: device_size(&device, &path)?,
        block_size: rustix::fs::ioctl_blksszget(&device)
            .map_err(|e| Error::io("BLKSSZGET", &path, e.into()))?,
        read_only: status.lo_flags & flags::READ_ONLY != 0,
        autoclear: status.lo_flags & flags::AUTOCLEAR != 0,
        direct_io: unless_gone(direct_io(minor))?.unwrap_or(false),
    }))
}

/// The backing file, or the image that it stands in for.
fn backing_of(status: &loop_info64) -> FileId {
    stand_ins::image_of(FileId {
        dev: status.lo_device,
        ino: status.lo_inode,
    })
}

/// Opens a device and returns its status; `None` if nothing is attached.
fn status(makes_nodes: bool, minor: u32) -> Result<Option<(File, loop_info64)>> {
    let Some(device) = unless_gone(open_node(makes_nodes, minor, false))? else {
        return Ok(None);
    };
    match ioctl::loop_get_status(&device) {
        Ok(status) => Ok(Some((device, status))),
        Err(e) if is(&e, libc::ENXIO) => Ok(None),
        Err(e) => Err(Error::io("LOOP_GET_STATUS64", loop_path(minor), e)),
    }
}

/// Returns what sysfs shows of a device that can't be queried. Reading sysfs does not call a
/// filesystem.
fn silent_info(minor: u32) -> Option<LoopInfo> {
    let backing_path = match backing_path(minor) {
        Ok(path) => path?,
        Err(_) => String::new(),
    };
    Some(LoopInfo {
        minor,
        backing: None,
        backing_rdev: 0,
        backing_path,
        offset: number(minor, "loop/offset"),
        size_limit: number(minor, "loop/sizelimit"),
        label: String::new(),
        size_bytes: number(minor, "size").saturating_mul(512),
        block_size: u32::try_from(number(minor, "queue/logical_block_size")).unwrap_or_default(),
        read_only: number(minor, "ro") != 0,
        autoclear: number(minor, "loop/autoclear") != 0,
        direct_io: number(minor, "loop/dio") != 0,
    })
}

/// A number in sysfs; 0 if it can't be read.
fn number(minor: u32, attribute: &str) -> u64 {
    let text = read_attribute(&sysfs(minor, attribute)).unwrap_or_default();
    text.parse().unwrap_or_default()
}

/// The image behind a loop device, or else the device itself. Errors name it: a person who reads
/// one later may find another volume at the device's number.
pub(super) fn image_of(device: &Path) -> PathBuf {
    let name = device.file_name().and_then(|name| name.to_str());
    let minor = name.and_then(|name| name.strip_prefix("loop")?.parse().ok());
    let image = minor.and_then(|minor| backing_path(minor).ok().flatten());
    let known = image.filter(|path| path.starts_with('/') && !path.ends_with(" (deleted)"));
    known.map_or_else(|| device.to_path_buf(), PathBuf::from)
}

/// Path of the backing file. `None` if nothing is attached, empty if the path is longer than the
/// kernel shows.
fn backing_path(minor: u32) -> Result<Option<String>> {
    match read_attribute(&sysfs(minor, "loop/backing_file")) {
        Err(Error::Io { source, .. }) if is(&source, libc::ENAMETOOLONG) => Ok(Some(String::new())),
        path => unless_gone(path),
    }
}

/// Opens the device for reading; `None` if it does not have this backing file.
fn open_attached(linux: &Linux, minor: u32, backing: FileId) -> Result<Option<File>> {
    if !is_attached(minor) {
        return Ok(None);
    }
    let makes_nodes = linux.dev_makes_nodes();
    let backing = stand_ins::image_of(backing);
    ask(&linux.asking, minor, move || {
        let attached =
            status(makes_nodes, minor)?.filter(|(_, status)| backing_of(status) == backing);
        Ok(attached.map(|(device, _)| device))
    })
}

/// Runs a query on one device.
fn ask<T: Send + 'static>(
    asking: &Asking,
    minor: u32,
    question: impl Fn() -> Result<T> + Send + Sync + 'static,
) -> Result<T> {
    let mut answers = asking.ask(&[minor], move |_| question());
    let answer = answers.pop().and_then(|(_, answer)| answer);
    answer.unwrap_or_else(|| {
        Err(Error::TimedOut {
            op: "LOOP_GET_STATUS64",
            path: loop_path(minor),
            seconds: PATIENCE.as_secs(),
        })
    })
}

pub(super) fn open(linux: &Linux, minor: u32, backing: FileId) -> Result<LoopDevice> {
    let file = open_attached(linux, minor, backing)?
        .ok_or_else(|| Error::errno("open", loop_path(minor), libc::ENOENT))?;
    Ok(LoopDevice {
        minor,
        direct_io: direct_io(minor)?,
        file,
    })
}

pub(super) fn detach(linux: &Linux, minor: u32, backing: FileId) -> Result<Detached> {
    // While this handle is open, no process can attach another file to this minor.
    let Some(device) = open_attached(linux, minor, backing)? else {
        return Ok(Detached::Gone);
    };
    if clear(device, minor)? {
        return Ok(Detached::Gone);
    }
    let is_same = infos(linux, &[minor]).pop().is_some_and(|info| {
        info.backing
            .is_none_or(|now| now == stand_ins::image_of(backing))
    });
    Ok(if is_same {
        Detached::WhenClosed
    } else {
        Detached::Gone
    })
}

pub(super) fn detach_silent(linux: &Linux, minor: u32, path: &str) -> Result<Detached> {
    if !has_backing_path(minor, path)? {
        return Ok(Detached::Gone);
    }
    let makes_nodes = linux.dev_makes_nodes();
    let opened = ask(&linux.opening, minor, move || {
        open_node(makes_nodes, minor, false)
    });
    let Some(device) = unless_gone(opened)? else {
        return Ok(Detached::Gone);
    };
    // Check again: while the device is open, no other file can be attached to this minor.
    if !has_backing_path(minor, path)? || clear(device, minor)? || !has_backing_path(minor, path)? {
        return Ok(Detached::Gone);
    }
    Ok(Detached::WhenClosed)
}

fn has_backing_path(minor: u32, path: &str) -> Result<bool> {
    Ok(backing_path(minor)?.is_some_and(|now| now == path))
}

/// Detaches the file of an open device, and closes the device. True if the file was detached.
fn clear(device: File, minor: u32) -> Result<bool> {
    match effect("loop.detach").and_then(|()| ioctl::loop_clear(&device)) {
        Err(e) if is(&e, libc::ENXIO) => return Ok(true),
        cleared => cleared.map_err(|e| Error::io("LOOP_CLR_FD", loop_path(minor), e))?,
    }
    drop(device);
    // Success proves little: if another process has the device open, the kernel only marks it. Some
    // processes open every device for a moment (udev, a concurrent listing), so wait for them.
    Ok([0, 1, 2, 5, 10, 20, 40, 80, 160].into_iter().any(|pause| {
        sleep(Duration::from_millis(pause));
        !is_attached(minor)
    }))
}

pub(super) fn grow(device: &LoopDevice) -> Result<()> {
    effect("loop.grow")
        .and_then(|()| ioctl::loop_set_capacity(&device.file))
        .map_err(|e| Error::io("LOOP_SET_CAPACITY", device.path(), e))
}

/// Keeps all else of the status. The kernel writes the cache of the device back first, and an older
/// one refuses the change with EAGAIN while there is any.
pub(super) fn limit(device: &LoopDevice, bytes: u64) -> Result<()> {
    set_limit(&device.file, bytes).map_err(|e| Error::io("LOOP_SET_STATUS64", device.path(), e))
}

fn set_limit(device: &File, bytes: u64) -> io::Result<()> {
    effect("loop.limit")?;
    let mut status = ioctl::loop_get_status(device)?;
    status.lo_sizelimit = bytes;
    for pause in [1, 5, 20, 80] {
        match ioctl::loop_set_status(device, &status) {
            Err(e) if is(&e, libc::EAGAIN) => sleep(Duration::from_millis(pause)),
            set => return set,
        }
    }
    ioctl::loop_set_status(device, &status)
}

pub(super) fn set_direct_io(device: &LoopDevice, on: bool) -> Result<bool> {
    let set = effect("loop.direct-io").and_then(|()| ioctl::loop_set_direct_io(&device.file, on));
    match set {
        // The backing file can't do direct I/O; the value read below shows it.
        Err(e) if is(&e, libc::EINVAL) && on => {}
        set => set.map_err(|e| Error::io("LOOP_SET_DIRECT_IO", device.path(), e))?,
    }
    direct_io(device.minor)
}

pub(super) fn set_read_ahead(device: &LoopDevice, kib: u32) -> Result<()> {
    let path = sysfs(device.minor, "queue/read_ahead_kb");
    let written =
        effect("loop.read-ahead").and_then(|()| attributes::write(&path, &kib.to_string()));
    match written {
        // The volume works without it, and the health of its pool says so.
        Err(error) if attributes::is_refused(&error) => {
            tracing::debug!(path = %path.display(), %error, "read-ahead stays as it is");
            Ok(())
        }
        written => written.map_err(|e| Error::io("write", &path, e)),
    }
}

pub(super) fn flush(device: &LoopDevice) -> Result<()> {
    effect("loop.flush")
        .and_then(|()| ioctl::flush_device(&device.file))
        .map_err(|e| Error::io("BLKFLSBUF", device.path(), e))?;
    device
        .file
        .sync_all()
        .map_err(|e| Error::io("fsync", device.path(), e))
}

pub(super) fn drop_cache(device: &LoopDevice) -> Result<()> {
    effect("loop.drop-cache")
        .and_then(|()| ioctl::flush_device(&device.file))
        .map_err(|e| Error::io("BLKFLSBUF", device.path(), e))
}

/// True if direct I/O is active according to sysfs. A request for it may have no effect.
fn direct_io(minor: u32) -> Result<bool> {
    Ok(read_attribute(&sysfs(minor, "loop/dio"))? == "1")
}

fn is(e: &io::Error, errno: i32) -> bool {
    e.raw_os_error() == Some(errno)
}

/// `None` for the error of a device that disappeared between two calls.
fn unless_gone<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(Error::NotFound { .. }) => Ok(None),
        Err(Error::Io { source, .. }) if is(&source, libc::ENXIO) || is(&source, libc::ENODEV) => {
            Ok(None)
        }
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests;
