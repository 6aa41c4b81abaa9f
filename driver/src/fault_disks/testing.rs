//! A server of fault disks without any disk.

use std::fs;
use std::path::Path;
use std::thread;

use hostloop_fault_disk::protocol::Answer;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    listen, recv, send, socket_with,
};

use super::SOCKET;

/// Gives each request this answer, in place of an earlier server.
pub(crate) fn answer_all(state_dir: &Path, answer: &Answer) {
    answer_in_turn(state_dir, std::slice::from_ref(answer));
}

/// Gives the requests of each connection these answers in turn, in place of an earlier server.
pub(crate) fn answer_in_turn(state_dir: &Path, answers: &[Answer]) {
    let answers = answers
        .iter()
        .map(|answer| serde_json::to_vec(answer).unwrap());
    let answers: Vec<Vec<u8>> = answers.collect();
    let path = state_dir.join(SOCKET);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let _ = fs::remove_file(&path);
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 8).unwrap();
    thread::spawn(move || {
        while let Ok(connection) = accept(&listener) {
            let mut request = [0; 4096];
            let mut next = answers.iter().cycle();
            while recv(&connection, &mut request[..], RecvFlags::empty())
                .is_ok_and(|(len, _)| len > 0)
            {
                let _ = send(&connection, next.next().unwrap(), SendFlags::NOSIGNAL);
            }
        }
    });
}
