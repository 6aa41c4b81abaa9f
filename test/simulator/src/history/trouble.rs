//! What the world does to a cluster of three nodes. Each is over by itself, or at the end of a
//! history.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dice::Dice;
use crate::history::World;

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
    /// A trouble of a random kind, in a rough world.
    fn rough(dice: &mut Dice) -> Trouble {
        match dice.below(100) {
            draw @ 0..74 => Trouble::passing(draw, dice),
            74..86 => Trouble::Backup,
            86..92 => Trouble::Restore,
            92..97 => Trouble::greed(dice),
            _ => Trouble::Moderation,
        }
    }

    /// A trouble of a random kind, in a hard world.
    fn hard(dice: &mut Dice) -> Trouble {
        match dice.below(100) {
            0..40 => {
                let most = *dice.pick(&[4, 20, 60]);
                Trouble::NodeDiesAfter {
                    node: node(dice),
                    effects: dice.below(most),
                    seconds: time(dice),
                }
            }
            40..60 => Trouble::NodeReboots {
                node: node(dice),
                seconds: time(dice),
            },
            60..75 => Trouble::RecordDamaged {
                node: node(dice),
                record: dice.below(1000),
                damage: *dice.pick(&Damage::ALL),
                seconds: time(dice),
            },
            _ => {
                let draw = dice.below(74);
                Trouble::passing(draw, dice)
            }
        }
    }

    /// A power cut at this step of a hard world, if there is one. It has draws of its own, so that
    /// no other step changes.
    fn power_cut(seed: u64, step: u64) -> Option<Trouble> {
        /// Of so many steps in a hundred, one is a power cut.
        const CHANCE: u64 = 4;
        let mut dice = Dice::of(seed, "power cut", step);
        dice.percent(CHANCE).then(|| {
            let most = *dice.pick(&[6, 25, 80]);
            Trouble::PowerCut {
                node: node(&mut dice),
                effects: dice.below(most),
                seconds: time(&mut dice),
            }
        })
    }

    /// A trouble that is soon over, for a number below 74.
    fn passing(draw: u64, dice: &mut Dice) -> Trouble {
        match draw {
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
            _ => Trouble::Outage {
                seconds: time(dice),
            },
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
    pub(crate) fn at(seed: u64, world: World, step: u64) -> Option<Trouble> {
        /// Of so many steps in a hundred, the world makes one.
        const CHANCE: u64 = 20;
        /// The step at which greed comes early.
        const EARLY: u64 = 3;
        let mut dice = Dice::of(seed, "world", step);
        match world {
            World::Calm => None,
            World::Rough if step == EARLY && dice.percent(40) => Some(Trouble::greed(&mut dice)),
            World::Rough => dice.percent(CHANCE).then(|| Trouble::rough(&mut dice)),
            World::Hard => Trouble::power_cut(seed, step)
                .or_else(|| dice.percent(CHANCE).then(|| Trouble::hard(&mut dice))),
        }
    }

    /// The node and the replica that it is about, or else the first ones.
    pub(crate) fn about(&self) -> (usize, usize) {
        match self {
            Trouble::NodeDies { node, .. }
            | Trouble::KubeletDies { node }
            | Trouble::NodeDiesAfter { node, .. }
            | Trouble::NodeReboots { node, .. }
            | Trouble::PowerCut { node, .. }
            | Trouble::RecordDamaged { node, .. } => (*node, 0),
            Trouble::ReplicaDies { replica, .. } | Trouble::ReplicaLate { replica, .. } => {
                (0, *replica)
            }
            Trouble::AnswersLost { .. }
            | Trouble::CallsLost { .. }
            | Trouble::Outage { .. }
            | Trouble::Backup
            | Trouble::Restore
            | Trouble::Greed { .. }
            | Trouble::Moderation => (0, 0),
        }
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

    #[test]
    fn troubles_are_of_nodes_and_replicas_that_there_are() {
        for (world, all) in [(World::Calm, 0), (World::Rough, 11), (World::Hard, 11)] {
            let mut kinds = std::collections::HashSet::new();
            for trouble in (0..3000).filter_map(|step| Trouble::at(1, world, step)) {
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
