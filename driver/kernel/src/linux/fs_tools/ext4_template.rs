//! Writes what mke2fs would write into a new image, without running it again.
//!
//! mke2fs writes the same blocks into all images of one size. Only superblocks differ, in the UUID,
//! the hash seed and times. The checksums of all other blocks depend on a seed in the superblock
//! (`metadata_csum_seed`), which stays, so only superblocks need a new checksum. The root directory
//! and `lost+found` keep the times of the first image.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use uuid::Uuid;

use crate::linux::superblock::crc32c;
use crate::linux::superblock::ext4::{
    BYTES as SUPERBLOCK, CHECKED, CHECKSUM, HASH_SEED, INCOMPATIBLE, MADE, MAGIC, START, UUID,
    WRITTEN,
};
use crate::{BLOCK_SIZE, Error, FsType, MkfsSpec, Result, file, magic, whole_blocks};

/// The feature that makes this possible, for mke2fs. It is not added if a class chooses features,
/// because mke2fs refuses some combinations.
pub(super) fn features(spec: &MkfsSpec<'_>) -> &'static [&'static str] {
    if spec.image.is_some() && !spec.options.iter().any(|word| word.starts_with("-O")) {
        &["-O", "metadata_csum,metadata_csum_seed"]
    } else {
        &[]
    }
}

/// Images to remember. Few sizes and classes are in use at a time.
const KEPT: usize = 8;
/// The most bytes that a remembered image may have allocated. ext4 of 1 TiB has less.
const LARGEST: u64 = 32 << 20;
/// The most bytes of all remembered images, compressed.
const MOST_KEPT: usize = 4 << 20;
/// The most bytes to read of an image: some filesystems show allocated space as data.
const MOST_READ: usize = 64 << 20;
/// The most bytes to write at once, which is the memory that a copy needs.
const CHUNK: usize = 256 << 10;
const BLOCK: usize = BLOCK_SIZE as usize;

/// The images that mke2fs has made lately.
#[derive(Debug, Default)]
pub(in crate::linux) struct Templates(Mutex<VecDeque<Arc<Template>>>);

/// What mke2fs has written into an image.
#[derive(Debug)]
struct Template {
    bytes: u64,
    options: Vec<String>,
    chunks: Vec<Chunk>,
}

/// Consecutive blocks that are not zero.
#[derive(Debug)]
struct Chunk {
    /// The offset in the image.
    at: u64,
    /// Where superblocks begin in the content.
    superblocks: Vec<usize>,
    /// The content, compressed.
    content: Vec<u8>,
}

/// The fields in which the superblocks of two images differ.
struct SuperblockIdentity {
    uuid: Uuid,
    hash_seed: Uuid,
    /// The low 32 bits of seconds since the epoch, as mke2fs writes them.
    now: u32,
}

impl Templates {
    /// Writes the filesystem into a blank image. False if no such image is remembered.
    pub(super) fn write(&self, spec: &MkfsSpec<'_>, image: &File) -> Result<bool> {
        let bytes = file::length(image)?;
        let known = self
            .0
            .lock()
            .iter()
            .find(|t| t.is_for(spec, bytes))
            .cloned();
        let Some(known) = known else {
            return Ok(false);
        };
        let identity = SuperblockIdentity::new();
        for chunk in &known.chunks {
            let content = chunk.content_with(&identity);
            let written = content.and_then(|content| image.write_all_at(&content, chunk.at));
            written.map_err(|e| Error::io("write", spec.device, e))?;
        }
        Ok(true)
    }

    /// Remembers the image that mke2fs has just made. One that can't serve as a template is left
    /// out.
    pub(super) fn learn(&self, spec: &MkfsSpec<'_>, image: &File) {
        if spec.fs != FsType::Ext4 {
            return;
        }
        let Ok(Some(template)) = Template::of(spec, image) else {
            return;
        };
        let mut templates = self.0.lock();
        templates.retain(|other| !other.is_for(spec, template.bytes));
        templates.truncate(KEPT - 1);
        templates.push_front(Arc::new(template));
        while templates.iter().map(|t| t.size()).sum::<usize>() > MOST_KEPT {
            templates.pop_back();
        }
    }
}

impl Template {
    /// `None` if the image has too much data, or its checksums depend on its UUID.
    fn of(spec: &MkfsSpec<'_>, image: &File) -> Result<Option<Template>> {
        let bytes = file::length(image)?;
        if file::allocated_bytes(image)? > LARGEST {
            return Ok(None);
        }
        let mut primary = [0; SUPERBLOCK];
        image
            .read_exact_at(&mut primary, START)
            .map_err(|e| Error::io("read", spec.device, e))?;
        if !has_checksum_seed(&primary) {
            return Ok(None);
        }
        let mut chunks: Vec<Chunk> = Vec::new();
        let (mut at, mut content) = (0, Vec::<u8>::new());
        let mut read = 0;
        let mut next = 0;
        while let Some((start, end)) = file::next_data(image, next, bytes)? {
            let first = whole_blocks(start);
            for start in (first..end).step_by(BLOCK) {
                let mut block = [0; BLOCK];
                image
                    .read_exact_at(&mut block, start)
                    .map_err(|e| Error::io("read", spec.device, e))?;
                read += BLOCK;
                if read > MOST_READ {
                    return Ok(None);
                }
                if block.iter().all(|byte| *byte == 0) {
                    continue;
                }
                if at + content.len() as u64 != start || content.len() == CHUNK {
                    if !content.is_empty() {
                        chunks.push(Chunk::of(at, &content, &primary));
                        content.clear();
                    }
                    at = start;
                }
                content.extend_from_slice(&block);
            }
            next = end;
        }
        if !content.is_empty() {
            chunks.push(Chunk::of(at, &content, &primary));
        }
        Ok(Some(Template {
            bytes,
            options: spec.options.to_vec(),
            chunks,
        }))
    }

    /// Bytes of memory.
    fn size(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.content.len()).sum()
    }

    fn is_for(&self, spec: &MkfsSpec<'_>, bytes: u64) -> bool {
        let same = self.bytes == bytes && self.options == spec.options;
        spec.fs == FsType::Ext4 && spec.uuid.is_none() && same
    }
}

impl Chunk {
    fn of(at: u64, content: &[u8], primary: &[u8]) -> Chunk {
        let superblocks = match at {
            0 => vec![START as usize],
            _ => Vec::new(),
        };
        // A copy is at the start of a block, and has the same UUID.
        let copies = (0..content.len()).step_by(BLOCK).filter(|at| {
            [MAGIC..MAGIC + 2, UUID..UUID + 16]
                .into_iter()
                .all(|field| content.get(at + field.start..at + field.end) == Some(&primary[field]))
        });
        let superblocks = superblocks.into_iter().chain(copies).collect();
        Chunk {
            at,
            superblocks,
            content: lz4_flex::compress_prepend_size(content),
        }
    }

    /// The content with another identity of the filesystem.
    fn content_with(&self, identity: &SuperblockIdentity) -> std::io::Result<Vec<u8>> {
        let content = lz4_flex::decompress_size_prepended(&self.content);
        let mut content = content.map_err(std::io::Error::other)?;
        for at in &self.superblocks {
            identity.write(&mut content[*at..*at + SUPERBLOCK]);
        }
        Ok(content)
    }
}

impl SuperblockIdentity {
    fn new() -> SuperblockIdentity {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        SuperblockIdentity {
            uuid: Uuid::new_v4(),
            hash_seed: Uuid::new_v4(),
            now: now.as_secs() as u32,
        }
    }

    fn write(&self, superblock: &mut [u8]) {
        for time in [WRITTEN, CHECKED, MADE] {
            superblock[time..][..4].copy_from_slice(&self.now.to_le_bytes());
        }
        superblock[UUID..][..16].copy_from_slice(self.uuid.as_bytes());
        superblock[HASH_SEED..][..16].copy_from_slice(self.hash_seed.as_bytes());
        let sum = crc32c(!0, &superblock[..CHECKSUM]);
        superblock[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    }
}

/// True if this is a superblock, and the checksums of other blocks do not depend on its UUID.
fn has_checksum_seed(superblock: &[u8; SUPERBLOCK]) -> bool {
    const CSUM_SEED: u8 = 0x20;
    let magic = u16::from_le_bytes([superblock[MAGIC], superblock[MAGIC + 1]]);
    i64::from(magic) == magic::EXT4 && superblock[INCOMPATIBLE + 1] & CSUM_SEED != 0
}

#[cfg(test)]
mod tests;
