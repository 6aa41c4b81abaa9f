use std::collections::BTreeMap;

use super::*;
use crate::kernel::FsType;
use crate::storage::{Access, AccessMode, Capability, Format, PoolId, Provisioning, Settings};

fn publication(mode: AccessMode, readonly: bool) -> Publication {
    Publication {
        capability: Capability {
            access: Access::Mount {
                fs: FsType::Ext4,
                flags: Vec::new(),
                group: None,
            },
            mode,
        },
        readonly,
    }
}

fn record(publications: &[(&str, Publication)]) -> VolumeRecord {
    let publications = publications.iter().cloned();
    VolumeRecord {
        schema: 1,
        id: VolumeId::generate(PoolId::generate()),
        name: "v".to_owned(),
        capacity_bytes: 4096,
        capabilities: Vec::new(),
        parameters: BTreeMap::new(),
        mutable_parameters: BTreeMap::new(),
        settings: Settings {
            provisioning: Provisioning::Thin,
            discard: false,
            direct_io: true,
            read_ahead_kib: None,
        },
        mkfs_options: Vec::new(),
        source: None,
        created_ns: 0,
        format: Format::None,
        fresh: false,
        publications: publications.map(|(n, p)| (n.to_owned(), p)).collect(),
        stage: None,
        freeze: None,
        inline: None,
    }
}

#[test]
fn publications_are_judged() {
    use AccessMode::*;
    let writer = || publication(SingleNodeWriter, false);
    let many = || publication(MultiNodeMultiWriter, false);
    let table = [
        (vec![], writer(), "record"),
        (vec![("n1", writer())], writer(), "done"),
        (
            vec![("n1", writer())],
            publication(SingleNodeWriter, true),
            "exists",
        ),
        (
            vec![("n1", writer())],
            publication(SingleNodeSingleWriter, false),
            "exists",
        ),
        (
            vec![("n1", many())],
            publication(SingleNodeMultiWriter, false),
            "done",
        ),
        (vec![("n2", writer())], writer(), "elsewhere"),
        (vec![("n2", many())], many(), "record"),
        (vec![("n2", writer()), ("n1", writer())], writer(), "done"),
    ];
    for (publications, asked, expected) in table {
        let record = record(&publications);
        let got = match decide(&record, "n1", &asked) {
            Ok(Publish::Record) => "record",
            Ok(Publish::Done) => "done",
            Err(Error::AlreadyExists(_)) => "exists",
            Err(Error::FailedPrecondition(why)) if why.contains("n2") => "elsewhere",
            Err(e) => panic!("{e}"),
        };
        assert_eq!(got, expected, "{publications:?} {asked:?}");
    }
}

fn ids(n: usize) -> Vec<VolumeId> {
    let pool = PoolId::generate();
    (0..n).map(|_| VolumeId::generate(pool)).collect()
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
