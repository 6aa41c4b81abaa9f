use super::*;
use crate::controller::tests::{ids, record};
use crate::storage::{AccessMode, Capability};
use crate::testkit::ext4;

fn publication(mode: AccessMode, readonly: bool) -> Publication {
    Publication {
        capability: Capability {
            access: ext4(),
            mode,
        },
        readonly,
    }
}

#[test]
fn a_publication_is_compared_with_the_recorded_ones() {
    use AccessMode::*;
    let writer = publication(SingleNodeWriter, false);
    let reader = publication(SingleNodeWriter, true);
    let single = publication(SingleNodeSingleWriter, false);
    let local = publication(SingleNodeMultiWriter, false);
    let many = publication(MultiNodeMultiWriter, false);
    type Recorded<'a> = &'a [(&'a str, &'a Publication)];
    let table: [(Recorded<'_>, &Publication, &str); 8] = [
        (&[], &writer, "record"),
        (&[("n1", &writer)], &writer, "done"),
        (&[("n1", &writer)], &reader, "exists"),
        (&[("n1", &writer)], &single, "exists"),
        (&[("n1", &many)], &local, "done"),
        (&[("n2", &writer)], &writer, "elsewhere"),
        (&[("n2", &many)], &many, "record"),
        (&[("n2", &writer), ("n1", &writer)], &writer, "done"),
    ];
    for (publications, requested, expected) in table {
        let owned = |(node, one): &(&str, &Publication)| (node.to_string(), (*one).clone());
        let record = VolumeRecord {
            publications: publications.iter().map(owned).collect(),
            ..record()
        };
        let got = match decide(&record, "n1", requested) {
            Ok(ControllerPublish::Record) => "record",
            Ok(ControllerPublish::Done) => "done",
            Err(Error::AlreadyExists(_)) => "exists",
            Err(Error::FailedPrecondition(why)) if why.contains("n2") => "elsewhere",
            Err(e) => panic!("{e}"),
        };
        assert_eq!(got, expected, "{publications:?} {requested:?}");
    }
}

#[test]
fn slots_are_counted_with_those_being_taken() {
    let ids = ids(4);
    let slots = Slots::default();
    let published = |of: &[VolumeId]| {
        let of: BTreeSet<VolumeId> = of.iter().copied().collect();
        move || Ok(of)
    };
    let first = slots.take(ids[0], 2, published(&[])).unwrap();
    let second = slots.take(ids[1], 2, published(&[])).unwrap();
    let refused = slots.take(ids[2], 2, published(&[]));
    assert!(matches!(refused, Err(Error::ResourceExhausted(_))));
    // One slot is released, one is recorded.
    drop(first);
    let third = slots.take(ids[2], 2, published(&[ids[1]])).unwrap();
    drop((second, third));
    assert!(slots.take(ids[3], 2, published(&[ids[1], ids[2]])).is_err());
    // A volume's own slot does not block it.
    assert!(slots.take(ids[2], 2, published(&[ids[1], ids[2]])).is_ok());
    assert!(slots.take(ids[0], 0, published(&[])).is_err());
}

#[test]
fn a_failed_count_takes_no_slot() {
    let ids = ids(2);
    let slots = Slots::default();
    let failed = slots.take(ids[0], 1, || Err(Error::NotFound("x".to_owned())));
    assert!(matches!(failed, Err(Error::NotFound(_))));
    assert!(slots.take(ids[1], 1, || Ok(BTreeSet::new())).is_ok());
}
