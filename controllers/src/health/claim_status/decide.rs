//! Decides what the status of a claim is to say of its volume's health. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::RESYNC;
use crate::api::claim_health::{HealthCondition, HealthStatus};
use crate::api::message::cut;
use crate::health::decide::{HealthProblem, REPEAT};

/// The statuses that the API server knows, the most severe one first.
const STATUSES: [&str; 3] = ["DataLoss", "Inaccessible", "Degraded"];

/// The limits of the API server. It refuses a whole status that exceeds one.
const MAX_CONDITIONS: usize = 16;
const MAX_REASON: usize = 256;
const MAX_MESSAGE: usize = 1024;

/// What a claim has in its status.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KnownHealth {
    /// At least one condition, in order.
    pub(super) conditions: Vec<HealthCondition>,
    /// When they were read or written.
    pub(super) since: Instant,
}

/// The conditions for a claim, in order: one for each status and reason, the most severe ones if
/// there are too many. Those that the API server would refuse are left out.
pub(super) fn conditions(problems: &[HealthProblem]) -> Vec<HealthCondition> {
    let mut kinds: BTreeMap<(usize, &str), &HealthProblem> = BTreeMap::new();
    for problem in problems {
        let severity = STATUSES.iter().position(|one| *one == problem.status);
        if let Some(severity) = severity.filter(|_| is_reason(&problem.reason)) {
            kinds
                .entry((severity, problem.reason.as_str()))
                .or_insert(problem);
        }
    }
    let most_severe = kinds.into_values().take(MAX_CONDITIONS);
    let conditions = most_severe.map(|problem| HealthCondition {
        status: problem.status.to_owned(),
        reason: problem.reason.clone(),
        message: cut(&problem.message, MAX_MESSAGE),
    });
    sorted(conditions.collect())
}

/// The conditions of a claim's status, in order.
pub(super) fn conditions_of(status: Option<&HealthStatus>) -> Vec<HealthCondition> {
    sorted(status.map_or_else(Vec::new, |status| status.health_conditions.clone()))
}

fn sorted(mut conditions: Vec<HealthCondition>) -> Vec<HealthCondition> {
    conditions.sort();
    conditions
}

/// True for a reason that the API server takes: letters, digits, `_`, `,` and `:`, from a letter to
/// anything but the last two.
fn is_reason(reason: &str) -> bool {
    reason.len() <= MAX_REASON
        && reason.starts_with(|first: char| first.is_ascii_alphabetic())
        && !reason.ends_with([',', ':'])
        && reason
            .chars()
            .all(|one| one.is_ascii_alphanumeric() || matches!(one, '_' | ',' | ':'))
}

/// True if the status of a claim with this health must be written because this is `found`. Another
/// message alone is written after a while: many contain numbers that change all the time.
pub(super) fn is_due(known: Option<&KnownHealth>, found: &[HealthCondition], now: Instant) -> bool {
    let Some(known) = known else {
        return !found.is_empty();
    };
    let is_old = now.duration_since(known.since) >= REPEAT;
    known.conditions != found && (is_old || !are_of_same_kinds(&known.conditions, found))
}

/// The merge patch that gives a claim with this status the conditions that are `found`; `None` if it
/// has them. The time of the last transition is that of the kinds of conditions, not of messages.
pub(super) fn patch(
    has: Option<&HealthStatus>,
    found: &[HealthCondition],
    now: Timestamp,
) -> Option<Value> {
    let before = conditions_of(has);
    if before == found {
        return None;
    }
    let mut health = json!({"healthConditions": found});
    if found.is_empty() {
        health = Value::Null;
    } else if !are_of_same_kinds(&before, found) {
        health["lastTransitionTime"] = json!(Time(now));
    }
    Some(json!({"healthStatus": health}))
}

/// True if these conditions, in order, differ at most in their messages.
fn are_of_same_kinds(some: &[HealthCondition], others: &[HealthCondition]) -> bool {
    let kinds = some.iter().map(|one| (&one.status, &one.reason));
    kinds.eq(others.iter().map(|one| (&one.status, &one.reason)))
}

/// True if this happened less than [`RESYNC`] ago.
pub(super) fn is_recent(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| now.duration_since(at) < RESYNC)
}

#[cfg(test)]
mod tests;
