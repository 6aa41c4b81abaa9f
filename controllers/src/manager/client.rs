//! The client of the controllers. It counts the bytes that the API server sends, and drops what no
//! controller reads.

use std::path::PathBuf;

use kube::Client;
use kube::client::{Body, ClientBuilder};
use tonic::codegen::Bytes;
use tonic::codegen::http::{Request, Response};
use tower::{BoxError, Service};

use super::telemetry::Telemetry;
use crate::client::kube::{self as api, ClientError};
use crate::kept_fields::KEPT_FIELDS;

/// Creates a client from a kubeconfig. By default, the pod's service account or the user's own
/// kubeconfig applies. The client connects on the first request.
pub fn connect(
    kubeconfig: Option<PathBuf>,
    telemetry: &Telemetry,
) -> impl Future<Output = Result<Client, ClientError>> + Send + use<> {
    let metrics = telemetry.common().clone();
    async move { api::connect(kubeconfig.as_deref(), metrics, KEPT_FIELDS).await }
}

/// Creates a client over these connections.
pub fn client_over<S, B>(connections: ClientBuilder<S>, telemetry: &Telemetry) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    api::over(connections, telemetry.common().clone(), KEPT_FIELDS)
}
