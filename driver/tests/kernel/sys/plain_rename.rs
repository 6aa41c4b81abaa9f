//! A filesystem without RENAME_NOREPLACE, like NFS, ZFS before 2.2 and many in user space.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use hostloop_driver::kernel::file;
use nix::mount::{MntFlags, MsFlags, umount2};
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::fuse::{answer, directory, hello, words};
use super::scratch::Scratch;

const ROOT: u64 = 1;
const INCOMING: u64 = 2;
const VOLUMES: u64 = 3;
const ENTRY: u64 = 4;
const TAKEN: u64 = 5;

/// Serves directories until they are unmounted: `incoming/entry`, `volumes/taken`, and what renames
/// make of them. Numbers and layouts are linux/fuse.h's.
fn serve(mut channel: File) {
    let mut names: BTreeMap<(u64, String), u64> = [
        ((ROOT, "incoming"), INCOMING),
        ((ROOT, "volumes"), VOLUMES),
        ((INCOMING, "entry"), ENTRY),
        ((VOLUMES, "taken"), TAKEN),
    ]
    .map(|((parent, name), node)| ((parent, name.to_owned()), node))
    .into();
    let mut request = vec![0; 1 << 20];
    while let Ok(len) = channel.read(&mut request) {
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let (operation, unique, node) = (number(4), long(8), long(16));
        let text = |from: usize| String::from_utf8_lossy(&request[from..len]).into_owned();
        let result = match operation {
            // LOOKUP. Nothing is kept: the kernel asks each time.
            1 => match names.get(&(node, text(40).trim_end_matches('\0').to_owned())) {
                Some(found) => Ok([words(&[*found, 0, 0, 0, 0]), directory(*found)].concat()),
                None => Err(libc::ENOENT),
            },
            // GETATTR.
            3 => Ok([words(&[0, 0]), directory(node)].concat()),
            // RENAME: the new parent, the old name, the new name.
            12 => {
                let rest = text(48);
                let mut parts = rest.split('\0').map(str::to_owned);
                let (from, to) = (parts.next().unwrap(), parts.next().unwrap());
                let moved = names.remove(&(node, from)).unwrap();
                names.insert((long(40), to), moved);
                Ok(Vec::new())
            }
            14 | 27 => Ok(words(&[0, 0])),
            18 | 20 | 25 | 29 | 30 => Ok(Vec::new()),
            26 => Ok(hello()),
            2 | 36 | 42 => continue,
            // Also RENAME2, which has the flags.
            _ => Err(libc::ENOSYS),
        };
        let _ = channel.write(&answer(unique, result));
    }
}

fn open(path: &Path) -> File {
    File::open(path).unwrap()
}

#[test]
fn an_entry_is_renamed_and_replaces_nothing() {
    let s = Scratch::new();
    let at = s.dir("at");
    let channel = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .unwrap();
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        channel.as_raw_fd()
    );
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    nix::mount::mount(
        Some("hostloop-test"),
        &at,
        Some("fuse"),
        flags,
        Some(data.as_str()),
    )
    .unwrap();
    let server = std::thread::spawn(move || serve(channel));
    {
        let (incoming, volumes) = (open(&at.join("incoming")), open(&at.join("volumes")));
        let lacks = rustix::fs::renameat_with(
            &incoming,
            "entry",
            &volumes,
            "entry",
            RenameFlags::NOREPLACE,
        );
        assert_eq!(lacks, Err(Errno::INVAL));
        let rename = |to| file::rename(incoming.as_fd(), "entry", volumes.as_fd(), to);
        let refused = rename("taken").unwrap_err().to_string();
        assert!(refused.contains("File exists"), "{refused}");
        rename("entry").unwrap();
        assert!(!at.join("incoming/entry").exists());
        assert!(at.join("volumes/entry").exists());
    }
    // A test that looks at all mounts beside this one may hold it, and a namespace with copies of all
    // mounts keeps it: MNT_FORCE ends the server in any case.
    let _ = umount2(&at, MntFlags::MNT_FORCE);
    let _ = umount2(&at, MntFlags::MNT_DETACH);
    server.join().unwrap();
}
