//! Detects that the API server has accepted a watch request. `kube::runtime::watcher` yields
//! nothing at that moment, only at the next change, which may be hours away.

use kube::Client;
use kube::client::Body;
use tonic::codegen::http::Request;

use crate::client::kube::is_watch;

/// A client that sends through `client` and calls `accepted` for each watch request that succeeds.
pub(super) fn noticing(
    client: &Client,
    accepted: impl Fn() + Clone + Send + Sync + 'static,
) -> Client {
    let namespace = client.default_namespace().to_owned();
    let client = client.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, accepted) = (client.clone(), accepted.clone());
        async move {
            let watches = is_watch(request.uri().query());
            let answer = client.send(request).await?;
            if watches && answer.status().is_success() {
                accepted();
            }
            Ok::<_, kube::Error>(answer)
        }
    });
    Client::new(service, namespace)
}
