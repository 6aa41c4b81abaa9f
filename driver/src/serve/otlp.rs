//! Exports the events of this process to the collector of `--otlp-endpoint`.

use hostloop_controllers::tasks::Tasks;
use hostloop_events::otlp::{Environment, Exporter};
use hostloop_events::serve::Process;
use tokio_util::sync::CancellationToken;

use super::error::Error;
use crate::cli::WatchArgs;

/// Checks the flag and the environment. Without the flag, nothing is exported.
pub(super) fn prepare(args: &WatchArgs, process: &Process) -> Result<Option<Exporter>, Error> {
    let Some(address) = &args.otlp_endpoint else {
        return Ok(None);
    };
    let environment = Environment::read(|name| std::env::var(name).ok());
    Ok(Some(Exporter::new(address, &environment, process)?))
}

/// Starts the export, if there is one.
pub(super) fn start(exporter: Option<Exporter>, stop: &CancellationToken, roles: &mut Tasks) {
    let Some(exporter) = exporter else {
        return;
    };
    let exporting = exporter.run(stop.clone().cancelled_owned());
    roles.keep("exporting spans", exporting);
}
