//! Decides which nodes may use a shared volume, and when one of them has left it. Pure.

use std::collections::BTreeSet;

use crate::record::AccessMode;
use crate::record::id::VolumeId;

/// What is known when a node asks for a shared volume.
#[derive(Clone, Debug)]
pub struct UseFacts<'a> {
    pub volume: VolumeId,
    /// The requested access mode.
    pub mode: AccessMode,
    /// The node that asks.
    pub node: &'a str,
    /// The node's marker is on this kernel.
    pub is_here: bool,
    /// The administrator lists the node with the kernel of the volume's node.
    pub is_listed: bool,
    /// The other nodes to which the volume is published.
    pub published: BTreeSet<&'a str>,
    /// The other nodes with a pin on the volume's device that still lives.
    pub holding: BTreeSet<&'a str>,
}

/// Why a node may not use a shared volume, or has not left it yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// One node may write, and others read. No node keeps that.
    #[error(
        "one writer on several nodes is not kept: the nodes would all write; ask for ReadWriteMany"
    )]
    Mode,
    #[error(
        "node {node} is not among the nodes that share the kernel of this volume's node: list it in \
         ConfigMap hostloop-kernels (kubectl hostloop install --shared)"
    )]
    NotListed { node: String },
    #[error(
        "node {node} is listed with the kernel of this volume's node, and no marker of it is on this \
         kernel: its hostloop pod does not run, or it is on another machine"
    )]
    OtherKernel { node: String },
    #[error(
        "volume {volume} is published to node {node}, and its access mode allows one node: it is \
         detached there first"
    )]
    Published { volume: VolumeId, node: String },
    #[error(
        "node {node} still has the volume mounted or bound: its kubelet ends that once its pods are \
         gone; if kubelet is gone, stop the node's container"
    )]
    StillHeld { node: String },
}

/// Decides whether a node may use a volume: when it is published to the node, and when the node
/// stages it.
pub fn may_use(facts: &UseFacts<'_>) -> Result<(), Refusal> {
    if facts.mode == AccessMode::MultiNodeSingleWriter {
        return Err(Refusal::Mode);
    }
    if !facts.is_listed {
        return Err(Refusal::NotListed {
            node: facts.node.to_owned(),
        });
    }
    if !facts.is_here {
        return Err(Refusal::OtherKernel {
            node: facts.node.to_owned(),
        });
    }
    if facts.mode.is_multi_node() {
        return Ok(());
    }
    // A pin comes first: only the end of that node's use helps, and the refusal says how it comes.
    if let Some(holder) = facts.holding.first() {
        return Err(Refusal::StillHeld {
            node: (*holder).to_owned(),
        });
    }
    match facts.published.first() {
        Some(other) => Err(Refusal::Published {
            volume: facts.volume,
            node: (*other).to_owned(),
        }),
        None => Ok(()),
    }
}

/// Decides whether a volume may leave a node, or all of them if `node` is empty. `live` are the nodes
/// with a pin that still lives.
pub fn may_release(node: &str, live: &BTreeSet<String>) -> Result<(), Refusal> {
    let holder = live
        .iter()
        .find(|holder| node.is_empty() || *holder == node);
    match holder {
        Some(holder) => Err(Refusal::StillHeld {
            node: holder.clone(),
        }),
        None => Ok(()),
    }
}

/// What is known of the device of a volume before the volume is published to one more node.
#[derive(Clone, Copy, Debug)]
pub struct DeviceFacts {
    /// The volume is published to a node.
    pub is_published: bool,
    /// Its record says that it is staged.
    pub is_staged: bool,
    /// It has a loop device.
    pub is_attached: bool,
    /// A node has a pin on the device, those aside that are certainly gone.
    pub is_pinned: bool,
}

/// Decides whether the device is of an earlier use, so that the next node gets another one: an earlier
/// node may still know this one. Either an unpublication did not finish, or the record has lost its
/// staging, which is not synced.
pub fn is_left_over(facts: DeviceFacts) -> bool {
    if facts.is_staged {
        !facts.is_published
    } else {
        facts.is_attached && !facts.is_pinned
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::id::PoolId;

    const SINGLE: [AccessMode; 4] = [
        AccessMode::SingleNodeWriter,
        AccessMode::SingleNodeReaderOnly,
        AccessMode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter,
    ];
    const MANY: [AccessMode; 2] = [
        AccessMode::MultiNodeMultiWriter,
        AccessMode::MultiNodeReaderOnly,
    ];

    /// What node u gets that asks for a volume: nothing, or the kind of refusal with the node in it.
    fn answer(facts: &UseFacts<'_>) -> String {
        match may_use(facts) {
            Ok(()) => "ok".to_owned(),
            Err(Refusal::Mode) => "mode".to_owned(),
            Err(Refusal::NotListed { node }) => format!("not listed {node}"),
            Err(Refusal::OtherKernel { node }) => format!("other kernel {node}"),
            Err(Refusal::Published { volume, node }) => {
                assert_eq!(volume, facts.volume);
                format!("published {node}")
            }
            Err(Refusal::StillHeld { node }) => format!("held {node}"),
        }
    }

    #[test]
    fn who_may_use_a_volume() {
        let volume = VolumeId::generate(PoolId::generate());
        type Nodes<'a> = &'a [&'a str];
        type Row<'a> = (&'a [AccessMode], bool, bool, Nodes<'a>, Nodes<'a>, &'a str);
        // Modes, listed, here, published elsewhere, pinned elsewhere → the answer
        let table: [Row<'_>; 12] = [
            (&SINGLE, false, true, &[], &[], "not listed u"),
            (&MANY, false, false, &["w"], &["w"], "not listed u"),
            (&SINGLE, true, false, &[], &[], "other kernel u"),
            (&MANY, true, false, &[], &[], "other kernel u"),
            (&SINGLE, true, true, &[], &[], "ok"),
            (&SINGLE, true, true, &["w", "x"], &[], "published w"),
            (&SINGLE, true, true, &[], &["w"], "held w"),
            (&SINGLE, true, true, &["x"], &["w"], "held w"),
            (&SINGLE, true, true, &["w"], &["x", "y"], "held x"),
            (&MANY, true, false, &["w"], &["w"], "other kernel u"),
            (&MANY, true, true, &[], &[], "ok"),
            (&MANY, true, true, &["w"], &["w", "x"], "ok"),
        ];
        for (modes, is_listed, is_here, published, holding, expected) in table {
            for mode in modes.iter().copied() {
                let facts = UseFacts {
                    volume,
                    mode,
                    node: "u",
                    is_here,
                    is_listed,
                    published: published.iter().copied().collect(),
                    holding: holding.iter().copied().collect(),
                };
                assert_eq!(answer(&facts), expected, "{facts:?}");
            }
        }
    }

    #[test]
    fn one_writer_on_several_nodes_is_refused_whatever_else_is_true() {
        for (is_listed, is_here) in [(false, false), (true, true)] {
            let facts = UseFacts {
                volume: VolumeId::generate(PoolId::generate()),
                mode: AccessMode::MultiNodeSingleWriter,
                node: "u",
                is_here,
                is_listed,
                published: BTreeSet::new(),
                holding: BTreeSet::new(),
            };
            assert_eq!(answer(&facts), "mode");
        }
    }

    #[test]
    fn a_volume_leaves_a_node_without_a_pin() {
        let table: [(&str, &[&str], Option<&str>); 8] = [
            ("u", &[], None),
            ("u", &["w"], None),
            ("u", &["u"], Some("u")),
            ("u", &["u", "w"], Some("u")),
            ("w", &["u", "w"], Some("w")),
            ("v", &["u", "w"], None),
            ("", &[], None),
            ("", &["w", "x"], Some("w")),
        ];
        for (node, live, holder) in table {
            let live = live.iter().map(|node| (*node).to_owned()).collect();
            let expected = match holder {
                Some(node) => Err(Refusal::StillHeld {
                    node: node.to_owned(),
                }),
                None => Ok(()),
            };
            assert_eq!(may_release(node, &live), expected, "{node} {live:?}");
        }
    }

    #[test]
    fn a_device_of_an_earlier_use_comes_to_no_other_node() {
        // Published, staged, attached, pinned → left over
        let table = [
            (false, false, false, false, false),
            (true, false, false, false, false),
            (true, true, true, true, false),
            (true, true, true, false, false),
            // All nodes have ended, and the kernel has none of it.
            (true, true, false, false, false),
            // An unpublication did not finish.
            (false, true, true, false, true),
            (false, true, false, false, true),
            // The release refuses it as long as the node is there.
            (false, true, true, true, true),
            // The record has lost its staging.
            (true, false, true, false, true),
            (false, false, true, false, true),
            (true, false, true, true, false),
            (false, false, true, true, false),
        ];
        for (is_published, is_staged, is_attached, is_pinned, expected) in table {
            let facts = DeviceFacts {
                is_published,
                is_staged,
                is_attached,
                is_pinned,
            };
            assert_eq!(is_left_over(facts), expected, "{facts:?}");
        }
    }
}
