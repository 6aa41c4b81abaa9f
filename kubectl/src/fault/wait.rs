//! Waits until events say what becomes of faults.

use std::time::Duration;

use clap::ArgAction;
use hostloop_api_objects::duration;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use tokio::time::{Instant, sleep};

use super::fault_status::{
    AwaitedFault, FaultProgress, FaultStatus, KnownEvents, answer, fault_events, last_said,
};
use crate::api::ApiError;
use crate::cluster::Cluster;

/// The time between two looks.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// Whether a command waits, and for how long. The driver sends warnings at once, and other events up
/// to two minutes late.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct WaitArgs {
    /// Wait for the driver's answer, and print it
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true",
        hide_possible_values = true,
        action = ArgAction::Set
    )]
    pub(crate) wait: bool,

    /// How long each wait may take
    #[arg(long, value_name = "DURATION", default_value = "3m", value_parser = duration::parse)]
    pub(crate) timeout: Duration,
}

/// Waits until new events answer for each of the claims, or the time is over. `Err` has what is known
/// of a claim about which no event can follow. Returns what is then known of each, in their order.
pub(crate) async fn until_said(
    cluster: &Cluster,
    claims: &[(&PersistentVolumeClaim, Result<AwaitedFault, FaultStatus>)],
    known: &KnownEvents,
    timeout: Duration,
) -> Result<Vec<FaultStatus>, ApiError> {
    let started = Instant::now();
    loop {
        let is_late = started.elapsed() >= timeout;
        let events = match fault_events(cluster, Some(&cluster.namespace)).await {
            Err(error) if error.is_transient() && !is_late => {
                sleep(INTERVAL).await;
                continue;
            }
            events => events?,
        };
        let new = known.others(&events);
        let answers: Vec<Option<FaultStatus>> = claims
            .iter()
            .map(|(claim, awaited)| match awaited {
                Ok(awaited) => answer(&new, claim, awaited),
                Err(said) => Some(said.clone()),
            })
            .collect();
        if is_late || answers.iter().all(Option::is_some) {
            let found = answers.into_iter().zip(claims);
            return Ok(found
                .map(|(answer, (claim, _))| {
                    answer.unwrap_or_else(|| without_answer(last_said(&new, claim), timeout))
                })
                .collect());
        }
        sleep(INTERVAL).await;
    }
}

/// What is known of a fault after the time is over. `last` is what was said meanwhile.
fn without_answer(last: Option<FaultStatus>, timeout: Duration) -> FaultStatus {
    let seconds = timeout.as_secs();
    match last {
        Some(said) if said.progress == FaultProgress::Failed => said,
        Some(said) => FaultStatus::new(
            FaultProgress::Unknown,
            format!("after {seconds} s, the last event is: {}", said.message),
        ),
        None => FaultStatus::new(
            FaultProgress::Unknown,
            format!(
                "no event within {seconds} s: see whether the volume's node has a running driver, \
                 by kubectl hostloop check"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_without_an_answer() {
        let timeout = Duration::from_secs(7);
        let failed = FaultStatus::new(FaultProgress::Failed, "I/O; it is tried again");
        let healed = FaultStatus::new(FaultProgress::Healed, "m");
        assert_eq!(without_answer(Some(failed.clone()), timeout), failed);
        for (last, message) in [
            (Some(healed), "after 7 s, the last event is: m"),
            (None, "no event within 7 s: see"),
        ] {
            let said = without_answer(last, timeout);
            assert_eq!(said.progress, FaultProgress::Unknown);
            assert!(said.message.starts_with(message), "{}", said.message);
        }
    }
}
