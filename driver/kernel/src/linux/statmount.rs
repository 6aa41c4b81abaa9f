//! listmount(2) and statmount(2) (Linux 6.8): the IDs of all mounts, and one mount by its ID. Each
//! function is one call.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use linux_raw_sys::general as raw;

use crate::MountEntry;
use crate::mount_words::Words;

/// The fields that make a [`MountEntry`].
const FIELDS: u32 = raw::STATMOUNT_SB_BASIC
    | raw::STATMOUNT_MNT_BASIC
    | raw::STATMOUNT_MNT_ROOT
    | raw::STATMOUNT_MNT_POINT
    | raw::STATMOUNT_FS_TYPE
    | raw::STATMOUNT_MNT_OPTS
    | raw::STATMOUNT_FS_SUBTYPE
    | raw::STATMOUNT_SB_SOURCE;

/// Size of the part of an answer before its strings.
const FIXED: usize = size_of::<raw::statmount>();
/// A first buffer, large enough for nearly all mounts. Whole words, because the structure has
/// fields of eight bytes.
const BUFFER: usize = 4096 / 8;
/// The kernel limits each string to a page or a path; an overlay has long options.
const LARGEST: usize = 1 << 20;
/// IDs to read with one call.
const BATCH: usize = 512;

/// A mount, as statmount shows it.
pub(super) struct StatmountEntry<'a> {
    id: u64,
    unique_id: u64,
    parent: u64,
    device: (u32, u32),
    root: &'a OsStr,
    mount_point: &'a OsStr,
    options: String,
    fs_type: Cow<'a, str>,
    /// `None` if the kernel does not show it (before Linux 6.13), or if the mount has none.
    source: Option<Cow<'a, str>>,
    super_options: String,
}

impl StatmountEntry<'_> {
    pub(super) fn is_at(&self, path: &Path) -> bool {
        path == self.mount_point
    }

    pub(super) fn has_source(&self) -> bool {
        self.source.is_some()
    }

    fn source(&self) -> &str {
        self.source.as_deref().unwrap_or("none")
    }

    pub(super) fn entry(&self, words: &mut Words) -> MountEntry {
        MountEntry {
            id: self.id,
            unique_id: Some(self.unique_id),
            parent: self.parent,
            device: self.device,
            root: words.path(self.root),
            mount_point: self.mount_point.into(),
            options: words.options(&self.options),
            fs_type: words.text(&self.fs_type),
            source: words.text(self.source()),
            super_options: words.options(&self.super_options),
            loop_node: None,
            btrfs_loops: None,
        }
    }

    /// True if a known entry says the same. It is taken apart, so that no new field is forgotten.
    pub(super) fn is(&self, entry: &MountEntry) -> bool {
        let MountEntry {
            id,
            unique_id,
            parent,
            device,
            root,
            mount_point,
            options,
            fs_type,
            source,
            super_options,
            // Derived from the other mounts.
            loop_node: _,
            // Not in an answer.
            btrfs_loops: _,
        } = entry;
        (self.id, Some(self.unique_id), self.parent) == (*id, *unique_id, *parent)
            && self.device == *device
            && *root == self.root
            && *mount_point == self.mount_point
            && options.are(&self.options)
            && **fs_type == *self.fs_type
            && **source == *self.source()
            && super_options.are(&self.super_options)
    }
}

fn request(id: u64, param: u64) -> raw::mnt_id_req {
    let size = size_of::<raw::mnt_id_req>();
    raw::mnt_id_req {
        size: size as u32,
        spare: 0,
        mnt_id: id,
        param,
        mnt_ns_id: 0,
    }
}

/// The unique IDs of the mounts of this thread's namespace that are greater than `after`, in the
/// order of mountinfo. The kernel gives each new mount a greater ID.
pub(super) fn list(after: u64) -> io::Result<Vec<u64>> {
    list_beneath(raw::LSMT_ROOT as i64 as u64, after)
}

/// True if anything is mounted on this mount.
pub(super) fn has_beneath(id: u64) -> io::Result<bool> {
    Ok(!list_beneath(id, 0)?.is_empty())
}

fn list_beneath(mount: u64, after: u64) -> io::Result<Vec<u64>> {
    let mut ids = Vec::new();
    loop {
        let last = ids.last().copied().unwrap_or(after);
        let request = request(mount, last);
        let mut room = [0_u64; BATCH];
        // SAFETY: the request has its size. The kernel writes at most `room.len()` IDs.
        let answer = unsafe {
            libc::syscall(
                raw::__NR_listmount.into(),
                &raw const request,
                room.as_mut_ptr(),
                room.len(),
                0,
            )
        };
        let more = usize::try_from(answer).map_err(|_| io::Error::last_os_error())?;
        ids.extend_from_slice(&room[..more]);
        if more < room.len() {
            return Ok(ids);
        }
    }
}

/// Looks at a mount by its unique ID; `None` if it is not in this thread's namespace any more.
pub(super) fn stat<T>(
    id: u64,
    look: impl FnOnce(&StatmountEntry<'_>) -> T,
) -> io::Result<Option<T>> {
    let request = request(id, FIELDS.into());
    // Nearly all answers need no allocation.
    let (mut first, mut larger) = ([0_u64; BUFFER], Vec::new());
    let mut len = first.len();
    loop {
        let buffer = if len == first.len() {
            &mut first[..]
        } else {
            &mut larger[..]
        };
        // SAFETY: the request is whole and has its size; the kernel writes at most as many bytes
        // as the buffer has.
        let answer = unsafe {
            libc::syscall(
                raw::__NR_statmount.into(),
                &raw const request,
                buffer.as_mut_ptr(),
                size_of_val(buffer),
                0,
            )
        };
        if answer == 0 {
            return Ok(Some(look(&read(buffer))));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT) => return Ok(None),
            Some(libc::EOVERFLOW) if size_of_val(buffer) < LARGEST => {
                len *= 4;
                larger.resize(len, 0);
            }
            _ => return Err(error),
        }
    }
}

fn read(buffer: &[u64]) -> StatmountEntry<'_> {
    assert!(size_of_val(buffer) >= FIXED);
    // SAFETY: the buffer is at least as large as the structure and aligned for it. All its fields
    // are integers, for which any bits are valid.
    let answer = unsafe { &*buffer.as_ptr().cast::<raw::statmount>() };
    // SAFETY: the same memory, as bytes.
    let bytes =
        unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), size_of_val(buffer)) };
    let strings = Strings {
        mask: answer.mask,
        bytes,
    };
    let mut fs_type = strings
        .text(raw::STATMOUNT_FS_TYPE, answer.fs_type)
        .unwrap_or_default();
    if let Some(subtype) = strings.text(raw::STATMOUNT_FS_SUBTYPE, answer.fs_subtype) {
        fs_type = format!("{fs_type}.{subtype}").into();
    }
    let read_only = answer.sb_flags & libc::MS_RDONLY as u32 != 0;
    let access = if read_only { "ro" } else { "rw" };
    let super_options = match strings.text(raw::STATMOUNT_MNT_OPTS, answer.mnt_opts) {
        Some(options) if !options.is_empty() => format!("{access},{options}"),
        _ => access.to_owned(),
    };
    StatmountEntry {
        id: answer.mnt_id_old.into(),
        unique_id: answer.mnt_id,
        parent: answer.mnt_parent_id_old.into(),
        device: (answer.sb_dev_major, answer.sb_dev_minor),
        root: strings.path(raw::STATMOUNT_MNT_ROOT, answer.mnt_root),
        mount_point: strings.path(raw::STATMOUNT_MNT_POINT, answer.mnt_point),
        options: flags(answer.mnt_attr),
        fs_type,
        source: strings.text(raw::STATMOUNT_SB_SOURCE, answer.sb_source),
        super_options,
    }
}

/// The strings behind the fixed part of an answer.
struct Strings<'a> {
    /// The fields that the kernel shows.
    mask: u64,
    /// The whole answer.
    bytes: &'a [u8],
}

impl<'a> Strings<'a> {
    /// The string of a field at an offset. `None` if the kernel does not show the field.
    fn string(&self, field: u32, offset: u32) -> Option<&'a OsStr> {
        let shown = self.mask & u64::from(field) != 0;
        let text = self.bytes.get(FIXED + offset as usize..);
        let text = CStr::from_bytes_until_nul(text.filter(|_| shown)?).ok()?;
        Some(OsStr::from_bytes(text.to_bytes()))
    }

    fn text(&self, field: u32, offset: u32) -> Option<Cow<'a, str>> {
        self.string(field, offset).map(OsStr::to_string_lossy)
    }

    fn path(&self, field: u32, offset: u32) -> &'a OsStr {
        self.string(field, offset).unwrap_or_default()
    }
}

fn has(attributes: u64, bit: u64) -> bool {
    attributes & bit != 0
}

/// The flags of a mount, in the words and the order of mountinfo.
fn flags(attributes: u64) -> String {
    let atime = attributes & libc::MOUNT_ATTR__ATIME;
    let flags = [
        (has(attributes, libc::MOUNT_ATTR_NOSUID), ",nosuid"),
        (has(attributes, libc::MOUNT_ATTR_NODEV), ",nodev"),
        (has(attributes, libc::MOUNT_ATTR_NOEXEC), ",noexec"),
        (atime == libc::MOUNT_ATTR_NOATIME, ",noatime"),
        (has(attributes, libc::MOUNT_ATTR_NODIRATIME), ",nodiratime"),
        (atime == libc::MOUNT_ATTR_RELATIME, ",relatime"),
        (
            has(attributes, libc::MOUNT_ATTR_NOSYMFOLLOW),
            ",nosymfollow",
        ),
        (has(attributes, libc::MOUNT_ATTR_IDMAP), ",idmapped"),
    ];
    let access = if has(attributes, libc::MOUNT_ATTR_RDONLY) {
        "ro"
    } else {
        "rw"
    };
    let flags = flags
        .into_iter()
        .filter(|(on, _)| *on)
        .map(|(_, word)| word);
    std::iter::once(access).chain(flags).collect()
}
