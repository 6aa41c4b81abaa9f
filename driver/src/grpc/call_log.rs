//! Reports each RPC: one log line, one histogram sample and, if it changes state, two events.
//!
//! Events have only the fields that [`event_fields`](super::event_fields) lists.

use std::sync::Arc;
use std::time::Instant;

use hostloop_events::{Call, Fields};
use tonic::{Code, Status};

use super::call_line::{CallEnd, Interest, shown};
use super::metrics::Calls;
use crate::rpc_faults::short_name;

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
            about: shown(about),
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
        let event = self.event.take();
        let end = CallEnd {
            method: self.short_method(),
            about: &self.about,
            interest: self.interest,
            took,
            code,
            error,
            fault: None,
        };
        end.report(event, answer);
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
