use hostloop_proto::csi::Topology;
use hostloop_proto::csi::volume_capability::AccessType;
use serde_json::{Value, json};

use super::*;
use crate::api::constants::PROVISIONER;
use crate::api::scope::SELECTED_NODE;
use crate::csi::driver::{ControllerCapability, Service};
use crate::csi::{Csi, Driver};
use crate::provisioner::error::AttemptState;

mod decisions;

pub(crate) fn flags() -> Flags {
    Flags {
        options: crate::testing::options(),
        fs_type: String::new(),
        extra_metadata: false,
        has_topology: true,
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

fn driver(services: &[Service], can: &[ControllerCapability]) -> Capabilities {
    Capabilities::of(&Driver::with(Csi::none(), "d", services, can, &[]))
}

pub(crate) fn able_driver() -> Capabilities {
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

/// What the references of a draft led to.
#[derive(Default)]
pub(crate) struct Resolved {
    source: UsableSource,
    topology: Option<TopologyRequirement>,
    attributes: Option<Arc<VolumeAttributesClass>>,
}

impl Resolved {
    fn finish(self, draft: Draft, driver: &Capabilities, flags: &Flags) -> Result<Plan, Error> {
        let (source, topology) = ((self.source, true), (self.topology, None));
        finish(
            draft,
            source,
            topology,
            self.attributes.as_deref(),
            driver,
            flags,
        )
    }
}

pub(crate) fn planned(
    claim_changes: &[(&str, Value)],
    class_changes: &[(&str, Value)],
    resolved: Resolved,
    flags: &Flags,
) -> Result<Plan, Error> {
    let driver = able_driver();
    let draft = draft(&claim(claim_changes), &class(class_changes), &driver, flags)?;
    resolved.finish(draft, &driver, flags)
}

#[tokio::test]
async fn the_request() {
    let topology = TopologyRequirement {
        requisite: vec![Topology::default()],
        preferred: Vec::new(),
    };
    let resolved = Resolved {
        topology: Some(topology.clone()),
        ..Resolved::default()
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
    let plan = planned(&[modes], &class, resolved, &flags()).expect("a plan");
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

/// The driver learns of an administrator's word by the parameter that its manifest names. Other
/// drivers get no parameter that is not theirs.
#[tokio::test]
async fn the_word_that_a_mode_may_change() {
    let flags = flags();
    for (may_change_mode, mode, parameter, is_passed) in [
        (true, "Filesystem", Some("allow"), true),
        (false, "Filesystem", Some("allow"), false),
        (true, "Block", Some("allow"), false),
        (true, "Filesystem", None, false),
    ] {
        let mut driver = able_driver();
        driver.mode_change_parameter = parameter.map(str::to_owned);
        let claim = claim(&[("/spec/volumeMode", json!(mode))]);
        let draft = draft(&claim, &class(&[]), &driver, &flags).expect("a draft");
        let source = UsableSource {
            may_change_mode,
            ..UsableSource::default()
        };
        let resolved = Resolved {
            source,
            ..Resolved::default()
        };
        let plan = resolved.finish(draft, &driver, &flags);
        let parameters = plan.expect("a plan").request.parameters;
        let allow = parameters.get("allow").map(String::as_str);
        assert_eq!(
            allow,
            is_passed.then_some("true"),
            "{may_change_mode} {mode} {parameter:?}"
        );
    }
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
        let flags = Flags {
            fs_type: default.to_owned(),
            ..flags()
        };
        let mode = [("/spec/volumeMode", json!(mode))];
        let plan = planned(&mode, &class, Resolved::default(), &flags).expect("a plan");
        match (plan.draft.volume_mode, expected) {
            (VolumeMode::Filesystem { fs_type, .. }, Some(expected)) => {
                assert_eq!(fs_type, expected)
            }
            (VolumeMode::Block, None) => {}
            (shape, _) => panic!("{shape:?}"),
        }
    }
}

fn attributes(driver: &str) -> Option<Arc<VolumeAttributesClass>> {
    let value = json!({
        "metadata": {"name": "gold"}, "driverName": driver, "parameters": {"iops": "1"},
    });
    Some(Arc::new(serde_json::from_value(value).expect("a class")))
}

#[tokio::test]
async fn bad_objects() {
    use AttemptState::*;
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
        let resolved = Resolved {
            attributes: attributes("e").filter(|_| value == "silver"),
            ..Resolved::default()
        };
        let change = [(path, value)];
        let planned = match path {
            CLASS => planned(&[], &change, resolved, &flags()),
            _ => planned(&change, &[], resolved, &flags()),
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
        let made = draft(&claim(&change), &class(&[]), &driver, &flags());
        let error = made.expect_err(word);
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(error.state(), AttemptState::Finished);
    }
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
    crate::testing::node_scope(name, "zone")
}
