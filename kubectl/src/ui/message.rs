//! The messages for the page: one JSON object each.

use std::sync::Arc;

use hostloop_report::clock::now_us as now;
use hostloop_report::image_map::ReportedRun;
use serde::Serialize;
use serde_json::{Value, json};

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

impl Message {
    fn new(slot: Slot, kind: &str, mut value: Value) -> Message {
        value["type"] = kind.into();
        value["t"] = now().into();
        Message {
            text: value.to_string().into(),
            slot,
        }
    }

    /// An object as it is now.
    pub(super) fn set(kind: &str, key: &str, object: &Value) -> Message {
        let slot = Slot::Filled(format!("object/{kind}/{key}"));
        let value = json!({"op": "set", "kind": kind, "key": key, "object": object});
        Message::new(slot, "object", value)
    }

    /// An object that is gone.
    pub(super) fn deleted(kind: &str, key: &str) -> Message {
        let slot = Slot::Emptied(format!("object/{kind}/{key}"));
        Message::new(
            slot,
            "object",
            json!({"op": "delete", "kind": kind, "key": key}),
        )
    }

    /// An event of a process.
    pub(super) fn event(source: &Source, event: &Value) -> Message {
        let Source { node, process } = source;
        let value = json!({"node": node, "process": process, "event": event});
        Message::new(Slot::None, "event", value)
    }

    /// Events of a process that are lost.
    pub(super) fn gap(source: &Source, lost: u64) -> Message {
        let Source { node, process } = source;
        Message::new(
            Slot::None,
            "gap",
            json!({"node": node, "process": process, "lost": lost}),
        )
    }

    /// What `hostloop status --json` reports on a node.
    pub(super) fn report(node: &str, report: &impl Serialize) -> Message {
        let slot = Slot::Filled(format!("report/{node}"));
        Message::new(slot, "report", json!({"node": node, "report": report}))
    }

    /// The values of metrics of a process.
    pub(super) fn metrics(source: &Source, values: &impl Serialize) -> Message {
        let Source { node, process } = source;
        let slot = Slot::Filled(format!("metrics/{process}/{node}"));
        let value = json!({"node": node, "process": process, "values": values});
        Message::new(slot, "metrics", value)
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
        let value = json!({"node": node, "volume": volume, "extents": extents});
        Message::new(slot, "extents", value)
    }

    /// What does not work, in a sentence.
    pub(super) fn problem(about: &str, text: &str) -> Message {
        let slot = Slot::Filled(format!("problem/{about}"));
        Message::new(slot, "problem", json!({"about": about, "text": text}))
    }

    /// What works again.
    pub(super) fn solved(about: &str) -> Message {
        let slot = Slot::Emptied(format!("problem/{about}"));
        Message::new(slot, "solved", json!({"about": about}))
    }
}

/// A process with events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Source {
    /// The node; empty for the controller.
    pub(super) node: String,
    /// `node` or `controller`.
    pub(super) process: String,
}

/// What the page shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subject {
    /// The context of the cluster.
    pub(super) cluster: Option<String>,
    /// The socket of a driver without a cluster.
    pub(super) endpoint: Option<String>,
    /// The namespace of the person.
    pub(super) namespace: String,
    /// The name of the driver in the cluster: the page hides claims of others.
    pub(super) driver: String,
}

impl Subject {
    /// The first message of each stream.
    pub(super) fn hello(&self) -> Arc<str> {
        let hello = json!({"type": "hello", "stream": STREAM, "cluster": self.cluster,
            "version": env!("CARGO_PKG_VERSION"), "endpoint": self.endpoint,
            "namespace": self.namespace, "driver": self.driver, "now": now(), "t": now()});
        hello.to_string().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_change_the_slots_they_name() {
        let filled = |slot: &str| Slot::Filled(slot.to_owned());
        let source = Source {
            node: "n1".to_owned(),
            process: "node".to_owned(),
        };
        for (message, kind, slot) in [
            (
                Message::set("Pod", "demo/a", &json!({})),
                "object",
                filled("object/Pod/demo/a"),
            ),
            (
                Message::deleted("Pod", "demo/a"),
                "object",
                Slot::Emptied("object/Pod/demo/a".to_owned()),
            ),
            (
                Message::event(&source, &json!({"seq": 1})),
                "event",
                Slot::None,
            ),
            (Message::gap(&source, 3), "gap", Slot::None),
            (
                Message::report("n1", &json!({})),
                "report",
                filled("report/n1"),
            ),
            (
                Message::extents("n1", "v", &[]),
                "extents",
                filled("extents/n1/v"),
            ),
            (
                Message::no_extents("n1", "v"),
                "extents",
                Slot::Emptied("extents/n1/v".to_owned()),
            ),
            (
                Message::problem("watch", "why"),
                "problem",
                filled("problem/watch"),
            ),
            (
                Message::solved("watch"),
                "solved",
                Slot::Emptied("problem/watch".to_owned()),
            ),
        ] {
            let json: Value = serde_json::from_str(&message.text).unwrap();
            assert_eq!((&json["type"], &message.slot), (&json!(kind), &slot));
            assert!(json["t"].as_u64().is_some(), "{json}");
        }
    }
}
