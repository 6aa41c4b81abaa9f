use hostloop_proto::csi::Topology;
use hostloop_proto::csi::volume_capability::{AccessType, access_mode::Mode};
use serde_json::{Value, json};

use crate::runtime::csi::Csi;

use super::super::error::State;
use super::*;

pub(crate) fn settings() -> Settings {
    Settings {
        naming: Naming::new(&crate::testing::options()),
        fs_type: String::new(),
        extra_metadata: false,
        has_topology: true,
        publish_read_only: false,
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

/// An object with parts of it changed: by path, as `/spec/driver`.
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
) -> Result<Plan, Problem> {
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
        match (plan.draft.shape, expected) {
            (Shape::Filesystem { fs_type, .. }, Some(expected)) => assert_eq!(fs_type, expected),
            (Shape::Block, None) => {}
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
        let problem = planned(&claim, &class, Found::default(), &settings());
        let problem = problem.expect_err(part);
        let text = problem.to_string();
        assert!(text.contains(part), "{text}");
        assert_eq!(problem.state(), state, "{text}");
    }
    let named = [("/spec/volumeAttributesClassName", json!("gold"))];
    let found = Found {
        attributes: attributes("e"),
        ..Found::default()
    };
    let problem = planned(&named, &[], found, &settings()).expect_err("another's class");
    assert!(
        problem.to_string().contains("is for the driver e"),
        "{problem}"
    );
    assert_eq!(problem.state(), Finished);
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
        let problem = draft(
            &claim(&change),
            &class(&[]),
            &driver(services, &can),
            &settings(),
        );
        let problem = problem.expect_err(word);
        assert!(problem.to_string().contains(word), "{problem}");
        assert_eq!(problem.state(), State::Finished);
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
