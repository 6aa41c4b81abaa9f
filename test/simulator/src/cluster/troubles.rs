//! What the world does to a cluster, and how it recovers.

use std::time::Duration;

use kube::Client;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::history::trouble::Trouble;
use crate::oracle::Oracle;
use crate::users::{Refused, be_greedy, be_modest};
use crate::{effects, model, trace};

/// A backup is too young with fewer versions since. Others could catch up with those versions
/// before a watch begins again, and no client can tell then that the server went back.
const YOUNG: u64 = 300;

/// The end of a trouble.
pub(super) enum Recovery {
    /// The driver of a node starts.
    Node(usize),
    /// A node starts, with everything on it.
    Boot(usize),
    /// A node that left the cluster returns to it.
    Return(usize),
    /// A node starts that is no longer out of service.
    Service(usize),
    /// A node takes ordinary pods again.
    Unbarred(usize),
    /// A process of the cluster's controllers starts.
    Replica(usize),
    /// An administrator does what the driver of a node advises about its pool.
    Pool(usize),
    /// The disk of a node has room again.
    Room(usize),
    /// The API server is there again.
    Api,
}

impl Cluster {
    /// Lets a trouble come. A node or replica that is dead already stays so.
    pub(crate) async fn suffer(
        &mut self,
        trouble: &Trouble,
        client: &Client,
        oracle: &mut Oracle,
    ) -> Result<(), Refused> {
        let (node, replica) = trouble.about();
        if node >= self.machines.len() || replica >= self.replicas.len() {
            trace::line("world", "there is no such node or process");
            return Ok(());
        }
        match trouble {
            Trouble::NodeDies { node, seconds } => {
                self.machines[*node].kill().await;
                self.recover_after(*seconds, Recovery::Node(*node));
            }
            Trouble::KubeletDies { node } => self.machines[*node].restart_kubelet(&self.doors),
            Trouble::ReplicaDies { replica, seconds } => {
                self.replicas[*replica].kill();
                self.recover_after(*seconds, Recovery::Replica(*replica));
            }
            Trouble::LeadersDie { seconds } => {
                for replica in 0..self.replicas.len() {
                    self.replicas[replica].kill();
                    self.recover_after(*seconds, Recovery::Replica(replica));
                }
            }
            Trouble::ReplicaLate { replica, seconds } => {
                let actor = self.replicas[*replica].actor;
                self.doors.be_late(actor, Duration::from_secs(*seconds));
            }
            Trouble::AnswersLost { percent, seconds } => {
                self.doors
                    .lose_answers(*percent, Duration::from_secs(*seconds));
            }
            Trouble::CallsLost { percent, seconds } => {
                for machine in &self.machines {
                    machine.lose_answers(*percent, Duration::from_secs(*seconds));
                }
            }
            Trouble::Outage { seconds } => {
                self.api.go_away();
                self.outages += 1;
                self.recover_after(*seconds, Recovery::Api);
            }
            Trouble::Backup => self.backup = Some((self.api.version(), self.api.backup())),
            Trouble::Restore => self.restore(oracle),
            Trouble::Greed { copies } => be_greedy(client, *copies).await?,
            Trouble::Moderation => be_modest(client).await?,
            Trouble::NodeDiesAfter {
                node,
                effects,
                seconds,
            } => self.machines[*node].die_after(*effects, *seconds),
            Trouble::NodeReboots { node, seconds } => {
                self.stop_node(*node).await;
                self.recover_after(*seconds, Recovery::Boot(*node));
            }
            Trouble::PowerCut {
                node,
                effects,
                seconds,
            } => self.machines[*node].lose_power_after(*effects, *seconds),
            Trouble::RecordDamaged {
                node,
                record,
                damage,
                seconds,
            } => {
                let machine = &mut self.machines[*node];
                machine.kill().await;
                machine.damage(*record, *damage);
                self.recover_after(*seconds, Recovery::Node(*node));
            }
            Trouble::NodeLeaves {
                node,
                seconds,
                returns,
            } => self.lose_node(*node, *seconds, *returns).await,
            Trouble::OutOfService { node, seconds } => {
                self.take_out_of_service(*node, *seconds).await;
            }
            Trouble::NodeBarred { node, by, seconds } => self.bar_node(*node, *by, *seconds),
            Trouble::FileDamaged {
                node,
                file,
                number,
                damage,
                seconds,
            } => {
                let machine = &mut self.machines[*node];
                machine.kill().await;
                machine.damage_file(*file, *number, *damage);
                if machine.is_owner_damaged {
                    // It runs without its pool meanwhile.
                    machine.begin(&self.doors);
                    self.recover_after(*seconds, Recovery::Pool(*node));
                } else {
                    self.recover_after(*seconds, Recovery::Node(*node));
                }
            }
            Trouble::DiskFull { node, seconds } => {
                effects::fill_disk(self.machines[*node].name());
                self.recover_after(*seconds, Recovery::Room(*node));
            }
            Trouble::Refusals {
                code,
                percent,
                seconds,
            } => {
                let time = Duration::from_secs(*seconds);
                self.doors.refuse(*percent, *code, time);
            }
            Trouble::SlowAnswers { percent, seconds } => {
                let time = Duration::from_secs(*seconds);
                self.doors.delay_answers(*percent, time);
            }
            Trouble::WatchesCut { forgotten } => self.cut_watches(*forgotten),
        }
        Ok(())
    }

    /// Breaks all watches off. If the changes so far are forgotten, a watch can't go on after them.
    fn cut_watches(&self, forgotten: bool) {
        if forgotten {
            self.api.compact();
        }
        // While the API server is away, there is no watch.
        if self.outages == 0 {
            self.api.go_away();
            self.api.come_back();
        }
    }

    /// Goes back to the last backup, if there is one. As documented for administrators,
    /// Kubernetes' own controllers and kubelets start again. Nothing else does. What is known of
    /// nodes is corrected.
    fn restore(&mut self, oracle: &mut Oracle) {
        let lost = self.api.version();
        let old = self.backup.as_ref();
        let Some((_, backup)) = old.filter(|(version, _)| lost >= version + YOUNG) else {
            trace::line("world", "there is no backup that is old enough");
            return;
        };
        oracle.goes_back(self);
        self.api.restore(backup);
        self.models = JoinSet::new();
        model::start(&self.doors, &mut self.models);
        if std::mem::take(&mut self.are_nodes_watched) {
            self.watch_nodes();
        }
        for node in 0..self.machines.len() {
            self.correct_node(node);
            self.machines[node].restart_kubelet(&self.doors);
        }
        self.doors.announce();
        oracle.went_back(self);
    }

    /// Starts the controller that watches nodes, unless it runs.
    pub(super) fn watch_nodes(&mut self) {
        if !self.are_nodes_watched {
            self.are_nodes_watched = true;
            model::watch_nodes(&self.doors, &self.heartbeats, &mut self.models);
        }
    }

    pub(super) fn recover_after(&mut self, seconds: u64, recovery: Recovery) {
        self.troubles += 1;
        let at = Instant::now() + Duration::from_secs(seconds);
        self.due.insert((at, self.troubles), recovery);
    }

    /// Removes what is left of drivers that have died at an effect, and of nodes without power.
    pub(crate) async fn bury(&mut self) {
        for node in 0..self.machines.len() {
            if let Some(rest) = self.machines[node].bury().await {
                let recovery = if self.machines[node].is_off() {
                    Recovery::Boot(node)
                } else {
                    Recovery::Node(node)
                };
                self.recover_after(rest, recovery);
            }
        }
    }

    /// Ends a trouble.
    pub(super) fn recover(&mut self, recovery: Recovery) {
        match recovery {
            Recovery::Node(node) => self.machines[node].begin(&self.doors),
            Recovery::Boot(node) => self.boot_node(node),
            Recovery::Return(node) => self.return_node(node),
            Recovery::Service(node) => self.return_to_service(node),
            Recovery::Unbarred(node) => self.unbar_node(node),
            Recovery::Replica(replica) => self.replicas[replica].begin(&self.doors),
            Recovery::Pool(node) => self.machines[node].follow_advice(),
            Recovery::Room(node) => effects::make_room(self.machines[node].name()),
            Recovery::Api => {
                self.outages -= 1;
                if self.outages == 0 {
                    self.api.come_back();
                    self.doors.announce();
                }
            }
        }
    }

    /// Ends all troubles.
    pub(crate) async fn recover_all(&mut self) {
        effects::spare_all();
        self.bury().await;
        while let Some((_, recovery)) = self.due.pop_first() {
            self.recover(recovery);
        }
        self.doors.clear_up();
        for machine in &self.machines {
            machine.lose_answers(0, Duration::ZERO);
        }
    }
}
