//! The IDs of traces and spans. Spans that several processes send in one trace need no agreement.

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::is_uid;

/// What the number of a span counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// The ID of a call, a step or the work of a controller.
    Id(u64),
    /// The sequence number of an event without an ID of its own.
    Seq(u64),
}

/// The ID of the trace: the UID itself, or a hash of another name. An object without a name has a
/// trace for each span.
pub(super) fn trace_id(trace: &str, span_id: &[u8; 8]) -> [u8; 16] {
    match Uuid::try_parse(trace) {
        // An ID of zeros is invalid.
        Ok(uid) if is_uid(trace) && !uid.is_nil() => uid.into_bytes(),
        _ if trace.is_empty() => hash(&[b"span", span_id]),
        _ => hash(&[b"trace", trace.as_bytes()]),
    }
}

/// The ID of a span. Numbers are unique in a process, and `boot` is the name of its start.
pub(super) fn span_id(boot: &str, number: Number) -> [u8; 8] {
    let (tag, number) = match number {
        Number::Id(id) => (b"id", id),
        Number::Seq(seq) => (b"no", seq),
    };
    hash(&[boot.as_bytes(), tag, &number.to_be_bytes()])
}

/// The first bytes of a hash over all parts.
fn hash<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let hash = Sha256::digest(parts.concat());
    std::array::from_fn(|at| hash[at])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use hostloop_report::hex;

    use super::*;

    const UID: &str = "2d1f8a7e-0c3b-4a55-9d1e-0123456789ab";

    #[test]
    fn the_trace_of_a_claim_is_its_uid() {
        let span = [7; 8];
        assert_eq!(hex(&trace_id(UID, &span)), UID.replace('-', ""));
        let mut ids = BTreeSet::new();
        for other in [
            "00000000-0000-0000-0000-000000000000",
            "2d1f8a7e0c3b4a559d1e0123456789ab",
            "vol-da9dee9a4dbbe57d-01a208742b0b7298b4e21d571dc758a9",
            "namespace/name",
            "",
        ] {
            let id = trace_id(other, &span);
            assert_ne!(id, [0; 16], "{other}");
            assert_eq!(id, trace_id(other, &span), "{other}");
            assert!(ids.insert(id), "{other}");
        }
        assert!(!ids.contains(&trace_id(UID, &span)));
        assert_ne!(trace_id("", &span), trace_id("", &[8; 8]));
    }

    #[test]
    fn spans_of_all_processes_differ() {
        let mut ids = BTreeSet::new();
        for boot in ["a", "b"] {
            for number in 0..1000 {
                assert!(
                    ids.insert(span_id(boot, Number::Id(number))),
                    "{boot} {number}"
                );
                assert!(
                    ids.insert(span_id(boot, Number::Seq(number))),
                    "{boot} {number}"
                );
            }
        }
        assert_eq!(span_id("a", Number::Id(1)), span_id("a", Number::Id(1)));
    }
}
