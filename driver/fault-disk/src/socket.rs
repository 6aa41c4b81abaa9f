//! Messages of JSON over a Unix socket, each with at most one file.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
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

/// Sends a message, with a file if there is one.
pub(crate) fn send(socket: impl AsFd, message: &impl Serialize, file: Option<&File>) -> Result<()> {
    let bytes = serde_json::to_vec(message).map_err(|e| Error::Message(e.to_string()))?;
    if bytes.len() > LONGEST {
        let reason = format!("{} bytes are more than {LONGEST}", bytes.len());
        return Err(Error::invalid("message", reason));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file.as_fd()]);
    if let Some(files) = &files {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    let parts = [IoSlice::new(&bytes)];
    sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)
        .map_err(|e| Error::system("to send to the other side of the socket", e))?;
    Ok(())
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
