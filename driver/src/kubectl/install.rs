//! placeholder

use std::process::ExitCode;

use super::{Cluster, ClusterArgs};

/// placeholder
#[derive(Clone, Debug, clap::Args)]
pub struct Args {}

/// placeholder
#[derive(Debug, thiserror::Error)]
pub enum Error {}

pub(super) async fn run(_: &Args, _: &ClusterArgs) -> Result<ExitCode, Error> {
    Ok(ExitCode::SUCCESS)
}
