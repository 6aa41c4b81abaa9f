//! The steps of an exploration, and what they have found so far.

use std::cell::RefCell;
use std::collections::BTreeSet;

use futures::StreamExt;
use hostloop_report::cuts::{CutsLine, EndedExploration, TakenCut};
use hostloop_terminal::humanize::count;
use tokio::time::sleep;

use super::check_template::CheckTemplate;
use super::cut_check::{CheckError, CutChecker, CutResult};
use super::cut_node::CutNode;
use super::cut_objects::ExplorationId;
use super::explored_claim::ExploredClaim;
use super::order::order;
use super::{Args, Error, clean_up};
use crate::cluster::Cluster;
use crate::node_pods::Burst;
use crate::progress_line::ProgressLine;
use crate::waiting::PAUSE;

/// What is known of an exploration so far.
#[derive(Default)]
pub(super) struct Found {
    pub(super) exploration: Option<ExplorationId>,
    /// True once objects may have been made of the exploration, and no other ones had its ID.
    pub(super) has_objects: bool,
    pub(super) taken: Vec<TakenCut>,
    pub(super) ended: Option<EndedExploration>,
    pub(super) checked: Vec<(u32, CutResult)>,
}

/// The steps of an exploration.
pub(super) struct Steps<'a, N> {
    pub(super) args: &'a Args,
    pub(super) cluster: &'a Cluster,
    pub(super) claim: &'a ExploredClaim,
    pub(super) template: &'a CheckTemplate,
    pub(super) node: &'a N,
    pub(super) seed: u64,
    pub(super) found: RefCell<Found>,
    pub(super) progress: RefCell<ProgressLine>,
}

impl<N: CutNode> Steps<'_, N> {
    /// Cuts and checks.
    pub(super) async fn run(&self) -> Result<(), Error> {
        self.take().await?;
        let (exploration, taken) = {
            let found = self.found.borrow();
            (found.exploration.clone(), found.taken.clone())
        };
        let Some(exploration) = exploration.filter(|_| !taken.is_empty()) else {
            return Err(Error::NotTaken(self.why_none_was_taken()));
        };
        // The node has named it, and the clean-up deletes all that has its ID.
        let selector = exploration.selector();
        if clean_up::has_objects(self.cluster, &selector, self.args.timeout).await? {
            return Err(Error::OtherExploration(exploration.as_str().to_owned()));
        }
        self.found.borrow_mut().has_objects = true;
        self.check(&exploration, &taken).await
    }

    /// Has the node take the cuts. If the burst ends early, its cuts are good.
    async fn take(&self) -> Result<(), Error> {
        self.say(&format!("cutting the power of claim {}", self.claim.name));
        let burst = Burst {
            cuts: self.args.cuts,
            every: self.args.every,
        };
        let taken = self
            .node
            .take(&self.claim.handle, burst, |line| self.hear(line))
            .await;
        match taken {
            Err(error) if self.found.borrow().taken.is_empty() => {
                Err(Error::NotTaken(error.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Takes a line of the burst.
    fn hear(&self, line: CutsLine) {
        let mut found = self.found.borrow_mut();
        match line {
            CutsLine::Begun(begun) => {
                if found.exploration.is_none() {
                    found.exploration = ExplorationId::parse(&begun.exploration);
                }
            }
            // Objects are named by the number, and cuts beyond those that were asked for have no end.
            CutsLine::Cut(cut) if !follows(&found.taken, cut.number, self.args.cuts) => {}
            CutsLine::Cut(cut) => {
                found.taken.push(cut);
                let (taken, all) = (found.taken.len(), self.args.cuts as usize);
                if is_tenth(taken, all) {
                    self.say(&format!("{taken} of {} taken", count(all, "cut")));
                }
            }
            CutsLine::Ended(ended) => found.ended = Some(ended),
            // Answers to other requests.
            CutsLine::Listed(_)
            | CutsLine::Kept(_)
            | CutsLine::Dropped(_)
            | CutsLine::Refused { .. } => {}
        }
    }

    fn why_none_was_taken(&self) -> String {
        let found = self.found.borrow();
        let ended = found.ended.as_ref();
        let why = ended.and_then(|ended| ended.why.clone());
        why.unwrap_or_else(|| "the node's driver names no exploration: see its log".to_owned())
    }

    /// Checks the cuts in the order of the seed, a few at a time.
    async fn check(&self, exploration: &ExplorationId, taken: &[TakenCut]) -> Result<(), Error> {
        let checker = CutChecker {
            cluster: self.cluster,
            node: self.node,
            claim: self.claim,
            template: self.template,
            exploration,
            timeout: self.args.timeout,
        };
        self.say(&progress(&[], taken.len()));
        let order = order(taken.len(), self.seed);
        let checks = order.into_iter().map(|index| {
            let cut = &taken[index];
            let checker = &checker;
            async move { (cut.number, checker.check(cut).await) }
        });
        let mut checks = futures::stream::iter(checks).buffer_unordered(self.args.parallel);
        while let Some((number, checked)) = checks.next().await {
            let result = checked.map_err(|error| failed_check(number, &error))?;
            let is_last = match result {
                CutResult::Passed => false,
                CutResult::Failed(_) => self.args.fail_fast,
                // The next ones would not begin either.
                CutResult::Unknown(_) => true,
            };
            let mut found = self.found.borrow_mut();
            found.checked.push((number, result));
            self.say(&progress(&found.checked, taken.len()));
            if is_last {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Deletes the objects and the cuts, but for the snapshots that the report names. A check that was
    /// given up may have kept another one.
    pub(super) async fn clean_up(&self) -> Result<(), Error> {
        let (exploration, has_objects) = {
            let found = self.found.borrow();
            (found.exploration.clone(), found.has_objects)
        };
        let Some(exploration) = exploration else {
            return Ok(());
        };
        self.say("deleting what the exploration has left");
        let removed = if has_objects {
            self.remove_objects(&exploration).await
        } else {
            Ok(())
        };
        let dropped = self.node.drop_all(exploration.as_str()).await;
        removed?;
        dropped.map_err(|error| Error::CutsLeft(error.to_string()))?;
        Ok(())
    }

    async fn remove_objects(&self, exploration: &ExplorationId) -> Result<(), Error> {
        // A request that was given up may still be carried out.
        sleep(PAUSE).await;
        let selector = exploration.selector();
        let kept = self.kept(exploration);
        clean_up::remove(self.cluster, &selector, &kept, self.args.timeout).await?;
        Ok(())
    }

    /// The names of the snapshots that stay.
    fn kept(&self, exploration: &ExplorationId) -> BTreeSet<String> {
        let found = self.found.borrow();
        let others = found.checked.iter();
        others
            .filter(|(_, result)| *result != CutResult::Passed)
            .map(|(number, _)| exploration.name(&self.claim.name, *number))
            .collect()
    }

    fn say(&self, text: &str) {
        self.progress.borrow_mut().show(text);
    }
}

fn failed_check(number: u32, error: &CheckError) -> Error {
    Error::Check(format!("cut {number}: {error}"))
}

/// True for the number of the next cut of so many.
fn follows(taken: &[TakenCut], number: u32, all: u32) -> bool {
    let last = taken.last().map_or(0, |cut| cut.number);
    (last + 1..=all).contains(&number)
}

/// How far the checks are.
fn progress(checked: &[(u32, CutResult)], all: usize) -> String {
    let others = checked
        .iter()
        .filter(|(_, result)| *result != CutResult::Passed)
        .count();
    let said = format!("{} of {} checked", checked.len(), count(all, "cut"));
    match others {
        0 => said,
        others => format!("{said}, {others} not passed"),
    }
}

/// True ten times in a burst: it is fast, and each text may be a line of a log.
fn is_tenth(taken: usize, all: usize) -> bool {
    taken * 10 / all != taken.saturating_sub(1) * 10 / all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::testing::{cut, reason};

    #[test]
    fn cuts_that_a_node_may_name() {
        assert!(follows(&[], 1, 2) && !follows(&[], 0, 2));
        let taken = [cut(1), cut(2)];
        for (number, all, expected) in [(3, 3, true), (2, 3, false), (3, 2, false)] {
            assert_eq!(follows(&taken, number, all), expected, "{number} of {all}");
        }
    }

    #[test]
    fn how_far_it_is() {
        let mut checked = Vec::new();
        assert_eq!(progress(&checked, 100), "0 of 100 cuts checked");
        checked.push((1, CutResult::Passed));
        checked.push((2, CutResult::Failed(reason())));
        assert_eq!(
            progress(&checked, 100),
            "2 of 100 cuts checked, 1 not passed"
        );
        for (all, expected) in [(1, vec![1]), (3, vec![1, 2, 3]), (20, vec![2, 4, 6])] {
            let said = (1..=all).filter(|taken| is_tenth(*taken, all));
            assert_eq!(said.take(3).collect::<Vec<_>>(), expected, "{all}");
        }
    }
}
