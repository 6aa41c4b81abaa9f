//! How far an ext4 grows, and how. Pure.
//!
//! Each block of group descriptors describes a fixed number of block groups. mke2fs reserves blocks
//! behind the descriptors, for a filesystem of about the thousandfold size (option `resize` of
//! `-E`). Within them, resize2fs only adds groups, and moves nothing that exists. Beyond them, it
//! moves inode tables and whatever else is in the way: with an inode for the reserved blocks
//! (`resize_inode`), it fails half-way and leaves a broken filesystem, and without one, a killed
//! resize2fs loses files. The kernel grows a mounted filesystem beyond them without moving
//! anything, as it puts further descriptors into the new groups (`meta_bg`).

use hostloop_terminal::humanize::exact_bytes;

/// Facts from the superblock of an ext4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ext4Layout {
    /// The size of the filesystem, in blocks.
    pub blocks: u64,
    /// The size of a block, in bytes.
    pub block_bytes: u64,
    /// The block at which the first group begins: 1 if blocks have 1024 bytes, otherwise 0.
    pub first_block: u64,
    pub blocks_per_group: u64,
    pub inodes_per_group: u64,
    /// The size of an inode, in bytes.
    pub inode_bytes: u64,
    /// The size of a group descriptor, in bytes.
    pub descriptor_bytes: u64,
    /// Blocks reserved for further group descriptors.
    pub reserved_blocks: u64,
    /// The size of a cluster, in blocks; 1 without the feature `bigalloc`.
    pub cluster_blocks: u64,
    /// Block numbers may have more than 32 bits (`64bit`).
    pub is_wide: bool,
    /// Descriptors of further groups are in these groups (`meta_bg`).
    pub meta_bg: bool,
    /// The superblock has few copies, in the groups of `sparse_super`. Without it, in all groups.
    pub sparse_super: bool,
    /// The superblock has at most two copies, in these groups (`sparse_super2`).
    pub sparse_super2: Option<[u32; 2]>,
}

/// What makes an ext4 as large as its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ext4Growth {
    /// Nothing: it is as large as it can be there.
    Done,
    /// It grows while it is mounted.
    Mounted,
    /// It grows before it is mounted.
    Unmounted,
    /// It does not grow here.
    Not(NoGrowth),
}

/// Why an ext4 does not grow here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoGrowth {
    /// Only a process with CAP_SYS_RESOURCE can grow it beyond this many bytes.
    NotPermitted { most: u64 },
    /// No process can grow it beyond this many bytes, because of this feature.
    Feature { name: &'static str, most: u64 },
    /// No ext4 with these block groups has more bytes.
    TooLarge { most: u64 },
}

impl NoGrowth {
    /// The largest size to which the filesystem grows here, in bytes.
    pub fn most(self) -> u64 {
        match self {
            NoGrowth::NotPermitted { most }
            | NoGrowth::Feature { most, .. }
            | NoGrowth::TooLarge { most } => most,
        }
    }
}

impl std::fmt::Display for NoGrowth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let most = exact_bytes(self.most());
        match self {
            NoGrowth::NotPermitted { .. } => write!(
                f,
                "without CAP_SYS_RESOURCE, the driver grows this ext4 to {most} at most: give the \
                 driver that capability, request less, or copy the data into a new volume"
            ),
            NoGrowth::Feature { name, .. } => write!(
                f,
                "an ext4 with the feature {name} grows to {most} at most here: request less, or copy \
                 the data into a new volume, made without -O {name}"
            ),
            NoGrowth::TooLarge { .. } => write!(
                f,
                "this ext4 grows to {most} at most, by its number of inodes and the width of its \
                 block numbers: request less, or copy the data into a new volume"
            ),
        }
    }
}

impl Ext4Layout {
    /// The size of the filesystem, in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_bytes)
    }

    /// How the filesystem becomes as large as a device of this many bytes. `grows_mounted` is true
    /// if this process may grow a mounted ext4.
    pub fn growth(&self, device_bytes: u64, grows_mounted: bool) -> Ext4Growth {
        use Ext4Growth::{Done, Mounted, Not, Unmounted};
        let reached = self.reached(device_bytes).unwrap_or(u64::MAX);
        if reached <= self.blocks {
            return Done;
        }
        // The kernel grows no mounted ext4 with sparse_super2, and resize2fs no other with
        // bigalloc.
        if grows_mounted && self.sparse_super2.is_none() {
            let most = self.most_blocks();
            let too_large = NoGrowth::TooLarge {
                most: self.in_bytes(most),
            };
            return if reached <= most {
                Mounted
            } else {
                Not(too_large)
            };
        }
        let most = if self.cluster_blocks > 1 {
            self.blocks
        } else {
            self.most_unmounted()
        };
        if reached <= most {
            return Unmounted;
        }
        let most = self.in_bytes(most);
        Not(match self.sparse_super2 {
            Some(_) => NoGrowth::Feature {
                name: "sparse_super2",
                most,
            },
            None => NoGrowth::NotPermitted { most },
        })
    }

    /// The number of blocks after growing on a device of this size, as resize2fs calculates it: it
    /// leaves out a last group that is too small for its own tables. `None` if there is no
    /// filesystem of that size.
    fn reached(&self, device_bytes: u64) -> Option<u64> {
        /// Blocks that the last group needs for data.
        const LEAST_DATA: u64 = 50;
        const PAGE: u64 = 4096;
        let whole = device_bytes - device_bytes % PAGE.max(self.block_bytes);
        let mut blocks = whole / self.block_bytes;
        if !self.is_wide && blocks == 1 << 32 {
            blocks -= 1;
        }
        blocks -= blocks % self.cluster_blocks;
        loop {
            let groups = self.groups(blocks);
            let rest = blocks.saturating_sub(self.first_block) % self.blocks_per_group;
            if groups > 1 && rest > 0 && rest < self.overhead(groups) + LEAST_DATA {
                blocks -= rest;
                continue;
            }
            let most = self.most_blocks();
            if groups == self.groups(most) + 1 && self.inodes_end(groups) {
                blocks = most;
                continue;
            }
            return (blocks <= most).then_some(blocks);
        }
    }

    /// True if a filesystem with so many groups has more inodes than there are numbers.
    fn inodes_end(&self, groups: u64) -> bool {
        groups.saturating_mul(self.inodes_per_group) > u32::MAX.into()
    }

    /// The number of blocks of the largest filesystem with such groups.
    fn most_blocks(&self) -> u64 {
        let groups = u64::from(u32::MAX) / self.inodes_per_group;
        let by_inodes = self.end_of(groups);
        if self.is_wide {
            by_inodes
        } else {
            by_inodes.min(u32::MAX.into())
        }
    }

    /// The number of blocks of the largest filesystem to which this one can be grown while it is
    /// not mounted, without moving anything.
    fn most_unmounted(&self) -> u64 {
        if self.meta_bg {
            return self.most_blocks();
        }
        let described = self.descriptor_blocks(self.groups(self.blocks)) + self.reserved_blocks;
        let groups = described.saturating_mul(self.descriptors_per_block());
        self.end_of(groups).min(self.most_blocks())
    }

    fn in_bytes(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(self.block_bytes)
    }

    /// The block after the last one of so many groups.
    fn end_of(&self, groups: u64) -> u64 {
        groups
            .saturating_mul(self.blocks_per_group)
            .saturating_add(self.first_block)
    }

    fn groups(&self, blocks: u64) -> u64 {
        blocks
            .saturating_sub(self.first_block)
            .div_ceil(self.blocks_per_group)
    }

    fn descriptors_per_block(&self) -> u64 {
        self.block_bytes / self.descriptor_bytes
    }

    fn descriptor_blocks(&self, groups: u64) -> u64 {
        groups.div_ceil(self.descriptors_per_block())
    }

    /// Blocks that the last of so many groups needs for its own tables.
    fn overhead(&self, groups: u64) -> u64 {
        let inodes = (self.inodes_per_group * self.inode_bytes).div_ceil(self.block_bytes);
        let has_copy = match self.sparse_super2 {
            Some(copies) => copies[usize::from(groups != 2)] != 0,
            None => !self.sparse_super || has_sparse_copy(groups - 1),
        };
        let copy = 1 + self.descriptor_blocks(groups) + self.reserved_blocks;
        2 + inodes + if has_copy { copy } else { 0 }
    }
}

/// True if a group has a copy of the superblock with `sparse_super`: 0, 1, and powers of 3, 5 and
/// 7.
fn has_sparse_copy(group: u64) -> bool {
    group <= 1 || [3, 5, 7].into_iter().any(|base| is_power(group, base))
}

fn is_power(number: u64, base: u64) -> bool {
    let mut power = base;
    while power < number {
        power *= base;
    }
    power == number
}

#[cfg(test)]
mod tests;
