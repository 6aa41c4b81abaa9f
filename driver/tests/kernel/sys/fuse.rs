//! A filesystem with one file that stops answering, like NFS when its server goes away.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::mount::{MntFlags, MsFlags, umount2};

/// Size of the one file, in bytes.
const SIZE: u64 = 1 << 20;
const ROOT: u64 = 1;
const FILE: u64 = 2;

/// The mounted filesystem; dropping it unmounts.
pub(crate) struct Hanging {
    at: PathBuf,
    hangs: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Hanging {
    /// Mounts the filesystem. Its file is `image`.
    pub(crate) fn mount(at: &Path) -> Hanging {
        let channel = File::options().read(true).write(true).open("/dev/fuse");
        let channel = channel.expect("this test needs /dev/fuse");
        let data = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            channel.as_raw_fd()
        );
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        let source = Some("hostloop-test");
        nix::mount::mount(source, at, Some("fuse"), flags, Some(data.as_str())).unwrap();
        let hangs = Arc::new(AtomicBool::new(false));
        let hanging = hangs.clone();
        Hanging {
            at: at.to_owned(),
            hangs,
            server: Some(std::thread::spawn(move || serve(channel, &hanging))),
        }
    }

    /// From now on, the filesystem does not answer GETATTR of the file.
    pub(crate) fn hang(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }
}

impl Drop for Hanging {
    /// Callers that still wait get an error.
    fn drop(&mut self) {
        // MNT_FORCE fails the pending requests, which also ends the server.
        let _ = umount2(&self.at, MntFlags::MNT_FORCE);
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Answers requests until the filesystem is unmounted. Numbers and layouts are linux/fuse.h's.
fn serve(mut channel: File, hangs: &AtomicBool) {
    let mut request = vec![0; 1 << 20];
    while let Ok(len) = channel.read(&mut request) {
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let (operation, unique, node) = (number(4), long(8), long(16));
        let answer = match operation {
            1 if request[40..len].starts_with(b"image\0") => {
                Ok([words(&[FILE, 0, 0, 0, 0]), attributes(FILE)].concat())
            }
            3 if node == FILE && hangs.load(Ordering::SeqCst) => continue,
            3 => Ok([words(&[0, 0]), attributes(node)].concat()),
            // OPEN, OPENDIR: no handle, no flags.
            14 | 27 => Ok(words(&[0, 0])),
            // READ.
            15 => Ok(vec![0; number(40 + 16) as usize]),
            // FLUSH, RELEASE, RELEASEDIR, FSYNC.
            25 | 18 | 29 | 20 => Ok(Vec::new()),
            26 => Ok(hello()),
            // FORGET, INTERRUPT, BATCH_FORGET: the kernel expects no answer.
            2 | 36 | 42 => continue,
            1 => Err(libc::ENOENT),
            _ => Err(libc::ENOSYS),
        };
        // An interrupted request expects no answer any more, so an error here does not matter.
        let _ = channel.write(&self::answer(unique, answer));
    }
}

/// The answer to a request: a body, or an error number.
pub(super) fn answer(unique: u64, result: Result<Vec<u8>, i32>) -> Vec<u8> {
    let (error, body) = match result {
        Ok(body) => (0, body),
        Err(errno) => (-errno, Vec::new()),
    };
    let len = u32::try_from(16 + body.len()).unwrap();
    let head = [len.to_ne_bytes(), error.to_ne_bytes()].concat();
    [head, words(&[unique]), body].concat()
}

pub(super) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

/// `struct fuse_init_out`: version 7.31, writes of 4 KiB.
pub(super) fn hello() -> Vec<u8> {
    let mut out: Vec<u8> = [7u32, 31, 0, 0, 0, 4096, 1]
        .iter()
        .flat_map(|w| w.to_ne_bytes())
        .collect();
    out.resize(64, 0);
    out
}

fn attributes(node: u64) -> Vec<u8> {
    match node {
        ROOT => directory(node),
        _ => described(node, libc::S_IFREG | 0o600, SIZE),
    }
}

pub(super) fn directory(node: u64) -> Vec<u8> {
    described(node, libc::S_IFDIR | 0o755, 0)
}

/// `struct fuse_attr`.
fn described(node: u64, mode: u32, size: u64) -> Vec<u8> {
    let long = words(&[node, size, size / 512, 0, 0, 0]);
    let short: Vec<u8> = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]
        .iter()
        .flat_map(|w: &u32| w.to_ne_bytes())
        .collect();
    [long, short].concat()
}
