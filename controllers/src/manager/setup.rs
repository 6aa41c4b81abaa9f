//! The inputs of the controllers, and checks that they agree.

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use kube::Client;
use tokio_util::sync::CancellationToken;

use super::node_labels::NodeLabels;
use crate::claim_faults::VolumeFaults;
use crate::cli::{Args, LeaderTasks};
use crate::client::kube::ClientError;
use crate::csi::driver::DriverError;
use crate::csi::{Csi, Driver, FreedSignal, Pools};
use crate::metrics::Metrics;
use crate::orphaned_volumes::Inventory;
use crate::own_pod::OwnPod;
use crate::roles::Role;
use crate::snapshot_metadata::{self, host_of};

/// The inputs of the controllers.
pub struct Setup {
    pub args: Args,
    /// Creates the client for the API server, if a controller needs it.
    pub client: BoxFuture<'static, Result<Client, ClientError>>,
    /// The pod of this process.
    pub pod: OwnPod,
    /// `--default-fstype` of volumes.
    pub default_fstype: String,
    pub driver: Source,
    /// Default of `--node-deployment`: serve one node's volumes.
    pub node_deployment: bool,
    /// Default path of the driver's socket for kubelet. Nothing is registered without a path.
    pub registration_endpoint: Option<PathBuf>,
    /// The pools on this node; unknown if the driver runs in another process.
    pub pools: Pools,
    /// What the driver in this process announces as free. The controllers announce it as well.
    pub freed: FreedSignal,
    /// The driver's own list of its volumes; empty if the driver runs in another process.
    pub inventory: Inventory,
    /// What gives volumes the faults that claims ask for; nothing if the driver runs in another
    /// process.
    pub faults: VolumeFaults,
    /// Node labels that the driver needs.
    pub labels: Option<NodeLabels>,
}

/// How the driver's name and capabilities are found.
#[derive(Clone)]
pub enum Source {
    /// By calling the driver.
    Asked(Csi),
    /// They are built in, and the driver is never called.
    Known(Box<Driver>),
}

impl Source {
    /// Counts the driver's calls in `metrics`.
    pub(super) fn counted(self, metrics: &Arc<Metrics>) -> Self {
        match self {
            Source::Asked(csi) => Source::Asked(csi.counted(metrics.clone())),
            known @ Source::Known(_) => known,
        }
    }

    /// Finds the driver's name and capabilities.
    pub(super) async fn introduce(self, stop: &CancellationToken) -> Result<Driver, DriverError> {
        match self {
            Source::Asked(csi) => Driver::introduce(csi, stop).await,
            Source::Known(driver) => Ok(*driver),
        }
    }

    /// The channel to the driver, unless it is never called.
    pub(super) fn csi(&self) -> Option<&Csi> {
        match self {
            Source::Asked(csi) => Some(csi),
            Source::Known(_) => None,
        }
    }
}

impl Setup {
    /// Checks that the command line makes sense.
    pub(super) fn check(&self) -> Result<(), String> {
        let (args, tasks) = (&self.args, self.args.election.leader_tasks);
        args.election.check()?;
        args.snapshotter
            .check()
            .map_err(|error| error.to_string())?;
        self.check_snapshot_metadata()?;
        let per_node = args.node_deployment.unwrap_or(self.node_deployment);
        let registers = self.registration_endpoint.is_some();
        match tasks {
            LeaderTasks::Elsewhere if !per_node => Err(
                "--leader-tasks=elsewhere is for processes that serve one node each; this one \
                 serves the cluster: set --node-deployment"
                    .to_owned(),
            ),
            LeaderTasks::Only if registers => Err(
                "--leader-tasks=only is for `hostloop controllers`; this process serves a node"
                    .to_owned(),
            ),
            LeaderTasks::Elected | LeaderTasks::Elsewhere
                if matches!(self.driver, Source::Known(_)) =>
            {
                Err("without a CSI driver to call, set --leader-tasks=only".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Checks the flags of changed blocks: one process has their address for all nodes, and the others
    /// answer it.
    fn check_snapshot_metadata(&self) -> Result<(), String> {
        let args = &self.args;
        if !args.controllers.has(Role::SnapshotMetadata) {
            return Ok(());
        }
        let address = args.snapshot_metadata.snapshot_metadata_address.as_deref();
        if let Some(address) = address
            && host_of(address).is_none()
        {
            let error = snapshot_metadata::Error::Address(address.to_owned());
            return Err(error.to_string());
        }
        match args.election.leader_tasks {
            LeaderTasks::Only => Ok(()),
            LeaderTasks::Elsewhere if args.snapshot_metadata.pod_ip.is_some() => Ok(()),
            LeaderTasks::Elsewhere => Err(
                "the controller snapshot-metadata needs the pod's address: set POD_IP".to_owned(),
            ),
            LeaderTasks::Elected => Err(
                "the controller snapshot-metadata needs a process of its own for the cluster: set \
                 --leader-tasks=elsewhere here, and run `hostloop controllers --leader-tasks=only`"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::testing;

    fn setup(flags: &[&str], known: bool, node: bool) -> Setup {
        let driver = Driver::with(Csi::none(), "d", &[], &[], &[]);
        Setup {
            args: testing::parse(flags),
            client: std::future::pending().boxed(),
            pod: OwnPod::default(),
            default_fstype: String::new(),
            driver: if known {
                Source::Known(Box::new(driver))
            } else {
                Source::Asked(Csi::none())
            },
            node_deployment: node,
            registration_endpoint: node.then(|| "/csi.sock".into()),
            pools: Pools::default(),
            freed: FreedSignal::default(),
            inventory: Inventory::default(),
            faults: VolumeFaults::default(),
            labels: None,
        }
    }

    #[tokio::test]
    async fn flags_that_contradict_each_other() {
        let (only, elsewhere) = ("--leader-tasks=only", "--leader-tasks=elsewhere");
        let metadata = "--controllers=*,snapshot-metadata";
        for (flags, known, node, wrong) in [
            (&[][..], false, false, None),
            (&[], false, true, None),
            (&[only], true, false, None),
            (&[only], false, false, None),
            (&[only, "--leader-election=false"], true, false, None),
            (&[elsewhere], false, true, None),
            (&[elsewhere, "--node-deployment"], false, false, None),
            (&[], true, false, Some("set --leader-tasks=only")),
            (&[only], false, true, Some("this process serves a node")),
            (&[elsewhere], false, false, Some("set --node-deployment")),
            (
                &[elsewhere, "--leader-election=false"],
                false,
                true,
                Some("needs --leader-election"),
            ),
            (&[only, metadata], true, false, None),
            (
                &[elsewhere, metadata, "--pod-ip=10.0.0.7"],
                false,
                true,
                None,
            ),
            (&[elsewhere, metadata], false, true, Some("set POD_IP")),
            (
                &[metadata],
                false,
                true,
                Some("a process of its own for the cluster"),
            ),
            (
                &[only, metadata, "--snapshot-metadata-address=s.ns.svc"],
                true,
                false,
                Some("is not HOST:PORT"),
            ),
            (
                &["--snapshot-name-uuid-length=0"],
                false,
                true,
                Some("a length is at least 1"),
            ),
        ] {
            let checked = setup(flags, known, node).check();
            let expected = match (&checked, wrong) {
                (Ok(()), None) => true,
                (Err(why), Some(wrong)) => why.contains(wrong),
                _ => false,
            };
            assert!(expected, "{flags:?} {known} {node}: {checked:?}");
        }
    }
}
