//! The record of a call: a log line, and events in the form of those of `hostloop run`.
//!
//! Events have the fields that the driver's have.

use std::sync::Arc;
use std::time::Instant;

use hostloop_events::{Call, Fields, MAX_TEXT as MAX_ERROR, Shortened};
use hyper::HeaderMap;
use percent_encoding::percent_decode;
use tonic::Code;

use crate::grpc::call_line::{CallEnd, Interest, shown};
use crate::rpc_faults::Fault;

/// A call under way. Dropping the record ends it as cancelled: the caller hung up.
pub(super) struct CallRecord {
    method: String,
    about: String,
    fault: Option<Arc<str>>,
    started: Instant,
    /// `None` once it has ended.
    event: Option<Call>,
}

impl CallRecord {
    /// Begins the record of a call with this path. `name` is that of its event.
    pub(super) fn begin(
        path: &str,
        name: &'static str,
        about: &str,
        request: Fields,
    ) -> CallRecord {
        let about = shown(about);
        CallRecord {
            method: shown(path),
            event: Some(Call::begin(name, &about, None, request)),
            about,
            fault: None,
            started: Instant::now(),
        }
    }

    /// Notes the fault of the call.
    pub(super) fn note(&mut self, fault: &Fault) {
        if let Some(event) = &self.event {
            fault.show_in(event);
        }
        self.fault = Some(fault.rule.clone());
    }

    /// Ends the record.
    pub(super) fn end(mut self, code: Code, error: &str) {
        self.report(code, error);
    }

    /// The gRPC status in headers or trailers.
    pub(super) fn status_in(headers: &HeaderMap) -> (Code, String) {
        let Some(code) = headers.get("grpc-status") else {
            return (Code::Unknown, "the answer has no gRPC status".to_owned());
        };
        let message = headers.get("grpc-message").map(|message| {
            percent_decode(message.as_bytes())
                .decode_utf8_lossy()
                .into_owned()
        });
        let code = Code::from_bytes(code.as_bytes());
        (code, message.unwrap_or_default())
    }

    fn report(&mut self, code: Code, error: &str) {
        let Some(event) = self.event.take() else {
            return;
        };
        let error = Shortened(error, MAX_ERROR).to_string();
        let end = CallEnd {
            method: &self.method,
            about: &self.about,
            interest: Interest::Change,
            took: self.started.elapsed(),
            code,
            error: &error,
            fault: self.fault.as_deref(),
        };
        end.report(Some(event), Fields::default());
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        self.report(Code::Cancelled, "the caller hung up");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_answers() {
        for (code, message, expected) in [
            (Some("0"), None, (Code::Ok, "")),
            (
                Some("8"),
                Some("the%20pool is full%21"),
                (Code::ResourceExhausted, "the pool is full!"),
            ),
            (Some("99"), None, (Code::Unknown, "")),
            (
                None,
                Some("x"),
                (Code::Unknown, "the answer has no gRPC status"),
            ),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in [("grpc-status", code), ("grpc-message", message)] {
                if let Some(value) = value {
                    headers.insert(name, value.parse().unwrap());
                }
            }
            let (code, message) = CallRecord::status_in(&headers);
            assert_eq!((code, &*message), expected);
        }
    }
}
