//! `hostloop fsck`: checks that records, disk and kernel agree.
//!
//! A check changes nothing and needs no lock, so it works beside a running driver. A problem counts
//! only if a second look, a moment later, shows it too. Otherwise, work in progress would look like
//! a problem. A repair is what a driver does whenever it opens its pools, and needs exclusive
//! access to them. It never deletes possible data. A problem counts as repaired if a later look no
//! longer shows it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use hostloop_terminal::color::{GOOD, QUIET, paint, severity};
use hostloop_terminal::humanize::count;
use hostloop_terminal::terminal;
use serde::Serialize;

use crate::cli::FsckArgs;
use crate::inspect::inventory::Survey;
use crate::inspect::{Error, print};
use crate::kernel::Kernel;
use crate::kernel::linux::Linux;
use crate::storage::{PoolOptions, PoolSpec, Pools};

mod checks;

#[cfg(test)]
pub(crate) use checks::{Subject, tests as scene};
pub use checks::{check, lasting};
pub use hostloop_report::reported_problem::{ProblemKind, Repair, ReportedProblem, Severity};

/// Exit code: nothing is wrong. (Notes may have been printed.)
pub const CLEAN: u8 = 0;
/// Exit code: problems were found and still exist.
pub const PROBLEMS: u8 = 1;
/// Exit code: problems were found, and all of them are repaired.
pub const REPAIRED: u8 = 2;
/// Exit code: the check or the repair failed.
pub const FAILED: u8 = 3;

/// The pause between the first look and the second.
const MOMENT: Duration = Duration::from_millis(500);

/// The result, in the form that `--json` prints. Names and meanings are stable; fields may be
/// added.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FsckReport {
    /// The remaining problems, the worst first.
    pub problems: Vec<ReportedProblem>,
    /// The problems that `--repair` fixed.
    pub repaired: Vec<ReportedProblem>,
}

impl FsckReport {
    /// The exit code. Notes don't count.
    pub fn code(&self) -> u8 {
        match (
            self.problems.iter().filter(|p| p.counts()).count(),
            self.repaired.iter().filter(|p| p.counts()).count(),
        ) {
            (0, 0) => CLEAN,
            (0, _) => REPAIRED,
            _ => PROBLEMS,
        }
    }
}

/// Checks, repairs if requested, and prints the result. Blocks. Prints an error, too, and returns
/// its own exit code.
pub fn run(args: &FsckArgs) -> ExitCode {
    let kernel = Arc::new(Linux::new());
    let outcome = args.pools.specs().map_err(Error::from).and_then(|specs| {
        let outcome = examine(&specs, &args.pools.options(), kernel, args.repair)?;
        print(&outcome, args.json, |o| lines(o, args.repair))?;
        Ok(outcome)
    });
    match outcome {
        Ok(outcome) => ExitCode::from(outcome.code()),
        Err(error) => {
            terminal::error(&format!("hostloop: fsck: {error}"));
            ExitCode::from(FAILED)
        }
    }
}

/// Checks the pools, and repairs them if requested.
pub fn examine(
    specs: &[PoolSpec],
    options: &PoolOptions,
    kernel: Arc<dyn Kernel>,
    repair: bool,
) -> Result<FsckReport, Error> {
    let mut outcome = FsckReport {
        problems: look_twice(specs, &options.state_dir, &*kernel)?,
        repaired: Vec::new(),
    };
    if repair
        && outcome
            .problems
            .iter()
            .any(|p| p.repair == Repair::Recovery)
    {
        recover(specs, options, &kernel)?;
        let after = look_twice(specs, &options.state_dir, &*kernel)?;
        outcome.repaired = gone(&outcome.problems, &after);
        outcome.problems = after;
    }
    Ok(outcome)
}

fn look_twice(
    specs: &[PoolSpec],
    state_dir: &Path,
    kernel: &dyn Kernel,
) -> Result<Vec<ReportedProblem>, Error> {
    let first = check(&Survey::take(specs, state_dir, kernel)?);
    if first.is_empty() {
        return Ok(first);
    }
    std::thread::sleep(MOMENT);
    let second = check(&Survey::take(specs, state_dir, kernel)?);
    Ok(lasting(&first, second))
}

/// Opens the readable pools, which repairs them, and closes them again. Leaves out missing pools,
/// because opening one might create it.
fn recover(
    specs: &[PoolSpec],
    options: &PoolOptions,
    kernel: &Arc<dyn Kernel>,
) -> Result<(), Error> {
    let survey = Survey::take(specs, &options.state_dir, &**kernel)?;
    let specs: Vec<PoolSpec> = specs
        .iter()
        .filter(|spec| survey.contents().any(|(pool, _)| pool.name == spec.name))
        .cloned()
        .collect();
    // A pool that does not open now is not repaired: a driver has it open, or it can't be mounted.
    Ok(Pools::open(&specs, options.clone(), kernel.clone())?.complete()?)
}

/// The problems that no longer exist.
fn gone(before: &[ReportedProblem], after: &[ReportedProblem]) -> Vec<ReportedProblem> {
    before
        .iter()
        .filter(|b| {
            !after
                .iter()
                .any(|a| a.kind == b.kind && a.object == b.object)
        })
        .cloned()
        .collect()
}

/// Formats the outcome as lines of text.
fn lines(outcome: &FsckReport, repair: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for problem in &outcome.repaired {
        lines.push(headline(problem, paint(GOOD, "repaired")));
    }
    for problem in &outcome.problems {
        let word = paint(severity(problem.severity), problem.severity.as_str());
        lines.push(headline(problem, word));
        let advice = match &problem.repair {
            Repair::Person(how) => format!("to do: {how}"),
            Repair::Itself(how) => how.clone(),
            Repair::Recovery if repair => "to do: see the driver's log for why it stays".to_owned(),
            Repair::Recovery => "the driver's next start repairs it, or --repair".to_owned(),
        };
        lines.push(paint(QUIET, &format!("         {advice}")));
    }
    let left = outcome.problems.iter().filter(|p| p.counts()).count();
    lines.push(match (left, outcome.repaired.len()) {
        (0, 0) => "Records, disk and kernel agree.".to_owned(),
        (0, n) => format!(
            "{} repaired; records, disk and kernel agree.",
            count(n, "problem")
        ),
        (left, 0) => format!("{}.", count(left, "problem")),
        (left, n) => format!("{}, and {n} repaired.", count(left, "problem")),
    });
    lines
}

fn headline(problem: &ReportedProblem, word: String) -> String {
    let pool = problem.pool.as_ref();
    let pool = pool.map(|p| format!(" (pool {p})")).unwrap_or_default();
    format!("{word}: {}{pool}: {}", problem.object, problem.what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(severity: Severity, object: &str) -> ReportedProblem {
        ReportedProblem {
            severity,
            kind: ProblemKind::Leftover,
            object: object.to_owned(),
            pool: Some("p".to_owned()),
            what: "it is left".to_owned(),
            repair: Repair::Recovery,
        }
    }

    #[test]
    fn exit_codes() {
        let note = || problem(Severity::Note, "n");
        let error = || problem(Severity::Error, "e");
        for (problems, repaired, code) in [
            (vec![], vec![], CLEAN),
            (vec![note()], vec![], CLEAN),
            (vec![note(), error()], vec![], PROBLEMS),
            (vec![], vec![error()], REPAIRED),
            (vec![note()], vec![error()], REPAIRED),
            (vec![], vec![note()], CLEAN),
            (vec![error()], vec![error()], PROBLEMS),
        ] {
            let outcome = FsckReport { problems, repaired };
            assert_eq!(outcome.code(), code, "{outcome:?}");
        }
    }

    #[test]
    fn repaired_is_what_is_no_longer_there() {
        let (a, b) = (problem(Severity::Error, "a"), problem(Severity::Error, "b"));
        let changed = ReportedProblem {
            what: "it is left still".to_owned(),
            ..b.clone()
        };
        assert_eq!(gone(&[a.clone(), b], &[changed]), [a]);
    }

    #[test]
    fn in_words() {
        let outcome = FsckReport {
            problems: vec![problem(Severity::Warning, "a")],
            repaired: vec![problem(Severity::Error, "b")],
        };
        let lines_of_all = lines(&outcome, true);
        let text: Vec<_> = lines_of_all
            .iter()
            .map(|line| terminal::plain(line))
            .collect();
        assert_eq!(
            text,
            [
                "repaired: b (pool p): it is left",
                "warning: a (pool p): it is left",
                "         to do: see the driver's log for why it stays",
                "1 problem, and 1 repaired.",
            ]
        );
        let clean = lines(&FsckReport::default(), false);
        assert_eq!(clean, ["Records, disk and kernel agree."]);
    }
}
