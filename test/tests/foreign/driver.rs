//! The drivers of other authors, and what the tests must know of each.

use std::path::Path;

use hostloop_test::host_path::{self, HostPath};
use hostloop_test::machine::text;
use hostloop_test::mock_driver::{self, MockDriver};

/// Which driver it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    HostPath,
    Mock,
}

impl Kind {
    /// The driver's name.
    pub(crate) fn driver(self) -> &'static str {
        match self {
            Kind::HostPath => host_path::DRIVER,
            Kind::Mock => mock_driver::DRIVER,
        }
    }

    /// The label that the driver gives to this node, and its value.
    pub(crate) fn topology(self, node: &str) -> (&'static str, String) {
        match self {
            Kind::HostPath => (host_path::TOPOLOGY_KEY, node.to_owned()),
            Kind::Mock => {
                let (key, value) = mock_driver::TOPOLOGY;
                (key, value.to_owned())
            }
        }
    }

    /// The driver's name in the names of other objects.
    pub(crate) fn with_dashes(self) -> String {
        self.driver().replace('.', "-")
    }

    /// The leases that upstream's sidecars hold for the driver.
    pub(crate) fn leases(self) -> [String; 4] {
        let name = self.with_dashes();
        [
            format!("external-attacher-leader-{name}"),
            format!("external-resizer-{name}"),
            format!("external-snapshotter-leader-{name}"),
            name,
        ]
    }

    /// True if a pod finds in a volume what another one wrote.
    pub(crate) fn keeps_data(self) -> bool {
        self == Kind::HostPath
    }
}

/// The running driver.
pub(crate) enum Driver {
    HostPath(HostPath),
    Mock(MockDriver),
}

impl Driver {
    /// Starts the driver of a node at this socket, and waits until it serves. Its files are in `dir`.
    pub(crate) async fn start(kind: Kind, dir: &Path, socket: &Path, node: &str) -> Driver {
        match kind {
            Kind::HostPath => Driver::HostPath(HostPath::start(dir, socket, node).await),
            Kind::Mock => Driver::Mock(MockDriver::start(dir, socket).await),
        }
    }

    /// The path of the driver's socket.
    pub(crate) fn socket(&self) -> &Path {
        match self {
            Driver::HostPath(driver) => driver.socket(),
            Driver::Mock(driver) => driver.socket(),
        }
    }

    /// The driver's socket, as an endpoint for other programs.
    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", text(self.socket()))
    }

    /// The driver's log.
    pub(crate) fn log(&self) -> String {
        match self {
            Driver::HostPath(driver) => driver.log(),
            Driver::Mock(driver) => driver.log(),
        }
    }

    /// The end of the driver's log.
    pub(crate) fn tail(&self) -> String {
        match self {
            Driver::HostPath(driver) => driver.tail(),
            Driver::Mock(driver) => driver.tail(),
        }
    }

    /// The volumes and snapshots that the driver still has.
    pub(crate) async fn left(&self) -> Vec<String> {
        match self {
            Driver::HostPath(driver) => driver.left(),
            Driver::Mock(driver) => driver.left().await,
        }
    }
}
