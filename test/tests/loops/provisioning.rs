//! Provisions and deletes volumes of claims.

use std::time::Duration;

use futures::future::join_all;
use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::volume_capability::AccessType;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_content_source::Type as Source;
use hostloop_test::client::map;
use hostloop_test::front::{FrontSpec, SECRET};
use hostloop_test::memory::Step;
use serde_json::{Value, json};

use crate::Rig;

const GIB: i64 = 1 << 30;
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Every field of a class appears in the volume and in the request to the driver.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_has_every_field() {
    let args = ["--extra-create-metadata"];
    let rig = Rig::up(FrontSpec::new("fields", "provisioner").args(&args)).await;
    let (name, ns) = (rig.name.clone(), rig.namespace.clone());
    rig.secret("by-claim").await;
    rig.secret("fixed").await;
    let parameters = json!({
        "colour": "blue",
        "csi.storage.k8s.io/fstype": "xfs",
        "csi.storage.k8s.io/provisioner-secret-name": "by-${pvc.annotations['example.org/which']}",
        "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
        "csi.storage.k8s.io/controller-publish-secret-name": "fixed",
        "csi.storage.k8s.io/controller-publish-secret-namespace": ns,
        "csi.storage.k8s.io/node-stage-secret-name": "stage-${pvc.name}",
        "csi.storage.k8s.io/node-stage-secret-namespace": ns,
        "csi.storage.k8s.io/node-publish-secret-name": "publish-${pv.name}",
        "csi.storage.k8s.io/node-publish-secret-namespace": ns,
        "csi.storage.k8s.io/controller-expand-secret-name": "fixed",
        "csi.storage.k8s.io/controller-expand-secret-namespace": ns,
        "csi.storage.k8s.io/node-expand-secret-name": "fixed",
        "csi.storage.k8s.io/node-expand-secret-namespace": ns,
    });
    let class = format!("full-{name}");
    let change = json!({"parameters": parameters, "mountOptions": ["noatime", "discard"]});
    rig.class(&class, change).await;
    let claim = json!({
        "metadata": {"annotations": {"example.org/which": "claim"}},
        "spec": {"storageClassName": class, "resources": {"requests": {"storage": "1500M"}}},
    });
    let slow = Step::Delay(Duration::from_secs(2));
    rig.driver.script("CreateVolume", [slow]);
    rig.claim("data", claim).await;
    let (claim, volume) = rig.bound("data").await;

    let uid = text(&claim["metadata"]["uid"]);
    let pv = format!("pvc-{uid}");
    let request = rig.driver.requests::<csi::CreateVolumeRequest>().remove(0);
    assert_eq!(request.name, pv);
    let range = request.capacity_range.expect("a range");
    assert_eq!(
        (range.required_bytes, range.limit_bytes),
        (1_500_000_000, 0)
    );
    let expected = map(&[
        ("colour", "blue"),
        ("csi.storage.k8s.io/pv/name", &pv),
        ("csi.storage.k8s.io/pvc/name", "data"),
        ("csi.storage.k8s.io/pvc/namespace", &ns),
    ]);
    assert_eq!(request.parameters, expected);
    assert_eq!(request.secrets, map(&[("password", SECRET)]));
    let [capability] = &request.volume_capabilities[..] else {
        panic!("one capability: {:?}", request.volume_capabilities);
    };
    let Some(AccessType::Mount(mount)) = &capability.access_type else {
        panic!("mounted: {capability:?}");
    };
    assert_eq!(mount.fs_type, "xfs");
    assert_eq!(mount.mount_flags, ["noatime", "discard"]);

    let made = rig.driver.volume_named(&pv).expect("it is there");
    let spec = &volume["spec"];
    let expected = [
        (&volume["metadata"]["name"], json!(pv)),
        (&spec["accessModes"], json!(["ReadWriteOnce"])),
        (&spec["mountOptions"], json!(["noatime", "discard"])),
        (&spec["capacity"]["storage"], json!("1431Mi")),
        (&spec["claimRef"]["name"], json!("data")),
        (&spec["claimRef"]["namespace"], json!(ns)),
        (&spec["claimRef"]["uid"], json!(uid)),
        (&spec["storageClassName"], json!(class)),
        (&spec["persistentVolumeReclaimPolicy"], json!("Delete")),
        (&spec["volumeMode"], json!("Filesystem")),
        (&spec["csi"]["driver"], json!(rig.driver_name)),
        (&spec["csi"]["volumeHandle"], json!(made.id)),
        (&spec["csi"]["fsType"], json!("xfs")),
        (&spec["csi"]["volumeAttributes"]["kept"], json!("in-memory")),
        (
            &spec["csi"]["controllerPublishSecretRef"],
            json!({"name": "fixed", "namespace": ns}),
        ),
        (
            &spec["csi"]["nodeStageSecretRef"],
            json!({"name": "stage-data", "namespace": ns}),
        ),
        (
            &spec["csi"]["nodePublishSecretRef"],
            json!({"name": format!("publish-{pv}"), "namespace": ns}),
        ),
        (
            &spec["csi"]["controllerExpandSecretRef"],
            json!({"name": "fixed", "namespace": ns}),
        ),
        (
            &spec["csi"]["nodeExpandSecretRef"],
            json!({"name": "fixed", "namespace": ns}),
        ),
        (
            &spec["nodeAffinity"]["required"]["nodeSelectorTerms"],
            json!([{"matchExpressions": [
                {"key": rig.key, "operator": "In", "values": [rig.nodes[0]]}
            ]}]),
        ),
    ];
    for (is, expected) in expected {
        assert_eq!(*is, expected, "in {volume:#}");
    }
    let identity =
        text(&spec["csi"]["volumeAttributes"]["storage.kubernetes.io/csiProvisionerIdentity"]);
    assert!(
        identity.ends_with(&format!("-{}", rig.driver_name)),
        "{identity}"
    );
    assert!(spec["csi"]["readOnly"].is_null(), "{volume:#}");
    let annotations = &volume["metadata"]["annotations"];
    let deletion = "volume.kubernetes.io/provisioner-deletion-secret";
    assert_eq!(
        annotations["pv.kubernetes.io/provisioned-by"],
        rig.driver_name.as_str()
    );
    assert_eq!(annotations[format!("{deletion}-name")], "by-claim");
    assert_eq!(annotations[format!("{deletion}-namespace")], ns.as_str());
    let finalizers = volume["metadata"]["finalizers"].to_string();
    assert!(finalizers.contains(FINALIZER), "{finalizers}");

    let at = rig.claim_at("data");
    // CreateVolume takes long enough for this event.
    rig.until_event(&at, "Normal", "Provisioning", &[]).await;
    rig.until_event(&at, "Normal", "ProvisioningSucceeded", &[&pv])
        .await;
    rig.delete(at).await;
    rig.until_gone(&rig.at("PersistentVolume", &pv)).await;
    let deleted = rig.driver.requests::<csi::DeleteVolumeRequest>().remove(0);
    assert_eq!(deleted.volume_id, made.id);
    assert_eq!(deleted.secrets, map(&[("password", SECRET)]));
    rig.down().await;
}

/// The driver receives the access modes of each claim.
#[tokio::test(flavor = "multi_thread")]
async fn access_modes_are_the_drivers() {
    let many = FrontSpec::new("modes", "provisioner");
    let one = FrontSpec::new("modes-old", "provisioner").driver(|o| {
        o.capabilities
            .controller
            .remove(&ControllerRpc::SingleNodeMultiWriter);
    });
    let (many, one) = (Rig::up(many).await, Rig::up(one).await);
    let cases = [
        (
            "ReadWriteOnce",
            Mode::SingleNodeMultiWriter,
            Mode::SingleNodeWriter,
        ),
        (
            "ReadWriteOncePod",
            Mode::SingleNodeSingleWriter,
            Mode::SingleNodeWriter,
        ),
        (
            "ReadOnlyMany",
            Mode::MultiNodeReaderOnly,
            Mode::MultiNodeReaderOnly,
        ),
        (
            "ReadWriteMany",
            Mode::MultiNodeMultiWriter,
            Mode::MultiNodeMultiWriter,
        ),
    ];
    for (rig, pick) in [(&many, 0), (&one, 1)] {
        for (mode, ..) in cases {
            let spec = json!({"spec": {"accessModes": [mode]}});
            rig.claim(&mode.to_lowercase(), spec).await;
        }
        for (mode, with, without) in cases {
            let (_, volume) = rig.bound(&mode.to_lowercase()).await;
            let handle = text(&volume["spec"]["csi"]["volumeHandle"]);
            let made = rig.driver.volume(handle).expect("it is there");
            let asked = made.capabilities[0].access_mode.as_ref().map(|m| m.mode());
            assert_eq!(asked, Some([with, without][pick]), "{mode}");
            assert_eq!(volume["spec"]["accessModes"], json!([mode]));
        }
    }
    many.down().await;
    one.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_volume_has_no_filesystem() {
    let rig =
        Rig::up(FrontSpec::new("block", "provisioner").args(&["--default-fstype=ext4"])).await;
    rig.claim("raw", json!({"spec": {"volumeMode": "Block"}}))
        .await;
    rig.claim("mounted", json!({})).await;
    let (_, raw) = rig.bound("raw").await;
    assert_eq!(raw["spec"]["volumeMode"], "Block");
    assert!(raw["spec"]["csi"]["fsType"].is_null(), "{raw:#}");
    let (_, mounted) = rig.bound("mounted").await;
    assert_eq!(mounted["spec"]["csi"]["fsType"], "ext4");
    let made = rig.driver.volume(text(&raw["spec"]["csi"]["volumeHandle"]));
    let access = made.and_then(|v| v.capabilities[0].access_type.clone());
    assert!(matches!(access, Some(AccessType::Block(_))), "{access:?}");
    rig.down().await;
}

/// A retained volume stays, and its finalizer is removed when the policy changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_retained_volume_stays() {
    let rig = Rig::up(FrontSpec::new("retain", "provisioner")).await;
    let class = format!("keep-{}", rig.name);
    rig.class(&class, json!({"reclaimPolicy": "Retain"})).await;
    rig.claim("kept", json!({"spec": {"storageClassName": class}}))
        .await;
    let (_, volume) = rig.bound("kept").await;
    let at = rig.at("PersistentVolume", text(&volume["metadata"]["name"]));
    let has = |volume: &Value| {
        volume["metadata"]["finalizers"]
            .to_string()
            .contains(FINALIZER)
    };
    assert!(!has(&volume), "{volume:#}");
    // The policy and the finalizer change together.
    let policy = |policy: &str| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    rig.objects.merge(&at, policy("Delete")).await;
    rig.until(&at, "held by the finalizer", has).await;
    rig.objects.merge(&at, policy("Retain")).await;
    rig.until(&at, "without the finalizer", |v| !has(v)).await;
    rig.delete(rig.claim_at("kept")).await;
    rig.until(&at, "released", |v| v["status"]["phase"] == "Released")
        .await;
    assert_eq!(
        (rig.driver.left().volumes, rig.driver.count("DeleteVolume")),
        (1, 0)
    );
    // After the policy changes to Delete, the volume is deleted.
    rig.objects.merge(&at, policy("Delete")).await;
    rig.until_gone(&at).await;
    rig.down().await;
}

/// A static volume of this driver, which these controllers did not provision, is deleted as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_static_volume_is_deleted_too() {
    let rig = Rig::up(FrontSpec::new("static", "provisioner")).await;
    let made = rig
        .driver
        .add_volume(hostloop_test::client::new_volume("by-hand", 1 << 30));
    let name = format!("by-hand-{}", rig.name);
    rig.objects
        .create(json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Delete", "storageClassName": rig.name,
                "csi": {"driver": rig.driver_name, "volumeHandle": made.id},
                "claimRef": {"namespace": rig.namespace, "name": "data"},
            },
        }))
        .await;
    rig.claim("data", json!({"spec": {"volumeName": name}}))
        .await;
    rig.bound("data").await;
    rig.delete(rig.claim_at("data")).await;
    rig.until_gone(&rig.at("PersistentVolume", &name)).await;
    assert_eq!(rig.driver.count("CreateVolume"), 0);
    rig.down().await;
}

/// The deletion of a clone's source waits until the clone exists.
#[tokio::test(flavor = "multi_thread")]
async fn a_clone_protects_its_source() {
    let rig = Rig::up(FrontSpec::new("clone", "provisioner")).await;
    rig.claim("source", json!({})).await;
    let (_, source) = rig.bound("source").await;
    let hold = std::time::Duration::from_secs(2);
    rig.driver
        .script("CreateVolume", [hostloop_test::memory::Step::Delay(hold)]);
    let from = json!({"spec": {
        "dataSource": {"kind": "PersistentVolumeClaim", "name": "source"},
        "resources": {"requests": {"storage": "2Gi"}},
    }});
    rig.claim("copy", from).await;
    let at = rig.claim_at("source");
    let protection = "provisioner.storage.kubernetes.io/cloning-protection";
    rig.until(&at, "protected", |claim| {
        claim["metadata"]["finalizers"]
            .to_string()
            .contains(protection)
    })
    .await;
    rig.objects.delete(&at).await;
    let (_, copy) = rig.bound("copy").await;
    rig.until_gone(&at).await;
    let made = rig
        .driver
        .volume(text(&copy["spec"]["csi"]["volumeHandle"]))
        .expect("it is there");
    let handle = text(&source["spec"]["csi"]["volumeHandle"]);
    let from = made.source.and_then(|s| s.r#type);
    assert!(
        matches!(&from, Some(Source::Volume(v)) if v.volume_id == handle),
        "{from:?}"
    );
    assert_eq!(made.capacity, 2 * GIB);
    rig.down().await;
}

/// The node that the scheduler selects is in the volume's topology.
#[tokio::test(flavor = "multi_thread")]
async fn a_selected_node_is_the_place() {
    let rig = Rig::up(FrontSpec::new("wffc", "provisioner").nodes(3)).await;
    let class = format!("wait-{}", rig.name);
    rig.class(&class, json!({"volumeBindingMode": "WaitForFirstConsumer"}))
        .await;
    rig.claim("data", json!({"spec": {"storageClassName": class}}))
        .await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(rig.driver.count("CreateVolume"), 0, "nobody has chosen yet");
    let chosen = &rig.nodes[1];
    let select = json!({"metadata": {"annotations": {
        "volume.kubernetes.io/selected-node": chosen,
        "volume.kubernetes.io/storage-provisioner": rig.driver_name,
    }}});
    rig.objects.merge(&rig.claim_at("data"), select).await;
    let (_, volume) = rig.bound("data").await;
    let handle = text(&volume["spec"]["csi"]["volumeHandle"]);
    let place = rig.driver.volume(handle).expect("it is there").place;
    assert_eq!(place.get(&rig.key), Some(chosen));
    let request = rig.driver.requests::<csi::CreateVolumeRequest>().remove(0);
    let asked = request
        .accessibility_requirements
        .expect("a place is asked for");
    assert_eq!(asked.preferred[0].segments.get(&rig.key), Some(chosen));
    assert_eq!(asked.requisite.len(), 3, "{asked:?}");
    rig.down().await;
}

/// Many claims at once: each gets one volume with one call, and is counted.
#[tokio::test(flavor = "multi_thread")]
async fn many_claims_cost_one_call_each() {
    const MANY: usize = 40;
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let metrics = free.expect("a port is free").to_string();
    let endpoint = format!("--http-endpoint={metrics}");
    let rig = Rig::up(FrontSpec::new("many", "provisioner").args(&[&endpoint])).await;
    let names: Vec<_> = (0..MANY).map(|i| format!("c-{i}")).collect();
    let started = std::time::Instant::now();
    join_all(names.iter().map(|name| rig.claim(name, json!({})))).await;
    join_all(names.iter().map(|name| rig.bound(name))).await;
    println!("{MANY} claims bound in {:?}", started.elapsed());
    assert_eq!(rig.driver.count("CreateVolume"), MANY);
    let shown = rig.http(&metrics, "/metrics");
    let counted = shown.lines().any(|line| {
        line.starts_with("csi_sidecar_operations_seconds_count")
            && line.contains("method_name=\"/csi.v1.Controller/CreateVolume\"")
            && line.contains("grpc_status_code=\"OK\"")
            && line.contains(&format!("driver_name=\"{}\"", rig.driver_name))
            && line.ends_with(" 40")
    });
    assert!(counted, "{shown}");
    let total = "controller_persistentvolumeclaim_provision_total";
    assert!(
        shown
            .lines()
            .any(|l| l.starts_with(total) && l.ends_with(" 40")),
        "{shown}"
    );
    join_all(names.iter().map(|name| rig.delete(rig.claim_at(name)))).await;
    rig.until_so("all deleted", || rig.driver.left().volumes == 0)
        .await;
    rig.down().await;
}
