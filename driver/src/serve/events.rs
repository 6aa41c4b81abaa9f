//! Serves the events of this process on a Unix socket.

use std::path::Path;

use hostloop_controllers::socket::Name;
use hostloop_controllers::tasks::Tasks;
use hostloop_events::serve::{Process, serve};
use tokio_util::sync::CancellationToken;

use super::error::Error;
use super::process::listen;
use crate::cli::EventsSocket;

/// Starts serving, on the socket of the flag or else beside the CSI socket. Without the flag, a
/// socket that can't be served is only logged: volumes matter more than events. Dropping the
/// returned name removes the socket.
pub(super) fn start(
    flag: &EventsSocket,
    endpoint: Option<&Path>,
    process: Process,
    stop: &CancellationToken,
    roles: &mut Tasks,
) -> Result<Option<Name>, Error> {
    let Some(path) = flag.path(endpoint) else {
        return Ok(None);
    };
    let (listener, name) = match listen(&path) {
        Ok(bound) => bound,
        Err(error) if flag.events_socket.is_none() => {
            tracing::warn!(%error, "events are not served");
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let serving = serve(listener, process, stop.clone().cancelled_owned());
    roles.keep("serving events", serving);
    Ok(Some(name))
}
