//! Invalid objects: each ends in an event that explains the mistake to its user.

use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_test::front::FrontSpec;
use hostloop_test::front::objects::{cloned, restored, sized, with_attributes};
use serde_json::{Value, json};

use crate::{Rig, in_class, without};

/// A claim's name, what is wrong, and the words that its event must have.
type Case = (&'static str, Value, &'static str);

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_claim_ends_in_an_event() {
    let spec = FrontSpec::new("bad", "provisioner").driver(|o| {
        o.known_parameters = Some(["colour".to_owned()].into());
        o.max_volume_size = 10 << 30;
    });
    let rig = Rig::up(without(spec, &[ControllerRpc::CloneVolume])).await;
    let key = |name: &str| format!("csi.storage.k8s.io/{name}");
    let secret = |purpose: &str, name: &str| {
        let [name_key, namespace_key] =
            ["name", "namespace"].map(|field| key(&format!("{purpose}-secret-{field}")));
        json!({name_key: name, namespace_key: rig.namespace})
    };
    let twice = json!({key("fstype"): "ext4", "fstype": "xfs"});
    let half = json!({key("provisioner-secret-name"): "nowhere"});
    let parameters: [Case; 6] = [
        ("unknown-parameter", json!({"flavour": "salt"}), "flavour"),
        (
            "unknown-reserved",
            json!({key("flavour"): "salt"}),
            "csi.storage.k8s.io/flavour",
        ),
        ("filesystem-twice", twice, "fstype"),
        (
            "missing-secret",
            secret("provisioner", "nowhere"),
            "secret nowhere",
        ),
        ("half-a-secret", half, "provisioner-secret"),
        (
            "secret-template",
            secret("node-stage", "${pvc.colour}"),
            "pvc.colour",
        ),
    ];
    let moon = json!([{"matchLabelExpressions": [{"key": rig.key, "values": ["the-moon"]}]}]);
    let mut classes: Vec<Case> = vec![("no-such-place", json!({"allowedTopologies": moon}), "")];
    classes.extend(parameters.map(|(name, bad, words)| (name, json!({"parameters": bad}), words)));
    for (name, change, _) in &classes {
        let class = format!("{name}-{}", rig.name);
        rig.class(&class, change.clone()).await;
        rig.claim(name, in_class(&class)).await;
    }
    let selector = json!({"spec": {"selector": {"matchLabels": {"colour": "blue"}}}});
    let claims: [Case; 6] = [
        ("selector", selector, "selector"),
        ("too-large", sized("11Gi"), "limit"),
        ("larger-than-the-place", sized("1Ei"), ""),
        ("no-such-snapshot", restored("never"), "never"),
        ("cannot-clone", cloned("selector"), "CLONE_VOLUME"),
        ("no-such-attributes", with_attributes("never"), "never"),
    ];
    for (name, change, _) in &claims {
        rig.claim(name, change.clone()).await;
    }
    let cases: Vec<Case> = classes.into_iter().chain(claims).collect();
    for (name, _, words) in &cases {
        let words: Vec<&str> = words.split(' ').collect();
        let at = rig.claim_at(name);
        let message = rig.warned(&at, "ProvisioningFailed", &words).await;
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
    rig.noted(&at, "Provisioning", &["populator"]).await;
    assert_eq!(rig.driver.count("CreateVolume"), 0);
    rig.down().await;
}
