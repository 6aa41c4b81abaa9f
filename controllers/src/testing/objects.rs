//! Objects for tests, with the fields that all of their kind need, and comparisons.

use std::borrow::Borrow;
use std::fmt::{Debug, Display};

use k8s_openapi::ByteString;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::DRIVER;
use crate::api::constants::{REACH, REACH_KERNEL};
use crate::api::scope::Scope;
use crate::client::Resource;
use crate::client::kube::trimmed_object;
use crate::kept_fields::KEPT_FIELDS;

/// Reads an object of a kind.
pub(crate) fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of the kind")
}

/// A text that does not compress, another one for each seed.
pub(crate) fn noise(seed: usize, length: usize) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    let mut state = seed as u64;
    let letters = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        char::from(LETTERS[(state >> 58) as usize])
    });
    letters.take(length).collect()
}

/// An object as controllers get it from the API server.
pub(crate) fn kept<K: Resource>(value: Value) -> K {
    match KEPT_FIELDS
        .iter()
        .find(|kind| kind.plural == K::plural(&()))
    {
        None => read(value),
        Some(kind) => {
            let json = trimmed_object(kind, value.to_string().as_bytes());
            serde_json::from_slice(&json).expect("an object of the kind")
        }
    }
}

/// Compares a result with the expected one, or its error with a part of the expected message.
#[track_caller]
pub(crate) fn check_result<T: Debug + PartialEq>(
    found: Result<T, impl Display>,
    expected: Result<T, &str>,
    what: impl Debug,
) {
    match (found.map_err(|error| error.to_string()), expected) {
        (Err(error), Err(part)) => assert!(error.contains(part), "{what:?}: {error}"),
        (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{what:?}"),
    }
}

/// Merges `change` into `object`.
pub(crate) fn with(mut object: Value, change: impl Borrow<Value>) -> Value {
    json_patch::merge(&mut object, change.borrow());
    object
}

/// The scope of a node. Its name is also the value of this topology key.
pub(crate) fn node_scope(name: &str, key: &str) -> Scope {
    Scope::Node {
        name: name.to_owned(),
        segments: [(key.to_owned(), name.to_owned())].into(),
    }
}

/// A node affinity to these values of a label.
pub(crate) fn affinity(key: &str, values: &[&str]) -> Value {
    let matching = json!([{"key": key, "operator": "In", "values": values}]);
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": matching}]}})
}

/// A volume that all these nodes can use, by a label with their names as values.
pub(crate) fn shared(volume: Value, key: &str, nodes: &[&str]) -> Value {
    let terms: Vec<Value> = nodes
        .iter()
        .map(|node| json!({"matchExpressions": [{"key": key, "operator": "In", "values": [node]}]}))
        .collect();
    let reach = json!({"spec": {
        "csi": {"volumeAttributes": {REACH: REACH_KERNEL}},
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
    }});
    with(volume, reach)
}

/// A node on which a driver has registered this topology key.
pub(crate) fn csi_node(name: &str, driver: &str, key: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
        "spec": {"drivers": [{"name": driver, "nodeID": name, "topologyKeys": [key]}]},
    })
}

/// A secret with one entry.
pub(crate) fn secret(namespace: &str, name: &str, key: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace},
        "data": {key: ByteString(value.into())},
    })
}

/// A volume of a driver.
pub(crate) fn volume(name: &str, driver: &str, handle: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"csi": {"driver": driver, "volumeHandle": handle}},
    })
}

/// An attachment of a volume to a node by [`DRIVER`].
pub(crate) fn attachment(name: &str, volume: &str, node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
        "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}},
    })
}
