//! The events that the controllers emit: a table for each process, from which
//! `docs/reference/events.md` is made.
//!
//! A reason that upstream's controllers also use has the same meaning here, because people and other
//! programs look for it.

use super::EventKind;

mod controller;
mod node;

pub use controller::CONTROLLER;
pub use node::NODE;

/// The events of one reason and kind.
#[derive(Debug)]
pub struct EventReason {
    pub reason: &'static str,
    pub kind: EventKind,
    /// The kinds of the objects that it is about.
    pub about: &'static str,
    /// What its message says.
    pub says: &'static str,
    /// What a person does then.
    pub remedy: &'static str,
}

/// True if a table has an event of this kind and reason.
pub fn is_listed(kind: EventKind, reason: &str) -> bool {
    let mut events = NODE.iter().chain(CONTROLLER);
    events.any(|event| event.kind == kind && event.reason == reason)
}

const fn normal(
    reason: &'static str,
    about: &'static str,
    says: &'static str,
    remedy: &'static str,
) -> EventReason {
    EventReason {
        reason,
        kind: EventKind::Normal,
        about,
        says,
        remedy,
    }
}

const fn warning(
    reason: &'static str,
    about: &'static str,
    says: &'static str,
    remedy: &'static str,
) -> EventReason {
    EventReason {
        kind: EventKind::Warning,
        ..normal(reason, about, says, remedy)
    }
}

#[cfg(test)]
mod tests;
