//! Reads a superblock without a program. Only a superblock with a matching checksum counts, so that
//! everything unusual is left to blkid and e2fsck.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use uuid::Uuid;

use super::{device_size, open};
use crate::{Error, Ext4, FsState, FsType, Result, Superblock};

pub(super) mod ext4;

pub(super) fn read(device: &Path, fs: FsType) -> Result<Option<Superblock>> {
    let (offset, parse): (u64, fn(&Block) -> Option<Superblock>) = match fs {
        FsType::Ext4 => (ext4::START, ext4::parse),
        FsType::Xfs => (0, xfs),
        FsType::Btrfs => (64 << 10, btrfs),
    };
    Ok(block_at(device, offset)?.and_then(|block| parse(&block)))
}

/// Reads what a filesystem says about its last use.
pub(super) fn state(device: &Path, fs: FsType) -> Result<FsState> {
    if fs != FsType::Ext4 {
        return Ok(FsState::default());
    }
    let block = block_at(device, ext4::START)?;
    Ok(block.as_ref().map(ext4::state).unwrap_or_default())
}

/// Reads the superblock of an ext4, whatever its checksum.
pub(super) fn ext4(device: &Path) -> Result<Option<Ext4>> {
    let block = block_at(device, ext4::START)?;
    Ok(block.and_then(|block| {
        Some(Ext4 {
            layout: ext4::layout(&block)?,
            superblock: block.0[..ext4::BYTES].into(),
        })
    }))
}

/// True if an ext4 was made or mounted after its superblock was this earlier one. Tools that check
/// or grow it change neither its UUID nor the time of its last mount.
pub(super) fn was_used_since(device: &Path, earlier: &[u8]) -> Result<bool> {
    let mut before = Block([0; 4096]);
    let Some(start) = before.0.get_mut(..earlier.len()) else {
        return Ok(false);
    };
    start.copy_from_slice(earlier);
    let now = block_at(device, ext4::START)?.filter(ext4::is_intact);
    Ok(ext4::is_intact(&before) && now.is_some_and(|now| ext4::is_later_use(&now, &before)))
}

/// Writes an earlier superblock of an ext4 back, unless that was damaged or without a checksum.
/// With `only_damaged`, an intact one stays.
pub(super) fn restore_ext4(device: &Path, earlier: &[u8], only_damaged: bool) -> Result<()> {
    let mut block = Block([0; 4096]);
    let Some(start) = block.0.get_mut(..earlier.len()) else {
        return Ok(());
    };
    start.copy_from_slice(earlier);
    if ext4::parse(&block).is_none() {
        return Ok(());
    }
    if only_damaged && block_at(device, ext4::START)?.is_none_or(|now| ext4::parse(&now).is_some())
    {
        return Ok(());
    }
    // Exclusively: no mount in any namespace may have the device.
    let exclusive = File::options()
        .write(true)
        .custom_flags(libc::O_EXCL)
        .open(device);
    let written = exclusive.and_then(|file| {
        file.write_all_at(earlier, ext4::START)?;
        file.sync_all()
    });
    written.map_err(|e| Error::io("write", device, e))
}

/// Reads a superblock at this offset. `None` if the device is shorter.
pub(super) fn block_at(device: &Path, offset: u64) -> Result<Option<Block>> {
    let file = open(device)?;
    let mut block = Block([0; 4096]);
    if device_size(&file, device)? < offset + block.0.len() as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut block.0, offset)
        .map_err(|e| Error::io("read", device, e))?;
    Ok(Some(block))
}

/// The bytes from the start of a superblock on.
pub(super) struct Block([u8; 4096]);

impl Block {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|n| self.0[at + n])
    }

    fn le16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes(at))
    }

    fn le32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    fn uuid(&self, at: usize) -> String {
        Uuid::from_bytes(self.bytes(at)).to_string()
    }
}

/// `struct xfs_dsb`. The mount replays the log.
fn xfs(block: &Block) -> Option<Superblock> {
    const MAGIC: u32 = 0x5846_5342;
    const VERSION_WITH_CHECKSUM: u16 = 5;
    const CHECKSUM: usize = 224;
    let version = u16::from_be_bytes(block.bytes(100)) & 0xf;
    let mut sector = block
        .0
        .get(..usize::from(u16::from_be_bytes(block.bytes(102))))?
        .to_vec();
    sector.get_mut(CHECKSUM..CHECKSUM + 4)?.fill(0);
    let intact = u32::from_be_bytes(block.bytes(0)) == MAGIC
        && version == VERSION_WITH_CHECKSUM
        && block.0[XFS_IN_PROGRESS] == 0
        && block.le32(CHECKSUM) == !crc32c(!0, &sector);
    intact.then(|| Superblock {
        uuid: block.uuid(32),
    })
}

/// Offset of `sb_inprogress` in an XFS superblock. mkfs.xfs sets this byte first and clears it
/// last. The kernel does not mount a filesystem while it is set.
pub(super) const XFS_IN_PROGRESS: usize = 126;

/// `struct btrfs_super_block`. The mount replays the log.
fn btrfs(block: &Block) -> Option<Superblock> {
    const MAGIC: &[u8; 8] = b"_BHRfS_M";
    const CRC32C: u16 = 0;
    const CHECKSUM: usize = 32;
    let intact = block.bytes(0x40) == *MAGIC
        && block.le16(0xc4) == CRC32C
        && block.le32(0) == !crc32c(!0, &block.0[CHECKSUM..]);
    intact.then(|| Superblock {
        uuid: block.uuid(0x20),
    })
}

/// CRC-32C without the final inversion.
pub(super) fn crc32c(start: u32, bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    bytes.iter().fold(start, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (POLYNOMIAL * (crc & 1))
        })
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "a tool of filesystems")]
    fn run(program: &str, args: &[&str], image: &Path) {
        let mut command = Command::new(program);
        command
            .args(args)
            .arg(image)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        assert!(command.status().unwrap().success(), "{program} {args:?}");
    }

    fn made(dir: &Path, fs: FsType, options: &[&str]) -> std::path::PathBuf {
        let image = dir.join("image");
        File::create(&image).unwrap().set_len(512 << 20).unwrap();
        run(&format!("mkfs.{fs}"), &[&["-q"], options].concat(), &image);
        image
    }

    #[test]
    fn only_an_intact_superblock_counts() {
        const ID: &str = "0e1f9c4a-5a3b-4f6e-9d0c-0123456789ab";
        let dir = tempfile::tempdir().unwrap();
        for (fs, with_id, at) in [
            (FsType::Ext4, ["-U", ID].as_slice(), 1024),
            (FsType::Xfs, &["-m", &format!("uuid={ID}")], 0),
            (FsType::Btrfs, &["-U", ID], 64 << 10),
        ] {
            let image = made(dir.path(), fs, with_id);
            let found = read(&image, fs).unwrap();
            assert_eq!(
                found,
                Some(Superblock {
                    uuid: ID.to_owned()
                }),
                "{fs}"
            );
            for other in FsType::ALL {
                assert_eq!(
                    read(&image, other).unwrap().is_some(),
                    other == fs,
                    "{fs} {other}"
                );
            }
            let file = File::options().read(true).write(true).open(&image).unwrap();
            // Magic numbers, UUIDs and checksums are among them. btrfs has room for longer
            // checksums before byte 32.
            for byte in (0..4).chain((32..512).step_by(3)) {
                let mut was = [0];
                file.read_exact_at(&mut was, at + byte).unwrap();
                file.write_all_at(&[!was[0]], at + byte).unwrap();
                assert_eq!(read(&image, fs).unwrap(), None, "{fs} {byte}");
                file.write_all_at(&was, at + byte).unwrap();
            }
            assert!(read(&image, fs).unwrap().is_some(), "{fs}");
            file.set_len(at + 4095).unwrap();
            assert_eq!(read(&image, fs).unwrap(), None, "{fs}");
        }
    }

    #[test]
    fn checksums_of_other_kinds_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        for (fs, options) in [
            (FsType::Ext4, ["-O", "^metadata_csum"]),
            (FsType::Xfs, ["-m", "crc=0"]),
            (FsType::Btrfs, ["--csum", "xxhash"]),
        ] {
            let image = made(dir.path(), fs, &options);
            assert_eq!(read(&image, fs).unwrap(), None, "{fs}");
        }
    }

    #[test]
    fn an_ext4_says_what_it_needs() {
        let dir = tempfile::tempdir().unwrap();
        let says = |unreplayed, needs_check| FsState {
            unreplayed,
            needs_check,
        };
        for (options, change, expected) in [
            (&[][..], "set_super_value mnt_count 3", says(false, false)),
            // The error flag.
            (&[], "set_super_value state 3", says(false, true)),
            (&[], "set_super_value error_count 1", says(false, true)),
            (&[], "feature needs_recovery", says(true, false)),
            // The mount does what these ask for.
            (&[], "set_super_value last_orphan 12", says(false, false)),
            (
                &[],
                "feature orphan_file orphan_present",
                says(false, false),
            ),
            // A kernel only recommends a periodic check.
            (&[], "set_super_value max_mnt_count 1", says(false, false)),
            (&[], "set_super_value checkinterval 1", says(false, false)),
            (
                &["-O", "^metadata_csum"],
                "feature needs_recovery",
                says(true, false),
            ),
            // Only a journal makes up for a missing unmount.
            (&[], "set_super_value state 0", says(false, false)),
            (
                &["-O", "^has_journal"],
                "set_super_value mnt_count 3",
                says(false, false),
            ),
            (
                &["-O", "^has_journal"],
                "set_super_value state 0",
                says(false, true),
            ),
        ] {
            let image = made(dir.path(), FsType::Ext4, options);
            run("debugfs", &["-w", "-R", change], &image);
            assert_eq!(
                state(&image, FsType::Ext4).unwrap(),
                expected,
                "{options:?} {change}"
            );
            assert_eq!(state(&image, FsType::Xfs).unwrap(), FsState::default());
        }
    }
}
