//! What the API server places claims by, where a policy has it do so: see
//! `deploy/components/place-claims`.
//!
//! A claim with immediate binding is placed by a write of the leader's, and the cluster's own
//! controller looks once more at each claim that is written. The write by which that controller
//! hands the claim to the driver can carry the node as well: a policy puts it in. All a policy sees
//! is the claim and one ConfigMap, in which the leader keeps, by classes, the size up to which claims
//! are placed so, and nodes by turns. Which turn is a claim's, the first digits of its UID say,
//! which are random.
//!
//! The nodes are those the leader would choose itself, for claims of that size. Each has room for as
//! many of them as it has turns, or the table does not hold any more and is made anew, as it is when
//! a node has come with more room; so a claim that gets a node without room is rare, and goes the way
//! of all of these. What the table has
//! nothing for is placed by the leader.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;

use tokio::time::Instant;

use super::reservations::Reservations;
use super::select_node::Candidate;
use crate::runtime::scope::node_label;

/// The turns there are: as many as two hexadecimal digits can tell.
const TURNS: usize = 256;

/// What is left on a node that claims of a class may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left<'a> {
    pub(super) node: &'a str,
    /// Bytes, less what is on its account.
    pub(super) bytes: i64,
    /// Bytes of the largest volume.
    pub(super) largest: i64,
}

/// What is left on nodes. The policy labels with a node's name as it is: one that is too long for
/// that is none of its.
pub(super) fn left<'a>(
    candidates: &'a [Candidate],
    reservations: &Reservations,
    now: Instant,
) -> Vec<Left<'a>> {
    let of = |candidate: &'a Candidate| {
        let room = candidate.room.filter(|_| candidate.unfit.is_none())?;
        let bytes = room.available - reservations.sum(&candidate.node, Some(&room), now).bytes;
        let largest = room.largest.unwrap_or(i64::MAX).min(bytes);
        let named = node_label(&candidate.node) == candidate.node;
        (named && largest > 0).then_some(Left {
            node: &candidate.node,
            bytes,
            largest,
        })
    };
    candidates.iter().filter_map(of).collect()
}

/// Where claims of a class go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    /// Bytes of the largest claim that is placed by it.
    size: i64,
    /// Nodes, by turns.
    nodes: Vec<String>,
}

impl Table {
    /// For claims so small that the nodes have room for two in each turn; none if there is no room.
    pub(super) fn new(left: &[Left<'_>]) -> Option<Table> {
        let bytes = || left.iter().map(|left| left.bytes);
        let all = bytes().fold(0, i64::saturating_add) / (2 * TURNS as i64);
        // Of many nodes, not each has a turn.
        let most = bytes().max()? / 2;
        let largest = left.iter().map(|left| left.largest).max()?;
        let size = all.min(most).min(largest);
        if size == 0 {
            return None;
        }
        let fitting = left.iter().filter(|left| left.largest >= size);
        // As the leader chooses: most room, then the fewest claims, then by name.
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

    /// Whether each node still has room for as many claims as it has turns, and none without a turn
    /// has more room than all that have one.
    pub(super) fn holds(&self, left: &[Left<'_>]) -> bool {
        let mut turns: BTreeMap<_, i64> = BTreeMap::new();
        for node in &self.nodes {
            *turns.entry(node.as_str()).or_default() += 1;
        }
        let fitting = left.iter().filter(|left| left.largest >= self.size);
        let (with, without): (Vec<_>, Vec<_>) =
            fitting.partition(|left| turns.contains_key(left.node));
        let most = |some: &[&Left<'_>]| some.iter().map(|left| left.bytes).max();
        let enough = |left: &&Left<'_>| left.bytes >= self.size.saturating_mul(turns[left.node]);
        with.len() == turns.len() && with.iter().all(enough) && most(&without) <= most(&with)
    }
}

/// As the policy reads it: the size, then the nodes, with blanks in between.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.size)?;
        self.nodes.iter().try_for_each(|node| write!(f, " {node}"))
    }
}

#[cfg(test)]
mod tests;
