//! Counts the bytes that the API server sends, by requested resource and verb.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http_body::{Body as HttpBody, Frame, SizeHint};
use kube::client::Body;
use prometheus_client::metrics::counter::Counter;
use tonic::codegen::http::{Request, Response};
use tower::Service;

use crate::metrics::Metrics;

/// Counts the bytes that a client's connections receive.
pub(super) struct Counting<S> {
    pub(super) inner: S,
    pub(super) metrics: Arc<Metrics>,
}

impl<S, B> Service<Request<Body>> for Counting<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<CountedBody<B>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let uri = request.uri();
        let (resource, verb) =
            resource_and_verb(request.method().as_str(), uri.path(), uri.query());
        let counter = self.metrics.received(resource, verb);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            Ok(answer.map(|body| CountedBody { body, counter }))
        })
    }
}

/// Returns the resource and the verb of a request.
pub(super) fn resource_and_verb<'a>(
    method: &str,
    path: &'a str,
    query: Option<&str>,
) -> (&'a str, &'static str) {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    // `api/v1` or `apis/group/version`.
    match parts.next() {
        Some("api") => drop(parts.next()),
        _ => drop(parts.nth(1)),
    }
    let mut rest: Vec<&str> = parts.collect();
    // `namespaces/NAME` is a prefix if a resource follows it, and otherwise the resource itself.
    if rest.first() == Some(&"namespaces") && rest.len() > 2 {
        rest.drain(..2);
    }
    let resource = rest.first().copied().unwrap_or_default();
    let verb = match (method, rest.len()) {
        ("GET", _) if is_watch(query) => "watch",
        ("GET", 1) => "list",
        ("GET", _) => "get",
        _ => "write",
    };
    (resource, verb)
}

/// Whether a request with this query is a watch.
pub(crate) fn is_watch(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|part| part == "watch=true"))
}

/// A response body that is counted as it arrives: the body of a watch has no end.
pub(super) struct CountedBody<B> {
    body: B,
    counter: Counter,
}

impl<B> HttpBody for CountedBody<B>
where
    B: HttpBody<Data = tonic::codegen::Bytes> + Unpin,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            self.counter.inc_by(data.len() as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_and_verbs_of_requests() {
        for (method, path, query, expected) in [
            ("GET", "/api/v1/pods", None, ("pods", "list")),
            (
                "GET",
                "/api/v1/pods",
                Some("limit=5&watch=true"),
                ("pods", "watch"),
            ),
            (
                "GET",
                "/apis/storage.k8s.io/v1/csinodes/n",
                None,
                ("csinodes", "get"),
            ),
            (
                "GET",
                "/api/v1/namespaces/ns/persistentvolumeclaims/c",
                Some("watch=false"),
                ("persistentvolumeclaims", "get"),
            ),
            (
                "PATCH",
                "/api/v1/namespaces/ns/persistentvolumeclaims/c/status",
                None,
                ("persistentvolumeclaims", "write"),
            ),
            ("GET", "/api/v1/namespaces/ns", None, ("namespaces", "get")),
            (
                "POST",
                "/api/v1/persistentvolumes",
                None,
                ("persistentvolumes", "write"),
            ),
            ("GET", "/version", None, ("", "get")),
        ] {
            assert_eq!(
                resource_and_verb(method, path, query),
                expected,
                "{method} {path}"
            );
        }
    }
}
