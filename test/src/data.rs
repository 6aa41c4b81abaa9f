//! Bytes with a known checksum, written and read back within a time limit.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use sha2::{Digest, Sha256};

use crate::PATIENCE;

/// The number of bytes a test writes into a volume.
pub const BYTES: usize = 2 << 20;

/// A checksum of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum([u8; 32]);

impl Checksum {
    /// The checksum of these bytes.
    pub fn of(bytes: &[u8]) -> Checksum {
        Checksum(Sha256::digest(bytes).into())
    }
}

/// btrfs compresses pieces of this size.
const PIECE: usize = 128 << 10;

/// Content that does not compress and differs by seed. Pieces of it differ only in their first
/// bytes, because a debug build takes long to make random numbers.
pub fn content(seed: u64, bytes: usize) -> Vec<u8> {
    // xorshift64*, which works with every seed but 0.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut piece = Vec::with_capacity(PIECE);
    while piece.len() < bytes.min(PIECE) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        piece.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    let mut content = piece.repeat(bytes.div_ceil(PIECE));
    for (number, piece) in content.chunks_mut(PIECE).enumerate().skip(1) {
        piece[..8].copy_from_slice(&number.to_le_bytes());
    }
    content.truncate(bytes);
    content
}

/// Writes content made from `seed` to the beginning of a file or a device, and syncs it to disk. A
/// missing file is created.
pub fn write(path: &Path, seed: u64) -> Checksum {
    let bytes = content(seed, BYTES);
    let sum = Checksum::of(&bytes);
    within_limit("write to", path, move |path| {
        // A missing device is not created: it would become a plain file.
        let make = !path.starts_with("/dev") && !path.exists();
        let mut file = OpenOptions::new().write(true).create(make).open(path)?;
        file.rewind()?;
        file.write_all(&bytes)?;
        file.sync_all()
    });
    sum
}

/// The checksum of the content that [`write()`] wrote to this path.
pub fn read(path: &Path) -> Checksum {
    let bytes = within_limit("read from", path, |path| {
        let mut bytes = vec![0; BYTES];
        File::open(path)?.read_exact(&mut bytes)?;
        Ok(bytes)
    });
    Checksum::of(&bytes)
}

/// The size of a file or a device, in bytes.
pub fn size(path: &Path) -> u64 {
    within_limit("look at", path, |path| {
        File::open(path)?.seek(SeekFrom::End(0))
    })
}

/// Runs on a separate thread, which stays behind if it hangs. A write into a frozen filesystem
/// hangs forever.
fn within_limit<T: Send + 'static>(
    what: &str,
    path: &Path,
    act: impl FnOnce(&Path) -> std::io::Result<T> + Send + 'static,
) -> T {
    let (done, wait) = mpsc::channel();
    let there: PathBuf = path.to_path_buf();
    std::thread::spawn(move || done.send(act(&there)));
    match wait.recv_timeout(PATIENCE) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => panic!("{what} {}: {error}", path.display()),
        Err(_) => {
            // Thaw the filesystem so that the test can be taken down: a frozen one blocks
            // everything.
            if let Some(dir) = path.parent() {
                let _ =
                    crate::machine::try_run("fsfreeze", &["--unfreeze", &dir.to_string_lossy()]);
            }
            panic!(
                "{what} {}: hangs, as in a frozen filesystem",
                path.display()
            )
        }
    }
}
