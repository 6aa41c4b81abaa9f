//! The fault disks of a node. They live as long as this process: if it dies, their users get EIO,
//! and what was not flushed is lost, as in a power cut.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, bind, listen};

use crate::client::Client;
use crate::fault_disk::{self, FaultDisk, cut_power};
use crate::power_cut::{Loss, PowerCutReport};
use crate::protocol::{Answer, Request};
use crate::{DiskState, Error, Result, Settings, memory_share, socket};

/// How long a request waits for the end of a disk.
const LONGEST_END: Duration = Duration::from_secs(5);

/// How long a request waits for the operations under way of the disks that are to be held or to lose
/// power.
const LONGEST_STOP: Duration = Duration::from_secs(10);

/// The longest time that disks are held: sync(2) of the whole node waits for them.
const LONGEST_HOLD: Duration = Duration::from_secs(300);

/// The most connections: the driver has one for each call, and at its end one for each slow disk at the
/// same time. That is more than the usual memory has disks.
const MOST_CONNECTIONS: usize = 64;

/// How often the server forgets the disks that have ended. Their memory is locked, and a driver that has
/// died never asks for their end.
const LOOK: Duration = Duration::from_secs(5);

/// How long the server waits when the system has no descriptor, thread or memory for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// A disk that is served.
#[derive(Debug)]
struct ServedDisk {
    disk: FaultDisk,
    /// The namespace of its claim; empty if none is known.
    namespace: String,
    /// The memory that it takes, in bytes.
    memory: u64,
}

/// Disks by name.
type Disks = BTreeMap<String, ServedDisk>;

/// The fault disks of a node.
#[derive(Debug)]
pub struct Server {
    disks: Mutex<Disks>,
    /// The most memory that all disks take, in bytes.
    memory: u64,
}

impl Server {
    /// A server without disks. All that it makes may take this much memory.
    pub fn new(memory: u64) -> Arc<Server> {
        Arc::new(Server {
            disks: Mutex::new(BTreeMap::new()),
            memory,
        })
    }

    /// Listens at this path, and answers requests until the socket fails. Only root may connect. The
    /// end of this process is a power cut, so a connection that can't be made does not end it.
    pub fn run(self: &Arc<Self>, path: &Path) -> Result<()> {
        let listener = listen_at(path)?;
        let server = Arc::downgrade(self);
        thread::Builder::new()
            .name("fault-disks-end".to_owned())
            .stack_size(128 * 1024)
            .spawn(move || forget_ended(&server))
            .map_err(|e| Error::system("to start a thread of the server", e))?;
        let connections = Arc::new(());
        loop {
            let connection = match accept_with(&listener, SocketFlags::CLOEXEC) {
                Ok(connection) => connection,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(e) if is_shortage(e) => {
                    tracing::warn!(error = %e, "a connection waits");
                    thread::sleep(PAUSE);
                    continue;
                }
                Err(e) => return Err(Error::system("to accept a connection", e)),
            };
            if Arc::strong_count(&connections) > MOST_CONNECTIONS {
                tracing::warn!("a connection is refused: there are {MOST_CONNECTIONS}");
                continue;
            }
            let (server, counted) = (Arc::clone(self), Arc::clone(&connections));
            let started = thread::Builder::new()
                .name("fault-disks".to_owned())
                .stack_size(256 * 1024)
                .spawn(move || {
                    server.answer_all(&connection);
                    drop(counted);
                });
            if let Err(e) = started {
                tracing::warn!(error = %e, "a connection is refused: it has no thread");
                thread::sleep(PAUSE);
            }
        }
    }

    fn answer_all(&self, connection: &OwnedFd) {
        let mut buffer = Vec::new();
        loop {
            let received = match socket::receive::<Request>(connection, &mut buffer) {
                Ok(Some(received)) => received,
                Ok(None) => return,
                Err(e) => {
                    tracing::warn!(error = %e, "a connection ends");
                    return;
                }
            };
            let (request, image) = received;
            let image = image.map(File::from);
            let answered = self.answer(connection, &mut buffer, request, image);
            let (answer, file) = match answered {
                Ok(answered) => answered,
                Err(Error::NotFound(name)) => (Answer::NotFound(name), None),
                Err(Error::InUse(name)) => (Answer::InUse(name), None),
                Err(e) => (Answer::Refused(e.to_string()), None),
            };
            if let Err(e) = socket::send(connection, &answer, file.as_ref()) {
                tracing::warn!(error = %e, "a connection ends");
                return;
            }
        }
    }

    fn answer(
        &self,
        connection: &OwnedFd,
        buffer: &mut Vec<u8>,
        request: Request,
        image: Option<File>,
    ) -> Result<(Answer, Option<File>)> {
        match request {
            Request::Serve {
                name,
                namespace,
                cache_bytes,
                settings,
            } => {
                let image = image.ok_or_else(|| Error::invalid("image", "no file came along"))?;
                let file = self.serve(namespace, &name, image, cache_bytes, settings)?;
                return Ok((Answer::Done, Some(file)));
            }
            Request::Set { name, settings } => self.disk(&name)?.set(settings)?,
            Request::Grow { name } => {
                self.disk(&name)?.grow()?;
            }
            Request::CutPower { names, loss, seed } => {
                return Ok((Answer::Cut(self.cut_power(&names, loss, seed)?), None));
            }
            Request::Hold {
                names,
                longest_millis,
            } => {
                let longest = Duration::from_millis(longest_millis);
                return self.hold(connection, buffer, &names, longest);
            }
            Request::Release => return Err(Error::invalid("release", "no disk is held")),
            Request::End { name } => self.end(&name)?,
            Request::State { name } => return Ok((Answer::State(self.state(&name)?), None)),
            Request::List => return Ok((Answer::Disks(self.list()), None)),
        }
        Ok((Answer::Done, None))
    }

    /// The disks that are in use. Those that have ended go.
    fn in_use(&self) -> MutexGuard<'_, Disks> {
        let mut disks = self.disks.lock();
        disks.retain(|_, served| !served.disk.has_ended(Duration::ZERO));
        disks
    }

    fn disk(&self, name: &str) -> Result<FaultDisk> {
        let disks = self.disks.lock();
        let found = disks.get(name).map(|served| served.disk.clone());
        found.ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    /// Makes a disk. One of the same name that has ended gives way. `namespace`: that of its claim,
    /// which has a share of the memory; empty if none is known.
    pub fn serve(
        &self,
        namespace: String,
        name: &str,
        image: File,
        cache_bytes: usize,
        settings: Settings,
    ) -> Result<File> {
        let mut disks = self.in_use();
        if disks.contains_key(name) {
            return Err(Error::Exists(name.to_owned()));
        }
        let memory = FaultDisk::memory(cache_bytes) as u64;
        let others = disks
            .values()
            .map(|served| (served.namespace.as_str(), served.memory));
        memory_share::admit(self.memory, others, &namespace, memory)?;
        let (disk, file) = FaultDisk::serve(name, image, cache_bytes, settings)?;
        let served = ServedDisk {
            disk,
            namespace,
            memory,
        };
        disks.insert(name.to_owned(), served);
        tracing::info!(disk = name, cache_bytes, "a fault disk begins");
        Ok(file)
    }

    /// Cuts the power of these disks at one instant, or of none of them.
    pub fn cut_power(
        &self,
        names: &BTreeSet<String>,
        loss: Loss,
        seed: u64,
    ) -> Result<Vec<PowerCutReport>> {
        let disks: Result<Vec<_>> = names.iter().map(|name| self.disk(name)).collect();
        let reports = cut_power(&disks?, Instant::now() + LONGEST_STOP, loss, seed)?;
        for PowerCutReport {
            name,
            unflushed,
            lost,
            torn,
        } in &reports
        {
            tracing::warn!(disk = name, unflushed, lost, torn, seed, "power is cut");
        }
        Ok(reports)
    }

    /// Holds disks for the client of a connection, and returns the answer to the message that ends
    /// this.
    fn hold(
        &self,
        connection: &OwnedFd,
        buffer: &mut Vec<u8>,
        names: &BTreeSet<String>,
        longest: Duration,
    ) -> Result<(Answer, Option<File>)> {
        let disks: Result<Vec<_>> = names.iter().map(|name| self.disk(name)).collect();
        let (disks, longest) = (disks?, longest.min(LONGEST_HOLD));
        let answer = socket::encode(&Answer::Held)?;
        let held = fault_disk::hold(&disks, Instant::now() + LONGEST_STOP, || {
            socket::send_bytes(connection, &answer, None)?;
            socket::wait(connection, longest)
        })?;
        let has_lasted = held.map_err(|e| Error::system("to hold disks for a client", e))?;
        tracing::info!(disks = ?names, has_lasted, "the disks were held");
        match socket::receive::<Request>(connection, buffer)? {
            Some((Request::Release, _)) if has_lasted => Ok((Answer::Done, None)),
            Some((Request::Release, _)) => Err(Error::HeldTooLong(longest)),
            Some(_) => Err(Error::invalid("hold", "it ends by another request")),
            None => Err(Error::Message("the client has ended".to_owned())),
        }
    }

    /// Waits until nothing uses a disk any more. A disk that is unknown has ended.
    pub fn end(&self, name: &str) -> Result<()> {
        let Ok(disk) = self.disk(name) else {
            return Ok(());
        };
        if !disk.has_ended(LONGEST_END) {
            return Err(Error::InUse(name.to_owned()));
        }
        drop(self.in_use());
        tracing::info!(disk = name, "a fault disk has ended");
        Ok(())
    }

    /// The state of a disk.
    pub fn state(&self, name: &str) -> Result<DiskState> {
        Ok(self.disk(name)?.state())
    }

    /// The names of the disks that are in use.
    pub fn list(&self) -> Vec<String> {
        self.in_use().keys().cloned().collect()
    }
}

/// Forgets disks once they have ended, for as long as there is a server.
fn forget_ended(server: &Weak<Server>) {
    loop {
        thread::sleep(LOOK);
        let Some(server) = server.upgrade() else {
            return;
        };
        drop(server.in_use());
    }
}

/// True if there is too little of something for a connection now, and may be enough later.
fn is_shortage(error: Errno) -> bool {
    matches!(
        error,
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM
    )
}

/// Fails while another process listens at this path. A second server would say that the disks of
/// the first one have ended, while these still write their caches to the images.
fn check_is_alone(path: &Path) -> Result<()> {
    match Client::connect(path) {
        Err(Error::System { error, .. })
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            Ok(())
        }
        _ => Err(Error::system(
            format!(
                "to listen at {}, where another server answers,",
                path.display()
            ),
            Errno::ADDRINUSE,
        )),
    }
}

/// A socket at this path, in place of one that an earlier process has left. Makes its directory.
fn listen_at(path: &Path) -> Result<OwnedFd> {
    if let Some(dir) = path.parent() {
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(dir);
        made.map_err(|e| Error::system(format!("to make {}", dir.display()), e))?;
    }
    check_is_alone(path)?;
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(Error::system(format!("to remove {}", path.display()), e));
        }
        _ => (),
    }
    listening(path).map_err(|e| Error::system(format!("to listen at {}", path.display()), e))
}

/// A socket that listens at this path, where nothing is, for root alone.
fn listening(path: &Path) -> io::Result<OwnedFd> {
    let listener = socket::new()?;
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    // A client can connect only after `listen`.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listen(&listener, 8)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_takes_the_place_of_a_dead_one_and_of_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("faults.sock");
        let first = listen_at(&path).unwrap();
        let refused = listen_at(&path).unwrap_err().to_string();
        assert!(refused.contains("another server"), "{refused}");
        Client::connect(&path).unwrap();
        drop(first);
        let _next = listen_at(&path).unwrap();
        Client::connect(&path).unwrap();
    }

    #[test]
    fn a_shortage_does_not_end_the_server() {
        for (error, expected) in [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::NOBUFS, true),
            (Errno::NOMEM, true),
            (Errno::BADF, false),
            (Errno::INVAL, false),
        ] {
            assert_eq!(is_shortage(error), expected, "{error}");
        }
    }
}
