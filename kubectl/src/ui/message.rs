//! The messages for the page: one JSON object each. The page's types are made from these.

use std::collections::BTreeMap;
use std::sync::Arc;

use hostloop_report::clock::now_us as now;
use hostloop_report::image_map::ReportedRun;
use serde::Serialize;
use serde_json::Value;

use crate::verdict::Stuck;

/// The format of the stream, in its first message.
const STREAM: &str = "hostloop.ui/v1";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// The JSON.
    pub(super) text: Arc<str>,
    /// What the message changes.
    pub(super) slot: Slot,
}

/// The state that a message changes: the object, report or problem of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    None,
    /// The message is the state.
    Filled(String),
    /// The message ends the state.
    Emptied(String),
}

/// A message as it is sent.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Sent<'m> {
    /// When it was sent, in microseconds since the epoch.
    t: u64,
    #[serde(flatten)]
    body: Body<'m>,
}

/// What a message says.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "lowercase")]
enum Body<'m> {
    /// The first message of each stream.
    Hello {
        /// The format of the stream.
        stream: &'m str,
        /// The version of the program.
        version: &'m str,
        /// The context of the cluster.
        cluster: Option<&'m str>,
        /// The socket of a driver without a cluster.
        endpoint: Option<&'m str>,
        /// The namespace of the person.
        namespace: &'m str,
        /// The driver's name; empty for the usual one.
        driver: &'m str,
        /// The time of the program's clock.
        now: u64,
    },
    /// An object as it is now, or its end.
    Object {
        op: Op,
        kind: &'m str,
        /// The name, after the namespace if there is one.
        key: &'m str,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[cfg_attr(test, schemars(with = "BTreeMap<String, Value>"))]
        object: Option<&'m Value>,
    },
    /// What a process did.
    Event {
        /// The node; empty for a driver that has not said it.
        node: &'m str,
        /// `node` or `controller`.
        process: &'m str,
        #[cfg_attr(test, schemars(with = "hostloop_events::serve::Line<'static>"))]
        event: &'m Value,
    },
    /// Events of a process that are lost.
    Gap {
        node: &'m str,
        process: &'m str,
        /// How many.
        lost: u64,
    },
    /// What `hostloop status --json` reports on a node.
    Report {
        node: &'m str,
        #[cfg_attr(test, schemars(with = "hostloop_report::status::Report"))]
        report: &'m Value,
    },
    /// The values of metrics of a process.
    Metrics {
        node: &'m str,
        process: &'m str,
        /// By name and labels.
        values: &'m BTreeMap<String, f64>,
    },
    /// Where the blocks of an image are; nowhere if the image is gone.
    Extents {
        node: &'m str,
        /// The ID of the volume or snapshot.
        volume: &'m str,
        extents: &'m [ReportedRun],
    },
    /// How far a claim, a snapshot or a volume is, and why it is stuck.
    Verdict {
        /// The names of the one life that it is about, as the page has them.
        lives: &'m [String],
        /// Null if there is nothing to say any more.
        verdict: Option<&'m ShownVerdict>,
    },
    /// What does not work, in a sentence.
    Problem { about: &'m str, text: &'m str },
    /// What works again.
    Solved { about: &'m str },
    /// What `kubectl hostloop explore` has found. No stream has it: `--replay` shows such a report.
    Exploration {
        #[cfg_attr(test, schemars(with = "crate::explore::ExplorationReport"))]
        report: &'m Value,
    },
}

/// What happened to an object.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
enum Op {
    Set,
    Delete,
}

/// A verdict as the page shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ShownVerdict {
    /// The state in the words of `kubectl hostloop status`.
    pub(super) words: String,
    pub(super) tone: Tone,
    /// Why it is stuck.
    pub(super) stuck: Option<Stuck>,
    /// What explains the state of what is not stuck.
    pub(super) note: Option<String>,
}

/// How good a state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(super) enum Tone {
    Good,
    Wait,
    Bad,
    Gone,
}

impl Body<'_> {
    fn json(self) -> Arc<str> {
        let sent = Sent {
            t: now(),
            body: self,
        };
        // All keys are texts, so there is nothing that JSON can't have.
        serde_json::to_string(&sent).unwrap_or_default().into()
    }
}

impl Message {
    fn new(slot: Slot, body: Body<'_>) -> Message {
        Message {
            text: body.json(),
            slot,
        }
    }

    fn object(slot: Slot, op: Op, [kind, key]: [&str; 2], object: Option<&Value>) -> Message {
        let body = Body::Object {
            op,
            kind,
            key,
            object,
        };
        Message::new(slot, body)
    }

    /// An object as it is now.
    pub(super) fn set(kind: &str, key: &str, object: &Value) -> Message {
        let slot = Slot::Filled(format!("object/{kind}/{key}"));
        Message::object(slot, Op::Set, [kind, key], Some(object))
    }

    /// An object that is gone.
    pub(super) fn deleted(kind: &str, key: &str) -> Message {
        let slot = Slot::Emptied(format!("object/{kind}/{key}"));
        Message::object(slot, Op::Delete, [kind, key], None)
    }

    /// An event of a process.
    pub(super) fn event(source: &EventProcess, event: &Value) -> Message {
        let EventProcess { node, process } = source;
        Message::new(
            Slot::None,
            Body::Event {
                node,
                process,
                event,
            },
        )
    }

    /// Events of a process that are lost.
    pub(super) fn gap(source: &EventProcess, lost: u64) -> Message {
        let EventProcess { node, process } = source;
        Message::new(
            Slot::None,
            Body::Gap {
                node,
                process,
                lost,
            },
        )
    }

    /// What `hostloop status --json` reports on a node.
    pub(super) fn report(node: &str, report: &Value) -> Message {
        let slot = Slot::Filled(format!("report/{node}"));
        Message::new(slot, Body::Report { node, report })
    }

    /// The values of metrics of a process.
    pub(super) fn metrics(source: &EventProcess, values: &BTreeMap<String, f64>) -> Message {
        let EventProcess { node, process } = source;
        let slot = Slot::Filled(format!("metrics/{process}/{node}"));
        Message::new(
            slot,
            Body::Metrics {
                node,
                process,
                values,
            },
        )
    }

    /// Where the blocks of an image are.
    pub(super) fn extents(node: &str, volume: &str, extents: &[ReportedRun]) -> Message {
        Message::map(Slot::Filled, node, volume, extents)
    }

    /// An image is gone, and its map with it.
    pub(super) fn no_extents(node: &str, volume: &str) -> Message {
        Message::map(Slot::Emptied, node, volume, &[])
    }

    fn map(
        slot: impl Fn(String) -> Slot,
        node: &str,
        volume: &str,
        extents: &[ReportedRun],
    ) -> Message {
        let slot = slot(format!("extents/{node}/{volume}"));
        Message::new(
            slot,
            Body::Extents {
                node,
                volume,
                extents,
            },
        )
    }

    /// The verdict about a life, by its names.
    pub(super) fn verdict(lives: &[String], verdict: &ShownVerdict) -> Message {
        let slot = Slot::Filled(format!("verdict/{}", lives.join(" ")));
        let verdict = Some(verdict);
        Message::new(slot, Body::Verdict { lives, verdict })
    }

    /// There is no verdict about a life any more.
    pub(super) fn no_verdict(lives: &[String]) -> Message {
        let slot = Slot::Emptied(format!("verdict/{}", lives.join(" ")));
        let verdict = None;
        Message::new(slot, Body::Verdict { lives, verdict })
    }

    /// What does not work, in a sentence.
    pub(super) fn problem(about: &str, text: &str) -> Message {
        let slot = Slot::Filled(format!("problem/{about}"));
        Message::new(slot, Body::Problem { about, text })
    }

    /// What works again.
    pub(super) fn solved(about: &str) -> Message {
        let slot = Slot::Emptied(format!("problem/{about}"));
        Message::new(slot, Body::Solved { about })
    }

    /// What an exploration has found.
    pub(super) fn exploration(report: &Value) -> Message {
        let slot = Slot::Filled("exploration".to_owned());
        Message::new(slot, Body::Exploration { report })
    }
}

/// A process with events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EventProcess {
    /// The node; empty for the controller.
    pub(super) node: String,
    /// `node` or `controller`.
    pub(super) process: String,
}

/// What the page shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageSubject {
    /// The context of the cluster.
    pub(super) cluster: Option<String>,
    /// The socket of a driver without a cluster.
    pub(super) endpoint: Option<String>,
    /// The namespace of the person.
    pub(super) namespace: String,
    /// The name of the driver in the cluster: the page hides claims of others.
    pub(super) driver: String,
}

impl PageSubject {
    /// The first message of each stream.
    pub(super) fn hello(&self) -> Arc<str> {
        Body::Hello {
            stream: STREAM,
            version: env!("CARGO_PKG_VERSION"),
            cluster: self.cluster.as_deref(),
            endpoint: self.endpoint.as_deref(),
            namespace: &self.namespace,
            driver: &self.driver,
            now: now(),
        }
        .json()
    }
}

#[cfg(test)]
mod tests;
