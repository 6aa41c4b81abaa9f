//! A rule: which calls it takes, how many of them, and what happens to them.

use std::sync::Arc;
use std::time::Duration;

use super::call_subject::CallSubject;
use super::csi_calls::short_name;
use super::fault::Outcome;

/// A text that is compared as a whole or, with a final `*`, by its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

/// A rule of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The name in logs, metrics and messages. No other rule of the file has it.
    pub name: Arc<str>,
    /// The calls, as `CreateVolume` or, with the service, as `csi.v1.Controller/CreateVolume`.
    pub methods: Vec<Pattern>,
    /// An ID or a name of a volume, snapshot or group.
    pub object: Option<Pattern>,
    pub claim: Option<Pattern>,
    pub namespace: Option<Pattern>,
    /// The node in the request or, without one, the node of this process.
    pub node: Option<Pattern>,
    /// How many calls the rule takes; `None` is without end.
    pub times: Option<u64>,
    /// The share of the calls that it takes; `None` is all.
    pub probability: Option<f64>,
    /// How long it acts after it has been read; `None` is until it is removed.
    pub lifetime: Option<Duration>,
    /// The wait before the call.
    pub delay_before: Duration,
    /// The wait between the call and its answer.
    pub delay_after: Duration,
    pub outcome: Outcome,
}

impl Pattern {
    pub fn new(text: &str) -> Pattern {
        Pattern(text.to_owned())
    }

    /// True if the text matches. Unknown text, which is empty, matches nothing.
    fn matches(&self, text: &str) -> bool {
        match self.0.strip_suffix('*') {
            _ if text.is_empty() => false,
            Some(beginning) => text.starts_with(beginning),
            None => text == self.0,
        }
    }

    /// True for a method with this path. Without a slash, the service does not matter.
    fn matches_method(&self, path: &str) -> bool {
        if self.0.contains('/') {
            self.matches(path.trim_start_matches('/'))
        } else {
            self.matches(short_name(path))
        }
    }
}

impl Rule {
    /// True if the rule is for this call, sent to a process on this node.
    pub(super) fn is_for(&self, path: &str, subject: &CallSubject<'_>, own_node: &str) -> bool {
        let node = match subject.node {
            "" => own_node,
            node => node,
        };
        let objects = &subject.objects;
        self.methods
            .iter()
            .any(|method| method.matches_method(path))
            && self
                .object
                .as_ref()
                .is_none_or(|pattern| objects.iter().any(|object| pattern.matches(object)))
            && matches(&self.claim, subject.claim)
            && matches(&self.namespace, subject.namespace)
            && matches(&self.node, node)
    }
}

/// True if the text matches, or if there is no pattern.
fn matches(pattern: &Option<Pattern>, text: &str) -> bool {
    pattern.as_ref().is_none_or(|pattern| pattern.matches(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("pvc-1", "pvc-1", true),
            ("pvc-1", "pvc-12", false),
            ("pvc-*", "pvc-12", true),
            ("*", "anything", true),
            ("*", "", false),
            ("", "", false),
        ] {
            assert_eq!(
                Pattern::new(pattern).matches(text),
                expected,
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn methods() {
        let path = "/csi.v1.Controller/CreateVolume";
        for (pattern, expected) in [
            ("CreateVolume", true),
            ("Create*", true),
            ("*", true),
            ("CreateSnapshot", false),
            ("csi.v1.Controller/CreateVolume", true),
            ("csi.v1.Controller/*", true),
            ("csi.v1.Node/*", false),
            ("csi.v1.*", false),
        ] {
            assert_eq!(
                Pattern::new(pattern).matches_method(path),
                expected,
                "{pattern}"
            );
        }
    }
}
