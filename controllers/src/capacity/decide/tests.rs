use super::*;

fn item(class: &str, node: &str) -> Item {
    let segment = BTreeMap::from([("t/node".to_owned(), node.to_owned())]);
    Item {
        class: class.to_owned(),
        segment,
    }
}

fn room(available: i64) -> FreeCapacity {
    FreeCapacity {
        available,
        largest: Some(available / 2),
    }
}

fn object_with(item: &Item, room: FreeCapacity, marks: &Marks) -> Arc<CSIStorageCapacity> {
    Arc::new(Writer::new("d", None).object(item, room, "ns", marks))
}

fn object(item: &Item, room: FreeCapacity) -> Arc<CSIStorageCapacity> {
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
        endpoint: None,
    }
}

/// The steps for these facts.
fn decided(
    desired: &DesiredObjects,
    objects: &[Arc<CSIStorageCapacity>],
    marks: &Marks,
    precision: Precision,
) -> Vec<Step> {
    let facts = Facts {
        desired: desired.clone(),
        objects: objects.to_vec(),
        marks: marks.clone(),
    };
    decide(&facts, precision)
}

#[test]
fn only_differences_are_written() {
    let (a, b) = (item("a", "n1"), item("b", "n1"));
    let desired = BTreeMap::from([(a.clone(), Some(room(100))), (b.clone(), Some(room(50)))]);
    let unknown = BTreeMap::from([(a.clone(), None), (b.clone(), None)]);
    let (object_a, object_b) = (|| object(&a, room(100)), || object(&b, room(50)));
    let stale = || object(&b, room(70));
    let obsolete = || object(&item("a", "n2"), room(1));
    let create_a = || Step::Create(a.clone(), room(100));
    let create_b = || Step::Create(b.clone(), room(50));
    let (update, delete) = (
        |object, size| Step::Update(object, room(size)),
        Step::Delete,
    );
    for (what, desired, there, steps) in [
        ("all there", &desired, vec![object_a(), object_b()], vec![]),
        ("none", &desired, vec![], vec![create_a(), create_b()]),
        (
            "one stale",
            &desired,
            vec![object_a(), stale()],
            vec![update(stale(), 50)],
        ),
        (
            "one twice, one obsolete",
            &desired,
            vec![object_a(), object_a(), object_b(), obsolete()],
            vec![delete(object_a()), delete(obsolete())],
        ),
        (
            "one to be replaced by another",
            &desired,
            vec![obsolete(), object_a()],
            vec![create_b(), delete(obsolete())],
        ),
        (
            "of unknown room",
            &unknown,
            vec![object_a(), object_a()],
            vec![delete(object_a())],
        ),
    ] {
        let decided = decided(desired, &there, &Marks::default(), Precision::Exact);
        assert_eq!(decided, steps, "{what}");
    }
}

#[test]
fn a_successor_updates_the_marks() {
    let a = item("a", "n1");
    let known = BTreeMap::from([(a.clone(), Some(room(100)))]);
    let unknown = BTreeMap::from([(a.clone(), None)]);
    let ours = marks("u1", "p1,p2");
    let unmarked = Marks::default();
    let owner_alone = Marks {
        pools: None,
        ..ours.clone()
    };
    let reachable = |endpoint: &str| Marks {
        endpoint: Some(endpoint.to_owned()),
        ..ours.clone()
    };
    let (first, second) = (reachable("10.0.0.1:1/a"), reachable("10.0.0.1:1/b"));
    for (what, had, now, updated) in [
        ("its first endpoint", &ours, &first, true),
        ("the same endpoint", &first, &first, false),
        ("a new process", &first, &second, true),
        ("a process without an endpoint", &first, &ours, false),
        ("the same set of pods", &ours, &ours, false),
        ("another set of pods", &ours, &marks("u2", "p1,p2"), true),
        ("another pool", &ours, &marks("u1", "p1"), true),
        ("its first pools", &owner_alone, &ours, true),
        ("no known owner", &ours, &unmarked, false),
        ("an older one without marks", &unmarked, &ours, true),
    ] {
        let there = [object_with(&a, room(100), had)];
        let update = Step::Update(there[0].clone(), room(100));
        let expected: Vec<_> = updated.then_some(update).into_iter().collect();
        // Unknown room does not prevent an update of the marks.
        for desired in [&known, &unknown] {
            let decided = decided(desired, &there, now, Precision::Exact);
            assert_eq!(decided, expected, "{what}");
        }
    }
}

#[test]
fn a_small_change_may_wait_for_an_exact_pass() {
    let of = |available, largest| FreeCapacity { available, largest };
    for (published, now, near) in [
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
        let what = format!("{published:?} {now:?}");
        assert_eq!(Precision::Approximate.takes(published, now), near, "{what}");
        let same = published == now;
        assert_eq!(Precision::Exact.takes(published, now), same, "{what}");
    }
    // A change of the marks does not wait.
    let a = item("a", "n1");
    let there = [object_with(&a, room(3200), &marks("u1", "p1"))];
    let desired = BTreeMap::from([(a, Some(room(3199)))]);
    let update = Step::Update(there[0].clone(), room(3199));
    for (owner, steps) in [("u1", vec![]), ("u2", vec![update])] {
        let marks = marks(owner, "p1");
        let decided = decided(&desired, &there, &marks, Precision::Approximate);
        assert_eq!(decided, steps, "{owner}");
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
    let gib = FreeCapacity {
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
        let expected = expected.map(|(available, largest)| FreeCapacity { available, largest });
        assert_eq!(super::room(&object), expected, "{capacity} {largest:?}");
    }
}
