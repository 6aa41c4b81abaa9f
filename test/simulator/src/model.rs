//! Models of Kubernetes' own controllers. Each is an async function over a client of its own. It
//! runs until it is dropped, and waits only in virtual time.

use serde_json::Value;
use tokio::task::JoinSet;

use crate::door::Doors;
use crate::heartbeats::Heartbeats;

mod attach_detach;
mod binder;
mod ephemeral;
mod garbage;
mod lifecycle;
mod namespaces;
mod pod_garbage;
mod protection;
mod scheduler;
mod settled;
#[cfg(test)]
mod tests;
pub(crate) mod view;

pub(crate) use attach_detach::{attachment_name_of, unique_name_of};

/// Starts all models.
pub(crate) fn start(doors: &Doors, tasks: &mut JoinSet<()>) {
    tasks.spawn(view::run(doors.client("binder"), binder::Binder::default()));
    tasks.spawn(view::run(
        doors.client("protection"),
        protection::Protection,
    ));
    tasks.spawn(view::run(
        doors.client("scheduler"),
        scheduler::Scheduler::default(),
    ));
    tasks.spawn(view::run(doors.client("ephemeral"), ephemeral::Ephemeral));
    tasks.spawn(view::run(doors.client("garbage"), garbage::Garbage));
    tasks.spawn(view::run(
        doors.client("namespaces"),
        namespaces::Namespaces,
    ));
    tasks.spawn(view::run(
        doors.client("attach"),
        attach_detach::AttachDetach::default(),
    ));
}

/// The key of the taint of a node that is down, and will not be repaired soon.
pub(crate) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Starts the models that watch nodes. Before the first node stops, they have nothing to do.
pub(crate) fn watch_nodes(doors: &Doors, heartbeats: &Heartbeats, tasks: &mut JoinSet<()>) {
    let model = lifecycle::Lifecycle::new(heartbeats.clone());
    tasks.spawn(view::run(doors.client("lifecycle"), model));
    let pods = pod_garbage::PodGarbage::default();
    tasks.spawn(view::run(doors.client("pod-garbage"), pods));
}

/// True if a pod uses a claim.
pub(crate) fn uses(pod: &Value, claim: &str) -> bool {
    view::claims_of(pod).iter().any(|(name, _)| name == claim)
}
