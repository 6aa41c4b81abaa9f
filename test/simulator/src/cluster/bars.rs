//! Nodes that take no ordinary pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::history::trouble::Bar;
use crate::model::view::{has_taint, taints_beside};
use crate::shim;

/// The key of a taint that pods of users do not tolerate.
const BARRED: &str = "simulator/reserved";

/// The nodes that take no ordinary pods, and since when. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Bars(Arc<Mutex<BTreeMap<&'static str, (Bar, Duration)>>>);

impl Bars {
    pub(super) fn set(&self, node: &'static str, by: Bar) {
        self.0.lock().insert(node, (by, shim::now()));
    }

    pub(super) fn lift(&self, node: &str) {
        self.0.lock().remove(node);
    }

    pub(super) fn of(&self, node: &str) -> Option<Bar> {
        self.0.lock().get(node).map(|(by, _)| *by)
    }

    /// Since when a node takes no ordinary pods.
    pub(crate) fn since(&self, node: &str) -> Option<Duration> {
        self.0.lock().get(node).map(|(_, since)| *since)
    }
}

/// The node with this bar or without one; `None` if it is so already.
pub(super) fn with_bar(mut node: Value, bar: Option<Bar>) -> Option<Value> {
    if bar_of(&node) == bar {
        return None;
    }
    let mut taints = taints_beside(&node, BARRED);
    if bar == Some(Bar::Taint) {
        taints.push(json!({"key": BARRED, "value": "others", "effect": "NoSchedule"}));
    }
    let spec = &mut node["spec"];
    spec["taints"] = Value::from(taints);
    if bar == Some(Bar::Cordon) {
        spec["unschedulable"] = json!(true);
    } else if let Some(spec) = spec.as_object_mut() {
        spec.remove("unschedulable");
    }
    Some(node)
}

fn bar_of(node: &Value) -> Option<Bar> {
    if node["spec"]["unschedulable"] == true {
        return Some(Bar::Cordon);
    }
    has_taint(node, BARRED).then_some(Bar::Taint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::view::items;

    #[test]
    fn a_node_is_barred_once() {
        let other = json!({"key": "other", "effect": "NoSchedule"});
        let node = json!({"spec": {"taints": [other.clone()]}});
        assert_eq!(with_bar(node.clone(), None), None);
        for (bar, taints) in [(Bar::Taint, 2), (Bar::Cordon, 1)] {
            let barred = with_bar(node.clone(), Some(bar)).expect("a change");
            assert_eq!(bar_of(&barred), Some(bar));
            assert_eq!(items(&barred, "/spec/taints").count(), taints);
            assert_eq!(with_bar(barred.clone(), Some(bar)), None);
            let free = with_bar(barred, None).expect("a change");
            assert_eq!(free["spec"]["taints"], node["spec"]["taints"]);
            assert_eq!(bar_of(&free), None);
        }
    }
}
