//! How a call ends for those who look on, whether this driver answers it or the proxy passes it on: the
//! end of its event, and one log line.
//!
//! The line has the method, the subject, the outcome and the duration. Requests are never logged:
//! they contain secrets, and mount flags that may be secret.

use std::time::Duration;

use hostloop_events::{Call, Fields, Shortened};
use hostloop_proto::calls::{code_name, spec_name};
use tonic::Code;

use crate::csi::validate::MAX_STRING;

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

/// A subject or a method, as lines and events have it.
pub(crate) fn shown(text: &str) -> String {
    Shortened(text, MAX_STRING).to_string()
}

/// A call that has ended.
pub(crate) struct CallEnd<'a> {
    pub(crate) method: &'a str,
    pub(crate) about: &'a str,
    pub(crate) interest: Interest,
    pub(crate) took: Duration,
    pub(crate) code: Code,
    pub(crate) error: &'a str,
    /// The rule of its fault.
    pub(crate) fault: Option<&'a str>,
}

impl CallEnd<'_> {
    /// Ends the event of the call, if it has one, with fields of the answer, and logs the line.
    pub(crate) fn report(&self, event: Option<Call>, answer: Fields) {
        if let Some(event) = event {
            event.end(spec_name(self.code), self.error, self.took, answer);
        }
        let CallEnd {
            method,
            about,
            fault,
            ..
        } = *self;
        let ms = self.took.as_micros() as f64 / 1e3;
        let code_name = code_name(self.code);
        let error = (self.code != Code::Ok).then_some(self.error);
        // Text from requests is logged as field values, which are quoted, and never in the message.
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    target: TARGET, method, about, code = %code_name, ms, fault, error, "call"
                )
            };
        }
        match (self.code, self.interest) {
            (Code::Ok, Interest::Change) => line!(info),
            (Code::Ok, Interest::Question) => line!(debug),
            (Code::Internal | Code::DataLoss | Code::Unknown, _) => line!(error),
            _ => line!(warn),
        }
    }
}
