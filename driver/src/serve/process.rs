//! What a process needs with or without a driver in it: sockets, the HTTP endpoint, time to end.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hostloop_controllers::socket::{self, Name, Socket};
use hostloop_controllers::tasks::Tasks;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use super::error::Error;
use super::http_endpoint::{self, ReportedComponents};
use crate::rpc_faults::{FaultInjector, FaultRulesError};

/// How long calls under way may take at the end; Kubernetes kills after 30 s.
pub(super) const GRACE: Duration = Duration::from_secs(25);

/// Listens on a socket. Creates it, and its directories if they are missing. Drop the name to accept no
/// new clients.
pub(super) fn listen(path: &Path) -> Result<(UnixListener, Name), socket::Error> {
    Socket::bind(path, DirBuilder::new().recursive(true).mode(0o750))?.watched()
}

/// Serves `--http-endpoint`, if it is given.
pub(super) async fn show(
    address: Option<String>,
    shown: ReportedComponents,
    stop: &CancellationToken,
    roles: &mut Tasks,
) -> Result<(), Error> {
    let Some(address) = address else {
        return Ok(());
    };
    let listener = TcpListener::bind(&address).await;
    let listener = listener.map_err(|source| Error::Http { address, source })?;
    let serving = http_endpoint::serve(listener, shown, stop.clone().cancelled_owned());
    roles.keep("the HTTP endpoint", serving);
    Ok(())
}

/// Reads `--fault-rules`, if it is given, for a process on this node.
pub(super) fn fault_injector(
    rules: Option<&Path>,
    node: Option<&str>,
) -> Result<Option<Arc<FaultInjector>>, FaultRulesError> {
    let opened = rules.map(|path| FaultInjector::open(path, node));
    Ok(opened.transpose()?.map(Arc::new))
}

/// Starts to follow the file of fault rules, if there is one. At the stop, no fault waits any more.
pub(super) fn follow_faults(
    faults: Option<&Arc<FaultInjector>>,
    stop: &CancellationToken,
    roles: &mut Tasks,
) {
    let Some(faults) = faults else {
        return;
    };
    let (faults, stop) = (faults.clone(), stop.clone());
    roles.keep("reading fault rules", async move {
        stop.run_until_cancelled(faults.clone().follow()).await;
        faults.end_waits();
    });
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tonic::{Code, Status};

    use super::*;
    use crate::rpc_faults::{CallSubject, around};

    #[tokio::test(start_paused = true)]
    async fn a_fault_that_waits_does_not_hold_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("faults.yaml");
        std::fs::write(&path, "rules: [{method: Probe, answer: never}]").unwrap();
        let faults = fault_injector(Some(&path), None).unwrap();
        let (stop, mut roles) = (CancellationToken::new(), Tasks::default());
        follow_faults(faults.as_ref(), &stop, &mut roles);
        let subject = CallSubject::default();
        let fault = faults
            .unwrap()
            .decide("/csi.v1.Identity/Probe", &subject)
            .unwrap();
        stop.cancel();
        let call = around(Some(fault), ready(Ok::<_, Status>(())));
        let answer = tokio::time::timeout(GRACE, call).await.unwrap();
        assert_eq!(answer.unwrap_err().code(), Code::Unavailable);
        roles.finish().await;
    }
}
