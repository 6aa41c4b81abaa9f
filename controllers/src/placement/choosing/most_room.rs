//! Chooses the node with the most room for a claim; pure.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;

use tokio::time::Instant;

use super::reservations::{Reservations, Sum};
use super::unfit::Unfit;
use crate::api::quantity;
use crate::placement::room::NodeRoom;

/// Maximum number of unfit nodes in a message.
const NAMED: usize = 6;

/// A node, with its state for the claims of a class.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) node: String,
    /// Why the node can't take claims of the class, whatever their size.
    pub(super) unfit: Option<Unfit>,
    /// The room in its capacity object for the class.
    pub(super) room: Option<NodeRoom>,
}

/// A claim to place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) uid: &'a str,
    /// The claim's size.
    pub(super) bytes: i64,
    /// The nodes that can reach the claim's source. `None` means all.
    pub(super) among: Option<&'a BTreeSet<String>>,
    /// True if nodes publish their room.
    pub(super) is_published: bool,
}

/// Error: no node fits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no node has room for {}: {}", quantity::written(*bytes), UnfitReasons(unfit_nodes))]
pub(super) struct Nowhere {
    pub(super) bytes: i64,
    pub(super) unfit_nodes: Vec<(String, Unfit)>,
}

struct UnfitReasons<'a>(&'a [(String, Unfit)]);

impl fmt::Display for UnfitReasons<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("there are no nodes");
        }
        for (number, (node, unfit)) in self.0.iter().take(NAMED).enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{node} {unfit}")?;
        }
        match self.0.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    }
}

/// Selects the node with the most room left, then the one with the fewest reserved claims, then the
/// first by name. If nodes do not publish their room, they take turns.
pub(super) fn choose(
    ask: Request<'_>,
    candidates: &[Candidate],
    reservations: &Reservations,
    now: Instant,
) -> Result<String, Nowhere> {
    let mut fitting = Vec::new();
    let mut unfit_nodes = Vec::new();
    for candidate in candidates {
        let sum = reservations.sum(&candidate.node, candidate.room.as_ref(), now);
        match fit(ask, candidate, sum, reservations, now) {
            Ok(left) => fitting.push((left, sum.claims, candidate.node.as_str())),
            Err(unfit) => unfit_nodes.push((candidate.node.clone(), unfit)),
        }
    }
    let chosen = if ask.is_published {
        fitting
            .iter()
            .min_by_key(|(left, claims, node)| (Reverse(*left), *claims, *node))
    } else {
        next(&fitting, reservations.last())
    };
    match chosen {
        Some((_, _, node)) => Ok((*node).to_owned()),
        None => {
            // Nodes with some room first: they come closest to the claim's size.
            unfit_nodes.sort_by_key(|(node, unfit)| (rank(unfit), node.clone()));
            Err(Nowhere {
                bytes: ask.bytes,
                unfit_nodes,
            })
        }
    }
}

/// The room left on a node, if the claim fits there.
fn fit(
    ask: Request<'_>,
    candidate: &Candidate,
    sum: Sum,
    reservations: &Reservations,
    now: Instant,
) -> Result<i64, Unfit> {
    if let Some(unfit) = &candidate.unfit {
        return Err(unfit.clone());
    }
    if ask
        .among
        .is_some_and(|among| !among.contains(&candidate.node))
    {
        return Err(Unfit::NoSource);
    }
    let version = candidate.room.map_or(0, |room| room.version);
    let passed_over = reservations.passes_over(ask.uid, &candidate.node, version, now);
    if !ask.is_published {
        return passed_over.map_or(Ok(0), |_| Err(Unfit::Refused));
    }
    let room = candidate.room.ok_or(Unfit::CapacityUnknown)?;
    // A node without room for the class has not lost any to reservations of other classes.
    let left = match room.available {
        0 => 0,
        available => available.saturating_sub(sum.bytes),
    };
    if left < ask.bytes {
        return Err(Unfit::Little { left });
    }
    if let Some(largest) = room.largest.filter(|largest| *largest < ask.bytes) {
        return Err(Unfit::TooLarge { largest });
    }
    passed_over.map_or(Ok(left), |_| Err(Unfit::Refused))
}

fn rank(unfit: &Unfit) -> (u8, Reverse<i64>) {
    match unfit {
        Unfit::Refused => (0, Reverse(0)),
        Unfit::TooLarge { largest } => (1, Reverse(*largest)),
        Unfit::Little { left } => (2, Reverse(*left)),
        Unfit::CapacityUnknown => (3, Reverse(0)),
        _ => (4, Reverse(0)),
    }
}

/// The node after the last one by name, or else the first.
fn next<'a, 'b>(
    fitting: &'a [(i64, usize, &'b str)],
    last: &str,
) -> Option<&'a (i64, usize, &'b str)> {
    let after = fitting.iter().filter(|one| one.2 > last);
    let after = after.min_by_key(|one| one.2);
    after.or_else(|| fitting.iter().min_by_key(|one| one.2))
}

#[cfg(test)]
mod tests;
