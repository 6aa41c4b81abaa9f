//! What the world does to a cluster of three nodes. Each is over by itself, or at the end of a
//! history.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dice::Dice;

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
}

impl Trouble {
    /// A trouble of a random kind.
    pub(crate) fn of(dice: &mut Dice) -> Trouble {
        match dice.below(100) {
            0..22 => Trouble::NodeDies {
                node: node(dice),
                seconds: time(dice),
            },
            22..30 => Trouble::KubeletDies { node: node(dice) },
            30..40 => Trouble::ReplicaDies {
                replica: replica(dice),
                seconds: time(dice),
            },
            40..47 => Trouble::ReplicaLate {
                replica: replica(dice),
                seconds: 100 + dice.below(200),
            },
            47..58 => Trouble::AnswersLost {
                percent: *dice.pick(&[5, 20, 60]),
                seconds: time(dice),
            },
            58..66 => Trouble::CallsLost {
                percent: *dice.pick(&[10, 30]),
                seconds: time(dice),
            },
            66..74 => Trouble::Outage {
                seconds: time(dice),
            },
            74..86 => Trouble::Backup,
            86..92 => Trouble::Restore,
            92..97 => Trouble::greed(dice),
            _ => Trouble::Moderation,
        }
    }

    /// More copies than a driver has threads for one kind of work.
    fn greed(dice: &mut Dice) -> Trouble {
        Trouble::Greed {
            copies: 46 + dice.below(8),
        }
    }

    /// What the world does at this step of a history, if anything. Greed needs time to show, so it
    /// often comes early.
    pub(crate) fn at(seed: u64, step: u64) -> Option<Trouble> {
        /// Of so many steps in a hundred, the world makes one.
        const CHANCE: u64 = 20;
        /// The step at which greed comes early.
        const EARLY: u64 = 3;
        let mut dice = Dice::of(seed, "world", step);
        if step == EARLY && dice.percent(40) {
            return Some(Trouble::greed(&mut dice));
        }
        dice.percent(CHANCE).then(|| Trouble::of(&mut dice))
    }
}

fn node(dice: &mut Dice) -> usize {
    *dice.pick(&[0, 1, 2])
}

fn replica(dice: &mut Dice) -> usize {
    *dice.pick(&[0, 1])
}

/// How long something lasts, in seconds: from less than a retry to longer than a lease.
fn time(dice: &mut Dice) -> u64 {
    match dice.below(10) {
        0..4 => 1 + dice.below(5),
        4..8 => 5 + dice.below(60),
        _ => 60 + dice.below(600),
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn troubles_are_of_nodes_and_replicas_that_there_are() {
        let mut kinds = std::collections::HashSet::new();
        for number in 0..500 {
            let trouble = Trouble::of(&mut Dice::of(1, "troubles", number));
            let (node, replica) = match &trouble {
                Trouble::NodeDies { node, .. } | Trouble::KubeletDies { node } => (*node, 0),
                Trouble::ReplicaDies { replica, .. } | Trouble::ReplicaLate { replica, .. } => {
                    (0, *replica)
                }
                _ => (0, 0),
            };
            assert!(node < NODES && replica < REPLICAS, "{trouble}");
            kinds.insert(std::mem::discriminant(&trouble));
            let text = serde_json::to_string(&trouble).expect("JSON");
            let again: Trouble = serde_json::from_str(&text).expect("a trouble");
            assert_eq!(again, trouble);
        }
        assert_eq!(kinds.len(), 11);
    }
}
