//! Checks and options of mounts in the model.

use std::io;
use std::path::{Path, PathBuf};

use hostloop_kernel::mountinfo::loop_name;
use hostloop_kernel::{
    BindFlags, Error, FsType, LOOP_MAJOR, MountEntry, MountOptions, MountSpec, Result,
    flags_and_data,
};

use super::content::Content;
use super::state::{Device, Mounted, State, Super};

/// Resolves an existing path that is not a symlink.
pub(super) fn place(op: &'static str, path: &Path) -> Result<PathBuf> {
    let failed = |e| Error::io(op, path, e);
    if std::fs::symlink_metadata(path)
        .map_err(failed)?
        .is_symlink()
    {
        return Err(Error::errno(op, path, libc::ELOOP));
    }
    std::fs::canonicalize(path).map_err(failed)
}

pub(super) fn mount(s: &mut State, spec: &MountSpec<'_>) -> Result<()> {
    let failed = |number| Error::errno("mount", spec.target, number);
    let target = place("mount", spec.target)?;
    if !target.is_dir() {
        return Err(failed(libc::ENOTDIR));
    }
    let device = s.device(spec.device)?;
    let (flags, data) = flags_and_data(spec.read_only, spec.options);
    let read_only = flags & libc::MS_RDONLY != 0;
    if !read_only && !s.takes_writes(spec.device)? {
        return Err(failed(libc::EACCES));
    }
    let uuid = mountable(s, spec.device, spec.fs).map_err(failed)?;
    let twin = s
        .supers
        .iter()
        .any(|(d, sb)| *d != device && sb.uuid == uuid);
    if spec.fs == FsType::Xfs && twin && !data.iter().any(|o| o == "nouuid") {
        return Err(failed(libc::EINVAL));
    }
    let there = s.at(&target).is_some_and(|m| m.device == Some(device));
    let differs = |sb: &Super| sb.read_only != read_only;
    if there || s.supers.get(&device).is_some_and(differs) {
        return Err(failed(libc::EBUSY));
    }
    replay(s, spec.device)?;
    s.supers
        .entry(device)
        .or_insert_with(|| Super::new(spec.fs, uuid, spec.device, read_only, data));
    let (number, btrfs_loops) = match device {
        Device::Loop(minor) if spec.fs == FsType::Btrfs => {
            let loops = s.scanned.clone().unwrap_or_else(|| vec![minor]);
            ((0, 100 + minor % 1000), Some(loops))
        }
        Device::Loop(minor) => ((LOOP_MAJOR, minor), None),
        Device::Disk(id) => {
            let on_none = (spec.fs == FsType::Btrfs).then(Vec::new);
            (
                (254, u32::try_from(id.ino & 0xfffff).unwrap_or_default()),
                on_none,
            )
        }
    };
    s.push(Mounted {
        entry: MountEntry {
            id: 0,
            unique_id: None,
            parent: 0,
            device: number,
            root: "/".into(),
            mount_point: target.as_path().into(),
            options: mount_words(flags).join(",").as_str().into(),
            fs_type: spec.fs.as_str().into(),
            source: spec.device.display().to_string().into(),
            super_options: "".into(),
            loop_node: None,
            btrfs_loops,
        },
        device: Some(device),
        namespace: None,
    });
    Ok(())
}

/// The UUID of a filesystem that can be mounted, or the kernel's error number.
pub(super) fn mountable(
    s: &State,
    device: &Path,
    expected: FsType,
) -> std::result::Result<String, i32> {
    match (s.content(device), s.size(device)) {
        (Ok(Content::Broken { fs, .. }), _) if fs == expected => Err(libc::EUCLEAN),
        (Ok(Content::Filesystem { fs, uuid, size, .. }), Ok(bytes))
            if fs == expected && size <= bytes =>
        {
            Ok(uuid)
        }
        _ => Err(libc::EINVAL),
    }
}

/// A mount replays the journal.
pub(super) fn replay(s: &State, device: &Path) -> Result<()> {
    match s.content(device)? {
        Content::Filesystem {
            fs,
            uuid,
            size,
            unreplayed: true,
            needs_check,
        } => s.set_content(
            device,
            &Content::Filesystem {
                fs,
                uuid,
                size,
                unreplayed: false,
                needs_check,
            },
        ),
        _ => Ok(()),
    }
}

/// The flags of the mount itself, not of its filesystem, as mountinfo shows them.
fn mount_words(flags: libc::c_ulong) -> Vec<&'static str> {
    let own = [
        (libc::MS_NOSUID, "nosuid"),
        (libc::MS_NODEV, "nodev"),
        (libc::MS_NOEXEC, "noexec"),
        (libc::MS_NOATIME, "noatime"),
        (libc::MS_NODIRATIME, "nodiratime"),
    ];
    let has = |bit| flags & bit != 0;
    let mut shown = vec![if has(libc::MS_RDONLY) { "ro" } else { "rw" }];
    shown.extend(
        own.iter()
            .filter(|(bit, _)| has(*bit))
            .map(|(_, word)| word),
    );
    if !has(libc::MS_NOATIME) {
        shown.push("relatime");
    }
    shown
}

/// Adds a bind mount's flags to those of its source mount, in the kernel's order.
fn add(options: &MountOptions, flags: BindFlags) -> MountOptions {
    let added = [
        ("ro", flags.read_only),
        ("nosuid", flags.nosuid),
        ("nodev", flags.nodev),
        ("noexec", flags.noexec),
    ];
    let first = added
        .iter()
        .filter(|(word, on)| *on || options.has(word))
        .map(|(word, _)| *word);
    let first: Vec<&str> = if flags.read_only || options.has("ro") {
        first.collect()
    } else {
        ["rw"].into_iter().chain(first).collect()
    };
    let rest = options
        .iter()
        .filter(|word| *word != "rw" && !first.contains(word));
    let all: Vec<&str> = first.iter().copied().chain(rest).collect();
    all.join(",").as_str().into()
}

pub(super) fn bind(s: &mut State, source: &Path, target: &Path, flags: BindFlags) -> Result<()> {
    let node = source.to_str().and_then(loop_name);
    let (from, is_dir) = match node {
        Some(minor) if s.loops.contains_key(&minor) => (source.to_path_buf(), false),
        Some(_) => return Err(Error::errno("open_tree", source, libc::ENOENT)),
        None => {
            let from = place("open_tree", source)?;
            let is_dir = from.is_dir();
            (from, is_dir)
        }
    };
    let mount_point = place("bind", target)?;
    if mount_point.is_dir() != is_dir {
        return Err(Error::errno("bind", target, libc::EINVAL));
    }
    let mut mounted = s
        .containing(&from)
        .cloned()
        .ok_or_else(|| Error::errno("open_tree", source, libc::EINVAL))?;
    let below = from
        .strip_prefix(&*mounted.entry.mount_point)
        .map_err(|e| Error::io("open_tree", source, io::Error::other(e)))?;
    if !below.as_os_str().is_empty() {
        mounted.entry.root = (&mounted.entry.root.join(below)).into();
    }
    mounted.entry.mount_point = (&mount_point).into();
    mounted.entry.options = add(&mounted.entry.options, flags);
    s.push(mounted);
    Ok(())
}
