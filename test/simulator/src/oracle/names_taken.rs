//! The name of a claim's volume is taken for another request alone. The driver says what differs, and
//! that is something which users can change before the claim has its volume: its classes, and what is
//! behind the name of its source.

use std::collections::BTreeSet;

use crate::cluster::Cluster;
use crate::model::view::event_note;
use crate::trace;

/// How an event quotes such an answer, and what precedes the difference.
const TAKEN: (&str, &str) = ("code = AlreadyExists desc = volume ", " already, and ");

/// What users can change.
const CHANGES: [&str; 4] = [
    "differs in volume_capabilities",
    "differs in parameters",
    "differs in mutable_parameters",
    "differs in volume_content_source",
];

/// Checks that no event speaks of a difference that users can't have made.
pub(super) fn are_of_others(cluster: &Cluster) {
    let events = cluster.api.shared("events");
    let notes = events.iter().map(|event| event_note(event));
    let wrong: BTreeSet<&str> = notes.filter(|note| is_of_itself(note)).collect();
    for note in wrong {
        trace::violation(format!("a name taken by its own volume: {note}"));
    }
}

/// True if a message says that a name is taken, and nothing differs that users can change.
fn is_of_itself(message: &str) -> bool {
    let (answer, why) = TAKEN;
    let after = message.split_once(answer);
    let difference = after.and_then(|(_, after)| after.split_once(why));
    difference.is_some_and(|(_, what)| !CHANGES.iter().any(|words| what.starts_with(words)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_that_users_can_make() {
        let taken = |why: &str| {
            format!(
                "failed to provision volume with StorageClass \"ext4\": rpc error: code = \
                 AlreadyExists desc = volume vol-1 has the name \"hostloop-1\" already, and {why}"
            )
        };
        for (message, expected) in [
            (taken("differs in parameters"), false),
            (taken("differs in volume_content_source"), false),
            (taken("has 10Mi, which capacity_range forbids"), true),
            (taken("is not accessible as accessibility_requirements ask"), true),
            (
                "code = NotFound desc = volume vol-1 has gone already, and the claim waits"
                    .to_owned(),
                false,
            ),
            (
                "CreateSnapshot: AlreadyExists: snapshot snap-1 has the name \"s\" already, and is \
                 of volume vol-1"
                    .to_owned(),
                false,
            ),
        ] {
            assert_eq!(is_of_itself(&message), expected, "{message}");
        }
    }
}
