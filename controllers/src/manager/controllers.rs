//! Each loop: whether this driver has a use for it, and who runs it.

use std::convert::Infallible;

use super::{Counts, Elections, Error, Roles, leader_tasks};
use crate::args::{Args, LeaderTasks};
use crate::capacity;
use crate::orphans::{self, Inventory};
use crate::provisioner;
use crate::roles::{self, Role};
use crate::runtime::driver::{ControllerCapability as Can, NodeCapability};
use crate::runtime::{Context, Driver, Leadership};
use crate::{attacher, health, resizer, sight, snapshot_controller, snapshotter};

/// Whether any that works with the API server was picked.
pub(super) fn any(picked: &roles::Roles) -> bool {
    let alone = [Role::Registrar, Role::Liveness];
    Role::ALL
        .into_iter()
        .any(|role| picked.has(role) && !alone.contains(&role))
}

/// What a driver must be able to do for a loop to have work; one of them is enough.
fn needs(role: Role) -> &'static [Can] {
    match role {
        Role::Provisioner => &[Can::CreateDeleteVolume],
        Role::Resizer => &[Can::ExpandVolume, Can::ModifyVolume],
        Role::Snapshotter => &[Can::CreateDeleteSnapshot],
        Role::Capacity => &[Can::GetCapacity],
        Role::Health => &[Can::ListVolumeHealth, Can::GetVolumeHealth],
        // The attacher serves drivers that can't attach, too, and the others no driver at all.
        Role::Attacher | Role::Registrar | Role::Liveness => &[],
        Role::Orphans => &[Can::ListVolumes],
        Role::Placement | Role::GoneNodes | Role::SnapshotController => &[],
    }
}

fn has_work(role: Role, driver: &Driver) -> bool {
    let needs = needs(role);
    // Where the controller has no part in expanding, the resizer hands claims to the nodes.
    let by_nodes = role == Role::Resizer && driver.node_can(NodeCapability::ExpandVolume);
    needs.is_empty() || by_nodes || needs.iter().any(|capability| driver.can(*capability))
}

/// What begins loops.
pub(super) struct Beginning<'a> {
    pub(super) args: &'a Args,
    pub(super) context: &'a Context,
    pub(super) elections: &'a mut Elections,
    pub(super) roles: &'a mut Roles,
    pub(super) counts: &'a Counts,
    pub(super) inventory: &'a Inventory,
}

impl Beginning<'_> {
    /// Begins those that were picked and that the driver has a use for.
    pub(super) fn all(mut self) {
        let tasks = self.args.election.leader_tasks;
        if tasks != LeaderTasks::Only {
            self.begin_loops();
        }
        if tasks != LeaderTasks::Elsewhere {
            self.begin_lead();
            self.begin_snapshot_controller();
        }
    }

    /// Starts the loops that call the driver, for one node or for the whole cluster.
    fn begin_loops(&mut self) {
        let driver = self.context.driver.name.clone();
        let options = self.args.provisioner.clone();
        let metrics = self.counts.provisioner.clone();
        self.begin(Role::Provisioner, &driver, |context| {
            provisioner::run(context, options, metrics)
        });
        let options = self.args.capacity.clone();
        if options
            .enable_capacity
            .unwrap_or(self.context.scope.node().is_some())
        {
            let metrics = self.counts.capacity.clone();
            // Upstream's is a part of its provisioner, and goes by that one's lease.
            self.begin(Role::Capacity, &driver, |context| {
                capacity::run(context, options, metrics)
            });
        }
        let options = self.args.attacher.clone();
        let lease = format!("external-attacher-leader-{driver}");
        self.begin(Role::Attacher, &lease, |context| {
            attacher::run(context, options)
        });
        let options = self.args.resizer.clone();
        let lease = format!("external-resizer-{driver}");
        self.begin(Role::Resizer, &lease, |context| {
            resizer::run(context, options)
        });
        let options = self.args.snapshotter.clone();
        let lease = format!("external-snapshotter-leader-{driver}");
        self.begin(Role::Snapshotter, &lease, |context| {
            snapshotter::run(context, options)
        });
        let (options, conditions) = (self.args.health.clone(), self.counts.health.clone());
        let lease = format!("external-health-monitor-leader-{driver}");
        self.begin(Role::Health, &lease, |context| async {
            health::run(context, options, conditions).await;
            Ok::<_, Infallible>(())
        });
        self.begin_orphans();
        self.begin_sight();
    }

    /// Begins what looks after volumes nobody knows, on the node they are on.
    fn begin_orphans(&mut self) {
        if self.context.scope.node().is_none() {
            return;
        }
        let part = orphans::Part {
            options: self.args.orphans.clone(),
            volumes: self.args.provisioner.clone(),
            max_entries: self.args.attacher.max_entries,
            inventory: self.inventory.clone(),
            metrics: self.counts.orphans.clone(),
        };
        let driver = self.context.driver.name.clone();
        self.begin(Role::Orphans, &driver, |context| {
            orphans::run(context, part)
        });
    }

    /// Begins what takes care of what this node sees.
    fn begin_sight(&mut self) {
        let narrow = sight::is_narrow(self.args, &self.context.leader);
        if self.context.scope.node().is_none() || !narrow {
            return;
        }
        let context = self.context.clone();
        let tasks = self.args.election.leader_tasks;
        self.roles.begin("the watches", async move {
            sight::run(context, tasks).await;
            Ok(())
        });
    }

    /// Begins what one process does for all, where every node has one.
    fn begin_lead(&mut self) {
        if !self.context.scope.is_per_node() {
            return;
        }
        let (context, leader) = (self.context.clone(), self.context.leader.clone());
        let (args, placing) = (self.args.clone(), self.counts.placement.clone());
        self.roles.begin(
            "the lead",
            while_leading(context, leader, move |context| {
                leader_tasks::run(context, args.clone(), placing.clone())
            }),
        );
    }

    /// Begins the part of snapshots that is the cluster's. It goes by a lease of its own, which
    /// upstream's has too, and rests while another holds it: nothing else depends on that.
    fn begin_snapshot_controller(&mut self) {
        let role = Role::SnapshotController;
        if !self.args.controllers.has(role) {
            return;
        }
        let options = self.args.snapshot_controller.clone();
        let metrics = self.counts.snapshot_controller.clone();
        let context = self.context.clone();
        let election = &self.args.election;
        let elected = election
            .leader_election
            .unwrap_or(context.scope.is_per_node());
        let leader = match elected {
            true => {
                let namespace = election.snapshot_controller_namespace.clone();
                self.elections
                    .of(SNAPSHOT_CONTROLLER, Some(&namespace), self.roles)
            }
            false => Leadership::always(),
        };
        self.roles.begin(
            role.name(),
            while_leading(context, leader, move |context| {
                let (options, metrics) = (options.clone(), metrics.clone());
                async move {
                    let (context, _wide) = match context.scope.is_per_node() {
                        false => (context, None),
                        true => {
                            let (context, wide) = context.with_all();
                            (context, Some(wide))
                        }
                    };
                    snapshot_controller::run(context, options, metrics).await
                }
            }),
        );
    }

    /// Begins one. Among processes that serve the whole cluster, it runs in the one that holds
    /// the lease; when that is lost the process ends, which fences best.
    fn begin<F, E>(
        &mut self,
        role: Role,
        lease: &str,
        run: impl FnOnce(Context) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: std::fmt::Display,
    {
        if !self.args.controllers.has(role) {
            return;
        }
        if !has_work(role, &self.context.driver) {
            tracing::info!(controller = %role, "the driver has no use for it");
            return;
        }
        let mut context = self.context.clone();
        let elected = self.elections.of_loop(&context, lease, self.roles);
        self.roles.begin(role.name(), async move {
            let said = |error: E| error.to_string();
            let Some((lease, mut leader)) = elected else {
                return run(context).await.map_err(said);
            };
            let stop = context.stop.clone();
            if stop.run_until_cancelled(leader.gained()).await.is_none() {
                return Ok(());
            }
            context.leader = leader.clone();
            tokio::select! {
                ended = run(context) => ended.map_err(said),
                () = leader.lost() => match stop.is_cancelled() {
                    true => Ok(()),
                    false => Err(Error::Lost(lease).to_string()),
                },
            }
        });
    }
}

/// Upstream's name of the lease of the cluster's snapshot-controller.
const SNAPSHOT_CONTROLLER: &str = "snapshot-controller-leader";

/// Runs a loop whenever this process leads; each time it leads no longer, the loop ends and what
/// it has under way is fenced by asking the lead before each write.
async fn while_leading<F>(
    context: Context,
    mut leader: Leadership,
    run: impl Fn(Context) -> F,
) -> Result<(), String>
where
    F: Future<Output = Result<(), Infallible>>,
{
    let stop = context.stop.clone();
    while stop.run_until_cancelled(leader.gained()).await.is_some() {
        let term = stop.child_token();
        let mut lost = leader.clone();
        let context = Context {
            leader: leader.clone(),
            stop: term.clone(),
            ..context.clone()
        };
        let ending = async {
            lost.lost().await;
            term.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            Ok(()) = run(context) => {}
            () = ending => {}
        }
    }
    Ok(())
}
