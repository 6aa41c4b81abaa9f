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
fn changed(mut value: Value, changes: &[(&str, Value)]) -> Value {
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
    let told = [
        "csiProvisionerSecretName",
        "csiProvisionerSecretNamespace",
        "pool",
    ];
    assert_eq!(parameters, told);
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
    type Changes<'a> = Vec<(&'a str, Value)>;
    let named = ("/spec/volumeAttributesClassName", json!("gold"));
    let parameters = |value| vec![("/parameters", value)];
    let cases: Vec<(Changes<'_>, Changes<'_>, State, &str)> = vec![
        (
            vec![("/spec/selector", json!({}))],
            vec![],
            Finished,
            "spec.selector",
        ),
        (
            vec![("/spec/accessModes", json!([]))],
            vec![],
            Finished,
            "spec.accessModes is empty",
        ),
        (
            vec![("/spec/accessModes", json!(["RWX"]))],
            vec![],
            Finished,
            "has \"RWX\"",
        ),
        (
            vec![("/spec/volumeMode", json!("Tape"))],
            vec![],
            Finished,
            "Filesystem or Block",
        ),
        (
            vec![("/spec/resources/requests/storage", json!("0"))],
            vec![],
            Finished,
            "spec.resources.requests.storage is \"0\"",
        ),
        (
            vec![],
            parameters(json!({FS_TYPE: "xfs", "fsType": "xfs"})),
            Finished,
            "remove fsType",
        ),
        (
            vec![],
            parameters(json!({"csi.storage.k8s.io/fs-type": "xfs", "pool": "p"})),
            Finished,
            "unknown parameters csi.storage.k8s.io/fs-type:",
        ),
        (
            vec![],
            parameters(json!({"csi.storage.k8s.io/secret-name": "s"})),
            NoChange,
            "but not csi.storage.k8s.io/secret-namespace",
        ),
        (
            vec![(
                "/spec/dataSourceRef",
                json!({"kind": "PersistentVolumeClaim", "name": "a",
                                               "namespace": "far"}),
            )],
            vec![],
            Finished,
            "spec.dataSourceRef.namespace",
        ),
        (
            vec![named],
            vec![],
            NoChange,
            "VolumeAttributesClass \"gold\"",
        ),
    ];
    for (claim, class, state, part) in cases {
        let error = planned(&claim, &class, Found::default(), &settings());
        let error = error.expect_err(part);
        let text = error.to_string();
        assert!(text.contains(part), "{text}");
        assert_eq!(error.state(), state, "{text}");
    }
    let named = [("/spec/volumeAttributesClassName", json!("gold"))];
    let found = Found {
        attributes: attributes("e"),
        ..Found::default()
    };
    let error = planned(&named, &[], found, &settings()).expect_err("another's class");
    assert!(error.to_string().contains("is for the driver e"), "{error}");
    assert_eq!(error.state(), Finished);
}

#[tokio::test]
async fn drivers_that_cannot() {
    use ControllerCapability::*;
    let service = [Service::ControllerService];
    let all = [
        CreateDeleteVolume,
        CreateDeleteSnapshot,
        CloneVolume,
        ModifyVolume,
    ];
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot",
                          "name": "s"});
    let clone = json!({"kind": "PersistentVolumeClaim", "name": "s"});
    let from = |source: &Value| vec![("/spec/dataSource", source.clone())];
    let named = vec![("/spec/volumeAttributesClassName", json!("gold"))];
    for (services, lacks, change, word) in [
        (&[][..], None, vec![], "CONTROLLER_SERVICE"),
        (
            &service[..],
            Some(CreateDeleteVolume),
            vec![],
            "CREATE_DELETE_VOLUME",
        ),
        (
            &service[..],
            Some(CreateDeleteSnapshot),
            from(&snapshot),
            "CREATE_DELETE_SNAPSHOT",
        ),
        (
            &service[..],
            Some(CloneVolume),
            from(&clone),
            "CLONE_VOLUME",
        ),
        (&service[..], Some(ModifyVolume), named, "MODIFY_VOLUME"),
    ] {
        let can: Vec<_> = all.into_iter().filter(|can| Some(*can) != lacks).collect();
        let error = draft(
            &claim(&change),
            &class(&[]),
            &driver(services, &can),
            &settings(),
        );
        let error = error.expect_err(word);
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
    let (plain, snapshot) = (DataSource::Nothing, DataSource::Snapshot("s".to_owned()));
    for (what, selected, scope, topology, source, movable) in [
        ("no node", None, &all, true, &plain, false),
        ("by the scheduler", Some("n1"), &all, true, &plain, true),
        ("without topology", Some("n1"), &all, false, &plain, false),
        ("with a source", Some("n1"), &all, true, &snapshot, true),
        ("of a node", Some("n1"), &n1, false, &plain, true),
        (
            "of a node, with a source",
            Some("n1"),
            &n1,
            true,
            &snapshot,
            false,
        ),
    ] {
        let annotations: BTreeMap<_, _> = selected
            .map(|node| (SELECTED_NODE, node))
            .into_iter()
            .collect();
        let claim = claim(&[("/metadata/annotations", json!(annotations))]);
        assert_eq!(
            is_movable(&claim, scope, topology, source),
            movable,
            "{what}"
        );
    }
}

#[test]
fn wanted_volumes() {
    let with = |uid: &str, node: Option<&str>, volume: Option<&str>| {
        let annotations: BTreeMap<_, _> =
            node.map(|node| (SELECTED_NODE, node)).into_iter().collect();
        claim(&[
            ("/metadata/uid", json!(uid)),
            ("/metadata/annotations", json!(annotations)),
            ("/spec/volumeName", json!(volume)),
        ])
    };
    let then = with("1", Some("n1"), None);
    let n1 = node("n1");
    for (what, now, scope, wanted) in [
        ("as it was", Some(with("1", Some("n1"), None)), &n1, true),
        (
            "bound to it",
            Some(with("1", Some("n1"), Some("pvc-1"))),
            &n1,
            true,
        ),
        ("gone", None, &n1, false),
        (
            "another of its name",
            Some(with("2", Some("n1"), None)),
            &n1,
            false,
        ),
        (
            "bound elsewhere",
            Some(with("1", Some("n1"), Some("pv"))),
            &n1,
            false,
        ),
        ("moved", Some(with("1", Some("n2"), None)), &n1, false),
        ("about to be moved", Some(with("1", None, None)), &n1, false),
        (
            "moved in a cluster",
            Some(with("1", Some("n2"), None)),
            &Scope::Cluster,
            true,
        ),
    ] {
        let found = still_wants(now.as_deref(), &then, "pvc-1", scope);
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
    let driver = able_driver();
    let (settings, pools) = (settings(), Pools::default());
    let strict = Settings {
        strict_topology: true,
        ..settings.clone()
    };
    let annotated = |annotations: Value| ("/metadata/annotations", annotations);
    let ours = || annotated(json!({PROVISIONER: "d"}));
    let on = |node: &str| annotated(json!({PROVISIONER: "d", SELECTED_NODE: node}));
    let source = |kind: &str, group: &str| {
        (
            "/spec/dataSource",
            json!({"kind": kind, "apiGroup": group, "name": "origin"}),
        )
    };
    let clone = || source("PersistentVolumeClaim", "");
    let late = || vec![("/volumeBindingMode", json!("WaitForFirstConsumer"))];
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
    let nodes = vec![in_zone("n1", "a"), in_zone("n2", "b")];
    let inputs = || Inputs {
        nodes: nodes.clone(),
        ..Inputs::default()
    };
    let facts = |claim_changes: &[(&str, Value)], class_changes: &[(&str, Value)]| ClaimFacts {
        claim: claim(claim_changes),
        leads: true,
        class: Some(class(class_changes)),
        has_volume: false,
        wait: None,
        last: None,
    };
    let last = |changes: &[(&str, Value)], source: &SourceObjects| {
        let inputs = Inputs {
            source: source.clone(),
            ..inputs()
        };
        let rules = Rules {
            driver: &driver,
            scope: &Scope::Cluster,
            pools: &pools,
            settings: &settings,
        };
        match decide(&facts(changes, &[]), &inputs, rules) {
            Ok(Decision::Create(creation)) => (Some(Arc::new(creation.plan)), creation.topology),
            other => panic!("{other:?}"),
        }
    };
    let (plain, first_topology) = last(&[on("n1")], &SourceObjects::default());
    let (cloning, _) = last(&[ours(), clone()], &objects);
    let wait = Some(Duration::from_secs(5));
    let (all, n1) = (Scope::Cluster, node("n1"));
    let (leads, follows) = (true, false);
    let fact = |leads, has_volume, wait, last| (leads, has_volume, wait, last);
    let usual = || fact(leads, false, None, None);
    let anywhere = "create None false a b";
    type Changes<'a> = Vec<(&'a str, Value)>;
    type Fact = (bool, bool, Option<Duration>, Option<Arc<Plan>>);
    let cases: Vec<(&str, Changes<'_>, Changes<'_>, Fact, &Scope, &str)> = vec![
        ("plain", vec![ours()], vec![], usual(), &all, anywhere),
        ("no provisioner", vec![], vec![], usual(), &all, "NotOurs"),
        (
            "another's",
            vec![annotated(json!({PROVISIONER: "e"}))],
            vec![],
            usual(),
            &all,
            "NotOurs",
        ),
        (
            "bound",
            vec![ours(), ("/spec/volumeName", json!("pv"))],
            vec![],
            usual(),
            &all,
            "NotOurs",
        ),
        (
            "another leads",
            vec![ours()],
            vec![],
            fact(follows, false, None, None),
            &all,
            "Nothing",
        ),
        ("of no node", vec![ours()], vec![], usual(), &n1, "Nothing"),
        (
            "of another node",
            vec![on("n2")],
            vec![],
            usual(),
            &n1,
            "Nothing",
        ),
        (
            "of this node",
            vec![on("n1")],
            vec![],
            fact(follows, false, None, None),
            &n1,
            "create None false n1",
        ),
        (
            "another driver's class",
            vec![ours()],
            vec![("/provisioner", json!("e"))],
            usual(),
            &all,
            "Nothing",
        ),
        (
            "late, without a node",
            vec![ours()],
            late(),
            usual(),
            &all,
            "Nothing",
        ),
        (
            "late, with a node",
            vec![on("n2")],
            late(),
            usual(),
            &all,
            anywhere,
        ),
        (
            "on a node that is gone",
            vec![on("n9")],
            vec![],
            usual(),
            &all,
            "Reschedule: the selected node n9 does not exist (any more)",
        ),
        (
            "with a volume",
            vec![ours()],
            vec![],
            fact(leads, true, wait, None),
            &all,
            "Nothing",
        ),
        (
            "refused before",
            vec![ours()],
            vec![],
            fact(leads, false, wait, None),
            &all,
            "Wait(5s)",
        ),
        (
            "running, with a volume",
            vec![on("n1")],
            vec![],
            fact(leads, true, wait, plain.clone()),
            &all,
            anywhere,
        ),
        (
            "running, of another process",
            vec![on("n1")],
            vec![],
            fact(follows, false, None, plain),
            &all,
            "Nothing",
        ),
        (
            "of a populator",
            vec![ours(), source("Stuff", "example.com")],
            vec![],
            usual(),
            &all,
            "External(\"Stuff.example.com\")",
        ),
        (
            "with a selector",
            vec![ours(), ("/spec/selector", json!({}))],
            vec![],
            usual(),
            &all,
            "Finished: spec.selector of the claim is not supported",
        ),
        (
            "without its attributes class",
            vec![ours(), ("/spec/volumeAttributesClassName", json!("gold"))],
            vec![],
            usual(),
            &all,
            "NoChange: VolumeAttributesClass \"gold\"",
        ),
        (
            "of a missing claim",
            vec![ours(), clone()],
            vec![],
            usual(),
            &all,
            "NoChange: the source of the claim, PersistentVolumeClaim shop/origin, does not exist",
        ),
        (
            "of a claim that went while running",
            vec![ours(), clone()],
            vec![],
            fact(leads, false, None, cloning),
            &all,
            "create Some(\"old\") false a b",
        ),
    ];
    let rules = |scope, settings| Rules {
        driver: &driver,
        scope,
        pools: &pools,
        settings,
    };
    let begins = |text: String, expected: &str, what: &str| {
        assert!(text.starts_with(expected), "{what}: {text}");
    };
    for (what, claim, class, (leads, has_volume, wait, last), scope, expected) in cases {
        let facts = ClaimFacts {
            leads,
            has_volume,
            wait,
            last,
            ..facts(&claim, &class)
        };
        let inputs = match scope {
            Scope::Node { .. } => Inputs {
                nodes: vec![in_zone("n1", "n1")],
                ..Inputs::default()
            },
            _ => inputs(),
        };
        begins(
            shown(decide(&facts, &inputs, rules(scope, &settings))),
            expected,
            what,
        );
    }
    let missing = ClaimFacts {
        class: None,
        ..facts(&[ours()], &[])
    };
    let expected = "NoChange: StorageClass \"fast\" does not exist";
    begins(
        shown(decide(&missing, &inputs(), rules(&all, &settings))),
        expected,
        "no class",
    );
    let sourced = Inputs {
        source: objects,
        ..inputs()
    };
    let cloned = decide(
        &facts(&[ours(), clone()], &[]),
        &sourced,
        rules(&all, &settings),
    );
    begins(shown(cloned), "create Some(\"old\") true a b", "a clone");
    let moved = Inputs {
        nodes: vec![in_zone("n1", "x")],
        known_topology: first_topology,
        ..Inputs::default()
    };
    for (inputs, expected) in [
        (inputs(), "create None false a"),
        (moved, "create None false a"),
    ] {
        let decided = decide(&facts(&[on("n1")], &[]), &inputs, rules(&all, &strict));
        assert_eq!(shown(decided), expected, "strict");
    }
}
