use hostloop_proto::csi::{Topology, VolumeContentSource};
use serde_json::{Value, json};

use super::*;
use crate::api::pv;
use crate::provisioner::decide::tests::{Resolved, flags, planned};

fn plan(claim: &[(&str, Value)], class: &[(&str, Value)]) -> Plan {
    planned(claim, class, Resolved::default(), &flags()).expect("a plan")
}

fn made() -> Volume {
    Volume {
        volume_id: "handle".to_owned(),
        capacity_bytes: 2 << 30,
        volume_context: [("kept".to_owned(), "in".to_owned())].into(),
        content_source: None,
        accessible_topology: vec![Topology {
            segments: [("zone".to_owned(), "a".to_owned())].into(),
        }],
    }
}

#[tokio::test]
async fn answers() {
    let answer = |change: fn(&mut Volume)| {
        let mut volume = made();
        change(&mut volume);
        CreateVolumeResponse {
            volume: Some(volume),
        }
    };
    let plain = plan(&[], &[]);
    let size = |plan: &Plan, answer| check(plan, answer).map(|volume| volume.capacity_bytes);
    assert_eq!(size(&plain, answer(|_| {})), Ok(2 << 30));
    assert_eq!(
        size(&plain, answer(|one| one.capacity_bytes = 0)),
        Ok(1 << 30)
    );
    let small = size(&plain, answer(|one| one.capacity_bytes = 5)).expect_err("too small");
    assert_eq!(small.volume_id.as_deref(), Some("handle"));
    assert!(
        small
            .what
            .contains("5 bytes, but the claim requests 1073741824 bytes"),
        "{}",
        small.what
    );
    let unnamed = size(&plain, answer(|one| one.volume_id.clear())).expect_err("no ID");
    assert_eq!(unnamed.volume_id, None);
    assert!(check(&plain, CreateVolumeResponse::default()).is_err());
    let mut filled = plain.clone();
    filled.request.volume_content_source = Some(VolumeContentSource::default());
    let empty = size(&filled, answer(|_| {})).expect_err("no source");
    assert!(empty.what.contains("without its source"), "{}", empty.what);
    let full = answer(|one| one.content_source = Some(VolumeContentSource::default()));
    assert_eq!(size(&filled, full), Ok(2 << 30));
}

fn written(plan: &Plan, flags: &Flags) -> Value {
    let object = build(plan, &made(), "d", "1-2-d", flags);
    serde_json::to_value(object).expect("an object")
}

#[tokio::test]
async fn the_least_object() {
    let object = written(
        &plan(&[("/spec/volumeMode", json!("Block"))], &[]),
        &flags(),
    );
    assert_eq!(object["spec"]["persistentVolumeReclaimPolicy"], "Delete");
    assert_eq!(object["spec"]["volumeMode"], "Block");
    assert_eq!(object["spec"]["csi"].get("fsType"), None);
    let annotations = json!({
        "pv.kubernetes.io/provisioned-by": "d",
        "volume.kubernetes.io/provisioner-deletion-secret-name": "",
        "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
    });
    assert_eq!(object["metadata"]["annotations"], annotations);
}

#[tokio::test]
async fn only_a_volume_that_is_deleted_has_the_finalizer() {
    for (policy, finalizers) in [
        ("Delete", json!([VOLUME_FINALIZER])),
        ("Retain", Value::Null),
    ] {
        let object = written(&plan(&[], &[("/reclaimPolicy", json!(policy))]), &flags());
        assert_eq!(object["metadata"]["finalizers"], finalizers, "{policy}");
    }
}

/// The accessible topology of a driver without topology support is left out of the
/// PersistentVolume.
#[tokio::test]
async fn without_topology_there_is_no_affinity() {
    let flags = Flags {
        has_topology: false,
        ..flags()
    };
    let object = written(&plan(&[], &[]), &flags);
    assert_eq!(object["spec"].get("nodeAffinity"), None);
}

/// A volume that several nodes can use has an entry for each. No term may need two of them.
#[tokio::test]
async fn each_accessible_topology_is_a_term() {
    let topology = |node: &str| Topology {
        segments: [("node".to_owned(), node.to_owned())].into(),
    };
    let volume = Volume {
        volume_context: [("reach".to_owned(), "kernel".to_owned())].into(),
        accessible_topology: ["a", "b", "c"].map(topology).into(),
        ..made()
    };
    let object = build(&plan(&[], &[]), &volume, "d", "1-2-d", &flags());
    assert!(pv::is_shared(&object));
    assert_eq!(
        pv::affine_values(&object).collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
    let terms = pv::node_terms(&object).expect("terms");
    let sizes = terms
        .iter()
        .map(|term| term.match_expressions.as_ref().map_or(0, Vec::len));
    assert_eq!(sizes.collect::<Vec<_>>(), [1; 3]);
}

#[tokio::test]
async fn read_only_volumes() {
    let mut marking = flags();
    marking.options.controller_publish_readonly = true;
    for (modes, flags, expected) in [
        (json!(["ReadOnlyMany"]), &marking, Some(true)),
        (json!(["ReadOnlyMany"]), &flags(), None),
        (json!(["ReadOnlyMany", "ReadWriteOnce"]), &marking, None),
        (json!(["ReadWriteOnce"]), &marking, None),
    ] {
        let object = written(&plan(&[("/spec/accessModes", modes)], &[]), flags);
        let found = object["spec"]["csi"]
            .get("readOnly")
            .and_then(Value::as_bool);
        assert_eq!(found, expected);
    }
}

/// The admission policy refuses more modes than there are.
#[tokio::test]
async fn access_modes_without_repeats() {
    let modes = json!([
        "ReadWriteOnce",
        "ReadOnlyMany",
        "ReadWriteOnce",
        "ReadWriteOnce",
        "ReadOnlyMany",
        "ReadWriteOnce"
    ]);
    let object = written(&plan(&[("/spec/accessModes", modes)], &[]), &flags());
    assert_eq!(
        object["spec"]["accessModes"],
        json!(["ReadWriteOnce", "ReadOnlyMany"])
    );
}

#[tokio::test]
async fn the_volume_of_an_object() {
    let object = build(&plan(&[], &[]), &made(), "d", "i", &flags());
    assert_eq!(pv::handle(&object, "d"), Some("handle"));
    assert_eq!(pv::handle(&object, "e"), None);
}

#[test]
fn identities() {
    assert_eq!(identity("d", None, 5, 20_001), "5-1-d");
    assert_eq!(identity("d", Some("n"), 5, 7), "5-7-d-n");
}
