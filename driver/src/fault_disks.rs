//! The fault disks of this node, which a process of its own serves: `hostloop fault-disks`.
//!
//! A volume on a fault disk has a loop device over a file of that process. [`crate::kernel::stand_in`]
//! says so to all that looks for the devices of the volume's image. Each call has a connection of its
//! own, and the driver may restart at any time.

use std::fs::File;
use std::io::ErrorKind::{ConnectionRefused, NotFound};
use std::path::{Path, PathBuf};

use hostloop_fault_disk::client::Client;
use hostloop_fault_disk::{Error, Result, Settings};

use crate::record::FaultDiskRecord;
use crate::record::id::VolumeId;

/// The socket of the server, in the state directory of the driver.
const SOCKET: &str = "fault-disks.sock";

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
    pub(crate) fn serve(&self, id: VolumeId, disk: &FaultDiskRecord, image: &File) -> Result<File> {
        let mut client = Client::connect(&self.socket)?;
        let name = id.to_string();
        // An earlier disk of the volume may still write its cache to the image.
        client.end(&name)?;
        let cache_bytes = usize::try_from(disk.cache_bytes).unwrap_or(usize::MAX);
        client.serve(&name, image, cache_bytes, &settings(disk))
    }

    /// Gives the disk of a volume its limits, if it has one now.
    pub(crate) fn set(&self, id: VolumeId, disk: &FaultDiskRecord) -> Result<()> {
        match self.connect()? {
            Some(mut client) => match client.set(&id.to_string(), &settings(disk)) {
                Err(Error::NotFound(_)) => Ok(()),
                set => set,
            },
            None => Ok(()),
        }
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

    /// True if the server has the disk of this volume. One that has restarted has lost it.
    pub(crate) fn has(&self, id: VolumeId) -> Result<bool> {
        let Some(mut client) = self.connect()? else {
            return Ok(false);
        };
        match client.state(&id.to_string()) {
            Ok(_) => Ok(true),
            Err(Error::NotFound(_)) => Ok(false),
            Err(error) => Err(error),
        }
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

fn settings(disk: &FaultDiskRecord) -> Settings {
    Settings {
        limits: disk.limits,
        ..Settings::default()
    }
}
