use super::*;

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn at(namespace: &str, name: &str) -> Option<SecretReference> {
    Some(SecretReference {
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
    })
}

#[test]
fn parameters_for_the_driver() {
    let own = [
        ("csi.storage.k8s.io/snapshotter-secret-name", "a"),
        ("csi.storage.k8s.io/snapshotter-secret-namespace", "a"),
        ("csi.storage.k8s.io/snapshotter-list-secret-name", "a"),
        ("csi.storage.k8s.io/snapshotter-list-secret-namespace", "a"),
        ("csi.storage.k8s.io/group-snapshotter-secret-name", "a"),
        ("csi.storage.k8s.io/group-snapshotter-secret-namespace", "a"),
        ("csi.storage.k8s.io/group-snapshotter-get-secret-name", "a"),
        (
            "csi.storage.k8s.io/group-snapshotter-get-secret-namespace",
            "a",
        ),
        ("csiSnapshotterSecretName", "kept"),
        ("pool", "fast"),
    ];
    let kept = for_driver(Some(&map(&own))).unwrap();
    assert_eq!(
        kept,
        map(&[("csiSnapshotterSecretName", "kept"), ("pool", "fast")])
    );
    assert!(for_driver(None).unwrap().is_empty());
    for unknown in ["fstype", "snapshotter-secret", "provisioner-secret-name"] {
        let key = format!("{RESERVED}{unknown}");
        assert!(for_driver(Some(&map(&[(&key, "x")]))).is_err(), "{key}");
    }
}

#[test]
fn secrets_by_annotations() {
    for (name, namespace, expected) in [
        (None, None, Ok(None)),
        (Some("s"), None, Ok(None)),
        (None, Some("n"), Ok(None)),
        (Some("s"), Some("n"), Ok(at("n", "s"))),
        (Some(""), Some("n"), Err(())),
        (Some("s"), Some(""), Err(())),
    ] {
        for keys in [&SINGLE, &GROUP] {
            let mut annotations = BTreeMap::new();
            for (key, value) in [(keys.secret_name, name), (keys.secret_namespace, namespace)] {
                annotations.extend(value.map(|value| (key.to_owned(), value.to_owned())));
            }
            let found = secret_by_annotations(&annotations, keys);
            assert_eq!(found.map_err(|_| ()), expected, "{name:?} {namespace:?}");
        }
    }
}
