//! What is told of a call: one line in the log, one sample in the histogram.
//!
//! A line names the method, what it was about, the outcome and how long it took. Requests are
//! never printed: they carry secrets, and mount flags that may be secret.

use std::sync::Arc;
use std::time::Instant;

use hostloop_proto::calls::code_name;
use tonic::{Code, Status};

use super::escape::Shown;
use super::metrics::Calls;

/// The target of the lines, to choose them by in `--log-level`.
const TARGET: &str = "hostloop::call";

/// Whether a call that went well is worth a line at level `info`, or only at `debug`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// It changes something.
    Change,
    /// It asks; kubelet and liveness probes ask all day.
    Question,
}

/// Where reports go. Clones share it.
#[derive(Clone)]
pub(crate) struct Observer {
    calls: Arc<Calls>,
}

impl Observer {
    pub(crate) fn new(calls: Arc<Calls>) -> Self {
        Observer { calls }
    }

    /// A call has come in. It is reported as cancelled if the report is dropped before its end,
    /// which is what happens when the caller hangs up.
    pub(crate) fn begin(&self, method: &'static str, about: &str, interest: Interest) -> Report {
        Report {
            calls: self.calls.clone(),
            method,
            about: Shown(about).to_string(),
            interest,
            started: Instant::now(),
            ended: false,
        }
    }
}

/// A call on its way.
pub(crate) struct Report {
    calls: Arc<Calls>,
    method: &'static str,
    about: String,
    interest: Interest,
    started: Instant,
    ended: bool,
}

impl Report {
    /// It has been answered.
    pub(crate) fn end(mut self, error: Option<&Status>) {
        match error {
            None => self.tell(Code::Ok, ""),
            Some(status) => self.tell(status.code(), status.message()),
        }
    }

    fn tell(&mut self, code: Code, error: &str) {
        self.ended = true;
        let took = self.started.elapsed();
        self.calls.observe(self.method, code, took);

        let method = self.method.rsplit('/').next().unwrap_or(self.method);
        let about = self.about.as_str();
        let ms = took.as_micros() as f64 / 1e3;
        let code_name = code_name(code);
        // Text from outside goes in as values, which are quoted, and never into the message.
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
            self.tell(
                Code::Cancelled,
                "the caller hung up; what was begun goes on",
            );
        }
    }
}
