//! One call: from the client to the driver and back, with its fault and its record.

use std::future::poll_fn;
use std::pin::Pin;

use hyper::body::{Body, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::{Request, Response, Uri};
use tonic::{Code, Status};

use super::Proxy;
use super::answer_body::AnswerBody;
use super::call_record::CallRecord;
use super::known_call::KnownCall;
use super::request_body::RequestBody;
use crate::rpc_faults::{CallSubject, Fault};

/// The name of calls of services other than CSI. Their subjects are their paths.
const OTHER: &str = "call of another service";

/// Passes a call on, and returns its answer.
pub(super) async fn relay(
    proxy: &Proxy,
    driver: SendRequest<RequestBody>,
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    let (mut head, body) = request.into_parts();
    head.uri = with_authority(head.uri);
    let mut body = RequestBody::new(body);
    let (mut record, fault) = match begin(proxy, head.uri.path(), &mut body).await {
        Ok(begun) => begun,
        Err(error) => return refusal(Status::cancelled(error.to_string())),
    };
    let request = Request::from_parts(head, body);
    let answer = match fault {
        None => send(driver, request).await,
        Some(fault) => {
            record.note(&fault);
            send_with(&fault, driver, request).await
        }
    };
    match answer {
        Ok(answer) => passing(answer, record),
        Err(status) => {
            record.end(status.code(), status.message());
            refusal(status)
        }
    }
}

/// Begins the record of a call, and decides about its fault.
async fn begin(
    proxy: &Proxy,
    path: &str,
    body: &mut RequestBody,
) -> Result<(CallRecord, Option<Fault>), hyper::Error> {
    let known = KnownCall::at(path);
    let message = match known {
        Some(_) => body.first_message().await?,
        None => None,
    };
    let read = known.zip(message);
    let request = read.and_then(|(call, message)| call.read(&message));
    let subject = request.as_ref().map(|request| request.subject());
    let subject = subject.unwrap_or_default();
    let (name, about) = match known {
        Some(call) => (call.name(), subject.about()),
        None => (OTHER, path),
    };
    let fields = request.as_ref().map(|request| request.event_fields());
    let record = CallRecord::begin(path, name, about, fields.unwrap_or_default());
    Ok((record, decide(proxy, path, &subject)))
}

fn decide(proxy: &Proxy, path: &str, subject: &CallSubject<'_>) -> Option<Fault> {
    proxy.faults.as_ref()?.decide(path, subject)
}

async fn send_with(
    fault: &Fault,
    driver: SendRequest<RequestBody>,
    request: Request<RequestBody>,
) -> Result<Response<Incoming>, Status> {
    fault.before().await?;
    let mut answer = send(driver, request).await;
    // A stream is done once the driver has sent all of it.
    if fault.hides_answer()
        && let Ok(answer) = &mut answer
    {
        drain(answer.body_mut()).await;
    }
    fault.after().await?;
    answer
}

/// The driver's answer as it is. The record ends now if there are only headers, else with the body.
fn passing(answer: Response<Incoming>, record: CallRecord) -> Response<AnswerBody> {
    let (head, body) = answer.into_parts();
    if body.is_end_stream() {
        let (code, message) = CallRecord::status_in(&head.headers);
        record.end(code, &message);
        return Response::from_parts(head, AnswerBody::default());
    }
    Response::from_parts(head, AnswerBody::passing(body, record))
}

fn refusal(status: Status) -> Response<AnswerBody> {
    status.into_http()
}

async fn send(
    mut driver: SendRequest<RequestBody>,
    request: Request<RequestBody>,
) -> Result<Response<Incoming>, Status> {
    driver.send_request(request).await.map_err(status_of)
}

/// What the client would have seen without the proxy.
fn status_of(error: hyper::Error) -> Status {
    let message = format!("the driver's connection broke: {error}");
    if error.is_canceled() || error.is_closed() || error.is_incomplete_message() {
        return Status::unavailable(message);
    }
    match Status::from_error(Box::new(error)) {
        status if status.code() == Code::Unknown => Status::unavailable(message),
        status => status,
    }
}

/// Takes all of a body and drops it. An error ends it, too.
async fn drain(body: &mut Incoming) {
    while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {}
}

/// HTTP/2 sends no request without an authority, and a client may have sent none.
fn with_authority(uri: Uri) -> Uri {
    if uri.authority().is_some() {
        return uri;
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let whole = Uri::builder()
        .scheme("http")
        .authority("localhost")
        .path_and_query(path)
        .build();
    whole.unwrap_or(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_has_an_authority() {
        let path = "/csi.v1.Node/NodeGetInfo";
        for (uri, expected) in [
            (path, format!("http://localhost{path}")),
            ("http://csi.sock/a/b", "http://csi.sock/a/b".to_owned()),
        ] {
            assert_eq!(with_authority(uri.parse().unwrap()), *expected);
        }
    }
}
