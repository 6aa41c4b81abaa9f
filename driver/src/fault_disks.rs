//! The fault disks of this node, which a process of its own serves: `hostloop fault-disks`.
//!
//! A volume on a fault disk has a loop device over a file of that process. [`crate::kernel::stand_in`]
//! says so to all that looks for the devices of the volume's image. Each call has a connection of its
//! own, and the driver may restart at any time.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind::{ConnectionRefused, NotFound};
use std::path::{Path, PathBuf};
use std::time::Duration;

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

/// How long a person's command waits for an answer of the server.
const LOOK: Duration = Duration::from_secs(5);

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

/// Disks that are held: none of them reads or writes. They go on once this is dropped.
#[derive(Debug)]
pub(crate) struct HeldDisks(Client);

impl HeldDisks {
    /// The disks go on. Fails if they have not been held until now.
    pub(crate) fn release(mut self) -> Result<()> {
        self.0.release()
    }
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

    /// The disks that are served now, by the handles of their volumes; `None` without a server.
    pub(crate) fn list(&self) -> Result<Option<Vec<String>>> {
        let client = found(Client::connect_within(&self.socket, LOOK))?;
        client.map(|mut client| client.list()).transpose()
    }

    /// Why no volume of this node can get a fault disk now; `None` if a server has answered this.
    pub(crate) fn obstacle(&self, listed: &Result<Option<Vec<String>>>) -> Option<String> {
        match listed {
            Ok(Some(_)) => None,
            Ok(None) => Some(format!(
                "no process serves fault disks (hostloop fault-disks) at {}",
                self.socket.display()
            )),
            Err(error) => Some(format!("the process that serves fault disks: {error}")),
        }
    }

    /// Makes the disk of a volume, and returns the file for its loop device. The disks of one
    /// namespace may have half of the memory.
    pub(crate) fn serve(
        &self,
        id: VolumeId,
        namespace: &str,
        image: &File,
        cache_bytes: u64,
        settings: &Settings,
    ) -> Result<File> {
        let mut client = Client::connect(&self.socket)?;
        let name = id.to_string();
        // An earlier disk of the volume may still write its cache to the image.
        client.end(&name)?;
        let cache_bytes = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
        client.serve(namespace, &name, image, cache_bytes, settings)
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

    /// Ends the delays that a fault gives the disk of a volume. For work that holds the volume while it
    /// waits for the disk: meanwhile the fault could not end, however long that takes. The next look at
    /// the fault brings them back.
    pub(crate) fn end_delays(&self, volume: &VolumeRecord) {
        if !volume.has_slow_disk() {
            return;
        }
        if let Err(error) = self.set(volume.id, &volume.disk_settings_without_fault()) {
            tracing::warn!(volume = %volume.id, %error, "the fault disk of the volume stays slow");
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

    /// Holds all I/O of the disks of volumes from one instant on, for no longer than this.
    pub(crate) fn hold(&self, ids: &[VolumeId], longest: Duration) -> Result<HeldDisks> {
        let mut client = Client::connect(&self.socket)?;
        let names = ids.iter().map(VolumeId::to_string).collect();
        client.hold(names, longest)?;
        Ok(HeldDisks(client))
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
        found(Client::connect(&self.socket))
    }
}

/// `None` if there is no server.
fn found(connected: Result<Client>) -> Result<Option<Client>> {
    match connected {
        Ok(client) => Ok(Some(client)),
        Err(Error::System { error, .. })
            if matches!(error.kind(), NotFound | ConnectionRefused) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use hostloop_fault_disk::protocol::Answer;

    use super::*;

    #[test]
    fn a_node_without_a_server_that_answers_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let disks = FaultDisks::of(dir.path());
        let obstacle = || disks.obstacle(&disks.list());
        let why = obstacle().unwrap();
        assert!(why.starts_with("no process serves fault disks"), "{why}");
        assert!(why.contains("fault-disks/sock"), "{why}");
        testing::answer_all(dir.path(), &Answer::Refused("out of order".to_owned()));
        let why = obstacle().unwrap();
        assert!(why.contains("out of order"), "{why}");
        testing::answer_all(dir.path(), &Answer::Disks(Vec::new()));
        assert_eq!(obstacle(), None);
    }
}
