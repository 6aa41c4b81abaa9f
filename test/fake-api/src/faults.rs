//! Failures of requests.

use std::time::Duration;

use super::path::Target;
use super::request::RecordedRequest;

/// A failure of a request.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The request fails with this code, and changes nothing.
    Refuse(u16),
    /// The request gets no answer, and changes nothing.
    Hang,
    /// The request takes this long.
    Delay(Duration),
    /// The connection breaks before the request arrives: it changes nothing.
    Disconnect,
    /// The request takes effect, and the connection breaks before the answer arrives.
    LoseAnswer,
}

pub(super) struct Rule {
    /// All methods if empty.
    pub(super) methods: &'static [&'static str],
    /// The end of the path of a request, or the plural of its kind.
    pub(super) path: String,
    /// The number of requests it applies to; all if `None`.
    pub(super) left: Option<usize>,
    pub(super) fault: Fault,
}

/// A request as [`super::FakeApi::on_request`] sees it.
#[derive(Debug)]
pub struct RequestInfo<'a> {
    /// The name of the connection.
    pub who: &'a str,
    /// `GET`, `POST`, …
    pub method: &'a str,
    /// The path. That of a watch ends with `?watch`.
    pub path: &'a str,
}

/// Decides about a request.
type Decide = Box<dyn FnMut(&RequestInfo) -> Option<Fault> + Send>;

#[derive(Default)]
pub(super) struct Faults {
    pub(super) rules: Vec<Rule>,
    pub(super) decide: Option<Decide>,
    /// True if no request arrives.
    pub(super) is_away: bool,
}

impl Faults {
    /// The fault of a request.
    pub(super) fn of(&mut self, who: &str, request: &RecordedRequest) -> Option<Fault> {
        if self.is_away {
            return Some(Fault::Disconnect);
        }
        // Mostly, there is no rule.
        let target = self.rules.first().and_then(|_| Target::of(&request.path));
        let plural = target.map(|target| target.plural);
        let rule = self.rules.iter_mut().find(|rule| {
            (rule.methods.is_empty() || rule.methods.contains(&request.method.as_str()))
                && rule.left != Some(0)
                && (request.path.ends_with(&rule.path) || plural.as_ref() == Some(&rule.path))
        });
        if let Some(rule) = rule {
            rule.left = rule.left.map(|left| left - 1);
            return Some(rule.fault);
        }
        let decide = self.decide.as_mut()?;
        decide(&RequestInfo {
            who,
            method: &request.method,
            path: &request.path,
        })
    }
}
