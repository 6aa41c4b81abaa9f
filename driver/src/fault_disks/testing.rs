//! A server of fault disks without any disk.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use hostloop_fault_disk::protocol::{Answer, Request};
use hostloop_fault_disk::{Counts, DiskState, Settings};
use parking_lot::Mutex;
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
    let listener = listener(state_dir);
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

/// Serves each disk, which has these settings and does nothing, in place of an earlier server.
pub(crate) fn serve_idle_disk(state_dir: &Path) -> Arc<Mutex<Settings>> {
    let listener = listener(state_dir);
    let settings = Arc::new(Mutex::new(Settings::default()));
    let of_disk = Arc::clone(&settings);
    thread::spawn(move || {
        while let Ok(connection) = accept(&listener) {
            let mut request = [0; 4096];
            while let Ok((len @ 1.., _)) = recv(&connection, &mut request[..], RecvFlags::empty()) {
                let answer = answer_for(&of_disk, serde_json::from_slice(&request[..len]).unwrap());
                let answer = serde_json::to_vec(&answer).unwrap();
                let _ = send(&connection, &answer, SendFlags::NOSIGNAL);
            }
        }
    });
    settings
}

fn answer_for(settings: &Mutex<Settings>, request: Request) -> Answer {
    match request {
        Request::State { name } => Answer::State(DiskState {
            name,
            is_cut: false,
            settings: settings.lock().clone(),
            counts: Counts::default(),
        }),
        Request::Set { settings: new, .. } => {
            *settings.lock() = new;
            Answer::Done
        }
        _ => Answer::Done,
    }
}

fn listener(state_dir: &Path) -> OwnedFd {
    let path = state_dir.join(SOCKET);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let _ = fs::remove_file(&path);
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 8).unwrap();
    listener
}
