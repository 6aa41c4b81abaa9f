//! The table of controllers, and who runs them.

use std::fmt::Display;

use futures::FutureExt;
use futures::future::BoxFuture;
use hostloop_api_objects::lease_name::SNAPSHOT_CONTROLLER_LEASE;

use super::elections::Elections;
use super::error::Error;
use super::leader_tasks;
use super::telemetry::Counts;
use crate::api::scope::Scope;
use crate::claim_faults::{self, VolumeFaults};
use crate::cli::{Args, LeaderTasks};
use crate::client::Leadership;
use crate::controller::Context;
use crate::csi::Driver;
use crate::csi::driver::{ControllerCapability as Can, NodeCapability};
use crate::orphaned_volumes::{self, Inventory};
use crate::roles::{self, Role};
use crate::tasks::Tasks;
use crate::watch_scope;
use crate::{
    attacher, capacity, health, provisioner, resizer, snapshot_controller, snapshot_metadata,
    snapshotter,
};

/// The inputs of a controller, besides its context.
#[derive(Clone)]
pub(super) struct ControllerInputs {
    pub(super) args: Args,
    pub(super) counts: Counts,
    pub(super) inventory: Inventory,
    pub(super) faults: VolumeFaults,
}

type Running = BoxFuture<'static, Result<(), String>>;

/// A controller that calls the driver.
struct ControllerEntry {
    role: Role,
    /// The lease name for a driver of this name, if one process serves the whole cluster.
    lease: fn(&str) -> String,
    /// False if the flags or the scope rule the controller out.
    is_enabled: fn(&Args, &Context) -> bool,
    /// False if the driver lacks the capabilities for it.
    has_work: fn(&Driver) -> bool,
    run: fn(ControllerInputs, Context) -> Running,
}

const CONTROLLERS: [ControllerEntry; 7] = [
    ControllerEntry {
        role: Role::Provisioner,
        lease: str::to_owned,
        is_enabled: |_, _| true,
        has_work: |driver| driver.can(Can::CreateDeleteVolume),
        run: |ControllerInputs { args, counts, .. }, context| {
            boxed(provisioner::run(
                context,
                args.provisioner,
                counts.provisioner,
            ))
        },
    },
    ControllerEntry {
        role: Role::Capacity,
        // Upstream's is a part of its provisioner and shares that lease.
        lease: str::to_owned,
        is_enabled: |args, context| {
            let on_node = context.scope.node().is_some();
            args.capacity.enable_capacity.unwrap_or(on_node)
        },
        has_work: |driver| driver.can(Can::GetCapacity),
        run: |ControllerInputs { args, counts, .. }, context| {
            boxed(capacity::run(context, args.capacity, counts.capacity))
        },
    },
    ControllerEntry {
        role: Role::Attacher,
        lease: |driver| format!("external-attacher-leader-{driver}"),
        is_enabled: |_, _| true,
        // It also serves drivers that do not attach.
        has_work: |_| true,
        run: |ControllerInputs { args, .. }, context| boxed(attacher::run(context, args.attacher)),
    },
    ControllerEntry {
        role: Role::Resizer,
        lease: |driver| format!("external-resizer-{driver}"),
        is_enabled: |_, _| true,
        // Where only nodes expand, the resizer hands claims to the nodes.
        has_work: |driver| {
            driver.can(Can::ExpandVolume)
                || driver.can(Can::ModifyVolume)
                || driver.node_can(NodeCapability::ExpandVolume)
        },
        run: |ControllerInputs { args, .. }, context| boxed(resizer::run(context, args.resizer)),
    },
    ControllerEntry {
        role: Role::Snapshotter,
        lease: |driver| format!("external-snapshotter-leader-{driver}"),
        is_enabled: |_, _| true,
        has_work: |driver| driver.can(Can::CreateDeleteSnapshot),
        run: |ControllerInputs { args, .. }, context| {
            boxed(snapshotter::run(context, args.snapshotter))
        },
    },
    ControllerEntry {
        role: Role::Health,
        lease: |driver| format!("external-health-monitor-leader-{driver}"),
        is_enabled: |_, _| true,
        has_work: |driver| driver.can(Can::ListVolumeHealth) || driver.can(Can::GetVolumeHealth),
        run: |ControllerInputs { args, counts, .. }, context| {
            let run = health::run(context, args.health, counts.health);
            run.map(Ok).boxed()
        },
    },
    ControllerEntry {
        role: Role::Orphans,
        lease: str::to_owned,
        is_enabled: |_, context| context.scope.node().is_some(),
        has_work: |driver| driver.can(Can::ListVolumes),
        run: |inputs, context| {
            let ControllerInputs {
                args,
                counts,
                inventory,
                ..
            } = inputs;
            let settings = orphaned_volumes::ScanSettings {
                options: args.orphans,
                naming: args.provisioner.naming,
                max_entries: args.attacher.max_entries,
                inventory,
                metrics: counts.orphans,
            };
            boxed(orphaned_volumes::run(context, settings))
        },
    },
];

fn boxed<E: Display>(run: impl Future<Output = Result<(), E>> + Send + 'static) -> Running {
    run.map(|ended| ended.map_err(|error| error.to_string()))
        .boxed()
}

/// Whether any controller that works with the API server was picked.
pub(super) fn any(picked: &roles::Roles) -> bool {
    let alone = [Role::Registrar, Role::Liveness];
    Role::ALL
        .into_iter()
        .any(|role| picked.has(role) && !alone.contains(&role))
}

/// Starts the controllers that work with the API server.
pub(super) struct Manager<'a> {
    pub(super) inputs: ControllerInputs,
    pub(super) context: &'a Context,
    pub(super) elections: &'a mut Elections,
    pub(super) tasks: &'a mut Tasks,
}

impl Manager<'_> {
    /// Starts the selected controllers that the driver supports.
    pub(super) fn start(mut self) {
        let tasks = self.inputs.args.election.leader_tasks;
        if tasks != LeaderTasks::Only {
            for entry in &CONTROLLERS {
                self.start_controller(entry);
            }
            self.start_claim_faults();
            self.start_node_endpoint();
            self.start_watch_scope();
        }
        if tasks != LeaderTasks::Elsewhere {
            self.start_leader_tasks();
            self.start_snapshot_controller();
            self.start_snapshot_metadata();
        }
    }

    /// Starts a controller. Among processes that serve the whole cluster, it runs in the one that
    /// holds the lease. That process ends when it loses the lease: this fences best.
    fn start_controller(&mut self, entry: &ControllerEntry) {
        let (args, role, run) = (&self.inputs.args, entry.role, entry.run);
        if !args.controllers.has(role) || !(entry.is_enabled)(args, self.context) {
            return;
        }
        if !(entry.has_work)(&self.context.driver) {
            tracing::info!(controller = %role, "the driver does not support this controller");
            return;
        }
        let mut context = args.context_of(role, self.context);
        let inputs = self.inputs.clone();
        let lease = (entry.lease)(&context.driver.name);
        let elected = self.elections.of_loop(&context, &lease, self.tasks);
        self.tasks.start(role.name(), async move {
            let Some((lease, mut leader)) = elected else {
                return run(inputs, context).await;
            };
            let stop = context.stop.clone();
            if stop.run_until_cancelled(leader.gained()).await.is_none() {
                return Ok(());
            }
            context = context.led_by(&leader);
            tokio::select! {
                ended = run(inputs, context) => ended,
                () = leader.lost() => {
                    if stop.is_cancelled() {
                        Ok(())
                    } else {
                        Err(Error::Lost(lease).to_string())
                    }
                }
            }
        });
    }

    /// Starts the controller of the faults that claims ask for. It needs the driver in this process,
    /// and the claims that the provisioner or the resizer watches.
    fn start_claim_faults(&mut self) {
        let picked = &self.inputs.args.controllers;
        let watches_claims = picked.has(Role::Provisioner) || picked.has(Role::Resizer);
        let faults = &self.inputs.faults;
        if !faults.is_here() || !watches_claims || self.context.scope.node().is_none() {
            return;
        }
        let metrics = self.inputs.counts.claim_faults.clone();
        let run = claim_faults::run(self.context.clone(), faults.clone(), metrics);
        self.tasks.keep("the faults of claims", run);
    }

    /// Starts the server of changed blocks that the leader reads.
    fn start_node_endpoint(&mut self) {
        let Some(own) = self.context.endpoint.clone() else {
            return;
        };
        let context = self.context.clone();
        self.tasks.start(
            "the changed blocks of this node",
            boxed(snapshot_metadata::run_on_node(context, own)),
        );
    }

    /// Starts the service of changed blocks for backup tools. It runs while this process leads: one
    /// process alone writes its objects.
    fn start_snapshot_metadata(&mut self) {
        let (role, args) = (Role::SnapshotMetadata, &self.inputs.args);
        if !args.controllers.has(role) || self.context.scope != Scope::Leader {
            return;
        }
        let options = args.snapshot_metadata.clone();
        let (context, leader) = (self.context.clone(), self.context.leader.clone());
        self.tasks.start(
            role.name(),
            while_leading(context, leader, move |context| {
                let options = options.clone();
                async move {
                    let (context, _wide) = context.with_all();
                    snapshot_metadata::run(context, options).await
                }
            }),
        );
    }

    /// Starts the controller that sets how much of the cluster this node watches.
    fn start_watch_scope(&mut self) {
        let narrow = watch_scope::is_narrow(&self.inputs.args, &self.context.leader);
        if self.context.scope.node().is_none() || !narrow {
            return;
        }
        let context = self.context.clone();
        let tasks = self.inputs.args.election.leader_tasks;
        let run = watch_scope::run(context, tasks);
        self.tasks.keep("the watches", run);
    }

    /// Starts the cluster-wide tasks, if every node has a process.
    fn start_leader_tasks(&mut self) {
        if !self.context.scope.is_per_node() {
            return;
        }
        let (context, leader) = (self.context.clone(), self.context.leader.clone());
        let (args, placing) = (
            self.inputs.args.clone(),
            self.inputs.counts.placement.clone(),
        );
        self.tasks.start(
            "the lead",
            while_leading(context, leader, move |context| {
                leader_tasks::run(context, args.clone(), placing.clone())
            }),
        );
    }

    /// Starts the snapshot-controller. It uses upstream's lease, and rests while another process
    /// holds it; no other controller depends on that.
    fn start_snapshot_controller(&mut self) {
        let (role, args) = (Role::SnapshotController, &self.inputs.args);
        if !args.controllers.has(role) {
            return;
        }
        let options = args.snapshot_controller.clone();
        let metrics = self.inputs.counts.snapshot_controller.clone();
        let context = args.context_of(role, self.context);
        let per_node = context.scope.is_per_node();
        let leader = if args.election.leader_election.unwrap_or(per_node) {
            let namespace = Some(&args.election.snapshot_controller_namespace[..]);
            self.elections
                .of(SNAPSHOT_CONTROLLER_LEASE, namespace, self.tasks)
        } else {
            Leadership::always()
        };
        self.tasks.start(
            role.name(),
            while_leading(context, leader, move |context| {
                let (options, metrics) = (options.clone(), metrics.clone());
                async move {
                    let (context, _wide) = if per_node {
                        let (context, wide) = context.with_all();
                        (context, Some(wide))
                    } else {
                        (context, None)
                    };
                    snapshot_controller::run(context, options, metrics).await
                }
            }),
        );
    }
}

/// Runs a controller while this process leads. It ends when the lead is lost. Work still under way
/// is fenced, because it checks the lead before each write.
async fn while_leading<F, E>(
    context: Context,
    mut leader: Leadership,
    run: impl Fn(Context) -> F,
) -> Result<(), String>
where
    F: Future<Output = Result<(), E>>,
    E: Display,
{
    let stop = context.stop.clone();
    while stop.run_until_cancelled(leader.gained()).await.is_some() {
        let term = stop.child_token();
        let mut lost = leader.clone();
        let context = Context {
            stop: term.clone(),
            ..context.clone().led_by(&leader)
        };
        let ending = async {
            lost.lost().await;
            term.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = run(context) => ended.map_err(|error| error.to_string())?,
            () = ending => {}
        }
    }
    Ok(())
}
