//! Recordings of `kubectl hostloop ui`, as far as tests look into them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

const BEGIN: &str = "<script type=\"application/json\" id=\"recording\">";
const END: &str = "</script>";

/// The messages of a recording: a page with them. Panics with a sentence if it has none.
pub fn read(path: &Path) -> Vec<Value> {
    let page = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let found = page
        .split_once(BEGIN)
        .and_then(|(_, rest)| rest.split_once(END));
    let (json, _) = found.unwrap_or_else(|| panic!("{} has no recording", path.display()));
    let mut recording: Value =
        serde_json::from_str(json).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    match recording["messages"].take() {
        Value::Array(messages) => messages,
        other => panic!("{} has no messages, but {other}", path.display()),
    }
}

/// The number of messages of a type.
pub fn count(messages: &[Value], kind: &str) -> usize {
    messages
        .iter()
        .filter(|message| message["type"] == kind)
        .count()
}

/// A run of a map.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Run {
    len: u64,
    physical: u64,
}

/// Bytes of an image at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// In blocks that the other image has, too.
    pub shared: u64,
    /// In blocks that the other image does not have.
    pub own: u64,
}

/// What an image shares with another one, after each map of one of them while both have one.
pub fn sharings(messages: &[Value], image: &str, other: &str) -> Vec<Sharing> {
    let mut maps: BTreeMap<&str, Vec<Run>> = BTreeMap::new();
    let mut found = Vec::new();
    for message in messages
        .iter()
        .filter(|message| message["type"] == "extents")
    {
        let Some(id) = [image, other]
            .into_iter()
            .find(|id| message["volume"] == **id)
        else {
            continue;
        };
        let map = Vec::deserialize(&message["extents"]).expect("a map has runs");
        maps.insert(id, map);
        if let (Some(one), Some(two)) = (maps.get(image), maps.get(other))
            && !one.is_empty()
            && !two.is_empty()
        {
            found.push(sharing(one, two));
        }
    }
    found
}

/// The runs of one map do not overlap.
fn sharing(image: &[Run], other: &[Run]) -> Sharing {
    let common = |a: &Run, b: &Run| {
        let end = (a.physical + a.len).min(b.physical + b.len);
        end.saturating_sub(a.physical.max(b.physical))
    };
    let shared = image
        .iter()
        .map(|a| other.iter().map(|b| common(a, b)).sum::<u64>())
        .sum();
    let all: u64 = image.iter().map(|run| run.len).sum();
    Sharing {
        shared,
        own: all - shared,
    }
}

/// True if a recording shows that the images shared blocks, and that `bytes` were then split by a
/// write.
pub fn was_split(sharings: &[Sharing], bytes: u64) -> bool {
    let least_own = |until: usize| sharings[..until].iter().map(|sharing| sharing.own).min();
    let split = |(at, now): (usize, &Sharing)| {
        least_own(at).is_some_and(|own| now.own >= own + bytes) && now.shared > 0
    };
    sharings.iter().enumerate().any(split)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(volume: &str, runs: &[(u64, u64)]) -> Value {
        let runs = runs
            .iter()
            .map(|(physical, len)| json!({"physical": physical, "len": len}));
        json!({"type": "extents", "volume": volume, "extents": runs.collect::<Vec<_>>()})
    }

    #[test]
    fn maps_show_what_is_shared_and_what_a_write_splits() {
        let mut messages = vec![
            json!({"type": "hello"}),
            map("data", &[(100, 50)]),
            map("other", &[(100, 50)]),
            map("monday", &[(100, 50)]),
        ];
        let shared = Sharing { shared: 50, own: 0 };
        assert_eq!(sharings(&messages, "data", "monday"), [shared]);
        assert!(!was_split(&[shared], 10));
        messages.push(map("data", &[(100, 20), (300, 10), (130, 20)]));
        let split = Sharing {
            shared: 40,
            own: 10,
        };
        messages.push(map("monday", &[]));
        assert_eq!(sharings(&messages, "data", "monday"), [shared, split]);
        assert!(was_split(&[shared, split], 10) && !was_split(&[shared, split], 11));
        assert!(
            !was_split(&[split, shared], 10),
            "only a later write splits"
        );
        assert_eq!(count(&messages, "extents"), 5);
    }
}
