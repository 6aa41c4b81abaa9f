//! `struct ext4_super_block`: where its fields are, and what they mean.

use super::{Block, crc32c};
use crate::{Ext4Layout, FsState, Superblock, magic};

/// Offset of the superblock on its device.
pub(in crate::linux) const START: u64 = 1024;
/// Size of the superblock.
pub(in crate::linux) const BYTES: usize = 1024;

// Offsets of fields.
const BLOCKS_LOW: usize = 0x04;
const FIRST_DATA_BLOCK: usize = 0x14;
const LOG_BLOCK_SIZE: usize = 0x18;
const LOG_CLUSTER_SIZE: usize = 0x1c;
const BLOCKS_PER_GROUP: usize = 0x20;
const INODES_PER_GROUP: usize = 0x28;
const MOUNTED: usize = 0x2c;
pub(in crate::linux) const WRITTEN: usize = 0x30;
pub(in crate::linux) const MAGIC: usize = 0x38;
const STATE: usize = 0x3a;
pub(in crate::linux) const CHECKED: usize = 0x40;
const INODE_SIZE: usize = 0x58;
const COMPATIBLE: usize = 0x5c;
pub(in crate::linux) const INCOMPATIBLE: usize = 0x60;
const RO_COMPATIBLE: usize = 0x64;
pub(in crate::linux) const UUID: usize = 0x68;
const RESERVED_BLOCKS: usize = 0xce;
pub(in crate::linux) const HASH_SEED: usize = 0xec;
const DESCRIPTOR_SIZE: usize = 0xfe;
pub(in crate::linux) const MADE: usize = 0x108;
const BLOCKS_HIGH: usize = 0x150;
const ERROR_COUNT: usize = 0x194;
const SPARSE_COPIES: usize = 0x24c;
const MOUNTED_HIGH: usize = 0x274;
pub(in crate::linux) const CHECKSUM: usize = 0x3fc;

/// Block numbers have 64 bits.
const INCOMPAT_64BIT: u32 = 0x80;
/// The superblock has a checksum.
const RO_COMPAT_METADATA_CSUM: u32 = 0x400;

fn is_ext4(block: &Block) -> bool {
    i64::from(block.le16(MAGIC)) == magic::EXT4
}

/// Size of the filesystem in bytes; `None` for other content.
pub(in crate::linux) fn size(block: &Block) -> Option<u64> {
    if !is_ext4(block) {
        return None;
    }
    let low = u64::from(block.le32(BLOCKS_LOW));
    let is_wide = block.le32(INCOMPATIBLE) & INCOMPAT_64BIT != 0;
    let high = if is_wide {
        u64::from(block.le32(BLOCKS_HIGH))
    } else {
        0
    };
    let block_size = 1024u64.checked_shl(block.le32(LOG_BLOCK_SIZE));
    (high << 32 | low).checked_mul(block_size.filter(|s| *s <= 65536 && *s > 0)?)
}

/// What the growth of the filesystem depends on; `None` for other content, and for values that no
/// mke2fs writes.
pub(super) fn layout(block: &Block) -> Option<Ext4Layout> {
    const COMPAT_SPARSE_SUPER2: u32 = 0x200;
    const INCOMPAT_META_BG: u32 = 0x10;
    const RO_COMPAT_SPARSE_SUPER: u32 = 0x1;
    const RO_COMPAT_BIGALLOC: u32 = 0x200;
    const NARROW_DESCRIPTOR: u64 = 32;
    let bytes = size(block)?;
    let block_bytes = 1024 << block.le32(LOG_BLOCK_SIZE);
    let incompatible = block.le32(INCOMPATIBLE);
    let is_wide = incompatible & INCOMPAT_64BIT != 0;
    let has_clusters = block.le32(RO_COMPATIBLE) & RO_COMPAT_BIGALLOC != 0;
    let shift = block
        .le32(LOG_CLUSTER_SIZE)
        .checked_sub(block.le32(LOG_BLOCK_SIZE));
    let cluster_blocks = if has_clusters {
        1u64.checked_shl(shift?)?
    } else {
        1
    };
    let has_two_copies = block.le32(COMPATIBLE) & COMPAT_SPARSE_SUPER2 != 0;
    let layout = Ext4Layout {
        blocks: bytes / block_bytes,
        block_bytes,
        first_block: block.le32(FIRST_DATA_BLOCK).into(),
        blocks_per_group: block.le32(BLOCKS_PER_GROUP).into(),
        inodes_per_group: block.le32(INODES_PER_GROUP).into(),
        inode_bytes: block.le16(INODE_SIZE).into(),
        descriptor_bytes: if is_wide {
            block.le16(DESCRIPTOR_SIZE).into()
        } else {
            NARROW_DESCRIPTOR
        },
        reserved_blocks: block.le16(RESERVED_BLOCKS).into(),
        cluster_blocks,
        is_wide,
        meta_bg: incompatible & INCOMPAT_META_BG != 0,
        sparse_super: block.le32(RO_COMPATIBLE) & RO_COMPAT_SPARSE_SUPER != 0,
        sparse_super2: has_two_copies
            .then(|| [block.le32(SPARSE_COPIES), block.le32(SPARSE_COPIES + 4)]),
    };
    let sound = layout.blocks_per_group > 0
        && layout.inodes_per_group > 0
        && (NARROW_DESCRIPTOR..=block_bytes).contains(&layout.descriptor_bytes);
    sound.then_some(layout)
}

/// The superblock, if its checksum matches.
pub(super) fn parse(block: &Block) -> Option<Superblock> {
    let intact = block.le32(RO_COMPATIBLE) & RO_COMPAT_METADATA_CSUM != 0 && is_intact(block);
    intact.then(|| Superblock {
        uuid: block.uuid(UUID),
    })
}

/// True if this is the superblock of an ext4. A checksum, if there is one, must match.
pub(super) fn is_intact(block: &Block) -> bool {
    is_ext4(block)
        && (block.le32(RO_COMPATIBLE) & RO_COMPAT_METADATA_CSUM == 0
            || block.le32(CHECKSUM) == crc32c(!0, &block.0[..CHECKSUM]))
}

/// True if the superblock is of another filesystem than this earlier one, or of a later mount.
/// e2fsck corrects a time in the future, so an earlier time says nothing.
pub(super) fn is_later_use(now: &Block, before: &Block) -> bool {
    now.uuid(UUID) != before.uuid(UUID) || mounted_at(now) > mounted_at(before)
}

/// The time of the last mount.
fn mounted_at(block: &Block) -> u64 {
    u64::from(block.0[MOUNTED_HIGH]) << 32 | u64::from(block.le32(MOUNTED))
}

/// What the superblock says about the last use, with a checksum or without. A mount leaves orphans
/// behind that the next mount removes, and periodic checks are not for volumes: both need no check.
pub(super) fn state(block: &Block) -> FsState {
    const VALID: u16 = 1;
    const ERRORS: u16 = 2;
    const COMPAT_HAS_JOURNAL: u32 = 0x4;
    const INCOMPAT_RECOVER: u32 = 0x4;
    if !is_ext4(block) {
        return FsState::default();
    }
    let state = block.le16(STATE);
    let has_journal = block.le32(COMPATIBLE) & COMPAT_HAS_JOURNAL != 0;
    FsState {
        unreplayed: has_journal && block.le32(INCOMPATIBLE) & INCOMPAT_RECOVER != 0,
        needs_check: state & ERRORS != 0
            || block.le32(ERROR_COUNT) != 0
            || !has_journal && state & VALID == 0,
    }
}

/// True if these first bytes of a superblock have the feature `fast_commit`.
pub(in crate::linux) fn has_fast_commit(superblock: &[u8; BYTES]) -> bool {
    const COMPAT_FAST_COMMIT: u8 = 0x4;
    superblock[COMPATIBLE + 1] & COMPAT_FAST_COMMIT != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(blocks: u64, log: u32, wide: bool) -> Block {
        let mut block = [0; 4096];
        let mut put = |at: usize, bytes: &[u8]| block[at..][..bytes.len()].copy_from_slice(bytes);
        put(0x04, &(blocks as u32).to_le_bytes());
        put(0x18, &log.to_le_bytes());
        put(0x38, &0xef53u16.to_le_bytes());
        put(0x60, &(if wide { 0x2c2u32 } else { 0x42 }).to_le_bytes());
        put(0x150, &((blocks >> 32) as u32).to_le_bytes());
        Block(block)
    }

    #[test]
    fn sizes() {
        for (blocks, log, wide, expected) in [
            (256, 2, true, Some(1 << 20)),
            (25600, 2, false, Some(100 << 20)),
            (1 << 33, 2, true, Some(1 << 45)),
            // Without the 64-bit feature, the field of the high half has another meaning.
            (5 << 32 | 8, 0, false, Some(8192)),
            (1, 7, true, None),
            (1, u32::MAX, true, None),
            (u64::MAX, 6, true, None),
        ] {
            assert_eq!(
                size(&superblock(blocks, log, wide)),
                expected,
                "{blocks} {log}"
            );
        }
        assert_eq!(size(&Block([0; 4096])), None);
    }
}
