//! Messages of JSON over a Unix socket, each with at most one file.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg,
    sendmsg, socket_with,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// The largest message.
pub(crate) const LONGEST: usize = 128 * 1024;

/// A socket that keeps the bounds of messages.
pub(crate) fn new() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// The bytes of a message.
pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>> {
    let bytes = serde_json::to_vec(message).map_err(|e| Error::Message(e.to_string()))?;
    if bytes.len() > LONGEST {
        let reason = format!("{} bytes are more than {LONGEST}", bytes.len());
        return Err(Error::invalid("message", reason));
    }
    Ok(bytes)
}

/// Sends a message, with a file if there is one.
pub(crate) fn send(socket: impl AsFd, message: &impl Serialize, file: Option<&File>) -> Result<()> {
    send_bytes(socket, &encode(message)?, file)
        .map_err(|e| Error::system("to send to the other side of the socket", e))
}

/// Sends the bytes of a message. It takes no memory.
pub(crate) fn send_bytes(
    socket: impl AsFd,
    bytes: &[u8],
    file: Option<&File>,
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file.as_fd()]);
    if let Some(files) = &files {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    let parts = [IoSlice::new(bytes)];
    sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Waits until there is a message, or the other side has closed the socket. False if that takes longer
/// than this. It receives nothing, and takes no memory.
pub(crate) fn wait(socket: impl AsFd, longest: Duration) -> rustix::io::Result<bool> {
    let socket = socket.as_fd();
    let end = Instant::now() + longest;
    let has_come = loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break Ok(false);
        }
        set_socket_timeout(socket, Timeout::Recv, Some(left))?;
        match recv(socket, &mut [0_u8; 1][..], RecvFlags::PEEK) {
            Ok(_) => break Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => (),
            Err(e) => break Err(e),
        }
    };
    set_socket_timeout(socket, Timeout::Recv, None)?;
    has_come
}

/// Waits for a message. `None` once the other side has closed the socket.
pub(crate) fn receive<M: DeserializeOwned>(
    socket: impl AsFd,
    buffer: &mut Vec<u8>,
) -> Result<Option<(M, Option<OwnedFd>)>> {
    buffer.resize(LONGEST, 0);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(|e| Error::system("to receive from the other side of the socket", e))?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    if received.bytes == 0 {
        return Ok(None);
    }
    if received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Err(Error::Message("it is too long".to_owned()));
    }
    let message = serde_json::from_slice(&buffer[..received.bytes])
        .map_err(|e| Error::Message(e.to_string()))?;
    Ok(Some((message, file)))
}
