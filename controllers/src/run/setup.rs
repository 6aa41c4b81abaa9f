//! What the loops are run with, and whether that makes sense.

use std::path::PathBuf;
use std::sync::Arc;

use super::NodeLabels;
use crate::args::{Args, LeaderTasks};
use crate::orphans::Inventory;
use crate::runtime::csi::Csi;
use crate::runtime::{Driver, Metrics, Pools};

/// What the loops are run with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The command line.
    pub args: Args,
    /// `--default-fstype` of volumes.
    pub default_fstype: String,
    /// The driver.
    pub driver: Source,
    /// Whether one node's volumes are served, unless the command line says otherwise.
    pub node_deployment: bool,
    /// The driver's socket as kubelet sees it, unless the command line says otherwise; without
    /// either nothing is registered.
    pub registration_endpoint: Option<PathBuf>,
    /// The pools this node's driver keeps; unknown of drivers in other processes.
    pub pools: Pools,
    /// What the driver knows of its volumes beyond CSI; nothing of drivers in other processes.
    pub inventory: Inventory,
    /// Labels of the node that the driver is to know.
    pub labels: Option<NodeLabels>,
}

/// Where what is known of the driver comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// The driver is asked.
    Asked(Csi),
    /// It is known beforehand, and the driver is never called.
    Known(Box<Driver>),
}

impl Source {
    /// The same driver, its calls counted.
    pub(super) fn counted(self, metrics: &Arc<Metrics>) -> Self {
        match self {
            Source::Asked(csi) => Source::Asked(csi.counted(metrics.clone())),
            known @ Source::Known(_) => known,
        }
    }

    /// The driver, if there is one to call.
    pub(super) fn csi(&self) -> Option<&Csi> {
        match self {
            Source::Asked(csi) => Some(csi),
            Source::Known(_) => None,
        }
    }
}

impl Setup {
    /// What is wrong with the command line, if something is.
    pub(super) fn check(&self) -> Result<(), String> {
        let (args, tasks) = (&self.args, self.args.election.leader_tasks);
        args.election.check()?;
        args.snapshotter
            .check()
            .map_err(|error| error.to_string())?;
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        args: Args,
    }

    fn setup(flags: &[&str], known: bool, node: bool) -> Setup {
        use clap::Parser;
        let flags = ["controllers"].iter().chain(flags);
        let driver = Driver::with(Csi::none(), "d", &[], &[], &[]);
        Setup {
            args: Flags::parse_from(flags).args,
            default_fstype: String::new(),
            driver: match known {
                true => Source::Known(Box::new(driver)),
                false => Source::Asked(Csi::none()),
            },
            node_deployment: node,
            registration_endpoint: node.then(|| "/csi.sock".into()),
            pools: Pools::default(),
            inventory: Inventory::default(),
            labels: None,
        }
    }

    #[tokio::test]
    async fn flags_that_contradict_each_other() {
        let (only, elsewhere) = ("--leader-tasks=only", "--leader-tasks=elsewhere");
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
