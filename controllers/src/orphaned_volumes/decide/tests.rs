use super::*;

const UID: &str = "0a1b2c3d-0000-4000-8000-0123456789ab";

fn naming(uuid_length: i64) -> Naming {
    Naming {
        uuid_length,
        ..Naming::new(&crate::testing::options())
    }
}

fn entry(id: &str) -> InventoryEntry {
    InventoryEntry {
        id: id.to_owned(),
        name: format!("pvc-{UID}"),
        fresh: true,
        ..InventoryEntry::default()
    }
}

fn all(volumes: &[InventoryEntry]) -> BTreeMap<String, InventoryEntry> {
    let named = volumes.iter().map(|one| (one.id.clone(), one.clone()));
    named.collect()
}

#[test]
fn suspicion() {
    let inline = format!("csi-{}", "0a".repeat(32));
    let ids = ["a", "b", "pod", inline.as_str(), "new"];
    let listed: Published = ids
        .iter()
        .map(|id| ((*id).to_owned(), Vec::new()))
        .collect();
    let of_pod = InventoryEntry {
        inline: true,
        ..entry("pod")
    };
    let entry = all(&[entry("a"), entry("b"), of_pod, entry(&inline)]);
    for (what, entry, expected) in [
        ("with the inventory", Some(&entry), vec!["b"]),
        ("without an inventory", None, vec!["b", "new", "pod"]),
    ] {
        let found = without_object(&listed, entry, |id| id == "a");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected, "{what}");
    }
}

#[test]
fn publications() {
    let listed: Published = [
        ("forgotten", vec!["n1"]),
        ("several", vec!["n0", "n1"]),
        ("attached", vec!["n1"]),
        ("staged", vec!["n1"]),
        ("elsewhere", vec!["n2"]),
        ("nowhere", vec![]),
        ("unknown", vec!["n1"]),
    ]
    .into_iter()
    .map(|(id, nodes)| {
        (
            id.to_owned(),
            nodes.into_iter().map(str::to_owned).collect(),
        )
    })
    .collect();
    let staged = InventoryEntry {
        staged: true,
        ..entry("staged")
    };
    let others = ["forgotten", "several", "attached", "elsewhere", "nowhere"].map(entry);
    let entry = all(&[&others[..], &[staged]].concat());
    let found = stale_publications(&listed, &entry, "n1", |id| id == "attached");
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        ["forgotten", "several"]
    );
}

#[test]
fn deletion() {
    let unclaimed = || Cluster {
        claims: Some(BTreeSet::from(["another".to_owned()])),
        volumes: BTreeSet::from(["another".to_owned()]),
        handles: BTreeSet::from(["another".to_owned()]),
    };
    let claimed = |uid: &str| Cluster {
        claims: Some(BTreeSet::from([uid.to_owned()])),
        ..unclaimed()
    };
    let named = |name: &str| Cluster {
        volumes: BTreeSet::from([name.to_owned()]),
        ..unclaimed()
    };
    let handled = |id: &str| Cluster {
        handles: BTreeSet::from([id.to_owned()]),
        ..unclaimed()
    };
    let unasked = Cluster {
        claims: None,
        ..unclaimed()
    };
    let with = |change: fn(&mut InventoryEntry)| {
        let mut one = entry("a");
        change(&mut one);
        one
    };
    for (what, entry, cluster, expected) in [
        ("unclaimed and never used", entry("a"), unclaimed(), true),
        ("used", with(|one| one.fresh = false), unclaimed(), false),
        ("staged", with(|one| one.staged = true), unclaimed(), false),
        (
            "a pod's own",
            with(|one| one.inline = true),
            unclaimed(),
            false,
        ),
        (
            "made by hand",
            with(|one| one.name = "data".to_owned()),
            unclaimed(),
            false,
        ),
        ("its claim waits", entry("a"), claimed(UID), false),
        ("claims were not asked for", entry("a"), unasked, false),
        (
            "its object is there",
            entry("a"),
            named(&format!("pvc-{UID}")),
            false,
        ),
        ("an object of another name", entry("a"), handled("a"), false),
    ] {
        assert_eq!(
            may_be_deleted(&entry, &naming(-1), &cluster),
            expected,
            "{what}"
        );
    }
    assert!(
        !may_be_deleted(&entry("a"), &naming(8), &unclaimed()),
        "names are cut"
    );
}
