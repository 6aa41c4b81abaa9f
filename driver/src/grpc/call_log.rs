//! Reports each RPC: one log line, one histogram sample and, if it changes state, two events.
//!
//! The line has the method, the subject, the outcome and the duration. Requests are never logged:
//! they contain secrets, and mount flags that may be secret. Events have only the fields that
//! [`event_fields`](super::event_fields) lists.

use std::sync::Arc;
use std::time::Instant;

use hostloop_events::{Call, Fields, Shortened};
use hostloop_proto::calls::{code_name, spec_name};
use tonic::{Code, Status};

use super::metrics::Calls;
use crate::csi::validate::MAX_STRING;
use crate::rpc_faults::short_name;

/// The target of the log lines, for filters in `--log-level`.
const TARGET: &str = "hostloop::call";

/// The log level of a successful RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// The RPC changes state: level `info`.
    Change,
    /// The RPC only reads: level `debug` and no event, because kubelet and liveness probes send
    /// many of these.
    Question,
}

/// The report of an RPC under way.
pub(crate) struct Report {
    calls: Arc<Calls>,
    method: &'static str,
    about: String,
    interest: Interest,
    started: Instant,
    /// `None` if it has ended, or has no events.
    event: Option<Call>,
    ended: bool,
}

impl Report {
    /// Starts the report of an RPC. A report that is dropped before [`Report::end`] logs the RPC as
    /// cancelled: the caller hung up.
    pub(crate) fn begin(
        calls: &Arc<Calls>,
        method: &'static str,
        about: &str,
        interest: Interest,
    ) -> Report {
        Report {
            calls: calls.clone(),
            method,
            about: Shortened(about, MAX_STRING).to_string(),
            interest,
            started: Instant::now(),
            event: None,
            ended: false,
        }
    }

    /// Begins the events of an RPC that changes state. `object` is the name that its subject was
    /// created with, if it is known.
    pub(crate) fn with_events(mut self, object: Option<&str>, request: Fields) -> Report {
        self.event = Some(Call::begin(
            self.short_method(),
            &self.about,
            object,
            request,
        ));
        self
    }

    /// The RPC, for the steps of its work.
    pub(crate) fn event(&self) -> Option<Call> {
        self.event.clone()
    }

    /// Reports the outcome of an answered RPC.
    pub(crate) fn end(self, error: Option<&Status>) {
        self.end_with(error.map_or_else(|| Ok(Fields::default()), Err));
    }

    /// Reports the outcome of an answered RPC, with fields of the answer for its event.
    pub(crate) fn end_with(mut self, answer: Result<Fields, &Status>) {
        match answer {
            Ok(fields) => self.report(Code::Ok, "", fields),
            Err(status) => self.report(status.code(), status.message(), Fields::default()),
        }
    }

    fn short_method(&self) -> &'static str {
        short_name(self.method)
    }

    fn report(&mut self, code: Code, error: &str, answer: Fields) {
        self.ended = true;
        let took = self.started.elapsed();
        self.calls.observe(self.method, code, took);
        if let Some(event) = self.event.take() {
            event.end(spec_name(code), error, took, answer);
        }

        let method = self.short_method();
        let about = self.about.as_str();
        let ms = took.as_micros() as f64 / 1e3;
        let code_name = code_name(code);
        // Text from requests is logged as field values, which are quoted, and never in the message.
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(target: TARGET, method, about, code = %code_name, ms, error, "call")
            };
        }
        match (code, self.interest) {
            (Code::Ok, Interest::Change) => {
                tracing::info!(target: TARGET, method, about, code = %code_name, ms, "call")
            }
            (Code::Ok, Interest::Question) => {
                tracing::debug!(target: TARGET, method, about, code = %code_name, ms, "call")
            }
            (Code::Internal | Code::DataLoss | Code::Unknown, _) => line!(error),
            _ => line!(warn),
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if !self.ended {
            let error = "the caller hung up; work that has begun continues";
            self.report(Code::Cancelled, error, Fields::default());
        }
    }
}
