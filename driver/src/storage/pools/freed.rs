//! What became free: the driver announces it, so that those who wait need not ask again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::Pools;
use crate::kernel::{FileId, LoopInfo};

/// What became free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Freed {
    /// The volume of this handle has one user less.
    Volume(String),
    /// A pool has more room.
    Room,
}

type Listener = Box<dyn Fn(Freed) + Send + Sync>;

/// The announcements, and the loop devices that cause one when they are detached.
#[derive(Default)]
pub struct Announcements {
    listener: OnceLock<Listener>,
    /// For each minor: the image that the device held when it was in the way, and what its end
    /// frees. At most one entry for each device.
    held: Mutex<BTreeMap<u32, (FileId, Freed)>>,
}

impl fmt::Debug for Announcements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcements")
            .field("held", &*self.held.lock())
            .finish_non_exhaustive()
    }
}

impl Announcements {
    /// Sets the only listener, which must not block. Earlier announcements are lost: nothing
    /// waits before the listener starts.
    pub fn listen(&self, listener: impl Fn(Freed) + Send + Sync + 'static) {
        // There is one listener in a process, so the first one stays.
        let _ = self.listener.set(Box::new(listener));
    }

    /// Announces what became free.
    pub fn announce(&self, freed: Freed) {
        if let Some(listener) = self.listener.get() {
            listener(freed);
        }
    }

    /// True if the end of a loop device would free something.
    pub fn awaits_devices(&self) -> bool {
        !self.held.lock().is_empty()
    }
}

impl Pools {
    /// What became free.
    pub fn freed(&self) -> &Announcements {
        &self.freed
    }

    /// Announces `freed` once the device does not hold its file any more. What a device holds that
    /// does not answer is not known, and not announced.
    pub(in crate::storage) fn announce_at_detach(&self, device: &LoopInfo, freed: Freed) {
        let Some(file) = device.backing else {
            return;
        };
        self.freed.held.lock().insert(device.minor, (file, freed));
        // The device may be gone since the caller saw it, and its notice read by now.
        self.announce_detached(Some(&[device.minor]));
    }

    /// Announces what the end of loop devices freed. Only these minors have changed, or any device
    /// without a list. A device that does not answer counts as attached.
    pub fn announce_detached(&self, changed: Option<&[u32]>) {
        let held = self.freed.held.lock().clone();
        let concerned = held.into_iter().filter(|(minor, _)| match changed {
            Some(changed) => changed.contains(minor),
            None => true,
        });
        for (minor, (image, freed)) in concerned {
            let is_gone = match self.kernel.loop_info(minor) {
                Ok(None) => true,
                Ok(Some(info)) => info.backing.is_some_and(|backing| backing != image),
                Err(_) => false,
            };
            let entry = (image, freed);
            if is_gone && self.freed.held.lock().get(&minor) == Some(&entry) {
                self.freed.held.lock().remove(&minor);
                self.freed.announce(entry.1);
            }
        }
    }
}
