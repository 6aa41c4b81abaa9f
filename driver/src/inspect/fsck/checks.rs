//! Pure checks: they take a survey and return its problems, and read nothing else.

use crate::inspect::inventory::{PoolSurvey, Survey};

use super::problem::{Kind, Problem, Repair, Severity, person};

mod devices;
mod groups;
mod records;
#[cfg(test)]
pub(crate) mod tests;
pub(super) mod volumes;

/// Returns all problems, the worst first.
pub fn check(survey: &Survey) -> Vec<Problem> {
    let mut problems = Vec::new();
    for pool in &survey.pools {
        match &pool.state {
            Err(why) => problems.push(pool_missing(pool, why)),
            Ok(contents) => {
                let mut found = Vec::new();
                records::check(pool, contents, &mut found);
                groups::check(survey, contents, &mut found);
                volumes::check(survey, pool, contents, &mut found);
                problems.extend(found.into_iter().map(|p| in_pool(p, pool)));
            }
        }
    }
    records::duplicates(survey, &mut problems);
    devices::check(survey, &mut problems);
    problems.sort_by(|a, b| {
        let key = |p: &Problem| (std::cmp::Reverse(p.severity), p.kind);
        key(a).cmp(&key(b)).then_with(|| a.object.cmp(&b.object))
    });
    problems
}

/// Returns the problems of the second look that the first look also shows. This leaves out the
/// intermediate states of a running driver.
pub fn lasting(first: &[Problem], second: Vec<Problem>) -> Vec<Problem> {
    let seen = |p: &Problem| {
        first.iter().any(|f| f.kind == p.kind && f.object == p.object && f.what == p.what)
    };
    second.into_iter().filter(seen).collect()
}

fn in_pool(problem: Problem, pool: &PoolSurvey) -> Problem {
    Problem { pool: Some(pool.name.clone()), ..problem }
}

fn pool_missing(pool: &PoolSurvey, why: &str) -> Problem {
    let problem = problem(
        Severity::Error,
        Kind::PoolMissing,
        pool.path.display(),
        format!("can't be read: {why}"),
        person("bring it back; until then everything in it is answered UNAVAILABLE"),
    );
    in_pool(problem, pool)
}

fn problem(
    severity: Severity,
    kind: Kind,
    object: impl std::fmt::Display,
    what: impl Into<String>,
    repair: Repair,
) -> Problem {
    Problem { severity, kind, object: object.to_string(), pool: None, what: what.into(), repair }
}

/// The severity of a trace that work in progress leaves: a note while a driver runs, else
/// `without`.
fn unless_running(pool: &PoolSurvey, without: Severity) -> Severity {
    match pool.driver {
        Some(_) => Severity::Note,
        None => without,
    }
}
