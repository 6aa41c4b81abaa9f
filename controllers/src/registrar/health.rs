//! How the registration is, for those who watch over the process.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::socket::{Id, Name, id_at};

/// How the registration is. Clones are about the same one.
#[derive(Clone, Debug, Default)]
pub struct Health {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The socket that listens: its path, and which file is ours.
    socket: Option<(PathBuf, Id)>,
    registered: bool,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The socket is where kubelet finds it.
    Good,
    /// Nothing has been registered yet, since the driver is not ready; or nothing is to be any
    /// more. Its own probe tells about the driver.
    Idle,
    /// There is no socket, though there should be.
    NoSocket(String),
    /// There is something else in its place.
    Mismatch(String),
}

impl Verdict {
    /// As an HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Verdict::Good => 200,
            Verdict::Idle | Verdict::NoSocket(_) => 404,
            Verdict::Mismatch(_) => 500,
        }
    }
}

impl Health {
    /// Looks at the socket.
    pub fn verdict(&self) -> Verdict {
        let Some((path, id)) = self.lock(|state| state.socket.clone()) else {
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

    /// What to fail a liveness check with. That the driver is not ready is for its own probe to
    /// tell.
    pub fn check(&self) -> Result<(), String> {
        match self.verdict() {
            Verdict::Good | Verdict::Idle => Ok(()),
            Verdict::NoSocket(why) | Verdict::Mismatch(why) => Err(why),
        }
    }

    /// Whether kubelet has said that it uses the driver, and the socket has not been replaced
    /// since.
    pub fn is_registered(&self) -> bool {
        self.lock(|state| state.registered)
    }

    pub(super) fn listens(&self, name: &Name) {
        self.lock(|state| {
            state.socket = Some((name.path().to_owned(), name.id()));
            state.registered = false;
        });
    }

    pub(super) fn registered(&self) {
        self.lock(|state| state.registered = true);
    }

    pub(super) fn stopped(&self) {
        self.lock(|state| *state = State::default());
    }

    fn lock<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        // Nothing done under the lock leaves it half done.
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
