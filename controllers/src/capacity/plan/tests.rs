use super::*;

fn item(class: &str, node: &str) -> Item {
    let segment = BTreeMap::from([("t/node".to_owned(), node.to_owned())]);
    Item {
        class: class.to_owned(),
        segment,
    }
}

fn room(available: i64) -> Room {
    Room {
        available,
        largest: Some(available / 2),
    }
}

fn object_with(item: &Item, room: Room, marks: &Marks) -> Arc<CSIStorageCapacity> {
    Arc::new(Writer::new("d", None).object(item, room, "ns", marks))
}

fn object(item: &Item, room: Room) -> Arc<CSIStorageCapacity> {
    object_with(item, room, &Marks::default())
}

fn owner(uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "apps/v1".to_owned(),
        kind: "DaemonSet".to_owned(),
        name: "hostloop".to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

fn marks(uid: &str, pools: &str) -> Marks {
    Marks {
        owner: Some(owner(uid)),
        pools: Some(pools.to_owned()),
    }
}

#[test]
fn what_differs_is_written_and_nothing_else() {
    let (a, b) = (item("a", "n1"), item("b", "n1"));
    let elsewhere = item("a", "n2");
    let wanted = BTreeMap::from([(a.clone(), Some(room(100))), (b.clone(), Some(room(50)))]);
    let (told_a, told_b) = (object(&a, room(100)), object(&b, room(50)));
    let stale = object(&b, room(70));
    let obsolete = object(&elsewhere, room(1));
    for (what, there, actions) in [
        ("all told", vec![told_a.clone(), told_b.clone()], vec![]),
        (
            "nothing",
            vec![],
            vec![
                Action::Create(a.clone(), room(100)),
                Action::Create(b.clone(), room(50)),
            ],
        ),
        (
            "one stale",
            vec![told_a.clone(), stale.clone()],
            vec![Action::Update(stale, room(50))],
        ),
        (
            "one twice, one obsolete",
            vec![told_a.clone(), told_a.clone(), told_b, obsolete.clone()],
            vec![
                Action::Delete(told_a.clone()),
                Action::Delete(obsolete.clone()),
            ],
        ),
        (
            "one to be replaced by another",
            vec![obsolete.clone(), told_a.clone()],
            vec![
                Action::Create(b.clone(), room(50)),
                Action::Delete(obsolete),
            ],
        ),
    ] {
        assert_eq!(
            plan(&wanted, &there, &Marks::default(), Precision::Exact),
            actions,
            "{what}"
        );
    }
}

#[test]
fn what_cannot_be_told_stays_as_it_is() {
    let (a, b) = (item("a", "n1"), item("b", "n1"));
    let wanted = BTreeMap::from([(a.clone(), None), (b, None)]);
    let told = object(&a, room(100));
    let twice = vec![told.clone(), told.clone()];
    let expected = [Action::Delete(told)];
    assert_eq!(
        plan(&wanted, &twice, &Marks::default(), Precision::Exact),
        expected
    );
}

#[test]
fn a_successor_takes_over() {
    let a = item("a", "n1");
    let wanted = BTreeMap::from([(a.clone(), Some(room(100)))]);
    let ours = marks("u1", "p1,p2");
    let unmarked = Marks::default();
    let owner_alone = Marks {
        pools: None,
        ..ours.clone()
    };
    for (what, had, now, updated) in [
        ("the same set of pods", &ours, &ours, false),
        ("another set of pods", &ours, &marks("u2", "p1,p2"), true),
        ("another pool", &ours, &marks("u1", "p1"), true),
        ("its pools are told first now", &owner_alone, &ours, true),
        ("nobody is known to own it", &ours, &unmarked, false),
        ("an older one without marks", &unmarked, &ours, true),
    ] {
        let there = object_with(&a, room(100), had);
        let actions = plan(&wanted, std::slice::from_ref(&there), now, Precision::Exact);
        let expected = match updated {
            true => vec![Action::Update(there, room(100))],
            false => vec![],
        };
        assert_eq!(actions, expected, "{what}");
        // Unknown room does not prevent an update of the marks.
        let unknown = BTreeMap::from([(a.clone(), None)]);
        let there = [object_with(&a, room(100), had)];
        assert_eq!(
            plan(&unknown, &there, now, Precision::Exact),
            actions,
            "{what}"
        );
    }
}

#[test]
fn a_small_change_may_wait_for_a_closer_look() {
    let of = |available, largest| Room { available, largest };
    for (told, now, rough) in [
        (of(3200, None), of(3200, None), true),
        (of(3200, None), of(3101, None), true),
        (of(3200, None), of(3299, None), true),
        (of(3200, None), of(3100, None), false),
        (of(3200, None), of(3300, None), false),
        // With hardly any room, every change counts.
        (of(0, None), of(1, None), false),
        (of(31, None), of(30, None), false),
        (of(3200, Some(320)), of(3101, Some(311)), true),
        (of(3200, Some(320)), of(3200, Some(310)), false),
        (of(3200, Some(0)), of(3199, Some(0)), true),
        (of(3200, Some(320)), of(3200, None), false),
        (of(3200, None), of(3200, Some(320)), false),
        (of(i64::MAX, None), of(i64::MIN, None), false),
        (of(i64::MIN, None), of(i64::MAX, None), false),
    ] {
        assert_eq!(
            Precision::Approximate.takes(told, now),
            rough,
            "{told:?} {now:?}"
        );
        assert_eq!(
            Precision::Exact.takes(told, now),
            told == now,
            "{told:?} {now:?}"
        );
    }
    // A change of the marks does not wait.
    let a = item("a", "n1");
    let there = object_with(&a, room(3200), &marks("u1", "p1"));
    let wanted = BTreeMap::from([(a, Some(room(3199)))]);
    for (now, actions) in [
        ("u1", vec![]),
        ("u2", vec![Action::Update(there.clone(), room(3199))]),
    ] {
        let planned = plan(
            &wanted,
            std::slice::from_ref(&there),
            &marks(now, "p1"),
            Precision::Approximate,
        );
        assert_eq!(planned, actions, "{now}");
    }
}

#[test]
fn patches() {
    let mut there = (*object_with(&item("a", "n1"), room(100), &marks("u1", "p1"))).clone();
    let bystander = OwnerReference {
        controller: None,
        ..owner("u9")
    };
    let owners = there.metadata.owner_references.get_or_insert_default();
    owners.push(bystander.clone());
    there.metadata.resource_version = Some("7".to_owned());
    let gib = Room {
        available: 3 << 30,
        largest: None,
    };
    let expected = json!({
        "metadata": {"resourceVersion": "7"}, "capacity": "3Gi", "maximumVolumeSize": null,
    });
    assert_eq!(Marks::default().patch(&there, gib), expected);
    let expected = json!({
        "metadata": {
            "resourceVersion": "7",
            "ownerReferences": [bystander, owner("u2")],
            "annotations": {"hostloop.csi.dev/pools": "p1,p2"},
        },
        "capacity": "100", "maximumVolumeSize": "50",
    });
    assert_eq!(marks("u2", "p1,p2").patch(&there, room(100)), expected);
}

#[test]
fn sizes_are_read_in_any_form() {
    let mut object = (*object(&item("a", "n1"), room(1))).clone();
    for (capacity, largest, expected) in [
        ("1Gi", None, Some((1 << 30, None))),
        ("1G", Some("1M"), Some((1_000_000_000, Some(1_000_000)))),
        ("4096", Some("4Ki"), Some((4096, Some(4096)))),
        ("much", None, None),
        ("1Gi", Some("much"), None),
    ] {
        object.capacity = Some(Quantity(capacity.to_owned()));
        object.maximum_volume_size = largest.map(|text| Quantity(text.to_owned()));
        let expected = expected.map(|(available, largest)| Room { available, largest });
        assert_eq!(super::room(&object), expected, "{capacity} {largest:?}");
    }
}

#[test]
fn labels_fit() {
    assert_eq!(Writer::new("d", None).managed_by, "external-provisioner");
    let node = |length: usize| format!("node{}", "a".repeat(length - 4));
    for (length, expected) in [
        (6, "external-provisioner-nodeaa".to_owned()),
        (42, format!("external-provisioner-{}", node(42))),
        (43, format!("external-p-53f40b57-{}", node(43))),
        (52, format!("e-53f40b57-{}", node(52))),
        (53, "external-provisioner-a3607ff1".to_owned()),
        (67, "external-provisioner-df38e37f".to_owned()),
    ] {
        let made = Writer::new("d", Some(&node(length))).managed_by;
        assert_eq!(made, expected);
        assert!(made.len() <= MAX_LABEL);
    }
}
