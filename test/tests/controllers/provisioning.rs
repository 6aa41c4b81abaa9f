//! Provisions and deletes volumes of claims.

use std::time::Duration;

use futures::future::join_all;
use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::volume_capability::AccessType;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_content_source::{Type as Source, VolumeSource};
use hostloop_test::PATIENCE;
use hostloop_test::client::{map, new_volume};
use hostloop_test::fleet::patience::in_time;
use hostloop_test::front::fields::{handle, has_finalizer, name, text};
use hostloop_test::front::objects::{self, cloned, sized, with};
use hostloop_test::front::process::http;
use hostloop_test::front::{FrontSpec, SECRET};
use hostloop_test::machine;
use hostloop_test::memory::Step;
use serde_json::{Value, json};
use tonic::Code;

use crate::{Rig, annotation, in_class, without};

const GIB: i64 = 1 << 30;
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// Every field of a class appears in the volume and in the request to the driver.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_has_every_field() {
    let args = ["--extra-create-metadata"];
    let rig = Rig::up(FrontSpec::new("fields", "provisioner").args(&args)).await;
    let (name, ns) = (rig.name.clone(), rig.namespace.clone());
    rig.secret("by-claim").await;
    rig.secret("fixed").await;
    let mut parameters = json!({"colour": "blue", "csi.storage.k8s.io/fstype": "xfs"});
    for (secret, name, namespace) in [
        (
            "provisioner",
            "by-${pvc.annotations['example.org/which']}",
            "${pvc.namespace}",
        ),
        ("controller-publish", "fixed", &ns[..]),
        ("node-stage", "stage-${pvc.name}", &ns[..]),
        ("node-publish", "publish-${pv.name}", &ns[..]),
        ("controller-expand", "fixed", &ns[..]),
        ("node-expand", "fixed", &ns[..]),
        ("controller-modify", "fixed", &ns[..]),
    ] {
        let key = format!("csi.storage.k8s.io/{secret}-secret");
        parameters[format!("{key}-name")] = json!(name);
        parameters[format!("{key}-namespace")] = json!(namespace);
    }
    let class = format!("full-{name}");
    let change = json!({"parameters": parameters, "mountOptions": ["noatime", "discard"]});
    rig.class(&class, change).await;
    let claim = json!({
        "metadata": {"annotations": {"example.org/which": "claim"}},
        "spec": {"storageClassName": class, "resources": {"requests": {"storage": "1500M"}}},
    });
    let slow = Step::Delay(Duration::from_secs(2));
    rig.driver.script("CreateVolume", [slow]);
    let (claim, volume) = rig.bound_claim("data", claim).await;

    let uid = text(&claim["metadata"]["uid"]);
    let pv = format!("pvc-{uid}");
    let request = rig.request::<csi::CreateVolumeRequest>();
    assert_eq!(request.name, pv);
    let range = request.capacity_range.expect("a range");
    assert_eq!(range.required_bytes, 1_500_000_000);
    assert_eq!(range.limit_bytes, 0);
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
    let csi = &spec["csi"];
    let secret = |name: &str| json!({"name": name, "namespace": ns});
    let expected = [
        (&volume["metadata"]["name"], json!(pv)),
        (&spec["accessModes"], json!(["ReadWriteOnce"])),
        (&spec["mountOptions"], json!(["noatime", "discard"])),
        (&spec["capacity"]["storage"], json!("1431Mi")),
        (&spec["claimRef"]["apiVersion"], json!("v1")),
        (&spec["claimRef"]["kind"], json!("PersistentVolumeClaim")),
        (&spec["claimRef"]["name"], json!("data")),
        (&spec["claimRef"]["namespace"], json!(ns)),
        (&spec["claimRef"]["uid"], json!(uid)),
        (&spec["storageClassName"], json!(class)),
        (&spec["persistentVolumeReclaimPolicy"], json!("Delete")),
        (&spec["volumeMode"], json!("Filesystem")),
        (&csi["driver"], json!(rig.driver_name)),
        (&csi["volumeHandle"], json!(made.id)),
        (&csi["fsType"], json!("xfs")),
        (&csi["readOnly"], Value::Null),
        (&csi["volumeAttributes"]["kept"], json!("in-memory")),
        (&csi["controllerPublishSecretRef"], secret("fixed")),
        (&csi["nodeStageSecretRef"], secret("stage-data")),
        (
            &csi["nodePublishSecretRef"],
            secret(&format!("publish-{pv}")),
        ),
        (&csi["controllerExpandSecretRef"], secret("fixed")),
        (&csi["nodeExpandSecretRef"], secret("fixed")),
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
    let identity = &csi["volumeAttributes"]["storage.kubernetes.io/csiProvisionerIdentity"];
    let end = format!("-{}", rig.driver_name);
    assert!(text(identity).ends_with(&end), "{identity}");
    let deletion = "volume.kubernetes.io/provisioner-deletion-secret";
    let modify = "volume.kubernetes.io/controller-modify-secret";
    let expected = [
        ("pv.kubernetes.io/provisioned-by", &rig.driver_name[..]),
        (&format!("{deletion}-name"), "by-claim"),
        (&format!("{deletion}-namespace"), &ns),
        (&format!("{modify}-name"), "fixed"),
        (&format!("{modify}-namespace"), &ns),
    ];
    for (key, expected) in expected {
        assert_eq!(*annotation(&volume, key), expected, "{key}");
    }
    assert!(has_finalizer(&volume, FINALIZER), "{volume:#}");

    let at = rig.claim_at("data");
    // CreateVolume takes long enough for this event.
    rig.noted(&at, "Provisioning", &[]).await;
    rig.noted(&at, "ProvisioningSucceeded", &[&pv]).await;
    rig.delete(at).await;
    rig.until_gone(&rig.at("PersistentVolume", &pv)).await;
    let deleted = rig.request::<csi::DeleteVolumeRequest>();
    assert_eq!(deleted.volume_id, made.id);
    assert_eq!(deleted.secrets, map(&[("password", SECRET)]));
    rig.down().await;
}

/// The driver receives the access modes of each claim.
#[tokio::test(flavor = "multi_thread")]
async fn access_modes_are_the_drivers() {
    let many = FrontSpec::new("modes", "provisioner");
    let one = FrontSpec::new("modes-old", "provisioner");
    let one = without(one, &[ControllerRpc::SingleNodeMultiWriter]);
    let (many, one) = (Rig::up(many).await, Rig::up(one).await);
    use Mode::*;
    let cases = [
        ("ReadWriteOnce", SingleNodeMultiWriter, SingleNodeWriter),
        ("ReadWriteOncePod", SingleNodeSingleWriter, SingleNodeWriter),
        ("ReadOnlyMany", MultiNodeReaderOnly, MultiNodeReaderOnly),
        ("ReadWriteMany", MultiNodeMultiWriter, MultiNodeMultiWriter),
    ];
    for (rig, pick) in [(&many, 0), (&one, 1)] {
        for (mode, with, without) in cases {
            let spec = json!({"spec": {"accessModes": [mode]}});
            let (_, volume) = rig.bound_claim(&mode.to_lowercase(), spec).await;
            let handle = handle(&volume);
            let made = rig.made(handle);
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
    let spec = FrontSpec::new("block", "provisioner");
    let rig = Rig::up(spec.args(&["--default-fstype=ext4"])).await;
    let block = json!({"spec": {"volumeMode": "Block"}});
    let (_, raw) = rig.bound_claim("raw", block).await;
    assert_eq!(raw["spec"]["volumeMode"], "Block");
    assert!(raw["spec"]["csi"]["fsType"].is_null(), "{raw:#}");
    let mounted = rig.volume("mounted").await;
    assert_eq!(mounted["spec"]["csi"]["fsType"], "ext4");
    let made = rig.made(handle(&raw));
    let access = &made.capabilities[0].access_type;
    assert!(matches!(access, Some(AccessType::Block(_))), "{access:?}");
    rig.down().await;
}

/// A retained volume stays. It has the finalizer only while its policy is Delete.
#[tokio::test(flavor = "multi_thread")]
async fn a_retained_volume_stays() {
    let rig = Rig::up(FrontSpec::new("retain", "provisioner")).await;
    let class = format!("keep-{}", rig.name);
    rig.class(&class, json!({"reclaimPolicy": "Retain"})).await;
    let (_, volume) = rig.bound_claim("kept", in_class(&class)).await;
    let at = rig.at("PersistentVolume", name(&volume));
    let has = |volume: &Value| has_finalizer(volume, FINALIZER);
    assert!(!has(&volume), "{volume:#}");
    // The policy and the finalizer change together.
    let policy = |policy: &str| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    rig.objects.merge(&at, policy("Delete")).await;
    rig.until(&at, "held by the finalizer", has).await;
    rig.objects.merge(&at, policy("Retain")).await;
    rig.until(&at, "without the finalizer", |v| !has(v)).await;
    rig.delete(rig.claim_at("kept")).await;
    let released = |v: &Value| v["status"]["phase"] == "Released";
    rig.until(&at, "released", released).await;
    assert_eq!(rig.driver.left().volumes, 1);
    assert_eq!(rig.driver.count("DeleteVolume"), 0);
    // After the policy changes to Delete, the volume is deleted.
    rig.objects.merge(&at, policy("Delete")).await;
    rig.until_gone(&at).await;
    rig.down().await;
}

/// A static volume of this driver, which these controllers did not provision, is deleted as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_static_volume_is_deleted_too() {
    let rig = Rig::up(FrontSpec::new("static", "provisioner")).await;
    let made = rig.driver.add_volume(new_volume("by-hand", 1 << 30));
    let name = format!("by-hand-{}", rig.name);
    let of_claim = json!({"spec": {
        "storageClassName": rig.name, "claimRef": {"namespace": rig.namespace, "name": "data"},
    }});
    rig.create(objects::volume(&name, &rig.driver_name, &made.id, of_claim))
        .await;
    rig.bound_claim("data", json!({"spec": {"volumeName": name}}))
        .await;
    rig.delete(rig.claim_at("data")).await;
    rig.until_gone(&rig.at("PersistentVolume", &name)).await;
    assert_eq!(rig.driver.count("CreateVolume"), 0);
    rig.down().await;
}

/// The deletion of a clone's source waits until the clone exists.
#[tokio::test(flavor = "multi_thread")]
async fn a_clone_protects_its_source() {
    let rig = Rig::up(FrontSpec::new("clone", "provisioner")).await;
    let source = rig.volume("source").await;
    // The calls have no final answer: the source stays protected.
    rig.driver.always("CreateVolume", Step::Fail(Code::Aborted));
    rig.claim("copy", with(cloned("source"), sized("2Gi")))
        .await;
    let at = rig.claim_at("source");
    let protection = "provisioner.storage.kubernetes.io/cloning-protection";
    let protected = |claim: &Value| has_finalizer(claim, protection);
    rig.until(&at, "protected", protected).await;
    rig.objects.delete(&at).await;
    rig.driver.unscript("CreateVolume");
    let (_, copy) = rig.bound("copy").await;
    rig.until_gone(&at).await;
    let made = rig.made(handle(&copy));
    let from = made.source.and_then(|s| s.r#type);
    let volume_id = handle(&source).to_owned();
    assert_eq!(from, Some(Source::Volume(VolumeSource { volume_id })));
    assert_eq!(made.capacity, 2 * GIB);
    rig.down().await;
}

/// The node that the scheduler selects is in the volume's topology.
#[tokio::test(flavor = "multi_thread")]
async fn a_selected_node_is_the_place() {
    let rig = Rig::up(FrontSpec::new("wffc", "provisioner").nodes(3)).await;
    let class = rig.late_class().await;
    rig.claim("data", in_class(&class)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let calls = rig.driver.count("CreateVolume");
    assert_eq!(calls, 0, "no node is selected yet");
    let chosen = &rig.nodes[1];
    rig.select("data", chosen).await;
    let (_, volume) = rig.bound("data").await;
    let place = rig.made(handle(&volume)).place;
    assert_eq!(place.get(&rig.key), Some(chosen));
    let request = rig.request::<csi::CreateVolumeRequest>();
    let asked = request.accessibility_requirements;
    let asked = asked.expect("a topology is required");
    assert_eq!(asked.preferred[0].segments.get(&rig.key), Some(chosen));
    assert_eq!(asked.requisite.len(), 3, "{asked:?}");
    rig.down().await;
}

/// Many claims at once: each gets one volume with one call, and is counted.
#[tokio::test(flavor = "multi_thread")]
async fn many_claims_cost_one_call_each() {
    const MANY: usize = 40;
    let metrics = machine::own_address().to_string();
    let endpoint = format!("--http-endpoint={metrics}");
    // A busy driver must not be asked again before it answers.
    let args = [&*endpoint, "--timeout=60s"];
    let rig = Rig::up(FrontSpec::new("many", "provisioner").args(&args)).await;
    let names: Vec<_> = (0..MANY).map(|i| format!("c-{i}")).collect();
    let started = std::time::Instant::now();
    join_all(names.iter().map(|name| rig.claim(name, json!({})))).await;
    join_all(names.iter().map(|name| rig.bound(name))).await;
    println!("{MANY} claims bound in {:?}", started.elapsed());
    assert_eq!(rig.driver.count("CreateVolume"), MANY);
    let total = "controller_persistentvolumeclaim_provision_total";
    // The last claim may be bound before it is counted.
    let shown = in_time("all claims counted", PATIENCE, async || {
        let shown = http(&metrics, "/metrics");
        let is_total = |line: &str| line.starts_with(total) && line.ends_with(" 40");
        if shown.lines().any(is_total) {
            Ok(shown)
        } else {
            Err(shown)
        }
    })
    .await;
    let counted = shown.lines().any(|line| {
        line.starts_with("csi_sidecar_operations_seconds_count")
            && line.contains("method_name=\"/csi.v1.Controller/CreateVolume\"")
            && line.contains("grpc_status_code=\"OK\"")
            && line.contains(&format!("driver_name=\"{}\"", rig.driver_name))
            && line.ends_with(" 40")
    });
    assert!(counted, "{shown}");
    join_all(names.iter().map(|name| rig.delete(rig.claim_at(name)))).await;
    rig.until_volumes(0).await;
    rig.down().await;
}
