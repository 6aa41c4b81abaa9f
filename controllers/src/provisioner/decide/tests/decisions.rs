//! Whole decisions, from a claim and its objects.

use hostloop_proto::csi::volume_content_source::Type;
use k8s_openapi::api::core::v1::PersistentVolume;

use super::*;

fn in_zone(name: &str, zone: &str) -> NodeTopology {
    NodeTopology {
        node: name.to_owned(),
        labels: [("zone".to_owned(), zone.to_owned())].into(),
        is_registered: true,
        keys: ["zone".to_owned()].into(),
    }
}

/// A decision as text. For a volume to create, it names the source, its protection, and the zones.
fn shown(step: Result<Step, Error>) -> String {
    let plan = match step {
        Err(error) => return format!("{:?}: {error}", error.state()),
        Ok(Step::Create(plan)) => plan,
        Ok(other) => return format!("{other:?}"),
    };
    let request = plan.request;
    let source = request.volume_content_source.and_then(|one| one.r#type);
    let source = source.map(|source| match source {
        Type::Snapshot(one) => one.snapshot_id,
        Type::Volume(one) => one.volume_id,
    });
    let required = request.accessibility_requirements.unwrap_or_default();
    let zones: Vec<_> = required
        .requisite
        .iter()
        .map(|one| &*one.segments["zone"])
        .collect();
    let kept = plan.protects_source && source.is_some();
    format!("create {source:?} {kept} {}", zones.join(" "))
}

#[tokio::test]
async fn decisions() {
    type Changes = Vec<(&'static str, Value)>;
    let driver = able_driver();
    let pools = Pools::default();
    let [lenient, strict] = [false, true].map(|strict_topology| Flags {
        options: Options {
            strict_topology,
            ..crate::testing::options()
        },
        ..flags()
    });
    let (all, n1) = (Scope::Cluster, node("n1"));
    let annotated = |annotations: Value| vec![("/metadata/annotations", annotations)];
    let of = |driver: &str| annotated(json!({PROVISIONER: driver}));
    let on = |node: &str| annotated(json!({PROVISIONER: "d", SELECTED_NODE: node}));
    let with = |path, value| -> Changes {
        let mut changes = of("d");
        changes.push((path, value));
        changes
    };
    let from = |kind: &str, group: &str| {
        let source = json!({"kind": kind, "apiGroup": group, "name": "origin"});
        with("/spec/dataSource", source)
    };
    let clone = || from("PersistentVolumeClaim", "");
    let origin: PersistentVolumeClaim = crate::testing::read(json!({
        "metadata": {"name": "origin", "namespace": "shop", "uid": "o"},
        "spec": {"storageClassName": "fast", "volumeName": "pv",
                 "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound"},
    }));
    let volume: PersistentVolume = crate::testing::read(json!({
        "metadata": {"name": "pv"},
        "spec": {"csi": {"driver": "d", "volumeHandle": "old"},
                 "claimRef": {"name": "origin", "namespace": "shop", "uid": "o"}},
        "status": {"phase": "Bound"},
    }));
    let objects = SourceObjects {
        claim: Some(Arc::new(origin)),
        volume: Some(Arc::new(volume)),
        ..SourceObjects::default()
    };
    // Decides for a claim in these circumstances; `last` is the call that may be running.
    let decided = |claim_changes: &Changes, words: &str, last: Option<&Plan>| {
        let is = |word: &str| words.split(' ').any(|one| one == word);
        let mut class_changes = Vec::new();
        if is("late") {
            class_changes.push(("/volumeBindingMode", json!("WaitForFirstConsumer")));
        }
        if is("other-class") {
            class_changes.push(("/provisioner", json!("e")));
        }
        let of_claim = ClaimFacts {
            claim: claim(claim_changes),
            leads: !is("follows"),
            class: (!is("no-class")).then(|| class(&class_changes)),
            has_volume: is("volume"),
            wait: is("wait").then_some(Duration::from_secs(5)),
            last: last.map(|last| Arc::new(last.clone())),
        };
        let of_volume = VolumeFacts {
            source: if is("source") {
                objects.clone()
            } else {
                SourceObjects::default()
            },
            nodes: match (is("on-n1"), is("moved")) {
                (true, _) => vec![in_zone("n1", "n1")],
                (_, true) => vec![in_zone("n1", "x")],
                _ => vec![in_zone("n1", "a"), in_zone("n2", "b")],
            },
            known_topology: last.and_then(|last| last.topology.clone()),
            ..VolumeFacts::default()
        };
        let settings = Settings {
            driver: &driver,
            scope: if is("on-n1") { &n1 } else { &all },
            pools: &pools,
            flags: if is("strict") { &strict } else { &lenient },
        };
        let facts = Facts {
            claim: of_claim,
            volume: of_volume,
        };
        decide(&facts, settings)
    };
    let created = |changes, words| match decided(&changes, words, None) {
        Ok(Step::Create(plan)) => plan,
        other => panic!("{other:?}"),
    };
    let (plain, cloning) = (created(on("n1"), ""), created(clone(), "source"));
    let (first, cloned) = (Some(&*plain), Some(&*cloning));
    let anywhere = "create None false a b";
    let bound = || with("/spec/volumeName", json!("pv"));
    let selector = || with("/spec/selector", json!({}));
    let gold = || with("/spec/volumeAttributesClassName", json!("gold"));
    let no_node = "Reschedule: the selected node n9 does not exist";
    let no_selector = "Finished: spec.selector of the claim is not supported";
    let no_class = "NoChange: StorageClass \"fast\" does not exist";
    let no_attributes = "NoChange: VolumeAttributesClass \"gold\"";
    let no_source =
        "NoChange: the source of the claim, PersistentVolumeClaim shop/origin, does not exist";
    for (what, claim, words, last, expected) in [
        ("plain", of("d"), "", None, anywhere),
        ("no provisioner", vec![], "", None, "NotOurs"),
        ("another driver's", of("e"), "", None, "NotOurs"),
        ("bound", bound(), "", None, "NotOurs"),
        ("another leads", of("d"), "follows", None, "Nothing"),
        ("no node", of("d"), "on-n1", None, "Nothing"),
        ("another node", on("n2"), "on-n1", None, "Nothing"),
        (
            "this node",
            on("n1"),
            "on-n1 follows",
            None,
            "create None false n1",
        ),
        ("another class", of("d"), "other-class", None, "Nothing"),
        ("no class", of("d"), "no-class", None, no_class),
        ("late, without a node", of("d"), "late", None, "Nothing"),
        ("late, with a node", on("n2"), "late", None, anywhere),
        ("on a deleted node", on("n9"), "", None, no_node),
        ("with a volume", of("d"), "volume wait", None, "Nothing"),
        ("refused before", of("d"), "wait", None, "Wait(5s)"),
        ("running", on("n1"), "volume wait", first, anywhere),
        ("running elsewhere", on("n1"), "follows", first, "Nothing"),
        (
            "of a populator",
            from("Stuff", "example.com"),
            "",
            None,
            "External(\"Stuff.example.com\")",
        ),
        ("a selector", selector(), "", None, no_selector),
        ("no attributes class", gold(), "", None, no_attributes),
        ("a missing source", clone(), "", None, no_source),
        (
            "a clone",
            clone(),
            "source",
            None,
            "create Some(\"old\") true a b",
        ),
        (
            "a source deleted while running",
            clone(),
            "",
            cloned,
            "create Some(\"old\") false a b",
        ),
        ("strict", on("n1"), "strict", None, "create None false a"),
        (
            "strict, running, the node moved",
            on("n1"),
            "strict moved",
            first,
            "create None false a",
        ),
    ] {
        let text = shown(decided(&claim, words, last));
        let fits = if expected.starts_with("create") {
            text == expected
        } else {
            text.starts_with(expected)
        };
        assert!(fits, "{what}: {text}");
    }
}
