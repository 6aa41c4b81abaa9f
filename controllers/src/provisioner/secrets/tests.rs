use super::*;
use crate::testing::check_result;

fn about(annotations: &BTreeMap<String, String>) -> TemplateVars<'_> {
    TemplateVars {
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
    let found = Ok(Some(("n", "s")));
    let both = [(N, "own"), (NS, "n"), (ALL, "all"), (ALL_NS, "m")];
    let twice = [(N, "s"), (NS, "n"), (OLD, "s"), (OLD_NS, "n")];
    let all_tokens = "${pvc.name}-${pv.name}-${pvc.namespace}";
    let of_annotation = "x-${pvc.annotations['a.b/c']}";
    let no_annotation = "${pvc.annotations['none']}";
    let cases: &[Case<'_>] = &[
        (&[], Ok(None)),
        (&[(N, "s"), (NS, "n")], found),
        (&[(ALL, "s"), (ALL_NS, "n")], found),
        (&[(OLD, "s"), (OLD_NS, "n")], found),
        (&both, Ok(Some(("n", "own")))),
        // The node-stage parameters are complete, so an incomplete common pair is ignored.
        (&[(N, "s"), (NS, "n"), (ALL, "s")], found),
        (
            &[(ALL, "s")],
            Err("not csi.storage.k8s.io/secret-namespace"),
        ),
        (&twice, Err("remove csiNodeStageSecretName")),
        (
            &[(N, all_tokens), (NS, "${pvc.namespace}")],
            Ok(Some(("shop", "data-pvc-1-shop"))),
        ),
        (
            &[(N, of_annotation), (NS, "${pv.name}")],
            Ok(Some(("pvc-1", "x-key"))),
        ),
        (&[(N, no_annotation), (NS, "n")], Err(no_annotation)),
        (&[(N, "s"), (NS, "${pvc.name}")], Err("only ${pv.name} and")),
        (&[(N, "Upper"), (NS, "n")], Err("\"Upper\", which is not a")),
        (&[(N, "s"), (NS, "a.b")], Err("which is not a namespace")),
    ];
    let annotations = map(&[("a.b/c", "key")]);
    for (parameters, expected) in cases {
        let found = reference(
            SecretPurpose::NodeStage,
            &map(parameters),
            about(&annotations),
        );
        let found = found.map(|found| found.and_then(|found| found.namespace.zip(found.name)));
        let owned = |(namespace, name): (&str, &str)| (namespace.to_owned(), name.to_owned());
        check_result(found, expected.map(|found| found.map(owned)), parameters);
    }
}

#[test]
fn every_use_has_its_keys() {
    let none = BTreeMap::new();
    for one in SecretPurpose::ALL {
        let [name, namespace] = parameters_of(one.keys().0);
        assert!(is_key(&name) && is_key(&namespace), "{one:?}");
        let parameters = map(&[(&name, "s"), (&namespace, "n")]);
        for other in SecretPurpose::ALL {
            let found = reference(other, &parameters, about(&none)).expect("good");
            assert_eq!(found.is_some(), one == other, "{one:?} {other:?}");
        }
    }
    assert!(is_key("csi.storage.k8s.io/secret-name"));
    assert!(!is_key("csi.storage.k8s.io/snapshotter-secret-name"));
    assert!(!is_key("csiNodeStageSecretName"));
}
