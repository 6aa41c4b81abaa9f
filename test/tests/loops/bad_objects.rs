//! Invalid objects: each ends in an event that explains the mistake to its user.

use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_test::front::FrontSpec;
use serde_json::{Value, json};

use crate::Rig;

/// A class, a claim, and the words its event must have.
type Case<'a> = (&'a str, Value, Value, &'a [&'a str]);

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_claim_ends_in_an_event() {
    let spec = FrontSpec::new("bad", "provisioner").driver(|o| {
        o.known_parameters = Some(["colour".to_owned()].into());
        o.max_volume_size = 10 << 30;
        o.capabilities
            .controller
            .remove(&ControllerRpc::CloneVolume);
    });
    let rig = Rig::up(spec).await;
    let prefix = "csi.storage.k8s.io";
    let parameters = |parameters: Value| json!({"parameters": parameters});
    let none = || json!({});
    let cases: [Case; 13] = [
        (
            "unknown-parameter",
            parameters(json!({"flavour": "salt"})),
            none(),
            &["flavour"],
        ),
        (
            "unknown-reserved",
            parameters(json!({format!("{prefix}/flavour"): "salt"})),
            none(),
            &["csi.storage.k8s.io/flavour"],
        ),
        (
            "filesystem-twice",
            parameters(json!({format!("{prefix}/fstype"): "ext4", "fstype": "xfs"})),
            none(),
            &["fstype"],
        ),
        (
            "missing-secret",
            parameters(json!({
                format!("{prefix}/provisioner-secret-name"): "nowhere",
                format!("{prefix}/provisioner-secret-namespace"): rig.namespace,
            })),
            none(),
            &["secret", "nowhere"],
        ),
        (
            "half-a-secret",
            parameters(json!({format!("{prefix}/provisioner-secret-name"): "nowhere"})),
            none(),
            &["provisioner-secret"],
        ),
        (
            "secret-template",
            parameters(json!({
                format!("{prefix}/node-stage-secret-name"): "${pvc.colour}",
                format!("{prefix}/node-stage-secret-namespace"): rig.namespace,
            })),
            none(),
            &["pvc.colour"],
        ),
        (
            "no-such-place",
            json!({"allowedTopologies": [{"matchLabelExpressions": [
                {"key": rig.key, "values": ["the-moon"]}
            ]}]}),
            none(),
            &[],
        ),
        (
            "selector",
            none(),
            json!({"spec": {"selector": {"matchLabels": {"colour": "blue"}}}}),
            &["selector"],
        ),
        (
            "too-large",
            none(),
            json!({"spec": {"resources": {"requests": {"storage": "11Gi"}}}}),
            &["limit"],
        ),
        (
            "larger-than-the-place",
            json!({"parameters": {"colour": "blue"}}),
            json!({"spec": {"resources": {"requests": {"storage": "1Ei"}}}}),
            &[],
        ),
        (
            "no-such-snapshot",
            none(),
            json!({"spec": {"dataSource": {
                "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "never",
            }}}),
            &["never"],
        ),
        (
            "cannot-clone",
            none(),
            json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "selector"}}}),
            &["clon"],
        ),
        (
            "no-such-attributes",
            none(),
            json!({"spec": {"volumeAttributesClassName": "never"}}),
            &["never"],
        ),
    ];
    for (name, class, claim, _) in &cases {
        let class_name = format!("{name}-{}", rig.name);
        rig.class(&class_name, class.clone()).await;
        let mut spec = claim.clone();
        spec["spec"]["storageClassName"] = json!(class_name);
        rig.claim(name, spec).await;
    }
    for (name, _, _, words) in &cases {
        let at = rig.claim_at(name);
        let message = rig
            .until_event(&at, "Warning", "ProvisioningFailed", words)
            .await;
        println!("{name}: {message}");
    }
    assert_eq!(rig.driver.left().volumes, 0);
    println!("{} bad claims, each with an event", cases.len());
    rig.down().await;
}

/// A claim with a data source of a foreign kind is left to its volume populator.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_source_is_a_populators() {
    let rig = Rig::up(FrontSpec::new("populator", "provisioner")).await;
    let source = json!({"spec": {"dataSourceRef": {
        "apiGroup": "example.org", "kind": "Recipe", "name": "bread",
    }}});
    rig.claim("data", source).await;
    let at = rig.claim_at("data");
    rig.until_event(&at, "Normal", "Provisioning", &["populator"])
        .await;
    assert_eq!(rig.driver.count("CreateVolume"), 0);
    rig.down().await;
}
