//! What a controller need not look at again before it changes. Most claims and volumes stay as they are
//! for long, and a controller looks at all of them after each change of one.

use std::collections::BTreeMap;

use serde_json::Value;

use super::view::{Entry, Step, View};

/// The objects of one kind for which there was nothing to do, by key. What there is to do for each
/// depends on it and on one object of another kind alone.
#[derive(Default)]
pub(super) struct Settled(BTreeMap<String, Pair>);

/// The arrivals of an object and of the other one.
struct Pair {
    arrival: u64,
    /// The key of the other one.
    other: String,
    /// None if there was no such object.
    other_arrival: Option<u64>,
}

impl Settled {
    /// What there is to do for the objects of a kind (by plural) that are not settled. `of_one` says
    /// what there is to do for one of them, and the key of the other object, of the kind `others`. One
    /// without such a key is never settled.
    pub(super) fn steps(
        &mut self,
        view: &View,
        kind: &str,
        others: &str,
        of_one: impl Fn(&Value) -> (Vec<Step>, Option<String>),
    ) -> Vec<Step> {
        let mut all = Vec::new();
        for (key, entry) in view.entries(kind) {
            if self.has(key, entry, view, others) {
                continue;
            }
            let (steps, other) = of_one(&entry.object);
            if steps.is_empty()
                && let Some(other) = other
            {
                let arrival = view.arrival(others, &other);
                self.note(key, entry, other, arrival);
            }
            all.extend(steps);
        }
        all
    }

    /// True if neither the object with this key has changed since there was nothing to do, nor the
    /// other one, of this kind (by plural).
    fn has(&self, key: &str, entry: &Entry, view: &View, others: &str) -> bool {
        self.0.get(key).is_some_and(|pair| {
            pair.arrival == entry.arrival && pair.other_arrival == view.arrival(others, &pair.other)
        })
    }

    /// Notes that there is nothing to do for the object with this key, beside the other one with its
    /// key and arrival.
    fn note(&mut self, key: &str, entry: &Entry, other: String, other_arrival: Option<u64>) {
        let pair = Pair {
            arrival: entry.arrival,
            other,
            other_arrival,
        };
        self.0.insert(key.to_owned(), pair);
    }

    /// True if there was nothing to do for some object.
    #[cfg(test)]
    pub(super) fn has_any(&self) -> bool {
        !self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CLAIMS: &str = "persistentvolumeclaims";
    const VOLUMES: &str = "persistentvolumes";

    fn claim() -> Value {
        json!({"metadata": {"name": "c", "namespace": "n"}})
    }

    fn volume() -> Value {
        json!({"metadata": {"name": "v"}})
    }

    fn entry(view: &View) -> &Entry {
        let (_, entry) = view.entries(CLAIMS).next().expect("a claim");
        entry
    }

    #[test]
    fn a_pair_is_settled_until_one_of_both_arrives_again() {
        type Change = fn(&mut View);
        let changes: [(Change, bool); 5] = [
            (|_| (), true),
            (
                |view| view.put(VOLUMES, json!({"metadata": {"name": "w"}})),
                true,
            ),
            (|view| view.put(CLAIMS, claim()), false),
            (|view| view.put(VOLUMES, volume()), false),
            (|view| view.take(VOLUMES, &volume()), false),
        ];
        for (number, (change, expected)) in changes.into_iter().enumerate() {
            let (mut view, mut settled) = (View::default(), Settled::default());
            view.put(CLAIMS, claim());
            view.put(VOLUMES, volume());
            assert!(!settled.has("n/c", entry(&view), &view, VOLUMES));
            let arrival = view.arrival(VOLUMES, "/v");
            settled.note("n/c", entry(&view), "/v".to_owned(), arrival);
            change(&mut view);
            let found = settled.has("n/c", entry(&view), &view, VOLUMES);
            assert_eq!(found, expected, "{number}");
        }
    }

    #[test]
    fn an_object_alone_is_settled_until_the_other_one_arrives() {
        let (mut view, mut settled) = (View::default(), Settled::default());
        view.put(CLAIMS, claim());
        settled.note("n/c", entry(&view), "/v".to_owned(), None);
        assert!(settled.has("n/c", entry(&view), &view, VOLUMES));
        view.put(VOLUMES, volume());
        assert!(!settled.has("n/c", entry(&view), &view, VOLUMES));
    }
}
