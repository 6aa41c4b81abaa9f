//! Nodes that stop, leave the cluster and return, and what an administrator does about them.

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::cluster::bars::with_bar;
use crate::cluster::troubles::Recovery;
use crate::history::trouble::Bar;
use crate::machine::Machine;
use crate::model::OUT_OF_SERVICE;
use crate::model::view::{has_taint, taints_beside};
use crate::trace;

impl Cluster {
    /// Stops a node with everything on it.
    pub(super) async fn stop_node(&mut self, node: usize) {
        self.heartbeats.stop(self.machines[node].name());
        self.watch_nodes();
        self.machines[node].stop().await;
    }

    /// Stops a node, and deletes it. It returns after these seconds, or never: only one node of a
    /// history is gone for good.
    pub(super) async fn lose_node(&mut self, node: usize, seconds: u64, returns: bool) {
        let is_another_gone = self.machines.iter().any(Machine::is_gone);
        if self.machines[node].is_away() || !returns && is_another_gone {
            trace::line("world", "it has left, or another node is gone for good");
            return;
        }
        self.stop_node(node).await;
        // Its kubelet registers another one.
        self.bars.lift(self.machines[node].name());
        self.machines[node].leave(!returns);
        self.correct_node(node);
        self.doors.announce();
        if returns {
            self.recover_after(seconds, Recovery::Return(node));
        }
    }

    /// Stops a node, and marks it as out of service for these seconds.
    pub(super) async fn take_out_of_service(&mut self, node: usize, seconds: u64) {
        if self.machines[node].is_away() {
            trace::line("world", "it has left");
            return;
        }
        self.stop_node(node).await;
        self.machines[node].is_out_of_service = true;
        self.correct_node(node);
        self.doors.announce();
        self.recover_after(seconds, Recovery::Service(node));
    }

    /// Starts a node again that is in service.
    pub(super) fn boot_node(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        if machine.is_away() || machine.is_out_of_service {
            return;
        }
        self.heartbeats.go_on(machine.name());
        machine.boot(&self.doors);
    }

    /// Marks a node as in service again, and starts it.
    pub(super) fn return_to_service(&mut self, node: usize) {
        self.machines[node].is_out_of_service = false;
        self.correct_node(node);
        self.doors.announce();
        self.boot_node(node);
    }

    /// Lets a node return. Its kubelet registers it again.
    pub(super) fn return_node(&mut self, node: usize) {
        self.machines[node].come_back();
        self.boot_node(node);
    }

    /// Keeps ordinary pods off a node for these seconds.
    pub(super) fn bar_node(&mut self, node: usize, by: Bar, seconds: u64) {
        let name = self.machines[node].name();
        if self.machines[node].is_away() || self.bars.of(name).is_some() {
            trace::line("world", "it has left, or takes no pods already");
            return;
        }
        self.bars.set(name, by);
        self.correct_node(node);
        self.doors.announce();
        self.recover_after(seconds, Recovery::Unbarred(node));
    }

    /// Lets a node have ordinary pods again.
    pub(super) fn unbar_node(&mut self, node: usize) {
        self.bars.lift(self.machines[node].name());
        self.correct_node(node);
        self.doors.announce();
    }

    /// Does what an administrator does about a node, unless the API server has it so: a node that
    /// has left is deleted, only one that is out of service is marked so, and only one that is barred
    /// takes no ordinary pods.
    pub(super) fn correct_node(&self, node: usize) {
        let machine = &self.machines[node];
        let path = format!("/api/v1/nodes/{}", machine.name());
        if machine.is_away() {
            self.api.take(&path);
            self.api.take(&format!(
                "/apis/storage.k8s.io/v1/csinodes/{}",
                machine.name()
            ));
            return;
        }
        let object = self.api.get(&path);
        let marked = object.and_then(|object| marked(object, machine.is_out_of_service));
        if let Some(object) = marked {
            self.api.put(object);
        }
        let object = self.api.get(&path);
        let bar = self.bars.of(machine.name());
        if let Some(object) = object.and_then(|object| with_bar(object, bar)) {
            self.api.put(object);
        }
    }
}

/// The node with or without the taint of one that is out of service; `None` if it is so already.
fn marked(mut node: Value, is_out_of_service: bool) -> Option<Value> {
    if has_taint(&node, OUT_OF_SERVICE) == is_out_of_service {
        return None;
    }
    let mut taints = taints_beside(&node, OUT_OF_SERVICE);
    if is_out_of_service {
        let taint = json!({"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"});
        taints.push(taint);
    }
    node["spec"]["taints"] = Value::from(taints);
    Some(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::view::items;

    #[test]
    fn a_node_is_marked_once() {
        let other = json!({"key": "other", "effect": "NoSchedule"});
        let node = json!({"spec": {"taints": [other.clone()]}});
        assert_eq!(marked(node.clone(), false), None);
        let out = marked(node.clone(), true).expect("a change");
        assert_eq!(items(&out, "/spec/taints").count(), 2);
        assert_eq!(marked(out.clone(), true), None);
        assert_eq!(marked(out, false), Some(node));
    }
}
