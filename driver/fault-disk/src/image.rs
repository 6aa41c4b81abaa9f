//! The image of a fault disk.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::aligned_buffer::is_aligned;
use crate::{Error, Result};

/// How bytes become zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zeroing {
    /// Their blocks are given back.
    Punch,
    /// Their blocks stay.
    Keep,
}

/// The file with the bytes of a disk.
#[derive(Debug)]
pub(crate) struct Image {
    /// Without page cache: its server never waits for dirty pages. `None` where the filesystem has
    /// no direct I/O.
    direct: Option<File>,
    /// The file as it was opened. Only I/O in parts of blocks uses it.
    cached: File,
}

impl Image {
    pub(crate) fn new(file: File) -> Result<Image> {
        let opened = rustix::fs::fcntl_getfl(&file)
            .map_err(|e| Error::system("to look at the image's descriptor", e))?;
        if opened & OFlags::RWMODE != OFlags::RDWR {
            let reason = "it is not open for reading and writing";
            return Err(Error::invalid("image", reason));
        }
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let direct = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(direct) => Some(File::from(direct)),
            Err(Errno::INVAL) => None,
            Err(e) => {
                return Err(Error::system(
                    "to open the image for reading and writing",
                    e,
                ));
            }
        };
        Ok(Image {
            direct,
            cached: file,
        })
    }

    pub(crate) fn size(&self) -> Result<u64> {
        let metadata = self.cached.metadata();
        let metadata = metadata.map_err(|e| Error::system("to look at the image", e))?;
        Ok(metadata.len())
    }

    /// The filesystem of the image.
    pub(crate) fn filesystem(&self) -> io::Result<rustix::fs::StatFs> {
        Ok(rustix::fs::fstatfs(&self.cached)?)
    }

    fn file(&self, bytes: &[u8], offset: u64) -> &File {
        match &self.direct {
            Some(direct) if is_aligned(bytes, offset) => direct,
            _ => &self.cached,
        }
    }

    /// Reads. What is behind the end of the image is zero.
    pub(crate) fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let rest = &mut bytes[done..];
            match self.file(rest, at).read_at(rest, at) {
                Ok(0) => {
                    rest.fill(0);
                    break;
                }
                Ok(read) => done += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => (),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file(bytes, offset).write_all_at(bytes, offset)
    }

    /// Makes bytes zeroes. A filesystem that can't keep their blocks gives them back.
    pub(crate) fn zero(&self, offset: u64, len: u64, zeroing: Zeroing) -> io::Result<()> {
        const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
        const KEEP: FallocateFlags = FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);
        if zeroing == Zeroing::Keep {
            match rustix::fs::fallocate(&self.cached, KEEP, offset, len) {
                Err(Errno::OPNOTSUPP) => (),
                done => return Ok(done?),
            }
        }
        Ok(rustix::fs::fallocate(&self.cached, PUNCH, offset, len)?)
    }

    /// Waits until the storage below keeps what was written.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.cached.sync_data()
    }
}
