use std::sync::Arc;

use super::*;
use crate::record::{FaultRecord, UnusableRecord};
use crate::testkit::{Site, pairs};

fn renamed(record: &VolumeRecord, name: &str, capacity_bytes: u64) -> Arc<VolumeRecord> {
    Arc::new(VolumeRecord {
        name: name.into(),
        capacity_bytes,
        ..record.clone()
    })
}

#[test]
fn counts_promises_and_finds_by_name() {
    let site = Site::fake(&["a"]);
    let (one, two) = (site.make("one"), site.make("two"));
    let mut index = Index::default();
    index.put_volume(renamed(&one, "x", 10));
    index.put_volume(renamed(&two, "y", 5));
    assert_eq!(index.promised(), 15);
    index.put_volume(renamed(&one, "x", 20));
    assert_eq!(index.promised(), 25);
    assert_eq!(index.volumes.named("x").unwrap().id, one.id);
    index.take_volume(one.id);
    index.take_volume(one.id);
    assert_eq!((index.promised(), index.volumes.named("x")), (5, None));
}

#[test]
fn volumes_with_a_fault_are_known_without_a_look_at_all() {
    let site = Site::fake(&["a"]);
    let (one, two) = (site.make("one"), site.make("two"));
    let faulty = VolumeRecord {
        fault: Some(Box::new(FaultRecord::of("gone,for=600s"))),
        ..(*one).clone()
    };
    let faulty = Arc::new(faulty);
    let mut index = Index::default();
    index.put_volume(one.clone());
    index.put_volume(two);
    assert!(index.faulty_volumes().is_empty());
    index.put_volume(faulty.clone());
    assert_eq!(index.faulty_volumes(), std::slice::from_ref(&faulty));
    index.put_volume(one.clone());
    assert!(index.faulty_volumes().is_empty());
    index.put_volume(faulty);
    index.take_volume(one.id);
    assert!(index.faulty_volumes().is_empty());
}

#[test]
fn the_older_of_two_of_a_name_keeps_it() {
    let site = Site::fake(&["a"]);
    let (one, two) = (site.make("one"), site.make("two"));
    let mut index = Index::default();
    index.put_volume(renamed(&one, "x", 1));
    index.put_volume(renamed(&two, "x", 1));
    assert_eq!(index.volumes.named("x").unwrap().id, one.id);
    index.take_volume(two.id);
    assert_eq!(index.volumes.named("x").unwrap().id, one.id);
}

#[test]
fn unusable_entries_are_in_the_way() {
    let site = Site::fake(&["a"]);
    let one = site.make("one");
    let mut index = Index::default();
    let unusable = UnusableEntry {
        path: "/x".into(),
        why: UnusableRecord::Damaged("is broken".into()),
        name: Some("one".into()),
        bytes: 7,
    };
    index.volumes.put_unusable(one.id, unusable);
    assert!(index.volumes.get(one.id).is_err());
    assert!(index.volumes.check_unused("one").is_err());
    assert_eq!(index.volumes.named("one"), None);
    assert_eq!(index.promised(), 7);
}

#[test]
fn volumes_of_one_class_share_what_they_have_in_common() {
    let site = Site::fake(&["a"]);
    let mut index = Index::default();
    let [one, two, other] = ["one", "two", "other"].map(|name| {
        let mut record = (*site.make(name)).clone();
        let class = if name == "other" {
            "pool=other"
        } else {
            "pool=a"
        };
        record.parameters = pairs(class).into();
        record.capabilities = record.capabilities.to_vec().into();
        index.share(&mut record);
        record
    });
    assert!(Arc::ptr_eq(&one.parameters, &two.parameters));
    assert!(!Arc::ptr_eq(&one.parameters, &other.parameters));
    assert!(Arc::ptr_eq(&one.capabilities, &other.capabilities));
    assert_eq!(
        (&*other.parameters, &one.mkfs_options),
        (&pairs("pool=other"), &two.mkfs_options)
    );
}
