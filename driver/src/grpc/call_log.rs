//! Reports each RPC: one log line and one histogram sample.
//!
//! The line has the method, the subject, the outcome and the duration. Requests are never logged:
//! they contain secrets, and mount flags that may be secret.

use std::sync::Arc;
use std::time::Instant;

use hostloop_proto::calls::code_name;
use tonic::{Code, Status};

use super::escape::Shown;
use super::metrics::Calls;

/// The target of the log lines, for filters in `--log-level`.
const TARGET: &str = "hostloop::call";

/// The log level of a successful RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// The RPC changes state: level `info`.
    Change,
    /// The RPC only reads: level `debug`, because kubelet and liveness probes send many of these.
    Question,
}

/// The report of an RPC under way.
pub(crate) struct Report {
    calls: Arc<Calls>,
    method: &'static str,
    about: String,
    interest: Interest,
    started: Instant,
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
            about: Shown(about).to_string(),
            interest,
            started: Instant::now(),
            ended: false,
        }
    }

    /// Reports the outcome of an answered RPC.
    pub(crate) fn end(mut self, error: Option<&Status>) {
        match error {
            None => self.report(Code::Ok, ""),
            Some(status) => self.report(status.code(), status.message()),
        }
    }

    fn report(&mut self, code: Code, error: &str) {
        self.ended = true;
        let took = self.started.elapsed();
        self.calls.observe(self.method, code, took);

        let method = self.method.rsplit('/').next().unwrap_or(self.method);
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
            self.report(Code::Cancelled, "the caller hung up; the work continues");
        }
    }
}
