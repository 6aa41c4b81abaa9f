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
mod protection;
mod scheduler;
#[cfg(test)]
mod tests;
pub(crate) mod view;

/// Starts all models.
pub(crate) fn start(doors: &Doors, tasks: &mut JoinSet<()>) {
    tasks.spawn(view::run(doors.client("binder"), binder::Binder));
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

/// Starts the model that watches nodes. Before the first node stops, it has nothing to do.
pub(crate) fn watch_nodes(doors: &Doors, heartbeats: &Heartbeats, tasks: &mut JoinSet<()>) {
    let model = lifecycle::Lifecycle::new(heartbeats.clone());
    tasks.spawn(view::run(doors.client("lifecycle"), model));
}

/// True if a pod uses a claim.
pub(crate) fn uses(pod: &Value, claim: &str) -> bool {
    view::claims_of(pod).iter().any(|(name, _)| name == claim)
}
