use super::*;

const UID: &str = "0a1b2c3d-0000-4000-8000-0123456789ab";

fn naming(uuid_length: i64) -> Naming {
    Naming {
        uuid_length,
        ..Naming::new(&crate::testing::options())
    }
}

fn kept(id: &str) -> InventoryEntry {
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
        ..kept("pod")
    };
    let kept = all(&[kept("a"), kept("b"), of_pod, kept(&inline)]);
    for (what, kept, expected) in [
        ("told by the driver", Some(&kept), vec!["b"]),
        ("told by nobody", None, vec!["b", "new", "pod"]),
    ] {
        let found = without_object(&listed, kept, |id| id == "a");
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
        ..kept("staged")
    };
    let others = ["forgotten", "several", "attached", "elsewhere", "nowhere"].map(kept);
    let kept = all(&[&others[..], &[staged]].concat());
    let found = published_in_vain(&listed, &kept, "n1", |id| id == "attached");
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        ["forgotten", "several"]
    );
}

#[test]
fn deletion() {
    let nobody = || Cluster {
        claims: Some(BTreeSet::from(["another".to_owned()])),
        volumes: BTreeSet::from(["another".to_owned()]),
        handles: BTreeSet::from(["another".to_owned()]),
    };
    let claimed = |uid: &str| Cluster {
        claims: Some(BTreeSet::from([uid.to_owned()])),
        ..nobody()
    };
    let named = |name: &str| Cluster {
        volumes: BTreeSet::from([name.to_owned()]),
        ..nobody()
    };
    let handled = |id: &str| Cluster {
        handles: BTreeSet::from([id.to_owned()]),
        ..nobody()
    };
    let unasked = Cluster {
        claims: None,
        ..nobody()
    };
    let with = |change: fn(&mut InventoryEntry)| {
        let mut one = kept("a");
        change(&mut one);
        one
    };
    for (what, kept, cluster, expected) in [
        ("nobody's, and never used", kept("a"), nobody(), true),
        ("used", with(|one| one.fresh = false), nobody(), false),
        ("staged", with(|one| one.staged = true), nobody(), false),
        (
            "a pod's own",
            with(|one| one.inline = true),
            nobody(),
            false,
        ),
        (
            "made by hand",
            with(|one| one.name = "data".to_owned()),
            nobody(),
            false,
        ),
        ("its claim waits", kept("a"), claimed(UID), false),
        ("claims were not asked for", kept("a"), unasked, false),
        (
            "its object is there",
            kept("a"),
            named(&format!("pvc-{UID}")),
            false,
        ),
        ("an object of another name", kept("a"), handled("a"), false),
    ] {
        assert_eq!(
            may_be_deleted(&kept, &naming(-1), &cluster),
            expected,
            "{what}"
        );
    }
    assert!(
        !may_be_deleted(&kept("a"), &naming(8), &nobody()),
        "names are cut"
    );
}
