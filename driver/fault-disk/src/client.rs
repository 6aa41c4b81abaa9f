//! The client of a server of fault disks in another process.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketAddrUnix, connect};

use crate::power_cut::{Loss, PowerCutReport};
use crate::protocol::{Answer, Request};
use crate::{DiskState, Error, Result, Settings, socket};

/// The longest that an answer may take, beyond the time that a disk may take to end.
const LONGEST_ANSWER: Duration = Duration::from_secs(20);

/// A connection to a server. Each request waits for its answer. After one that took too long, the
/// connection is of no use.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects to the server that listens at this path.
    pub fn connect(path: &Path) -> Result<Client> {
        Client::connect_within(path, LONGEST_ANSWER)
    }

    /// The same, for requests with an answer within this time.
    pub fn connect_within(path: &Path, longest: Duration) -> Result<Client> {
        let what = format!(
            "to connect to the server of fault disks at {}",
            path.display()
        );
        Client::open(path, longest).map_err(|e| Error::system(what, e))
    }

    fn open(path: &Path, longest: Duration) -> rustix::io::Result<Client> {
        let socket = socket::new()?;
        set_socket_timeout(&socket, Timeout::Recv, Some(longest))?;
        // Connecting to a server that has stopped would wait without an end, too.
        set_socket_timeout(&socket, Timeout::Send, Some(longest))?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Client {
            socket,
            buffer: Vec::new(),
        })
    }

    fn call(&mut self, request: &Request, image: Option<&File>) -> Result<(Answer, Option<File>)> {
        socket::send(&self.socket, request, image)?;
        let answer = socket::receive::<Answer>(&self.socket, &mut self.buffer)?;
        let (answer, file) =
            answer.ok_or_else(|| Error::Message("it ended without an answer".to_owned()))?;
        match answer {
            Answer::NotFound(name) => Err(Error::NotFound(name)),
            Answer::InUse(name) => Err(Error::InUse(name)),
            Answer::Refused(reason) => Err(Error::Refused(reason)),
            answer => Ok((answer, file.map(File::from))),
        }
    }

    /// Makes a disk of this image, and returns the file for its loop device. The disk lives until
    /// the last user of that file is gone, or the server is. `namespace`: that of its claim, which has
    /// a share of the server's memory; empty if none is known.
    pub fn serve(
        &mut self,
        namespace: &str,
        name: &str,
        image: &File,
        cache_bytes: usize,
        settings: &Settings,
    ) -> Result<File> {
        let request = Request::Serve {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            cache_bytes,
            settings: settings.clone(),
        };
        match self.call(&request, Some(image))? {
            (Answer::Done, Some(file)) => Ok(file),
            (answer, _) => Err(unexpected(&answer)),
        }
    }

    /// Replaces the settings of a disk.
    pub fn set(&mut self, name: &str, settings: &Settings) -> Result<()> {
        self.done(&Request::Set {
            name: name.to_owned(),
            settings: settings.clone(),
        })
    }

    /// Makes a disk as large as its image. Then its loop device has to look (LOOP_SET_CAPACITY).
    pub fn grow(&mut self, name: &str) -> Result<()> {
        self.done(&Request::Grow {
            name: name.to_owned(),
        })
    }

    /// Cuts the power of these disks at one instant.
    pub fn cut_power(
        &mut self,
        names: BTreeSet<String>,
        loss: Loss,
        seed: u64,
    ) -> Result<Vec<PowerCutReport>> {
        match self.call(&Request::CutPower { names, loss, seed }, None)? {
            (Answer::Cut(reports), _) => Ok(reports),
            (answer, _) => Err(unexpected(&answer)),
        }
    }

    /// Holds all I/O of these disks from one instant on, until [`Client::release`] or the end of this
    /// client, and for no longer than this.
    pub fn hold(&mut self, names: BTreeSet<String>, longest: Duration) -> Result<()> {
        let request = Request::Hold {
            names,
            longest_millis: u64::try_from(longest.as_millis()).unwrap_or(u64::MAX),
        };
        match self.call(&request, None)? {
            (Answer::Held, _) => Ok(()),
            (answer, _) => Err(unexpected(&answer)),
        }
    }

    /// Ends the hold. Fails if it has not lasted until now.
    pub fn release(&mut self) -> Result<()> {
        self.done(&Request::Release)
    }

    /// Waits until a disk has ended, after its loop device is detached. Only then the image has all
    /// that was written to it.
    pub fn end(&mut self, name: &str) -> Result<()> {
        self.done(&Request::End {
            name: name.to_owned(),
        })
    }

    /// The state of a disk.
    pub fn state(&mut self, name: &str) -> Result<DiskState> {
        let request = Request::State {
            name: name.to_owned(),
        };
        match self.call(&request, None)? {
            (Answer::State(state), _) => Ok(state),
            (answer, _) => Err(unexpected(&answer)),
        }
    }

    /// The names of the disks that are in use.
    pub fn list(&mut self) -> Result<Vec<String>> {
        match self.call(&Request::List, None)? {
            (Answer::Disks(disks), _) => Ok(disks),
            (answer, _) => Err(unexpected(&answer)),
        }
    }

    fn done(&mut self, request: &Request) -> Result<()> {
        match self.call(request, None)? {
            (Answer::Done, _) => Ok(()),
            (answer, _) => Err(unexpected(&answer)),
        }
    }
}

fn unexpected(answer: &Answer) -> Error {
    Error::Message(format!("the answer is one to another request: {answer:?}"))
}
