//! The mock driver of Kubernetes' end-to-end suite, as a process of this machine: the driver of
//! another author. A pod gets an empty folder in place of its volume.

use std::path::{Path, PathBuf};

use crate::child;
use crate::client::Csi;
use crate::machine::text;
use crate::process::Process;
use crate::tools;

/// The driver's name.
pub const DRIVER: &str = "io.kubernetes.storage.mock";

/// The label that the driver gives to its node, and the value, which is not the node's name.
pub const TOPOLOGY: (&str, &str) = ("io.kubernetes.storage.mock/node", "some-mock-node");

/// The IDs of the volumes, and of the snapshots, that it has from the start.
const FIRST: [&str; 3] = ["1", "2", "3"];

/// The running driver. Dropping it kills it.
pub struct MockDriver {
    process: Process,
    socket: PathBuf,
}

impl MockDriver {
    /// Starts the driver at this socket, and waits until it serves. Its log is in `dir`.
    pub async fn start(dir: &Path, socket: &Path) -> MockDriver {
        let mut command = child::command(tools::mock_driver());
        command.arg(format!("--socket={}", text(socket)));
        let process = Process::start(dir, "mock-driver", &mut command);
        MockDriver {
            process: process.until_serving(socket).await,
            socket: socket.to_owned(),
        }
    }

    /// The path of the driver's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The driver's log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The end of the driver's log.
    pub fn tail(&self) -> String {
        self.process.tail()
    }

    /// The volumes and snapshots that the driver has beside its first ones.
    pub async fn left(&self) -> Vec<String> {
        let csi = Csi::connect(&self.socket).await;
        let volumes = csi.volume_ids().await.into_iter().map(|id| ("volume", id));
        let snapshots = csi
            .snapshot_ids()
            .await
            .into_iter()
            .map(|id| ("snapshot", id));
        volumes
            .chain(snapshots)
            .filter(|(_, id)| !FIRST.contains(&id.as_str()))
            .map(|(kind, id)| format!("{kind} {id}"))
            .collect()
    }
}
