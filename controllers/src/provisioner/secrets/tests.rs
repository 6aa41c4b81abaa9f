use super::*;

fn about(annotations: &BTreeMap<String, String>) -> About<'_> {
    About {
        volume: "pvc-1",
        claim: "data",
        namespace: "shop",
        annotations,
    }
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

#[test]
fn every_form() {
    const N: &str = "csi.storage.k8s.io/node-stage-secret-name";
    const NS: &str = "csi.storage.k8s.io/node-stage-secret-namespace";
    const ALL: &str = "csi.storage.k8s.io/secret-name";
    const ALL_NS: &str = "csi.storage.k8s.io/secret-namespace";
    const OLD: &str = "csiNodeStageSecretName";
    const OLD_NS: &str = "csiNodeStageSecretNamespace";
    type Case<'a> = (
        &'a [(&'a str, &'a str)],
        Result<Option<(&'a str, &'a str)>, &'a str>,
    );
    let cases: &[Case<'_>] = &[
        (&[], Ok(None)),
        (&[(N, ""), (NS, "")], Err("node-stage-secret-name is empty")),
        (
            &[(N, "s"), (NS, "")],
            Err("node-stage-secret-namespace is empty"),
        ),
        (&[(N, "s"), (NS, "n")], Ok(Some(("n", "s")))),
        (&[(ALL, "s"), (ALL_NS, "n")], Ok(Some(("n", "s")))),
        (&[(OLD, "s"), (OLD_NS, "n")], Ok(Some(("n", "s")))),
        (
            &[(N, "own"), (NS, "n"), (ALL, "all"), (ALL_NS, "m")],
            Ok(Some(("n", "own"))),
        ),
        (
            &[(N, "s")],
            Err("but not csi.storage.k8s.io/node-stage-secret-namespace"),
        ),
        (
            &[(NS, "n")],
            Err("but not csi.storage.k8s.io/node-stage-secret-name:"),
        ),
        // The node-stage parameters are complete, so an incomplete common pair is ignored.
        (&[(N, "s"), (NS, "n"), (ALL, "s")], Ok(Some(("n", "s")))),
        (
            &[(ALL, "s")],
            Err("but not csi.storage.k8s.io/secret-namespace"),
        ),
        (
            &[(N, "s"), (NS, "n"), (OLD, "s"), (OLD_NS, "n")],
            Err("remove csiNodeStageSecretName"),
        ),
        (
            &[
                (N, "${pvc.name}-${pv.name}-${pvc.namespace}"),
                (NS, "${pvc.namespace}"),
            ],
            Ok(Some(("shop", "data-pvc-1-shop"))),
        ),
        (
            &[(N, "x-${pvc.annotations['a.b/c']}"), (NS, "${pv.name}")],
            Ok(Some(("pvc-1", "x-key"))),
        ),
        (
            &[(N, "${pvc.annotations['none']}"), (NS, "n")],
            Err("${pvc.annotations['none']}"),
        ),
        (&[(N, "s"), (NS, "${pvc.name}")], Err("only ${pv.name} and")),
        (&[(N, "$pvc.name"), (NS, "n")], Err("has ${pvc}")),
        (&[(N, "a$"), (NS, "n")], Err("has ${}")),
        (&[(N, "${pvc.name"), (NS, "n")], Err("has ${}")),
        (
            &[(N, "Upper"), (NS, "n")],
            Err("\"Upper\", which is not a secret"),
        ),
        (&[(N, "s"), (NS, "a.b")], Err("which is not a namespace")),
        (&[(N, "a..b"), (NS, "n")], Err("DNS-1123 subdomain")),
        (&[(N, "a.b"), (NS, "-n")], Err("DNS-1123 label")),
    ];
    let annotations = map(&[("a.b/c", "key")]);
    for (parameters, expected) in cases {
        let found = reference(Use::NodeStage, &map(parameters), about(&annotations));
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                let found = found.and_then(|found| found.namespace.zip(found.name));
                let found = found.as_ref().map(|(n, s)| (n.as_str(), s.as_str()));
                assert_eq!(found, *expected, "{parameters:?}");
            }
            (Err(problem), Err(part)) => {
                let text = problem.to_string();
                assert!(text.contains(part), "{parameters:?}: {text}");
            }
            (found, _) => panic!("{parameters:?}: {found:?}"),
        }
    }
}

#[test]
fn every_use_has_its_keys() {
    let none = BTreeMap::new();
    for one in Use::ALL {
        let keys = one.keys();
        assert!(is_key(&keys.name) && is_key(&keys.namespace), "{one:?}");
        let parameters = map(&[(&keys.name, "s"), (&keys.namespace, "n")]);
        for other in Use::ALL {
            let found = reference(other, &parameters, about(&none)).expect("good");
            assert_eq!(found.is_some(), one == other, "{one:?} {other:?}");
        }
    }
    assert!(is_key("csi.storage.k8s.io/secret-name"));
    assert!(!is_key("csi.storage.k8s.io/snapshotter-secret-name"));
    assert!(!is_key("csiNodeStageSecretName"));
}
