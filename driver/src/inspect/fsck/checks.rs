//! Pure checks: they take a survey and return its problems, and read nothing else.

use hostloop_report::reported_problem::{ProblemKind, Repair, ReportedProblem, Severity, person};

use crate::diagnose::pool::{PoolFacts, pool_problems};
use crate::inspect::inventory::{PoolSurvey, Survey};

mod devices;
mod groups;
mod records;
mod subject;
#[cfg(test)]
pub(crate) mod tests;
mod volumes;

pub(crate) use subject::Subject;

/// Returns all problems, the worst first.
pub fn check(survey: &Survey) -> Vec<ReportedProblem> {
    let mut problems = Vec::new();
    for pool in &survey.pools {
        let subject = Subject::pool(pool);
        let facts = pool_facts(pool);
        let own = pool_problems(&facts).into_iter();
        let mut found: Vec<_> = own.filter_map(|own| subject.report(&own)).collect();
        if let Ok(contents) = &pool.state {
            records::check(pool, contents, &mut found);
            groups::check(survey, pool, contents, &mut found);
            volumes::check(survey, pool, contents, &mut found);
        }
        problems.extend(found.into_iter().map(|p| in_pool(p, pool)));
    }
    records::duplicates(survey, &mut problems);
    devices::check(survey, &mut problems);
    problems.sort_by(|a, b| {
        let by_severity = b.severity.cmp(&a.severity);
        by_severity
            .then_with(|| a.kind.cmp(&b.kind))
            .then_with(|| a.object.cmp(&b.object))
    });
    problems
}

/// What the pool itself is judged by. A pool that has lost its image can't be read for that reason.
/// The check does not know how much the driver keeps free: 1 % is too little for every driver.
fn pool_facts(pool: &PoolSurvey) -> PoolFacts {
    let missing = pool.state.as_ref().err().cloned();
    PoolFacts {
        fault: pool.fault.clone(),
        missing: missing.filter(|_| pool.lost.is_none()),
        lost: pool.lost.clone(),
        usage: pool.state.as_ref().ok().map(|contents| contents.usage),
        sparse: match &pool.state {
            Ok(_) => pool.sparse.iter().map(|file| (file.clone(), 0)).collect(),
            Err(_) => Vec::new(),
        },
        ..PoolFacts::default()
    }
}

/// Returns the problems of the second look that the first look also shows. This leaves out the
/// intermediate states of a running driver.
pub fn lasting(first: &[ReportedProblem], second: Vec<ReportedProblem>) -> Vec<ReportedProblem> {
    second
        .into_iter()
        .filter(|p| {
            first
                .iter()
                .any(|f| f.kind == p.kind && f.object == p.object && f.what == p.what)
        })
        .collect()
}

fn in_pool(problem: ReportedProblem, pool: &PoolSurvey) -> ReportedProblem {
    ReportedProblem {
        pool: Some(pool.name.clone()),
        ..problem
    }
}

fn problem(
    severity: Severity,
    kind: ProblemKind,
    object: impl std::fmt::Display,
    what: impl Into<String>,
    repair: Repair,
) -> ReportedProblem {
    ReportedProblem {
        severity,
        kind,
        object: object.to_string(),
        pool: None,
        what: what.into(),
        repair,
    }
}

/// The severity of a trace that work in progress leaves: a note while a driver runs, else
/// `without`.
fn unless_running(pool: &PoolSurvey, without: Severity) -> Severity {
    match pool.driver {
        Some(_) => Severity::Note,
        None => without,
    }
}
