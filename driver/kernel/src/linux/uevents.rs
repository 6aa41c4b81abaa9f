//! The kernel's messages about block devices (NETLINK_KOBJECT_UEVENT).
//!
//! The kernel sends one before the call that attaches or detaches a loop device returns. So a
//! process that has read all messages knows which devices changed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, setsockopt,
    socket, sockopt,
};

use crate::LOOP_MAJOR;

/// The multicast group of the kernel's own messages; udev sends in another one.
const KERNEL: u32 = 1;
/// Room for thousands of messages; the kernel may grant less.
const RECEIVE_BUFFER: usize = 1 << 20;
/// The kernel limits a message to 2 KiB of variables and a path.
const LARGEST: usize = 8 << 10;

/// A socket that receives the messages.
#[derive(Debug)]
pub(super) struct Uevents(OwnedFd);

/// The messages since the last time.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DeviceChanges {
    /// These loop devices may have changed.
    Loops(Vec<u32>),
    /// The kernel dropped messages, so any device may have changed.
    Unknown,
}

impl Uevents {
    /// Opens the socket.
    pub(super) fn open() -> io::Result<Uevents> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let protocol = SockProtocol::NetlinkKObjectUEvent;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        // Without the right to exceed the limit, the limit must do.
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            let _ = setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER);
        }
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL))?;
        Ok(Uevents(socket))
    }

    /// Reads all messages that are there; never waits.
    pub(super) fn drain(&self) -> io::Result<DeviceChanges> {
        let mut buffer = [0; LARGEST];
        let mut minors = Vec::new();
        let mut dropped = false;
        loop {
            match recvfrom::<NetlinkAddr>(self.0.as_raw_fd(), &mut buffer) {
                Ok((len, from)) => {
                    // Any process may send to this socket, but only the kernel has the ID 0.
                    if from.is_some_and(|from| from.pid() == 0) {
                        minors.extend(loop_minor(&buffer[..len]));
                    }
                }
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(Errno::ENOBUFS) => dropped = true,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(if dropped {
            DeviceChanges::Unknown
        } else {
            DeviceChanges::Loops(minors)
        })
    }
}

/// Notices of changed loop devices, for those who wait for a device to be detached.
#[derive(Debug)]
pub struct LoopNotices(Uevents);

impl LoopNotices {
    /// Opens the notices, of changes from now on.
    pub fn open() -> io::Result<LoopNotices> {
        Uevents::open().map(LoopNotices)
    }

    /// Waits until devices may have changed. Returns their minors; `None` if any device may have.
    pub fn changed(&self) -> io::Result<Option<Vec<u32>>> {
        match poll(
            &mut [PollFd::new(self.0.0.as_fd(), PollFlags::POLLIN)],
            PollTimeout::NONE,
        ) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(match self.0.drain()? {
            DeviceChanges::Loops(minors) => Some(minors),
            DeviceChanges::Unknown => None,
        })
    }
}

/// The minor of the loop device that a message is about. A message is `ACTION@PATH`, then
/// `KEY=VALUE` pairs, each with a NUL at its end.
fn loop_minor(message: &[u8]) -> Option<u32> {
    let is_loop = value(message, "SUBSYSTEM")? == "block"
        && value(message, "MAJOR")?.parse() == Ok(LOOP_MAJOR);
    value(message, "MINOR")?.parse().ok().filter(|_| is_loop)
}

/// The value of a key in a message.
fn value<'a>(message: &'a [u8], key: &str) -> Option<&'a str> {
    let mut words = message.split(|b| *b == 0);
    let found = words.find_map(|word| word.strip_prefix(key.as_bytes())?.strip_prefix(b"="));
    std::str::from_utf8(found?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_minor_of_loop_devices_only() {
        let attached = "change@/devices/virtual/block/loop12\0ACTION=change\0SUBSYSTEM=block\0\
                        MAJOR=7\0MINOR=12\0DEVNAME=loop12\0DISKSEQ=9\0";
        let table = [
            (attached.to_owned(), Some(12)),
            (attached.replace("change", "add"), Some(12)),
            (attached.replace("MAJOR=7", "MAJOR=254"), None),
            (attached.replace("SUBSYSTEM=block", "SUBSYSTEM=bdi"), None),
            (attached.replace("MINOR=12", "MINOR=x"), None),
            (attached.replace("MINOR=12\0", ""), None),
            ("libudev\0MAJOR=7".to_owned(), None),
            (String::new(), None),
        ];
        for (message, minor) in table {
            assert_eq!(loop_minor(message.as_bytes()), minor, "{message:?}");
        }
    }
}
