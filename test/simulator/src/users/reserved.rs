//! A node that an administrator reserves for pods that tolerate it.

use kube::Client;
use serde_json::{Value, json};

use crate::model::view::{collection, has_taint, items, name, taints_beside};
use crate::users::{Refused, get, patch};

/// The key of the taint of a reserved node.
pub(crate) const RESERVED_FOR: &str = "simulator/reserved-for";

/// How often a node is released, which something else may change at once.
const TRIES: usize = 5;

/// Reserves a node, or releases it.
pub(super) async fn set(client: &Client, node: &str, is_reserved: bool) -> Result<(), Refused> {
    let at = format!("{}/{node}", collection("nodes", ""));
    let found = get(client, &at).await?;
    let body = json!({"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
        "spec": {"taints": taints(&found, is_reserved)}});
    patch(client, &at, &body).await
}

/// Releases all nodes.
pub(crate) async fn release_all(client: &Client) {
    let Ok(nodes) = get(client, &collection("nodes", "")).await else {
        return;
    };
    for node in items(&nodes, "/items").filter(|node| has_taint(node, RESERVED_FOR)) {
        for _ in 0..TRIES {
            if set(client, name(node), false).await.is_ok() {
                break;
            }
        }
    }
}

/// The taints of a node once it is reserved or released.
fn taints(node: &Value, is_reserved: bool) -> Vec<Value> {
    let mut taints = taints_beside(node, RESERVED_FOR);
    if is_reserved {
        taints.push(json!({"key": RESERVED_FOR, "value": "some", "effect": "NoSchedule"}));
    }
    taints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_reserved_and_released() {
        let other = json!({"key": "other", "effect": "NoSchedule"});
        let mut node = json!({"spec": {"taints": [other.clone()]}});
        for _ in 0..2 {
            node["spec"]["taints"] = Value::from(taints(&node, true));
            assert_eq!(items(&node, "/spec/taints").count(), 2);
            assert!(has_taint(&node, RESERVED_FOR));
        }
        assert_eq!(taints(&node, false), [other]);
        assert!(!has_taint(&json!({}), RESERVED_FOR));
    }
}
