//! The Go host-path driver, as a process of this machine: the driver of another author.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::child;
use crate::front::fields::list;
use crate::machine::text;
use crate::process::Process;
use crate::tools;

/// The driver's name.
pub const DRIVER: &str = "hostpath.csi.k8s.io";

/// The label that the driver gives to its node.
pub const TOPOLOGY_KEY: &str = "topology.hostpath.csi/node";

/// The leases that upstream's sidecars hold for the driver. Hostloop's controllers hold the same,
/// so that both never act at once.
pub const LEASES: [&str; 4] = [
    "external-attacher-leader-hostpath-csi-k8s-io",
    "external-resizer-hostpath-csi-k8s-io",
    "external-snapshotter-leader-hostpath-csi-k8s-io",
    "hostpath-csi-k8s-io",
];

/// The file in which the driver keeps what it knows.
const RECORDS: &str = "state.json";

/// What is in it.
const KINDS: [&str; 3] = ["Volumes", "Snapshots", "GroupSnapshots"];

/// The running driver. Dropping it kills it.
pub struct HostPath {
    process: Process,
    socket: PathBuf,
    data: PathBuf,
}

impl HostPath {
    /// Starts the driver of a node at this socket, and waits until it serves. Its data and its log are in
    /// `dir`.
    pub async fn start(dir: &Path, socket: &Path, node: &str) -> HostPath {
        HostPath::start_with(dir, socket, node, &[]).await
    }

    /// [`HostPath::start`] with further arguments.
    pub async fn start_with(dir: &Path, socket: &Path, node: &str, more: &[&str]) -> HostPath {
        let data = dir.join("host-path");
        let mut command = child::command(tools::host_path());
        command.args([
            format!("--endpoint=unix://{}", text(socket)),
            format!("--nodeid={node}"),
            format!("--statedir={}", text(&data)),
            // By default it has volumes, snapshots, clones, expansion, capacity and topology.
            "--enable-attach=true".to_owned(),
        ]);
        command.args(more);
        let process = Process::start(dir, "host-path", &mut command);
        HostPath {
            process: process.until_serving(socket).await,
            socket: socket.to_owned(),
            data,
        }
    }

    /// The driver's socket, as an endpoint for other programs.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", text(&self.socket))
    }

    /// The path of the driver's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The directory with the driver's files: a volume's has its ID as its name.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The driver's process ID.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The driver's log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The end of the driver's log.
    pub fn tail(&self) -> String {
        self.process.tail()
    }

    /// The volumes and snapshots that the driver still knows, and the files that it still has.
    pub fn left(&self) -> Vec<String> {
        let read = std::fs::read_dir(&self.data).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let entries = read.unwrap_or_else(|e| panic!("{}: {e}", self.data.display()));
        let mut left: Vec<String> = entries
            .iter()
            .filter(|entry| entry.file_name() != RECORDS)
            .map(|entry| format!("file {}", entry.path().display()))
            .collect();
        // It writes this file with its first volume.
        let records = std::fs::read_to_string(self.data.join(RECORDS));
        let records = records.unwrap_or_else(|_| "{}".to_owned());
        match serde_json::from_str::<Value>(&records) {
            Ok(records) => left.extend(
                KINDS
                    .iter()
                    .flat_map(|kind| list(&records[kind]).map(move |one| format!("{kind}: {one}"))),
            ),
            // It writes the file in place.
            Err(error) => left.push(format!("{RECORDS}: {error}")),
        }
        left
    }
}
