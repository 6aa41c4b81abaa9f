//! Pure checks: they take a survey and return its problems, and read nothing else.

use crate::diagnose::pool::{Lost, PoolFacts, READ_ONLY_TO_DO};
use crate::inspect::inventory::{Contents, PoolSurvey, Survey};

use super::reported_problem::{Kind, Problem, Repair, Severity, person};

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
        problems.extend(pool.lost.as_ref().map(|lost| pool_lost(pool, lost)));
        match &pool.state {
            Err(_) if pool.lost.is_some() => {}
            Err(why) => problems.push(pool_missing(pool, why)),
            Ok(contents) => {
                let mut found = pool_space(pool, contents);
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
        first
            .iter()
            .any(|f| f.kind == p.kind && f.object == p.object && f.what == p.what)
    };
    second.into_iter().filter(seen).collect()
}

fn in_pool(problem: Problem, pool: &PoolSurvey) -> Problem {
    Problem {
        pool: Some(pool.name.clone()),
        ..problem
    }
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

fn pool_lost(pool: &PoolSurvey, lost: &Lost) -> Problem {
    let object = pool.path.display();
    let repair = person(lost.to_do.clone());
    in_pool(
        problem(
            Severity::Error,
            Kind::PoolImageLost,
            object,
            lost.what.clone(),
            repair,
        ),
        pool,
    )
}

/// Problems of the pool's filesystem and of the disks below it. The check does not know how much
/// the driver keeps free: 1 % is too little for every driver.
fn pool_space(pool: &PoolSurvey, contents: &Contents) -> Vec<Problem> {
    let facts = PoolFacts {
        usage: Some(contents.usage),
        sparse: pool.sparse.iter().map(|file| (file.clone(), 0)).collect(),
        ..PoolFacts::default()
    };
    let object = pool.path.display();
    let full = facts.nearly_full().map(|what| {
        let repair = person("free some space, or delete volumes or snapshots");
        problem(
            Severity::Warning,
            Kind::PoolNearlyFull,
            &object,
            what,
            repair,
        )
    });
    let read_only = facts.read_only().map(|what| {
        problem(
            Severity::Error,
            Kind::PoolReadOnly,
            &object,
            what,
            person(READ_ONLY_TO_DO),
        )
    });
    full.into_iter().chain(read_only).collect()
}

fn problem(
    severity: Severity,
    kind: Kind,
    object: impl std::fmt::Display,
    what: impl Into<String>,
    repair: Repair,
) -> Problem {
    Problem {
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
