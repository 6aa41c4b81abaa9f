use super::*;

const UID: &str = "0a1b2c3d-0000-4000-8000-0123456789ab";

fn naming(uuid_length: i64) -> VolumeNaming {
    VolumeNaming {
        uuid_length,
        ..crate::testing::options()
    }
}

fn entry(id: &str) -> InventoryEntry {
    InventoryEntry {
        id: id.to_owned(),
        name: format!("pvc-{UID}"),
        is_empty: true,
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
    let inventory = all(&[entry("a"), entry("b"), of_pod, entry(&inline)]);
    for (what, inventory, expected) in [
        ("with the inventory", Some(&inventory), vec!["b"]),
        ("without an inventory", None, vec!["b", "new", "pod"]),
    ] {
        let found = without_object(&listed, inventory, |id| id == "a");
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
        ("shared", vec!["n1", "n2", "n3"]),
        ("idle", vec!["n2"]),
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
    let shared = ["shared", "idle"].map(|id| InventoryEntry {
        staged: id == "shared",
        shared: true,
        ..entry(id)
    });
    let others = ["forgotten", "several", "attached", "elsewhere", "nowhere"].map(entry);
    let inventory = all(&[&others[..], &[staged], &shared].concat());
    let found = stale_publications(&listed, &inventory, "n1", |publication| {
        publication.volume == "attached" || publication.node == "n3"
    });
    let found = found.iter().map(|one| (&*one.volume, &*one.node));
    let expected = [
        ("forgotten", "n1"),
        ("idle", "n2"),
        ("several", "n1"),
        ("shared", "n1"),
        ("shared", "n2"),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

fn set(name: &str) -> BTreeSet<String> {
    BTreeSet::from([name.to_owned()])
}

#[test]
fn deletion() {
    type Change = fn(&mut InventoryEntry, &mut Facts);
    let cases: [(&str, Change, bool); 9] = [
        ("unclaimed and empty", |_, _| {}, true),
        ("with data", |entry, _| entry.is_empty = false, false),
        ("staged", |entry, _| entry.staged = true, false),
        ("inline", |entry, _| entry.inline = true, false),
        (
            "created by hand",
            |entry, _| entry.name = "data".to_owned(),
            false,
        ),
        (
            "its claim waits",
            |_, all| all.claims = Some(set(UID)),
            false,
        ),
        ("claims were not listed", |_, all| all.claims = None, false),
        (
            "its PersistentVolume exists",
            |_, all| all.volumes = set(&format!("pvc-{UID}")),
            false,
        ),
        (
            "a PersistentVolume of another name",
            |_, all| all.handles = set("a"),
            false,
        ),
    ];
    for (what, change, expected) in cases {
        let mut facts = Facts {
            claims: Some(set("another")),
            volumes: set("another"),
            handles: set("another"),
        };
        let mut entry = entry("a");
        change(&mut entry, &mut facts);
        let found = may_be_deleted(&entry, &naming(-1), &facts);
        assert_eq!(found, expected, "{what}");
        // Cut names do not show the claim.
        assert!(!may_be_deleted(&entry, &naming(8), &facts), "{what}");
    }
}
