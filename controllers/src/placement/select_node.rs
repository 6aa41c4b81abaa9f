//! Which node gets a claim.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;

use tokio::time::Instant;

use super::node_fitness::Lack;
use super::reservations::{Ledger, Sum};
use super::room::Room;
use crate::quantity;

/// How many nodes are named that lack something.
const NAMED: usize = 6;

/// A node, as far as any claim of a class may go there.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) node: String,
    /// What keeps claims of the class off it, whatever their size.
    pub(super) lack: Option<Lack>,
    /// What room it has told of.
    pub(super) room: Option<Room>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    /// The claim's UID.
    pub(super) uid: &'a str,
    /// Its size.
    pub(super) bytes: i64,
    /// The nodes its source can be reached from, if not all.
    pub(super) among: Option<&'a BTreeSet<String>>,
    /// Whether nodes tell of their room.
    pub(super) told: bool,
}

/// No node will do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no node has room for {}: {}", quantity::written(*bytes), Lacking(lacks))]
pub(super) struct Nowhere {
    pub(super) bytes: i64,
    pub(super) lacks: Vec<(String, Lack)>,
}

struct Lacking<'a>(&'a [(String, Lack)]);

impl fmt::Display for Lacking<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("there are no nodes");
        }
        for (number, (node, lack)) in self.0.iter().take(NAMED).enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{node} {lack}")?;
        }
        match self.0.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    }
}

/// The node a claim goes to: the one with most room left; of several, the one fewest claims are on
/// their way to; of several, the first by name. Where room is not told, each in turn.
pub(super) fn choose(
    ask: Ask<'_>,
    candidates: &[Candidate],
    ledger: &Ledger,
    now: Instant,
) -> Result<String, Nowhere> {
    let mut fitting = Vec::new();
    let mut lacks = Vec::new();
    for candidate in candidates {
        let sum = ledger.sum(&candidate.node, candidate.room.as_ref(), now);
        match fit(ask, candidate, sum, ledger, now) {
            Ok(left) => fitting.push((left, sum.claims, candidate.node.as_str())),
            Err(lack) => lacks.push((candidate.node.clone(), lack)),
        }
    }
    let chosen = match ask.told {
        true => fitting
            .iter()
            .min_by_key(|(left, claims, node)| (Reverse(*left), *claims, *node)),
        false => next(&fitting, ledger.last()),
    };
    match chosen {
        Some((_, _, node)) => Ok((*node).to_owned()),
        None => {
            // Those with some room first: they are nearest to what is asked for.
            lacks.sort_by_key(|(node, lack)| (rank(lack), node.clone()));
            Err(Nowhere {
                bytes: ask.bytes,
                lacks,
            })
        }
    }
}

/// The room that is left on a node if it will do.
fn fit(
    ask: Ask<'_>,
    candidate: &Candidate,
    sum: Sum,
    ledger: &Ledger,
    now: Instant,
) -> Result<i64, Lack> {
    if let Some(lack) = &candidate.lack {
        return Err(lack.clone());
    }
    if ask
        .among
        .is_some_and(|among| !among.contains(&candidate.node))
    {
        return Err(Lack::NoSource);
    }
    let version = candidate.room.map_or(0, |room| room.version);
    let passed_over = ledger.passes_over(ask.uid, &candidate.node, version, now);
    if !ask.told {
        return passed_over.map_or(Ok(0), |_| Err(Lack::Refused));
    }
    let room = candidate.room.ok_or(Lack::Untold)?;
    // Of nothing, nothing was taken.
    let left = match room.available {
        0 => 0,
        available => available.saturating_sub(sum.bytes),
    };
    if left < ask.bytes {
        return Err(Lack::Little { left });
    }
    if let Some(largest) = room.largest.filter(|largest| *largest < ask.bytes) {
        return Err(Lack::TooLarge { largest });
    }
    passed_over.map_or(Ok(left), |_| Err(Lack::Refused))
}

fn rank(lack: &Lack) -> (u8, Reverse<i64>) {
    match lack {
        Lack::Refused => (0, Reverse(0)),
        Lack::TooLarge { largest } => (1, Reverse(*largest)),
        Lack::Little { left } => (2, Reverse(*left)),
        Lack::Untold => (3, Reverse(0)),
        _ => (4, Reverse(0)),
    }
}

/// The one after the last by name, or the first.
fn next<'a, 'b>(
    fitting: &'a [(i64, usize, &'b str)],
    last: &str,
) -> Option<&'a (i64, usize, &'b str)> {
    let by_name = |one: &&(i64, usize, &'b str)| one.2;
    let after = fitting
        .iter()
        .filter(|one| one.2 > last)
        .min_by_key(by_name);
    after.or_else(|| fitting.iter().min_by_key(by_name))
}

#[cfg(test)]
mod tests;
