//! The placement table for the API server: see `deploy/components/place-claims`.
//!
//! Without it, the leader places a claim with immediate binding by a write of its own. Each write
//! makes the PV controller process the claim once more. But the PV controller also writes when it
//! hands the claim to the driver, and a mutating policy can add the node to that write. The policy
//! sees only the claim and one ConfigMap. For each class, the leader keeps two things there: a list
//! of nodes, one per turn, and the maximum size of claims placed this way. The first digits of a
//! claim's UID, which are random, select its turn.
//!
//! The nodes are those that the leader itself would choose for claims of that size. A table holds
//! as long as each node has room for as many claims as it has turns. The leader makes a new one
//! when it no longer holds, or when another node has more room. So a claim rarely gets a node
//! without room, and if it does, the node rejects it as usual. The leader places the claims that
//! the table does not cover.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;

use tokio::time::Instant;

use super::most_room::Candidate;
use super::reservations::Reservations;
use crate::api::scope::node_label;

/// The number of turns: two hexadecimal digits.
const TURNS: usize = 256;

/// Room left on a node that claims of a class may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left<'a> {
    pub(super) node: &'a str,
    /// Bytes available, less the reservations.
    pub(super) bytes: i64,
    /// Bytes of the largest volume that fits.
    pub(super) largest: i64,
}

/// The room left on each node. The policy uses the node name as the label, so nodes with names too
/// long for a label are left out.
pub(super) fn left<'a>(
    candidates: &'a [Candidate],
    reservations: &Reservations,
    now: Instant,
) -> Vec<Left<'a>> {
    candidates
        .iter()
        .filter_map(|candidate| {
            let room = candidate.room.filter(|_| candidate.unfit.is_none())?;
            let bytes = room.available - reservations.sum(&candidate.node, Some(&room), now).bytes;
            let largest = room.largest.unwrap_or(i64::MAX).min(bytes);
            let named = node_label(&candidate.node) == candidate.node;
            (named && largest > 0).then_some(Left {
                node: &candidate.node,
                bytes,
                largest,
            })
        })
        .collect()
}

/// Nodes for the claims of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    /// Bytes of the largest claim that the table covers.
    size: i64,
    /// The node of each turn.
    nodes: Vec<String>,
}

impl Table {
    /// Covers claims so small that the nodes have room for two in each turn. `None` without room.
    pub(super) fn new(left: &[Left<'_>]) -> Option<Table> {
        let bytes = left.iter().map(|left| left.bytes);
        let all = bytes.clone().fold(0, i64::saturating_add) / (2 * TURNS as i64);
        // With many nodes, not every node gets a turn.
        let most = bytes.max()? / 2;
        let largest = left.iter().map(|left| left.largest).max()?;
        let size = all.min(most).min(largest);
        if size == 0 {
            return None;
        }
        let fitting = left.iter().filter(|left| left.largest >= size);
        // The leader's order: most room, then fewest claims, then name.
        let mut nodes: BinaryHeap<_> = fitting
            .map(|left| (left.bytes, Reverse(0), Reverse(left.node)))
            .collect();
        let mut turns = Vec::with_capacity(TURNS);
        while let Some((bytes, Reverse(claims), Reverse(node))) = nodes.pop()
            && bytes >= size
            && turns.len() < TURNS
        {
            turns.push(node.to_owned());
            nodes.push((bytes - size, Reverse(claims + 1), Reverse(node)));
        }
        let nodes = turns;
        Some(Table { size, nodes })
    }

    /// True if each node still has room for as many claims as it has turns. The nodes with turns
    /// must also still be those with the most room.
    pub(super) fn holds(&self, left: &[Left<'_>]) -> bool {
        let mut turns: BTreeMap<_, i64> = BTreeMap::new();
        for node in &self.nodes {
            *turns.entry(node.as_str()).or_default() += 1;
        }
        let fitting = left.iter().filter(|left| left.largest >= self.size);
        let (with, without): (Vec<&Left<'_>>, Vec<&Left<'_>>) =
            fitting.partition(|left| turns.contains_key(left.node));
        with.len() == turns.len()
            && with
                .iter()
                .all(|left| left.bytes >= self.size.saturating_mul(turns[left.node]))
            && most_bytes(&without) <= most_bytes(&with)
    }
}

fn most_bytes(nodes: &[&Left<'_>]) -> Option<i64> {
    nodes.iter().map(|left| left.bytes).max()
}

/// The format that the policy reads: the size, then the nodes, separated by spaces.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.size)?;
        self.nodes.iter().try_for_each(|node| write!(f, " {node}"))
    }
}

#[cfg(test)]
mod tests;
