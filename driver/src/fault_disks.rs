//! The fault disks of this node, which a process of its own serves: `hostloop fault-disks`.
//!
//! A volume on a fault disk has a loop device over a file of that process. [`crate::kernel::stand_in`]
//! says so to all that looks for the devices of the volume's image. Each call has a connection of its
//! own, and the driver may restart at any time.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind::{ConnectionRefused, NotFound};
use std::path::{Path, PathBuf};

use hostloop_fault_disk::client::Client;
use hostloop_fault_disk::power_cut::Loss;
use hostloop_fault_disk::{Error, Result, Settings};

use crate::record::VolumeRecord;
use crate::record::id::VolumeId;

#[cfg(test)]
pub(crate) mod testing;

/// The socket of the server, in the state directory of the driver. Its directory has no mounts beneath
/// it, so kubelet can always unmount that from the server's pod.
const SOCKET: &str = "fault-disks/sock";

/// What is said of the disk of a volume that can't do something.
pub(crate) fn failure(id: VolumeId, error: &Error) -> String {
    format!("the fault disk of volume {id}: {error}")
}

/// Whether a volume's disk does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskPresence {
    Serving,
    /// Its power was cut: it answers nothing any more.
    Cut,
    /// The server does not have it.
    Gone,
}

/// The client of the server of this node's fault disks.
#[derive(Clone, Debug)]
pub(crate) struct FaultDisks {
    socket: PathBuf,
}

impl FaultDisks {
    /// Those of the server with its socket in this state directory.
    pub(crate) fn of(state_dir: &Path) -> FaultDisks {
        FaultDisks {
            socket: state_dir.join(SOCKET),
        }
    }

    /// Makes the disk of a volume, and returns the file for its loop device.
    pub(crate) fn serve(
        &self,
        id: VolumeId,
        image: &File,
        cache_bytes: u64,
        settings: &Settings,
    ) -> Result<File> {
        let mut client = Client::connect(&self.socket)?;
        let name = id.to_string();
        // An earlier disk of the volume may still write its cache to the image.
        client.end(&name)?;
        let cache_bytes = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
        client.serve(&name, image, cache_bytes, settings)
    }

    /// Gives the disk of a volume these settings, if it is served now. One that has them keeps its
    /// draws and its queues.
    pub(crate) fn set(&self, id: VolumeId, settings: &Settings) -> Result<()> {
        let Some(mut client) = self.connect()? else {
            return Ok(());
        };
        let name = id.to_string();
        let set = match client.state(&name) {
            Ok(state) if state.settings == *settings => Ok(()),
            Ok(_) => client.set(&name, settings),
            Err(error) => Err(error),
        };
        match set {
            Err(Error::NotFound(_)) => Ok(()),
            set => set,
        }
    }

    /// Cuts the power of a volume's disk, unless that was done. The disk stays cut until it ends.
    pub(crate) fn cut_power(&self, id: VolumeId, loss: Loss, seed: u64) -> Result<()> {
        let mut client = Client::connect(&self.socket)?;
        let name = id.to_string();
        if client.state(&name)?.is_cut {
            return Ok(());
        }
        let cut = client.cut_power(BTreeSet::from([name]), loss, seed);
        cut.map(drop)
    }

    /// Makes the disk of a volume as large as its image.
    pub(crate) fn grow(&self, id: VolumeId) -> Result<()> {
        Client::connect(&self.socket)?.grow(&id.to_string())
    }

    /// Waits until the disk of a volume without a loop device has written all to its image.
    pub(crate) fn end(&self, id: VolumeId) -> Result<()> {
        match self.connect()? {
            Some(mut client) => client.end(&id.to_string()),
            None => Ok(()),
        }
    }

    /// The state of a volume's disk. A server that has restarted has lost it.
    pub(crate) fn state(&self, id: VolumeId) -> Result<DiskPresence> {
        let Some(mut client) = self.connect()? else {
            return Ok(DiskPresence::Gone);
        };
        match client.state(&id.to_string()) {
            Ok(state) if state.is_cut => Ok(DiskPresence::Cut),
            Ok(_) => Ok(DiskPresence::Serving),
            Err(Error::NotFound(_)) => Ok(DiskPresence::Gone),
            Err(error) => Err(error),
        }
    }

    /// True if the power of the disk of a volume was cut, as far as the server can be asked.
    pub(crate) fn is_cut(&self, volume: &VolumeRecord) -> bool {
        volume.fault_disk.is_some() && matches!(self.state(volume.id), Ok(DiskPresence::Cut))
    }

    /// `None` without a server. Its disks have ended with it.
    fn connect(&self) -> Result<Option<Client>> {
        match Client::connect(&self.socket) {
            Ok(client) => Ok(Some(client)),
            Err(Error::System { error, .. })
                if matches!(error.kind(), NotFound | ConnectionRefused) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
