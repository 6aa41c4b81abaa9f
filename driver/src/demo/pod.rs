//! What a pod does with its volume: write, read, check.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::error::{Error, Result};
use super::tree::hex;

const CHUNK: usize = 1 << 20;

/// Writes random bytes at an offset of a file or device (made if it is not there), syncs, and
/// gives their SHA-256.
pub(super) fn write_random(path: &Path, offset: u64, len: u64) -> Result<String> {
    let mut random = File::open("/dev/urandom").map_err(Error::io("open", "/dev/urandom"))?;
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(Error::io("open", path))?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < len {
        let n = CHUNK.min(usize::try_from(len - at).unwrap_or(CHUNK));
        let chunk = &mut buffer[..n];
        random
            .read_exact(chunk)
            .map_err(Error::io("read", "/dev/urandom"))?;
        digest.update(&*chunk);
        file.write_all_at(chunk, offset + at)
            .map_err(Error::io("write", path))?;
        at += n as u64;
    }
    file.sync_all().map_err(Error::io("fsync", path))?;
    Ok(hex(&digest.finalize()))
}

/// SHA-256 of a whole file, or of the first `limit` bytes.
pub(super) fn checksum(path: &Path, limit: Option<u64>) -> Result<String> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    // What was written is to be read from the disk and not from memory.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    let mut reader = file.take(limit.unwrap_or(u64::MAX));
    let mut digest = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        match reader.read(&mut buffer).map_err(Error::io("read", path))? {
            0 => return Ok(hex(&digest.finalize())),
            n => digest.update(&buffer[..n]),
        }
    }
}

/// Tries to write to a device; the error is the kernel's, from whichever of open, write and sync
/// it came.
pub(super) fn try_to_write(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(&[0xff; 4096])?;
    file.sync_all()
}

/// The size of a block device or file in bytes: where its end is.
pub(super) fn size(path: &Path) -> Result<u64> {
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    file.seek(SeekFrom::End(0)).map_err(Error::io("seek", path))
}

/// A small file, written through to the disk at once.
pub(super) fn put_number(path: &Path, n: u64) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_DSYNC)
        .open(path)?;
    file.write_all(format!("{n:020}\n").as_bytes())
}

/// Reads what [`put_number`] wrote.
pub(super) fn number(path: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
    text.trim_end().parse().map_err(|e| Error::Io {
        op: "read a number from",
        path: path.to_path_buf(),
        source: io::Error::new(io::ErrorKind::InvalidData, e),
    })
}

/// Writes everything back that a mounted filesystem still holds in memory.
pub(super) fn sync(mounted_at: &Path) -> Result<()> {
    let dir = File::open(mounted_at).map_err(Error::io("open", mounted_at))?;
    rustix::fs::syncfs(&dir).map_err(|e| Error::io("syncfs", mounted_at)(e.into()))
}

/// Runs of `block`-sized blocks in which two files differ, as offset and length.
pub(super) fn differences(a: &Path, b: &Path, block: usize) -> Result<Vec<(u64, u64)>> {
    let open = |path: &Path| File::open(path).map_err(Error::io("open", path));
    let (file_a, file_b) = (open(a)?, open(b)?);
    let len = |file: &File, path: &Path| {
        file.metadata()
            .map(|m| m.len())
            .map_err(Error::io("fstat", path))
    };
    let end = len(&file_a, a)?.max(len(&file_b, b)?);
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let (mut left, mut right) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut at = 0;
    // Where both are holes they are equal, and need not be read.
    while let Some(next) = next_data(&file_a, at)
        .into_iter()
        .chain(next_data(&file_b, at))
        .min()
    {
        at = next - next % block as u64;
        let n = CHUNK.min(usize::try_from(end - at).unwrap_or(CHUNK));
        fill(&file_a, &mut left[..n], at).map_err(Error::io("read", a))?;
        fill(&file_b, &mut right[..n], at).map_err(Error::io("read", b))?;
        if left[..n] != right[..n] {
            for (i, (x, y)) in left[..n]
                .chunks(block)
                .zip(right[..n].chunks(block))
                .enumerate()
            {
                if x != y {
                    push(&mut runs, at + (i * block) as u64, x.len() as u64);
                }
            }
        }
        at += n as u64;
    }
    Ok(runs)
}

/// Where the next data at or after an offset is, if there is any. A filesystem that can't tell has
/// data everywhere.
fn next_data(file: &File, at: u64) -> Option<u64> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(next) => Some(next),
        Err(rustix::io::Errno::NXIO) => None,
        Err(_) => (file.metadata().ok()?.len() > at).then_some(at),
    }
}

/// Reads at an offset; what lies behind the end reads as zeros.
fn fill(file: &File, buffer: &mut [u8], mut at: u64) -> io::Result<()> {
    let mut rest = buffer;
    while !rest.is_empty() {
        match file.read_at(rest, at) {
            Ok(0) => {
                rest.fill(0);
                return Ok(());
            }
            Ok(n) => {
                rest = &mut rest[n..];
                at += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Adds a run, joined to the last one where they touch.
pub(super) fn push(runs: &mut Vec<(u64, u64)>, offset: u64, length: u64) {
    match runs.last_mut() {
        Some((at, len)) if *at + *len == offset => *len += length,
        _ => runs.push((offset, length)),
    }
}

/// Whether each of `inner` lies within one of `outer`; both are ascending and apart, and touching
/// ones of `outer` are joined.
pub(super) fn covers(outer: &[(u64, u64)], inner: &[(u64, u64)]) -> bool {
    inner.iter().all(|(at, len)| {
        outer
            .iter()
            .any(|(start, length)| start <= at && at + len <= start + length)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let digest = write_random(&path, 0, 3 << 20).unwrap();
        assert_eq!(checksum(&path, None).unwrap(), digest);
        write_random(&path, 3 << 20, 5).unwrap();
        assert_eq!(size(&path).unwrap(), (3 << 20) + 5);
        assert_ne!(checksum(&path, None).unwrap(), digest);
        assert_eq!(checksum(&path, Some(3 << 20)).unwrap(), digest);
        put_number(&path, 7).unwrap();
        let small = dir.path().join("n");
        put_number(&small, 41).unwrap();
        put_number(&small, 42).unwrap();
        assert_eq!(number(&small).unwrap(), 42);
    }

    #[test]
    fn differences_are_found_and_joined() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, vec![1; 5 * 4096]).unwrap();
        let mut changed = vec![1; 5 * 4096];
        changed[4096] = 2;
        changed[2 * 4096 + 7] = 2;
        changed[4 * 4096] = 2;
        changed.resize(7 * 4096, 0);
        std::fs::write(&b, &changed).unwrap();
        let runs = differences(&a, &b, 4096).unwrap();
        assert_eq!(runs, [(4096, 8192), (4 * 4096, 4096)]);
    }

    #[test]
    fn covering() {
        let outer = [(0, 8192), (16384, 4096)];
        for (inner, covered) in [
            (vec![], true),
            (vec![(4096, 4096), (16384, 4096)], true),
            (vec![(4096, 8192)], false),
            (vec![(12288, 4096)], false),
        ] {
            assert_eq!(covers(&outer, &inner), covered, "{inner:?}");
        }
    }
}
