//! What the world does to a cluster of three nodes. Each is over by itself, or at the end of a
//! history.

use std::fmt;

use serde::{Deserialize, Serialize};

mod draws;
mod pool_file;

pub(crate) use pool_file::PoolFile;

/// The number of nodes that a cluster with troubles has.
pub(crate) const NODES: usize = 3;
/// The number of processes that may lead.
pub(crate) const REPLICAS: usize = 2;

/// Something that the world does. Nodes and replicas are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub(crate) enum Trouble {
    /// The driver's process on a node dies, and starts again later.
    NodeDies { node: usize, seconds: u64 },
    /// The kubelet of a node dies, and starts again at once.
    KubeletDies { node: usize },
    /// A process of the cluster's controllers dies, and starts again later.
    ReplicaDies { replica: usize, seconds: u64 },
    /// All processes of the cluster's controllers die, and start again later: none leads.
    LeadersDie { seconds: u64 },
    /// What a process of the cluster's controllers sends arrives late, and it can't renew its
    /// lease: another one leads, and the old leader's writes still arrive.
    ReplicaLate { replica: usize, seconds: u64 },
    /// Answers of the API server are lost after the effect.
    AnswersLost { percent: u64, seconds: u64 },
    /// Answers of drivers to kubelets are lost after the effect.
    CallsLost { percent: u64, seconds: u64 },
    /// The API server is away.
    Outage { seconds: u64 },
    /// The API server is backed up.
    Backup,
    /// The API server goes back to the last backup.
    Restore,
    /// A greedy namespace has a snapshot, and asks for copies of it.
    Greed { copies: u64 },
    /// The greedy namespace gives up its copies.
    Moderation,
    /// The driver's process on a node dies after so many effects, and starts again later.
    NodeDiesAfter {
        node: usize,
        effects: u64,
        seconds: u64,
    },
    /// A node stops with everything on it, and starts again later. Its disk stays.
    NodeReboots { node: usize, seconds: u64 },
    /// The power of a node fails after so many effects of its driver's process, and comes back
    /// later. Its disk loses what was not synced.
    PowerCut {
        node: usize,
        effects: u64,
        seconds: u64,
    },
    /// The driver's process on a node dies. Before it starts again, the record of a volume or
    /// snapshot is damaged: the one with this number, counted in the order of their paths.
    RecordDamaged {
        node: usize,
        record: u64,
        damage: Damage,
        seconds: u64,
    },
    /// The API server answers some requests of hostloop with an error.
    Refusals {
        code: u16,
        percent: u64,
        seconds: u64,
    },
    /// A node stops and leaves the cluster. If it returns, it has its data.
    NodeLeaves {
        node: usize,
        seconds: u64,
        returns: bool,
    },
    /// A node stops. An administrator marks it as out of service until it starts again.
    OutOfService { node: usize, seconds: u64 },
    /// An administrator keeps ordinary pods off a node for some time.
    NodeBarred { node: usize, by: Bar, seconds: u64 },
    /// The disk of a node has no room for some time.
    DiskFull { node: usize, seconds: u64 },
    /// The driver's process on a node dies, and its pool's `node.json` or a `state.json` is damaged.
    /// An administrator follows the driver's advice in the end.
    FileDamaged {
        node: usize,
        file: PoolFile,
        number: u64,
        damage: Damage,
        seconds: u64,
    },
    /// Some of the API server's answers to hostloop take long.
    SlowAnswers { percent: u64, seconds: u64 },
    /// All watches break off, and the API server may have forgotten the changes so far.
    WatchesCut { forgotten: bool },
}

/// How an administrator keeps ordinary pods off a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Bar {
    /// By a taint, for pods that tolerate it.
    Taint,
    Cordon,
}

/// What becomes of the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Damage {
    /// It is empty.
    Empty,
    /// It has only the first half of its bytes.
    CutOff,
    /// It has other bytes.
    Garbage,
}

impl Damage {
    pub(crate) const ALL: [Damage; 3] = [Damage::Empty, Damage::CutOff, Damage::Garbage];

    /// The damaged content.
    pub(crate) fn of(self, content: &[u8]) -> Vec<u8> {
        match self {
            Damage::Empty => Vec::new(),
            Damage::CutOff => content[..content.len() / 2].to_vec(),
            Damage::Garbage => b"\x01\x00{".to_vec(),
        }
    }
}

impl Trouble {
    /// True if it is what a greedy namespace does.
    pub(crate) fn is_of_greed(&self) -> bool {
        matches!(self, Trouble::Greed { .. } | Trouble::Moderation)
    }

    /// The node and the replica that it is about, or else the first ones.
    pub(crate) fn about(&self) -> (usize, usize) {
        match self {
            Trouble::NodeDies { node, .. }
            | Trouble::KubeletDies { node }
            | Trouble::NodeDiesAfter { node, .. }
            | Trouble::NodeReboots { node, .. }
            | Trouble::PowerCut { node, .. }
            | Trouble::DiskFull { node, .. }
            | Trouble::FileDamaged { node, .. }
            | Trouble::NodeLeaves { node, .. }
            | Trouble::OutOfService { node, .. }
            | Trouble::NodeBarred { node, .. }
            | Trouble::RecordDamaged { node, .. } => (*node, 0),
            Trouble::ReplicaDies { replica, .. } | Trouble::ReplicaLate { replica, .. } => {
                (0, *replica)
            }
            Trouble::LeadersDie { .. }
            | Trouble::AnswersLost { .. }
            | Trouble::CallsLost { .. }
            | Trouble::Outage { .. }
            | Trouble::Backup
            | Trouble::Restore
            | Trouble::Greed { .. }
            | Trouble::Moderation
            | Trouble::Refusals { .. }
            | Trouble::SlowAnswers { .. }
            | Trouble::WatchesCut { .. } => (0, 0),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::NodeDies { node, seconds } => {
                write!(f, "the driver of node n{} dies for {seconds} s", node + 1)
            }
            Trouble::KubeletDies { node } => {
                write!(f, "the kubelet of node n{} starts again", node + 1)
            }
            Trouble::ReplicaDies { replica, seconds } => {
                write!(f, "controller process {} dies for {seconds} s", replica + 1)
            }
            Trouble::LeadersDie { seconds } => {
                write!(f, "all controller processes die for {seconds} s")
            }
            Trouble::ReplicaLate { replica, seconds } => {
                write!(
                    f,
                    "for {seconds} s, controller process {} can't renew its lease, and its writes \
                     arrive late",
                    replica + 1
                )
            }
            Trouble::AnswersLost { percent, seconds } => {
                write!(
                    f,
                    "for {seconds} s, {percent} % of the API server's answers to writes are lost"
                )
            }
            Trouble::CallsLost { percent, seconds } => {
                write!(
                    f,
                    "for {seconds} s, {percent} % of the drivers' answers to kubelets are lost"
                )
            }
            Trouble::Outage { seconds } => write!(f, "the API server is away for {seconds} s"),
            Trouble::Backup => f.write_str("the API server is backed up"),
            Trouble::Restore => f.write_str("the API server goes back to the last backup"),
            Trouble::Greed { copies } => {
                write!(f, "a greedy namespace wants {copies} copies of a snapshot")
            }
            Trouble::Moderation => f.write_str("the greedy namespace gives up its copies"),
            Trouble::NodeDiesAfter {
                node,
                effects,
                seconds,
            } => write!(
                f,
                "the driver of node n{} dies for {seconds} s, after {effects} more effects",
                node + 1
            ),
            Trouble::NodeReboots { node, seconds } => {
                write!(f, "node n{} stops, and starts after {seconds} s", node + 1)
            }
            Trouble::PowerCut {
                node,
                effects,
                seconds,
            } => write!(
                f,
                "the power of node n{} fails for {seconds} s, after {effects} more effects",
                node + 1
            ),
            Trouble::RecordDamaged {
                node,
                record,
                damage,
                seconds,
            } => write!(
                f,
                "the driver of node n{} dies for {seconds} s, and record {record} of its pool {damage}",
                node + 1
            ),
            Trouble::Refusals {
                code,
                percent,
                seconds,
            } => write!(
                f,
                "for {seconds} s, the API server answers {percent} % of hostloop's requests with {code}"
            ),
            Trouble::NodeLeaves {
                node,
                seconds,
                returns,
            } => {
                let node = node + 1;
                if *returns {
                    write!(
                        f,
                        "node n{node} stops and is deleted, and returns after {seconds} s"
                    )
                } else {
                    write!(f, "node n{node} stops and is deleted for good")
                }
            }
            Trouble::OutOfService { node, seconds } => write!(
                f,
                "node n{} stops, and is out of service for {seconds} s",
                node + 1
            ),
            Trouble::NodeBarred { node, by, seconds } => {
                let how = match by {
                    Bar::Taint => "has a taint",
                    Bar::Cordon => "is cordoned",
                };
                write!(f, "node n{} {how} for {seconds} s", node + 1)
            }
            Trouble::FileDamaged {
                node,
                file,
                damage,
                seconds,
                ..
            } => write!(
                f,
                "the driver of node n{} dies, and a {file} of its pool {damage}, for {seconds} s",
                node + 1
            ),
            Trouble::DiskFull { node, seconds } => {
                write!(f, "the disk of node n{} is full for {seconds} s", node + 1)
            }
            Trouble::SlowAnswers { percent, seconds } => write!(
                f,
                "for {seconds} s, {percent} % of the API server's answers to hostloop take long"
            ),
            Trouble::WatchesCut { forgotten } => {
                f.write_str("all watches break off")?;
                if *forgotten {
                    f.write_str(", and the API server has forgotten the changes so far")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Damage::Empty => "is empty",
            Damage::CutOff => "is cut off",
            Damage::Garbage => "is garbage",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::World;

    #[test]
    fn troubles_are_of_nodes_and_replicas_that_there_are() {
        for (world, all) in [(World::Calm, 0), (World::Rough, 20), (World::Hard, 22)] {
            let mut kinds = std::collections::HashSet::new();
            // A history has some troubles at most once.
            let troubles = (0..3000).filter_map(|at| Trouble::at(at / 60, world, at % 60));
            for trouble in troubles {
                let (node, replica) = trouble.about();
                assert!(node < NODES && replica < REPLICAS, "{trouble}");
                kinds.insert(std::mem::discriminant(&trouble));
                let text = serde_json::to_string(&trouble).expect("JSON");
                let again: Trouble = serde_json::from_str(&text).expect("a trouble");
                assert_eq!(again, trouble);
            }
            assert_eq!(kinds.len(), all, "{world}");
        }
    }

    #[test]
    fn damage_leaves_no_readable_record() {
        let record = br#"{"schema":1,"id":"vol"}"#;
        for damage in Damage::ALL {
            let left = damage.of(record);
            let read: Result<serde_json::Value, _> = serde_json::from_slice(&left);
            assert!(read.is_err(), "{damage}");
        }
    }
}
