use hostloop_proto::csi::Topology;
use hostloop_proto::csi::volume_capability::{AccessType, access_mode::Mode};
use hostloop_proto::csi::volume_content_source::Type;
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::{Value, json};

use crate::csi::Csi;

use super::super::error::State;
use super::*;
use crate::api::names::PROVISIONER;
use crate::cache::scope::SELECTED_NODE;

pub(crate) fn settings() -> Settings {
    Settings {
        naming: Naming::new(&crate::testing::options()),
        fs_type: String::new(),
        extra_metadata: false,
        has_topology: true,
        publish_read_only: false,
        prevent_mode_change: true,
        strict_topology: false,
        immediate_topology: true,
    }
}

pub(crate) fn claim(change: &[(&str, Value)]) -> Arc<PersistentVolumeClaim> {
    let value = json!({
        "metadata": {"name": "data", "namespace": "shop", "uid": "u-1", "resourceVersion": "7",
                     "annotations": {}},
        "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"],
                 "resources": {"requests": {"storage": "1Gi"}}},
    });
    Arc::new(serde_json::from_value(changed(value, change)).expect("a claim"))
}

pub(crate) fn class(change: &[(&str, Value)]) -> Arc<StorageClass> {
    let value = json!({
        "metadata": {"name": "fast", "uid": "c-1"}, "provisioner": "d", "parameters": {},
    });
    Arc::new(serde_json::from_value(changed(value, change)).expect("a class"))
}

/// Returns the object with changes at paths such as `/spec/driver`.
pub(crate) fn changed(mut value: Value, changes: &[(&str, Value)]) -> Value {
    for (path, new) in changes {
        let (parent, key) = path.rsplit_once('/').expect("a path");
        let parent = value.pointer_mut(parent).expect("a parent");
        parent[key] = new.clone();
    }
    value
}

fn driver(services: &[Service], can: &[ControllerCapability]) -> Driver {
    let csi =
        Csi::over(|| async { Err::<tokio::io::DuplexStream, _>(std::io::Error::other("no")) });
    Driver::with(csi, "d", services, can, &[])
}

pub(crate) fn able_driver() -> Driver {
    use ControllerCapability::*;
    driver(
        &[
            Service::ControllerService,
            Service::VolumeAccessibilityConstraints,
        ],
        &[
            CreateDeleteVolume,
            CreateDeleteSnapshot,
            CloneVolume,
            ModifyVolume,
        ],
    )
}

pub(crate) fn planned(
    claim_changes: &[(&str, Value)],
    class_changes: &[(&str, Value)],
    found: Found,
    settings: &Settings,
) -> Result<Plan, Error> {
    let driver = able_driver();
    let draft = draft(
        &claim(claim_changes),
        &class(class_changes),
        &driver,
        settings,
    )?;
    finish(draft, found, &driver, settings)
}

#[tokio::test]
async fn the_request() {
    let topology = TopologyRequirement {
        requisite: vec![Topology::default()],
        preferred: Vec::new(),
    };
    let found = Found {
        topology: Some(topology.clone()),
        ..Found::default()
    };
    let class = [
        ("/mountOptions", json!(["noatime"])),
        (
            "/parameters",
            json!({
                FS_TYPE: "xfs", "pool": "default", "csiProvisionerSecretName": "s",
                "csiProvisionerSecretNamespace": "n",
                "csi.storage.k8s.io/node-stage-secret-name": "${pvc.name}",
                "csi.storage.k8s.io/node-stage-secret-namespace": "${pvc.namespace}",
            }),
        ),
    ];
    let modes = (
        "/spec/accessModes",
        json!(["ReadWriteOnce", "ReadOnlyMany"]),
    );
    let plan = planned(&[modes], &class, found, &settings()).expect("a plan");
    let request = plan.request;
    assert_eq!(request.name, "pvc-u-1");
    let range = request.capacity_range.expect("a range");
    assert_eq!((range.required_bytes, range.limit_bytes), (1 << 30, 0));
    let parameters: Vec<_> = request.parameters.keys().map(String::as_str).collect();
    let passed = [
        "csiProvisionerSecretName",
        "csiProvisionerSecretNamespace",
        "pool",
    ];
    assert_eq!(parameters, passed);
    assert_eq!(request.accessibility_requirements, Some(topology));
    assert!(request.secrets.is_empty() && request.mutable_parameters.is_empty());
    assert_eq!(request.volume_capabilities.len(), 2);
    for capability in request.volume_capabilities {
        let Some(AccessType::Mount(mount)) = capability.access_type else {
            panic!("{capability:?}");
        };
        assert_eq!(
            (mount.fs_type.as_str(), mount.mount_flags.len()),
            ("xfs", 1)
        );
    }
    let name = |secret: Option<SecretReference>| secret.and_then(|one| one.name);
    assert_eq!(name(plan.secrets.provisioner).as_deref(), Some("s"));
    assert_eq!(name(plan.secrets.node_stage).as_deref(), Some("data"));
    assert_eq!(plan.secrets.node_publish, None);
}

#[tokio::test]
async fn filesystems() {
    let old = |key: &str| vec![("/parameters", json!({key: "btrfs"}))];
    let new = vec![("/parameters", json!({FS_TYPE: "xfs"}))];
    for (class, mode, default, expected) in [
        (vec![], "Filesystem", "", Some("")),
        (vec![], "Filesystem", "ext4", Some("ext4")),
        (new.clone(), "Filesystem", "ext4", Some("xfs")),
        (old("fstype"), "Filesystem", "ext4", Some("btrfs")),
        (old("fsType"), "Filesystem", "ext4", Some("btrfs")),
        (new, "Block", "ext4", None),
    ] {
        let settings = Settings {
            fs_type: default.to_owned(),
            ..settings()
        };
        let mode = [("/spec/volumeMode", json!(mode))];
        let plan = planned(&mode, &class, Found::default(), &settings).expect("a plan");
        match (plan.draft.volume_mode, expected) {
            (VolumeMode::Filesystem { fs_type, .. }, Some(expected)) => {
                assert_eq!(fs_type, expected)
            }
            (VolumeMode::Block, None) => {}
            (shape, _) => panic!("{shape:?}"),
        }
    }
}

#[tokio::test]
async fn extra_metadata() {
    let settings = Settings {
        extra_metadata: true,
        ..settings()
    };
    let plan = planned(&[], &[], Found::default(), &settings).expect("a plan");
    let expected = [
        ("csi.storage.k8s.io/pv/name", "pvc-u-1"),
        ("csi.storage.k8s.io/pvc/name", "data"),
        ("csi.storage.k8s.io/pvc/namespace", "shop"),
    ];
    let parameters = plan.request.parameters.iter();
    let found: Vec<_> = parameters.map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(found, expected);
}

fn attributes(driver: &str) -> Option<Arc<VolumeAttributesClass>> {
    let value = json!({
        "metadata": {"name": "gold"}, "driverName": driver, "parameters": {"iops": "1"},
    });
    Some(Arc::new(serde_json::from_value(value).expect("a class")))
}

#[tokio::test]
async fn attributes_go_along() {
    let found = Found {
        attributes: attributes("d"),
        ..Found::default()
    };
    let named = [("/spec/volumeAttributesClassName", json!("gold"))];
    let plan = planned(&named, &[], found, &settings()).expect("a plan");
    assert_eq!(plan.request.mutable_parameters["iops"], "1");
}

#[tokio::test]
async fn bad_objects() {
    use State::*;
    const CLASS: &str = "/parameters";
    const SIZE: &str = "/spec/resources/requests/storage";
    const ATTRIBUTES: &str = "/spec/volumeAttributesClassName";
    let far = json!({"kind": "PersistentVolumeClaim", "name": "a", "namespace": "far"});
    let twice = json!({FS_TYPE: "xfs", "fsType": "xfs"});
    let unknown = json!({"csi.storage.k8s.io/fs-type": "xfs", "pool": "p"});
    let half = json!({"csi.storage.k8s.io/secret-name": "s"});
    let lacking = "but not csi.storage.k8s.io/secret-namespace";
    let no_class = "VolumeAttributesClass \"gold\"";
    for (path, value, state, part) in [
        ("/spec/selector", json!({}), Finished, "spec.selector"),
        ("/spec/accessModes", json!([]), Finished, "is empty"),
        ("/spec/accessModes", json!(["RWX"]), Finished, "has \"RWX\""),
        ("/spec/volumeMode", json!("Tape"), Finished, "or Block"),
        (SIZE, json!("0"), Finished, "requests.storage is \"0\""),
        (CLASS, twice, Finished, "remove fsType"),
        (CLASS, unknown, Finished, "csi.storage.k8s.io/fs-type:"),
        (CLASS, half, NoChange, lacking),
        ("/spec/dataSourceRef", far, Finished, "Ref.namespace"),
        (ATTRIBUTES, json!("gold"), NoChange, no_class),
        (ATTRIBUTES, json!("silver"), Finished, "for the driver e"),
    ] {
        let found = Found {
            attributes: attributes("e").filter(|_| value == "silver"),
            ..Found::default()
        };
        let change = [(path, value)];
        let planned = match path {
            CLASS => planned(&[], &change, found, &settings()),
            _ => planned(&change, &[], found, &settings()),
        };
        let error = planned.expect_err(part);
        let text = error.to_string();
        assert!(text.contains(part), "{text}");
        assert_eq!(error.state(), state, "{text}");
    }
}

#[tokio::test]
async fn missing_capabilities() {
    use ControllerCapability::*;
    let all = [
        CreateDeleteVolume,
        CreateDeleteSnapshot,
        CloneVolume,
        ModifyVolume,
    ];
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot",
                          "name": "s"});
    let clone = json!({"kind": "PersistentVolumeClaim", "name": "s"});
    let from = |source: Value| vec![("/spec/dataSource", source)];
    let named = vec![("/spec/volumeAttributesClassName", json!("gold"))];
    for (lacks, change, word) in [
        (None, vec![], "CONTROLLER_SERVICE"),
        (Some(CreateDeleteVolume), vec![], "CREATE_DELETE_VOLUME"),
        (
            Some(CreateDeleteSnapshot),
            from(snapshot),
            "DELETE_SNAPSHOT",
        ),
        (Some(CloneVolume), from(clone), "CLONE_VOLUME"),
        (Some(ModifyVolume), named, "MODIFY_VOLUME"),
    ] {
        let service = lacks.map(|_| Service::ControllerService);
        let services: Vec<_> = service.into_iter().collect();
        let can: Vec<_> = all.into_iter().filter(|can| Some(*can) != lacks).collect();
        let driver = driver(&services, &can);
        let made = draft(&claim(&change), &class(&[]), &driver, &settings());
        let error = made.expect_err(word);
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(error.state(), State::Finished);
    }
}

#[tokio::test]
async fn finer_modes_where_the_driver_has_them() {
    use ControllerCapability::*;
    let fine = driver(
        &[Service::ControllerService],
        &[CreateDeleteVolume, SingleNodeMultiWriter],
    );
    let modes = [("/spec/accessModes", json!(["ReadWriteOncePod"]))];
    let made = draft(&claim(&modes), &class(&[]), &fine, &settings()).expect("a draft");
    let mode = made.capabilities[0].access_mode.expect("a mode").mode();
    assert_eq!(mode, Mode::SingleNodeSingleWriter);
}

#[test]
fn claims_that_can_move() {
    let (all, n1) = (Scope::Cluster, node("n1"));
    let (none, snapshot) = (DataSource::Nothing, DataSource::Snapshot("s".to_owned()));
    for (what, selected, scope, topology, source, movable) in [
        ("no node", "", &all, true, &none, false),
        ("by the scheduler", "n1", &all, true, &none, true),
        ("without topology", "n1", &all, false, &none, false),
        ("with a source", "n1", &all, true, &snapshot, true),
        ("on a node", "n1", &n1, false, &none, true),
        (
            "on a node, with a source",
            "n1",
            &n1,
            true,
            &snapshot,
            false,
        ),
    ] {
        let annotations = json!({SELECTED_NODE: selected});
        let claim = claim(&[("/metadata/annotations", annotations)]);
        let found = is_movable(&claim, scope, topology, source);
        assert_eq!(found, movable, "{what}");
    }
}

#[test]
fn wanted_volumes() {
    // A claim as `UID node volume`.
    let of = |text: &str| {
        let mut words = text.split('/');
        let mut next = || words.next().expect("a word");
        let uid = json!(next());
        let annotations = json!({SELECTED_NODE: next()});
        let volume = json!(next());
        claim(&[
            ("/metadata/uid", uid),
            ("/metadata/annotations", annotations),
            ("/spec/volumeName", volume),
        ])
    };
    let (then, n1) = (of("1/n1/"), node("n1"));
    for (what, now, scope, wanted) in [
        ("as it was", Some("1/n1/"), &n1, true),
        ("bound to it", Some("1/n1/pvc-1"), &n1, true),
        ("deleted", None, &n1, false),
        ("another of its name", Some("2/n1/"), &n1, false),
        ("bound to another volume", Some("1/n1/pv"), &n1, false),
        ("moved", Some("1/n2/"), &n1, false),
        ("about to be moved", Some("1//"), &n1, false),
        ("moved in a cluster", Some("1/n2/"), &Scope::Cluster, true),
    ] {
        let found = still_wants(now.map(of).as_deref(), &then, "pvc-1", scope);
        assert_eq!(found.is_ok(), wanted, "{what}: {found:?}");
    }
}

fn node(name: &str) -> Scope {
    Scope::Node {
        name: name.to_owned(),
        segments: [("zone".to_owned(), name.to_owned())].into(),
    }
}

fn in_zone(name: &str, zone: &str) -> NodeTopology {
    NodeTopology {
        node: name.to_owned(),
        labels: [("zone".to_owned(), zone.to_owned())].into(),
        is_registered: true,
        keys: ["zone".to_owned()].into(),
    }
}

/// A decision as text. For a volume to create, it names the source, its protection, and the zones.
fn shown(decision: Result<Decision, Error>) -> String {
    let creation = match decision {
        Err(error) => return format!("{:?}: {error}", error.state()),
        Ok(Decision::Create(creation)) => creation,
        Ok(other) => return format!("{other:?}"),
    };
    let request = creation.plan.request;
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
    let kept = creation.protects_source && source.is_some();
    format!("create {source:?} {kept} {}", zones.join(" "))
}

#[tokio::test]
async fn decisions() {
    type Changes = Vec<(&'static str, Value)>;
    let driver = able_driver();
    let pools = Pools::default();
    let [lenient, strict] = [false, true].map(|strict_topology| Settings {
        strict_topology,
        ..settings()
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
    let origin: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "origin", "namespace": "shop", "uid": "o"},
        "spec": {"storageClassName": "fast", "volumeName": "pv",
                 "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound"},
    }))
    .expect("a claim");
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": "pv"},
        "spec": {"csi": {"driver": "d", "volumeHandle": "old"},
                 "claimRef": {"name": "origin", "namespace": "shop", "uid": "o"}},
        "status": {"phase": "Bound"},
    }))
    .expect("a volume");
    let objects = SourceObjects {
        claim: Some(Arc::new(origin)),
        volume: Some(Arc::new(volume)),
        ..SourceObjects::default()
    };
    // Decides for a claim in these circumstances; `last` is the call that may be running.
    let decided = |claim_changes: &Changes, words: &str, last: Option<&Creation>| {
        let is = |word: &str| words.split(' ').any(|one| one == word);
        let mut class_changes = Vec::new();
        if is("late") {
            class_changes.push(("/volumeBindingMode", json!("WaitForFirstConsumer")));
        }
        if is("other-class") {
            class_changes.push(("/provisioner", json!("e")));
        }
        let facts = ClaimFacts {
            claim: claim(claim_changes),
            leads: !is("follows"),
            class: (!is("no-class")).then(|| class(&class_changes)),
            has_volume: is("volume"),
            wait: is("wait").then_some(Duration::from_secs(5)),
            last: last.map(|last| Arc::new(last.plan.clone())),
        };
        let inputs = Inputs {
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
            ..Inputs::default()
        };
        let rules = Rules {
            driver: &driver,
            scope: if is("on-n1") { &n1 } else { &all },
            pools: &pools,
            settings: if is("strict") { &strict } else { &lenient },
        };
        decide(&facts, &inputs, rules)
    };
    let created = |changes, words| match decided(&changes, words, None) {
        Ok(Decision::Create(creation)) => creation,
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
        let fits = match expected.starts_with("create") {
            true => text == expected,
            false => text.starts_with(expected),
        };
        assert!(fits, "{what}: {text}");
    }
}
