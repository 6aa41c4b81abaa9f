//! The content of a fake device: a mark at the start of its backing file, and a stamp in place of
//! what its users have written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use hostloop_kernel::file::name_of;
use hostloop_kernel::{BLOCK_SIZE, Error, Ext4Layout, FsType, Probe, Result};
use serde::{Deserialize, Serialize};

/// First bytes of a mark. JSON follows, then zeros to the stamp.
const MAGIC: &[u8] = b"\x01model-filesystem\n";
/// First bytes of a stamp at the end of the first block. Its number follows.
const STAMP_MAGIC: &[u8; 8] = b"\x01stamp\n\0";
/// The bytes of a stamp: those and its number.
const STAMP_LEN: usize = STAMP_MAGIC.len() + size_of::<u64>();
/// Where the stamp begins.
const STAMP_OFFSET: u64 = (BLOCK_SIZE as usize - STAMP_LEN) as u64;

/// The content of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Content {
    Blank,
    Filesystem {
        fs: FsType,
        uuid: String,
        /// The size of the filesystem, in bytes.
        size: u64,
        /// What its superblock says, and a mount or a check changes.
        #[serde(default)]
        unreplayed: bool,
        #[serde(default)]
        needs_check: bool,
    },
    /// An unfinished filesystem: it is recognised but can't be mounted.
    Broken {
        fs: FsType,
        uuid: String,
    },
    /// Bytes without a signature.
    Unknown,
    /// More than one signature.
    Ambivalent,
}

impl Content {
    pub(super) fn filesystem(fs: FsType, uuid: String, size: u64) -> Content {
        Content::Filesystem {
            fs,
            uuid,
            size,
            unreplayed: false,
            needs_check: false,
        }
    }

    /// The size of the filesystem, in bytes; `None` for other content.
    pub(super) fn size(&self) -> Option<u64> {
        match self {
            Content::Filesystem { size, .. } => Some(*size),
            _ => None,
        }
    }

    /// The layout of an ext4, as the driver's mkfs makes it; `None` for other content.
    pub(super) fn ext4_layout(&self) -> Option<Ext4Layout> {
        /// Groups of 128 MiB, of which a block describes 64.
        const DESCRIBED: u64 = 8 << 30;
        let Content::Filesystem {
            fs: FsType::Ext4,
            size,
            ..
        } = self
        else {
            return None;
        };
        let block_bytes = u64::from(BLOCK_SIZE);
        Some(Ext4Layout {
            blocks: size / block_bytes,
            block_bytes,
            blocks_per_group: 32768,
            inodes_per_group: 8192,
            inode_bytes: 256,
            descriptor_bytes: 64,
            // For the thousandfold size.
            reserved_blocks: (size.saturating_mul(1024).div_ceil(DESCRIBED))
                .saturating_sub(size.div_ceil(DESCRIBED))
                .min(1024),
            cluster_blocks: 1,
            is_wide: true,
            sparse_super: true,
            ..Ext4Layout::default()
        })
    }

    pub(super) fn probe(&self) -> Probe {
        match self {
            Content::Blank => Probe::Blank,
            Content::Filesystem { fs, uuid, .. } => Probe::Filesystem {
                fs: *fs,
                uuid: uuid.clone(),
            },
            Content::Broken { fs, uuid } => {
                let (fs, uuid) = (*fs, uuid.clone());
                // Other superblocks don't record an unfinished mkfs.
                if fs == FsType::Xfs {
                    Probe::Unfinished { fs, uuid }
                } else {
                    Probe::Filesystem { fs, uuid }
                }
            }
            Content::Unknown => Probe::Unknown { offset: 0 },
            Content::Ambivalent => Probe::Ambivalent,
        }
    }
}

/// Reads the mark. A file without one is blank, or has unknown bytes in its first block.
pub(super) fn read(file: &File) -> Result<Content> {
    let mut block = Vec::new();
    let mut chunk = [0; BLOCK_SIZE as usize];
    loop {
        let failed = |e| Error::io("read", name_of(file), e);
        let n = file
            .read_at(&mut chunk, block.len() as u64)
            .map_err(failed)?;
        block.extend_from_slice(&chunk[..n]);
        if n == 0 || block.len() >= chunk.len() {
            break;
        }
    }
    let Some(json) = block.strip_prefix(MAGIC) else {
        return Ok(if block.iter().all(|byte| *byte == 0) {
            Content::Blank
        } else {
            Content::Unknown
        });
    };
    let end = json.iter().position(|b| *b == 0).unwrap_or(json.len());
    Ok(serde_json::from_slice(&json[..end]).unwrap_or(Content::Ambivalent))
}

/// Reads the stamp; 0 if there is none.
pub(super) fn read_stamp(file: &File) -> Result<u64> {
    let mut bytes = [0; STAMP_LEN];
    match file.read_exact_at(&mut bytes, STAMP_OFFSET) {
        Ok(()) => Ok(stamp_in(&bytes)),
        // The file is shorter.
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        Err(e) => Err(Error::io("read", name_of(file), e)),
    }
}

/// The stamp with these bytes; 0 if they are none.
fn stamp_in(bytes: &[u8; STAMP_LEN]) -> u64 {
    let number = bytes.strip_prefix(STAMP_MAGIC);
    let number: Option<[u8; 8]> = number.and_then(|number| number.try_into().ok());
    number.map_or(0, u64::from_le_bytes)
}

/// The bytes of a stamp; none of 0.
fn stamp_bytes(stamp: u64) -> [u8; STAMP_LEN] {
    let mut bytes = [0; STAMP_LEN];
    if stamp != 0 {
        let (magic, number) = bytes.split_at_mut(STAMP_MAGIC.len());
        magic.copy_from_slice(STAMP_MAGIC);
        number.copy_from_slice(&stamp.to_le_bytes());
    }
    bytes
}

/// Writes the stamp alone.
pub(super) fn write_stamp(file: &File, stamp: u64) -> Result<()> {
    file.write_all_at(&stamp_bytes(stamp), STAMP_OFFSET)
        .map_err(|e| Error::io("write", name_of(file), e))
}

/// Writes the mark and the stamp.
pub(super) fn write(file: &File, content: &Content, stamp: u64) -> Result<()> {
    let failed = |e| Error::io("write", name_of(file), e);
    let mut block = Vec::new();
    if *content == Content::Unknown {
        block.resize(BLOCK_SIZE as usize, 0xa5);
    } else if *content != Content::Blank {
        block.extend_from_slice(MAGIC);
        serde_json::to_writer(&mut block, content).map_err(|e| failed(io::Error::other(e)))?;
    }
    block.resize(BLOCK_SIZE as usize, 0);
    if stamp != 0 {
        let at = block.len() - STAMP_LEN;
        block[at..].copy_from_slice(&stamp_bytes(stamp));
    }
    file.write_all_at(&block, 0).map_err(failed)
}
