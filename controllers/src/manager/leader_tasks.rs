//! Runs the cluster-wide tasks that need to see everything, when every node has its own
//! controllers. The lease holder runs them. Its cluster-wide caches exist only while it leads, and
//! it checks its leadership before each write. No task calls the CSI driver, so a process without
//! one can run them (`--leader-tasks=only`).

use std::convert::Infallible;

use tokio::task::JoinSet;

use crate::cli::Args;
use crate::controller::Context;
use crate::csi::driver::ControllerCapability;
use crate::roles::Role;
use crate::{capacity, health, node_cleanup, placement, provisioner, snapshotter};

/// Runs the tasks until `context.stop`, which is set when the lead is lost. Replaces the caches of
/// `context` with cluster-wide ones.
pub(crate) async fn run(
    context: Context,
    args: Args,
    placing: placement::Metrics,
) -> Result<(), Infallible> {
    let (context, _wide) = context.with_all();
    let picked = &args.controllers;
    let mut parts = JoinSet::new();
    let needs_capacities = picked.has(Role::Placement) || picked.has(Role::GoneNodes);
    let capacities = needs_capacities
        .then(|| capacity::of_all(&context))
        .flatten();
    if picked.has(Role::Placement) {
        let capacity =
            args.capacity.enable_capacity.unwrap_or(true) && args.controllers.has(Role::Capacity);
        let attachments = picked.has(Role::Attacher);
        let naming = args.provisioner.naming.clone();
        let namespace = context.pod.capacity_namespace.clone();
        let options = placement::Options::new(
            &args.placement,
            capacity,
            attachments,
            naming,
            namespace,
            placing,
        );
        let capacities = capacities.clone();
        parts.spawn(placement::run(context.clone(), options, capacities));
    }
    if picked.has(Role::GoneNodes) {
        let (options, naming) = (args.gone.clone(), args.provisioner.naming.clone());
        parts.spawn(node_cleanup::run(
            context.clone(),
            options,
            naming,
            capacities,
        ));
    }
    let provisions = context.driver.can(ControllerCapability::CreateDeleteVolume);
    if picked.has(Role::Provisioner) && provisions {
        let options = args.provisioner.clone();
        let context = args.context_of(Role::Provisioner, &context);
        parts.spawn(provisioner::run_for_all(context, options));
    }
    if picked.has(Role::Snapshotter) {
        let options = args.snapshotter.clone();
        let context = args.context_of(Role::Snapshotter, &context);
        parts.spawn(snapshotter::run_for_all(context, options));
    }
    if picked.has(Role::Health) {
        let context = args.context_of(Role::Health, &context);
        parts.spawn(health::run_for_all(context, args.health.clone()));
    }
    parts.join_all().await;
    context.stop.cancelled().await;
    Ok(())
}
