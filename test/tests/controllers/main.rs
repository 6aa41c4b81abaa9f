//! The controllers in front of a driver that is not hostloop. The tests cover every controller and
//! each kind of failure, on a real API server and controller manager.

mod apart;
mod attaching;
mod bad_objects;
mod conformance;
mod electing;
mod failing;
mod gone;
mod groups;
mod large_objects;
mod modifying;
mod older;
mod places;
mod policy;
mod provisioning;
mod reporting;
mod resizing;
mod scheduling;
mod snapshots;

use std::sync::Arc;

use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_test::fleet::storm::SELECTED_NODE;
use hostloop_test::front::objects::{self, Place};
use hostloop_test::front::plane::Plane;
use hostloop_test::front::{Front, FrontSpec};
use hostloop_test::memory::{Rpc, Volume};
use serde_json::{Value, json};

/// The label of an object with its node.
const LABEL: &str = "hostloop.csi.dev/node";

/// An annotation of an object, or null.
fn annotation<'a>(object: &'a Value, key: &str) -> &'a Value {
    &object["metadata"]["annotations"][key]
}

/// The change of a claim to a class of this name.
fn in_class(class: &str) -> Value {
    json!({"spec": {"storageClassName": class}})
}

/// Controllers with short waits, so that a test sees several tries.
fn quick(name: &str, controllers: &str) -> FrontSpec {
    FrontSpec::new(name, controllers).args(&[
        // A busy driver must not be asked again before it answers.
        "--timeout=60s",
        "--retry-interval-start=200ms",
        "--retry-interval-max=1s",
    ])
}

/// With a driver that does not have these capabilities.
fn without(spec: FrontSpec, rpcs: &[ControllerRpc]) -> FrontSpec {
    spec.driver(|options| {
        let has = &mut options.capabilities.controller;
        has.retain(|rpc| !rpcs.contains(rpc));
    })
}

/// A front and its control plane.
struct Rig {
    front: Front,
    plane: Arc<Plane>,
}

impl Rig {
    async fn up(spec: FrontSpec) -> Rig {
        let plane = plane(false).await;
        Rig {
            front: spec.up(plane.kubeconfig()).await,
            plane,
        }
    }

    /// Starts the rig with the snapshot controller.
    async fn with_snapshots(spec: FrontSpec) -> Rig {
        let plane = plane(true).await;
        Rig {
            front: spec.up(plane.kubeconfig()).await,
            plane,
        }
    }

    async fn down(self) {
        self.front.down().await;
    }

    async fn create(&self, object: Value) -> Value {
        self.objects.create(object).await
    }

    /// An object that exists.
    async fn get(&self, at: &Place) -> Value {
        let object = self.objects.get(at).await;
        object.unwrap_or_else(|| panic!("there is no {at}"))
    }

    /// Makes a claim and waits until it is bound. Returns it with its volume.
    async fn bound_claim(&self, name: &str, change: Value) -> (Value, Value) {
        self.claim(name, change).await;
        self.bound(name).await
    }

    /// Makes a plain claim and returns its volume.
    async fn volume(&self, claim: &str) -> Value {
        self.bound_claim(claim, json!({})).await.1
    }

    /// Makes a class with late binding, and returns its name.
    async fn late_class(&self) -> String {
        let class = format!("late-{}", self.name);
        let binding = json!({"volumeBindingMode": "WaitForFirstConsumer"});
        self.class(&class, binding).await;
        class
    }

    /// The published capacities.
    async fn capacities(&self) -> Vec<Value> {
        let objects = &self.objects;
        objects.list("CSIStorageCapacity", &self.namespace).await
    }

    /// What the driver has of a volume.
    fn made(&self, handle: &str) -> Volume {
        let made = self.driver.volume(handle);
        made.unwrap_or_else(|| panic!("the driver has no volume {handle}"))
    }

    /// Waits for a warning about an object, and returns its message.
    async fn warned(&self, at: &Place, reason: &str, words: &[&str]) -> String {
        self.until_event(at, "Warning", reason, words).await
    }

    /// Waits for a normal event about an object.
    async fn noted(&self, at: &Place, reason: &str, words: &[&str]) {
        self.until_event(at, "Normal", reason, words).await;
    }

    /// Selects a node for a claim, as the scheduler does.
    async fn select(&self, claim: &str, node: &str) {
        let selected = json!({"metadata": {"annotations": {
            SELECTED_NODE: node,
            "volume.kubernetes.io/storage-provisioner": self.driver_name,
        }}});
        self.objects.merge(&self.claim_at(claim), selected).await;
    }

    /// Attaches a volume to a node with an attachment of this name.
    async fn attachment(&self, name: &str, attacher: &str, node: &str, volume: &str) -> Place {
        let attachment = objects::attachment(name, attacher, node, volume);
        Place::of_object(&self.create(attachment).await)
    }

    /// Waits until the driver has this number of volumes.
    async fn until_volumes(&self, number: usize) {
        let what = format!("{number} volumes");
        self.until_so(&what, || self.driver.left().volumes == number)
            .await;
    }

    /// Kills the controllers and starts them again.
    fn restart_controllers(&mut self) {
        self.kill_controllers();
        self.start_controllers();
    }

    /// The first request of this type.
    fn request<R: Rpc>(&self) -> R {
        self.driver.requests().remove(0)
    }
}

/// Starting the control plane takes time, and must not block tests that already run.
async fn plane(snapshots: bool) -> Arc<Plane> {
    let up = tokio::task::spawn_blocking(move || {
        let plane = Plane::shared();
        if snapshots {
            plane.with_snapshot_controller();
        }
        plane
    });
    up.await.expect("the control plane comes up")
}

impl std::ops::Deref for Rig {
    type Target = Front;

    fn deref(&self) -> &Front {
        &self.front
    }
}

impl std::ops::DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Front {
        &mut self.front
    }
}
