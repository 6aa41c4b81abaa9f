//! Claims with immediate binding, the way upstream's provisioners share them: nodes race. Each
//! waits for a time of its own, looks whether it has room, and writes its name on the claim; of
//! two that do so at once, one is refused by the server.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::ArgAction;
use hostloop_proto::csi;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use crate::runtime::driver::ControllerCapability;
use crate::runtime::queue::Backoff;
use crate::runtime::scope::{NODE_LABEL, SELECTED_NODE, node_label};
use crate::runtime::watch::fraction;
use crate::runtime::{Driver, Scope, boolean, duration};

use super::Provisioner;
use super::problem::Problem;
use super::provision::Todo;
use super::source::{self, Asked};
use super::{claim, topology};

/// How claims with immediate binding get a node, where every node has a process.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Options {
    /// One per node: have nodes race for claims with immediate binding, as upstream's do by default;
    /// without it the leader assigns each to the node with the most room, and nobody races
    #[arg(
        long,
        env = "HOSTLOOP_NODE_DEPLOYMENT_IMMEDIATE_BINDING",
        value_name = "BOOL",
        value_parser = boolean::parse,
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
    )]
    pub node_deployment_immediate_binding: bool,

    /// In that race, the longest a node waits before its first try; doubled with each further one
    #[arg(
        long,
        env = "HOSTLOOP_NODE_DEPLOYMENT_BASE_DELAY",
        value_name = "DURATION",
        default_value = "20s",
        value_parser = duration::parse
    )]
    pub node_deployment_base_delay: Duration,

    /// In that race, the longest a node waits before any try
    #[arg(
        long,
        env = "HOSTLOOP_NODE_DEPLOYMENT_MAX_DELAY",
        value_name = "DURATION",
        default_value = "60s",
        value_parser = duration::parse
    )]
    pub node_deployment_max_delay: Duration,
}

impl Options {
    fn backoff(&self) -> Backoff {
        Backoff {
            start: self.node_deployment_base_delay,
            max: self.node_deployment_max_delay,
        }
    }
}

/// This node's part in the race for one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    tries: u32,
    due: Instant,
}

/// This node's part in all of them, by the claims' UIDs.
#[derive(Debug, Default)]
pub(super) struct Races(Mutex<HashMap<String, Part>>);

impl Races {
    /// How long it is until this node may try; nothing if it may now. `chance`, from 0 to 1, is the
    /// part of the wait that is left out.
    fn left(&self, uid: &str, backoff: Backoff, chance: f64, now: Instant) -> Option<Duration> {
        let mut parts = self.lock();
        let part = parts.entry(uid.to_owned()).or_insert_with(|| Part {
            tries: 1,
            due: now + backoff.delay(1).mul_f64(1.0 - chance),
        });
        let left = part.due.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Has it wait once more, and says how long.
    fn lost(&self, uid: &str, backoff: Backoff, chance: f64, now: Instant) -> Duration {
        let mut parts = self.lock();
        let tries = parts.get(uid).map_or(1, |part| part.tries + 1);
        let wait = backoff.delay(tries).mul_f64(1.0 - chance);
        let due = now + wait;
        parts.insert(uid.to_owned(), Part { tries, due });
        wait
    }

    /// It is over, for this claim.
    pub(super) fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Part>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether nodes race for a claim: one with a source has only one node to be on, which the leader
/// finds out.
fn is_raced_for(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    driver: &Driver,
    scope: &Scope,
) -> bool {
    let Scope::Node { segments, .. } = scope else {
        return false;
    };
    let sourced = match source::asked(claim) {
        Ok(Asked::Snapshot(_)) => driver.can(ControllerCapability::CreateDeleteSnapshot),
        Ok(Asked::Claim(_)) => driver.can(ControllerCapability::CloneVolume),
        _ => false,
    };
    let allowed = class.allowed_topologies.as_deref().unwrap_or_default();
    claim::selected_node(claim).is_none()
        && claim::is_for(claim, &driver.name)
        && claim::is_of(class, claim, &driver.name)
        && !claim::is_delayed(class)
        && !sourced
        && topology::allows(allowed, segments)
}

/// Whether there is room.
fn fits(size: i64, room: &csi::GetCapacityResponse) -> bool {
    let largest = room.maximum_volume_size.unwrap_or(i64::MAX);
    size <= room.available_capacity && size <= largest
}

impl Provisioner {
    /// Takes part in the race for a claim no node was selected for, if there is one.
    pub(super) async fn race(&self, claim: &PersistentVolumeClaim) -> Result<Todo, Problem> {
        let race = &self.options.race;
        let (driver, scope) = (&self.context.driver, &self.context.scope);
        let (Some(node), Some(uid)) = (scope.node(), claim.uid()) else {
            return Ok(Todo::Nothing);
        };
        if !race.node_deployment_immediate_binding || claim::selected_node(claim).is_some() {
            self.races.forget(&uid);
            return Ok(Todo::Nothing);
        }
        let class = self.class_of(claim).await?;
        if !is_raced_for(claim, &class, driver, scope) || self.has_volume(claim).await? {
            return Ok(Todo::Nothing);
        }
        let backoff = race.backoff();
        if let Some(left) = self.races.left(&uid, backoff, fraction(), Instant::now()) {
            return Ok(Todo::Later(left));
        }
        if self.has_room(claim, &class).await? && self.take(claim, node).await {
            return Ok(Todo::Nothing);
        }
        let wait = self.races.lost(&uid, backoff, fraction(), Instant::now());
        Ok(Todo::Later(wait))
    }

    /// Whether the driver has room here; one that can't say is tried.
    async fn has_room(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
    ) -> Result<bool, Problem> {
        let Scope::Node { segments, .. } = &self.context.scope else {
            return Ok(false);
        };
        // What is wrong with the size is told when the volume is to be made.
        let Ok(size) = claim::requested(claim) else {
            return Ok(true);
        };
        let driver = &self.context.driver;
        if !driver.can(ControllerCapability::GetCapacity) {
            return Ok(true);
        }
        let topology = csi::Topology {
            segments: segments.clone(),
        };
        let request = csi::GetCapacityRequest {
            parameters: class.parameters.clone().unwrap_or_default(),
            accessible_topology: driver.has_topology().then_some(topology),
            ..csi::GetCapacityRequest::default()
        };
        match driver.csi.get_capacity(request, self.timeout).await {
            Ok(room) => Ok(fits(size, &room)),
            Err(failure) => Err(Problem::Capacity {
                code: failure.code(),
                message: failure.status.message().to_owned(),
            }),
        }
    }

    /// Writes this node's name on a claim. Its change brings it back to be worked on.
    async fn take(&self, claim: &PersistentVolumeClaim, node: &str) -> bool {
        let patch = json!({"metadata": {
            "uid": claim.uid(),
            "resourceVersion": claim.resource_version(),
            "annotations": {SELECTED_NODE: node},
            "labels": {NODE_LABEL: node_label(node)},
        }});
        match self.kube.merge(claim, patch).await {
            Ok(written) => {
                self.context.caches.claims().wrote(written);
                true
            }
            Err(error) => {
                tracing::info!(claim = %claim.name_any(), %error, "not taken");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
