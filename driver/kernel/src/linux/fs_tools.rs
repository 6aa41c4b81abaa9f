//! Runs the programs that probe, make, check and grow filesystems, without a shell.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use super::superblock::{self, XFS_IN_PROGRESS, ext4};
use super::{blank, device_size, fs, open};
use crate::failpoint::effect;
use crate::{Error, Ext4Growth, FsType, MkfsSpec, Probe, Result, check_mkfs_options};

mod command;
mod ext4_template;
#[cfg(test)]
mod growth_tests;
#[cfg(test)]
mod tests;

use command::{Tool, find};
pub(super) use ext4_template::Templates;

/// Time limit for a probe, which takes milliseconds on a working device.
const LOOK: Duration = Duration::from_secs(60);
/// Time limit for making or growing, which writes little, but perhaps to a busy disk.
const MAKE: Duration = Duration::from_secs(15 * 60);
/// Time limit for a full check, which reads all metadata.
const CHECK: Duration = Duration::from_secs(2 * 60 * 60);

pub(super) fn probe(device: &Path) -> Result<Probe> {
    let file = open(device)?;
    // blkid finds "nothing" on an unreadable device, too.
    blank::readable(&file, device)?;
    let output = Tool::new("blkid", LOOK)
        .args(["-p", "-o", "export", "--"])
        .arg(device)
        .run(device)?;
    let found = match output.code {
        0 => parse_probe(&output.stdout),
        2 if output.stderr.is_empty() => Probe::Blank,
        8 => Probe::Ambivalent,
        _ => return Err(output.failed()),
    };
    match found {
        Probe::Blank => Ok(match blank::first_nonzero(&file, device)? {
            None => Probe::Blank,
            Some(offset) => Probe::Unknown { offset },
        }),
        Probe::Filesystem {
            fs: FsType::Xfs,
            uuid,
        } if xfs_in_progress(&file, device)? => Ok(Probe::Unfinished {
            fs: FsType::Xfs,
            uuid,
        }),
        found => Ok(found),
    }
}

/// True if the superblock says that mkfs has not finished.
fn xfs_in_progress(file: &File, device: &Path) -> Result<bool> {
    let mut byte = [0];
    let read = file.read_exact_at(&mut byte, XFS_IN_PROGRESS as u64);
    read.map_err(|e| Error::io("read", device, e))?;
    Ok(byte != [0])
}

/// Parses blkid's `KEY=value` lines. A filesystem wins over a partition table beside it. Output
/// without a type (for example, a partition's place in its table) means blank.
fn parse_probe(output: &str) -> Probe {
    match (value(output, "TYPE"), value(output, "PTTYPE")) {
        (Some(name), _) => match FsType::parse(name) {
            Some(fs) => Probe::Filesystem {
                fs,
                uuid: value(output, "UUID").unwrap_or_default().to_owned(),
            },
            None => Probe::Other(name.to_owned()),
        },
        (None, Some(table)) => Probe::Other(format!("{table} partition table")),
        (None, None) => Probe::Blank,
    }
}

/// The value of a key in blkid's lines.
fn value<'a>(output: &'a str, key: &str) -> Option<&'a str> {
    output
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
}

pub(super) fn mkfs(templates: &Templates, spec: &MkfsSpec<'_>) -> Result<()> {
    let name = mkfs_name(spec.fs);
    check_mkfs_options(spec.fs, spec.options)
        .map_err(|why| Error::tool(name, spec.device, None, why))?;
    effect("mkfs").map_err(|e| Error::io("mkfs", spec.device, e))?;
    if let Some(image) = spec.image
        && templates.write(spec, image)?
    {
        return Ok(());
    }
    if spec.force && spec.fs == FsType::Btrfs {
        // mkfs.btrfs rejects a UUID that is on the device already, even from its own first attempt.
        // The others overwrite their superblock, so the device has a signature even if mkfs is
        // killed.
        Tool::new("wipefs", MAKE)
            .args(["--all", "--quiet", "--"])
            .arg(spec.device)
            .run(spec.device)?
            .expect_zero()?;
    }
    let tool = match (spec.fs, spec.image) {
        // mkfs.ext4 compares an image with that of each mounted loop device, mkfs.btrfs anything.
        (FsType::Btrfs, _) | (_, Some(_)) => Tool::new(name, MAKE).without_volumes(),
        (FsType::Ext4 | FsType::Xfs, None) => Tool::new(name, MAKE),
    };
    let tool = tool.args(mkfs_arguments(spec));
    let Some(image) = spec.image else {
        tool.arg(spec.device).run(spec.device)?.expect_zero()?;
        return without_fast_commit(spec);
    };
    let output = tool.arg_file(image)?.run(spec.device)?;
    // The text of ENOSPC in the locale C. A loop device over a full filesystem reports EIO.
    if output.code != 0 && output.stderr.contains("No space left on device") {
        return Err(Error::NoSpace {
            op: name,
            path: spec.device.to_path_buf(),
        });
    }
    output.expect_zero()?;
    without_fast_commit(spec)?;
    templates.learn(spec, image);
    Ok(())
}

/// Switches off a feature with which e2fsck loses data (see [`check_mkfs_options`]): a machine's
/// mke2fs.conf may make it the default. Older tools do not know its name, so it is not among the
/// arguments of mkfs.
fn without_fast_commit(spec: &MkfsSpec<'_>) -> Result<()> {
    if spec.fs != FsType::Ext4 {
        return Ok(());
    }
    let mut superblock = [0; ext4::BYTES];
    match spec.image {
        Some(image) => image.read_exact_at(&mut superblock, ext4::START),
        None => open(spec.device)?.read_exact_at(&mut superblock, ext4::START),
    }
    .map_err(|e| Error::io("read", spec.device, e))?;
    if !ext4::has_fast_commit(&superblock) {
        return Ok(());
    }
    let tool = Tool::new("tune2fs", MAKE).args(["-O", "^fast_commit"]);
    let tool = match spec.image {
        Some(image) => tool.arg_file(image)?,
        None => tool.arg(spec.device),
    };
    match tool.run(spec.device) {
        // mkfs has run, and this error must not say otherwise.
        Err(Error::NotRun { tool, path, why }) => Err(Error::tool(tool, &path, None, why)),
        ran => ran?.expect_zero(),
    }
}

fn mkfs_name(fs: FsType) -> &'static str {
    match fs {
        FsType::Ext4 => "mkfs.ext4",
        FsType::Xfs => "mkfs.xfs",
        FsType::Btrfs => "mkfs.btrfs",
    }
}

/// Arguments before the device. Options of the StorageClass come last and override the driver's.
fn mkfs_arguments(spec: &MkfsSpec<'_>) -> Vec<String> {
    let mut words: Vec<&str> = vec!["-q"];
    let uuid;
    let mut rest = spec.options.to_vec();
    match spec.fs {
        FsType::Ext4 => {
            // Without -F, mke2fs asks about a likely mistake, and no person can answer. A fixed
            // block size keeps mke2fs from guessing it by size (see `BLOCK_SIZE`).
            words.extend(["-F", "-b", "4096"]);
            words.extend(ext4_template::features(spec));
            // In a blank image, a journal of zeros is there already and needs no space yet.
            rest = match (spec.image, spec.discard) {
                (Some(_), _) => with_extended(&rest, "nodiscard,lazy_journal_init=1"),
                (None, false) => with_extended(&rest, "nodiscard"),
                (None, true) => rest,
            };
        }
        FsType::Xfs | FsType::Btrfs => {
            // mkfs.xfs would use sectors of 512 bytes for a file. It refuses a size given twice.
            let has_sectors = spec.options.iter().any(|word| word.starts_with("-s"));
            if spec.fs == FsType::Xfs && spec.image.is_some() && !has_sectors {
                words.extend(["-s", "size=4096"]);
            }
            words.extend(spec.force.then_some("-f"));
            words.extend((!spec.discard).then_some("-K"));
        }
    }
    if let Some(wanted) = spec.uuid {
        uuid = format!("uuid={wanted}");
        words.extend(match spec.fs {
            FsType::Ext4 | FsType::Btrfs => ["-U", wanted],
            FsType::Xfs => ["-m", &uuid],
        });
    }
    words.into_iter().map(str::to_owned).chain(rest).collect()
}

/// Adds an extended option of mke2fs. Of several `-E`, mke2fs uses only the last, so a separate one
/// from a user would remove the driver's.
fn with_extended(options: &[String], ours: &str) -> Vec<String> {
    let mut extended = vec![ours.to_owned()];
    let mut others = Vec::new();
    let mut words = options.iter();
    while let Some(word) = words.next() {
        match word.strip_prefix("-E") {
            Some("") => extended.extend(words.next().cloned()),
            Some(value) => extended.push(value.to_owned()),
            None => others.push(word.clone()),
        }
    }
    others.extend(["-E".to_owned(), extended.join(",")]);
    others
}

pub(super) fn check(device: &Path, fs: FsType) -> Result<()> {
    match fs {
        FsType::Ext4 => {
            effect("check").map_err(|e| Error::io("e2fsck", device, e))?;
            e2fsck(device, &["-p"])
        }
        FsType::Xfs | FsType::Btrfs => Ok(()),
    }
}

fn e2fsck(device: &Path, options: &[&str]) -> Result<()> {
    let output = Tool::new("e2fsck", CHECK)
        .args(options)
        .arg(device)
        .run(device)?;
    match output.code {
        // Bits: 1 repaired; 2 reboot, which only concerns a mounted filesystem.
        0..=3 => Ok(()),
        code => Err(with_advice(output.failed(), code)),
    }
}

/// An error of e2fsck. Where a person must decide about repairs, it says how.
fn with_advice(error: Error, code: i32) -> Error {
    const LEFT_UNCORRECTED: i32 = 4;
    match error {
        Error::Tool {
            tool,
            path,
            code: known,
            message,
        } if code < 128 && code & LEFT_UNCORRECTED != 0 => {
            let message = format!(
                "{message} | The volume needs repairs that can lose files. Stop the pods that use \
                 it, copy its image, and run: e2fsck -fy {}",
                path.display()
            );
            Error::Tool {
                tool,
                path,
                code: known,
                message,
            }
        }
        error => error,
    }
}

pub(super) fn grow(device: &Path, mounted_at: &Path, fs: FsType) -> Result<()> {
    let wanted = device_size(&open(device)?, device)?;
    if fs::size(mounted_at, device, fs)? >= wanted {
        return Ok(());
    }
    effect("grow").map_err(|e| Error::io("grow", device, e))?;
    let tool = match fs {
        FsType::Ext4 => Tool::new("resize2fs", MAKE).arg(device),
        FsType::Xfs => Tool::new("xfs_growfs", MAKE).arg("-d").arg(mounted_at),
        FsType::Btrfs => Tool::new("btrfs", MAKE)
            .args(["filesystem", "resize", "max"])
            .arg(mounted_at),
    };
    tool.run(device)?.expect_zero()
}

pub(super) fn check_whole(device: &Path) -> Result<()> {
    effect("check-whole").map_err(|e| Error::io("e2fsck", device, e))?;
    e2fsck(device, &["-f", "-p"])
}

pub(super) fn grow_unmounted(device: &Path) -> Result<()> {
    let obstacle = match superblock::ext4(device)? {
        None => Some("the device holds no ext4".to_owned()),
        Some(ext4) => match ext4
            .layout
            .growth(device_size(&open(device)?, device)?, false)
        {
            Ext4Growth::Unmounted => None,
            Ext4Growth::Done => return Ok(()),
            Ext4Growth::Mounted => Some("it grows only while it is mounted".to_owned()),
            Ext4Growth::Not(why) => Some(why.to_string()),
        },
    };
    if let Some(why) = obstacle {
        return Err(Error::tool("growing ext4", device, None, why));
    }
    effect("grow").map_err(|e| Error::io("grow", device, e))?;
    Tool::new("resize2fs", MAKE)
        .arg(device)
        .run(device)?
        .expect_zero()
}

pub(super) fn mend_growth(device: &Path, superblock: &[u8], whole: bool) -> Result<()> {
    // The record is older than the filesystem, which has grown or shows what it lacks.
    if superblock::was_used_since(device, superblock)? {
        return Ok(());
    }
    effect("mend").map_err(|e| Error::io("e2fsck", device, e))?;
    // The earlier superblock only describes what was there before, which is intact.
    superblock::restore_ext4(device, superblock, !whole)?;
    if !whole {
        return Ok(());
    }
    // resize2fs damages what only a person may tell e2fsck to repair: copies of tables, and the
    // inode of the reserved blocks. It began with a sound filesystem, so files are not damaged.
    e2fsck(device, &["-f", "-y"])
}

/// True if this process may grow a mounted filesystem. Many sandboxes take CAP_SYS_RESOURCE away
/// from root.
pub(super) fn grows_mounted(fs: FsType) -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = super::read_attribute(Path::new("/proc/thread-self/status"));
    // If the capabilities are unknown, the attempt will show it.
    let may = status
        .ok()
        .and_then(|s| has_capability(&s, CAP_SYS_RESOURCE));
    fs != FsType::Ext4 || may.unwrap_or(true)
}

/// True if the effective set in this `/proc/PID/status` has a capability.
fn has_capability(status: &str, number: u32) -> Option<bool> {
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    let set = u64::from_str_radix(set.trim(), 16).ok()?;
    Some(set >> number & 1 == 1)
}

/// The programs that a filesystem needs, and their Debian package.
fn needs(fs: FsType) -> (&'static [&'static str], &'static str) {
    match fs {
        FsType::Ext4 => (&["mkfs.ext4", "e2fsck", "resize2fs"], "e2fsprogs"),
        FsType::Xfs => (&["mkfs.xfs", "xfs_growfs"], "xfsprogs"),
        FsType::Btrfs => (&["mkfs.btrfs", "btrfs"], "btrfs-progs"),
    }
}

pub(super) fn offered(fs: FsType) -> std::result::Result<(), String> {
    let (programs, package) = needs(fs);
    let wanted = programs.iter().map(|p| (*p, package));
    let always = [("blkid", "util-linux"), ("wipefs", "util-linux")];
    for (program, package) in wanted.chain(always) {
        if find(program).is_none() {
            return Err(format!("{program} is not installed (package {package})"));
        }
    }
    // This also makes the kernel load its module; it mounts nothing.
    rustix::mount::fsopen(fs.as_str(), rustix::mount::FsOpenFlags::FSOPEN_CLOEXEC)
        .map(drop)
        .map_err(|e| match e {
            rustix::io::Errno::NODEV => format!("this kernel has no {fs} (module `{fs}`)"),
            e => format!("{fs}: {}", std::io::Error::from(e)),
        })
}
