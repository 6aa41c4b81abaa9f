//! The state of the registration: for health checks, and for what notices that it is lost.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::socket::{Id, Name, id_at};

/// The state of the registration. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<RegistrationState>);

#[derive(Debug, Default)]
struct RegistrationState {
    /// The listening socket, if any: its path, and the identity of its file.
    socket: Mutex<Option<(PathBuf, Id)>>,
    /// True from the time kubelet has registered the driver at this socket.
    is_registered: AtomicBool,
    /// Asks for another registration.
    again: Notify,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The socket file is in its place.
    Good,
    /// Nothing is registered: the driver is not ready yet, or the registrar has stopped. The
    /// driver's own Probe reports its state.
    Idle,
    /// The socket file is missing, or another file is in its place.
    Bad(String),
}

impl Health {
    /// Checks the socket file.
    pub(super) fn verdict(&self) -> Verdict {
        let Some((path, id)) = self.0.socket.lock().clone() else {
            return Verdict::Idle;
        };
        let shown = path.display();
        match id_at(&path) {
            Ok(Some(found)) if found == id => Verdict::Good,
            Ok(Some(_)) => Verdict::Bad(format!("{shown} is not the socket made here")),
            Ok(None) => Verdict::Bad(format!("registration socket {shown} is not there")),
            Err(error) => Verdict::Bad(format!("{shown}: {error}")),
        }
    }

    /// Returns the error for a liveness check. It ignores a driver that is not ready, because the
    /// driver's Probe reports that.
    pub fn check(&self) -> Result<(), String> {
        match self.verdict() {
            Verdict::Good | Verdict::Idle => Ok(()),
            Verdict::Bad(why) => Err(why),
        }
    }

    pub(super) fn listens(&self, name: &Name) {
        self.0.is_registered.store(false, Ordering::Relaxed);
        *self.0.socket.lock() = Some((name.path().to_owned(), name.id()));
    }

    pub(super) fn stopped(&self) {
        *self.0.socket.lock() = None;
    }

    /// Kubelet has registered the driver.
    pub(super) fn registered(&self) {
        self.0.is_registered.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_registered(&self) -> bool {
        self.0.is_registered.load(Ordering::Relaxed)
    }

    /// Asks the registrar for another registration: kubelet then writes the node's labels and its
    /// CSINode again.
    pub(super) fn register_again(&self) {
        self.0.again.notify_one();
    }

    /// Waits until another registration is asked for.
    pub(super) async fn asked_again(&self) {
        self.0.again.notified().await;
    }
}
