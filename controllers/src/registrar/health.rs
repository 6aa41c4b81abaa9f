//! The state of the registration, for health checks.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::socket::{Id, Name, id_at};

/// The state of the registration. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The listening socket: its path, and the identity of its file.
    socket: Option<(PathBuf, Id)>,
    registered: bool,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The socket file is in its place.
    Good,
    /// Nothing is registered: the driver is not ready yet, or the registrar has stopped. The
    /// driver's own Probe reports its state.
    Idle,
    /// The socket file is missing.
    NoSocket(String),
    /// Another file is in the socket's place.
    Mismatch(String),
}

impl Verdict {
    /// Returns the HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Verdict::Good => 200,
            Verdict::Idle | Verdict::NoSocket(_) => 404,
            Verdict::Mismatch(_) => 500,
        }
    }
}

impl Health {
    /// Checks the socket file.
    pub fn verdict(&self) -> Verdict {
        let Some((path, id)) = self.state.lock().socket.clone() else {
            return Verdict::Idle;
        };
        let shown = path.display();
        match id_at(&path) {
            Ok(Some(found)) if found == id => Verdict::Good,
            Ok(Some(_)) => Verdict::Mismatch(format!("{shown} is not the socket made here")),
            Ok(None) => Verdict::NoSocket(format!("registration socket {shown} is not there")),
            Err(error) => Verdict::Mismatch(format!("{shown}: {error}")),
        }
    }

    /// Returns the error for a liveness check. It ignores a driver that is not ready, because the
    /// driver's Probe reports that.
    pub fn check(&self) -> Result<(), String> {
        match self.verdict() {
            Verdict::Good | Verdict::Idle => Ok(()),
            Verdict::NoSocket(why) | Verdict::Mismatch(why) => Err(why),
        }
    }

    /// True if kubelet has confirmed the registration, and the socket has not been replaced since.
    pub fn is_registered(&self) -> bool {
        self.state.lock().registered
    }

    pub(super) fn listens(&self, name: &Name) {
        let socket = Some((name.path().to_owned(), name.id()));
        *self.state.lock() = State { socket, registered: false };
    }

    pub(super) fn registered(&self) {
        self.state.lock().registered = true;
    }

    pub(super) fn stopped(&self) {
        *self.state.lock() = State::default();
    }
}
