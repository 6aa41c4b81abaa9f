//! Trims the answers of a client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use http_body::{Body as HttpBody, Frame};
#[cfg(test)]
use kube::Client;
use kube::client::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::header::CONTENT_LENGTH;
use tonic::codegen::http::{Request, Response};
use tower::Service;

use super::{AnswerKind, KeptFields, Trimmer};
use crate::client::kube::bytes_received::resource_and_verb;

/// An extension of a request: keep these fields of the answer instead of the kind's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrimTo(pub(crate) &'static KeptFields);

/// A client that sends through `client` and trims the answers.
#[cfg(test)]
pub(crate) fn trimmed(client: Client, kinds: &'static [KeptFields]) -> Client {
    let namespace = client.default_namespace().to_owned();
    let inner = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move { client.send(request).await }
    });
    Client::new(Trimming { inner, kinds }, namespace)
}

/// A client's connections. Their answers with objects of these kinds are trimmed.
#[derive(Clone, Debug)]
pub(crate) struct Trimming<S> {
    pub(in crate::client::kube) inner: S,
    pub(in crate::client::kube) kinds: &'static [KeptFields],
}

impl<S, B> Service<Request<Body>> for Trimming<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<TrimmedBody<B>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let uri = request.uri();
        let (plural, verb) = resource_and_verb(request.method().as_str(), uri.path(), uri.query());
        let kind = self.kinds.iter().find(|kind| kind.plural == plural);
        let kind = request
            .extensions()
            .get()
            .map(|TrimTo(kind)| *kind)
            .or(kind);
        let answer_kind = match verb {
            "list" => AnswerKind::List,
            "watch" => AnswerKind::Watch,
            _ => AnswerKind::Object,
        };
        let answer = self.inner.call(request);
        Box::pin(async move {
            let mut answer = answer.await?;
            // A refusal is a status, which is read as a whole.
            let kind = kind.filter(|_| answer.status().is_success());
            if kind.is_some() {
                answer.headers_mut().remove(CONTENT_LENGTH);
            }
            let trimmer = kind.map(|kind| Trimmer::new(kind, answer_kind));
            Ok(answer.map(|body| TrimmedBody { body, trimmer }))
        })
    }
}

/// The body of an answer that is trimmed as it arrives: the body of a watch has no end.
#[derive(Debug)]
pub(crate) struct TrimmedBody<B> {
    body: B,
    trimmer: Option<Trimmer>,
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for TrimmedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        loop {
            let polled = ready!(Pin::new(&mut self.body).poll_frame(context));
            let (Some(trimmer), Some(Ok(frame))) = (&mut self.trimmer, &polled) else {
                return Poll::Ready(polled);
            };
            let Some(data) = frame.data_ref() else {
                return Poll::Ready(polled);
            };
            let mut kept = Vec::new();
            trimmer.push(data, &mut kept);
            if !kept.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(kept.into()))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
