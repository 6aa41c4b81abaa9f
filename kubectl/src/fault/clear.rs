//! `fault clear`: claims ask for no fault any more.

use std::process::ExitCode;

use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim};

use super::Error;
use super::annotation::{annotate, annotation, asks_for_none};
use super::claims::{ClaimArgs, selected};
use super::fault_status::{
    AwaitedFault, FaultProgress, FaultStatus, KnownEvents, fault_events, last_said,
};
use super::rows::{FaultRow, print};
use super::wait::{WaitArgs, until_said};
use crate::cluster::Cluster;
use crate::dry_run::{DryRun, DryRunArgs};
use crate::output::OutputArgs;

/// Arguments of `fault clear`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "A filesystem that failed to write stays stopped after its fault, and the state is \
                  needs-restage: delete the pods that use the claim. To restart their containers is \
                  not enough."
)]
pub struct Args {
    #[command(flatten)]
    claims: ClaimArgs,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    dry_run: DryRunArgs,
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    let ClaimArgs { claims, selector } = &args.claims;
    let claims = selected(cluster, claims, selector.as_deref()).await?;
    let said = if args.dry_run.how == DryRun::None {
        clear(args, cluster, &claims).await?
    } else {
        if args.dry_run.how == DryRun::Server {
            remove(cluster, &claims, true).await?;
        }
        let planned = FaultStatus::new(FaultProgress::DryRun, "the claim would ask for no fault");
        vec![planned; claims.len()]
    };
    let rows: Vec<FaultRow> = claims
        .iter()
        .zip(said)
        .map(|(claim, said)| FaultRow::new(claim, annotation(claim), said))
        .collect();
    let code = print(&rows, &args.output, false)?;
    let unknown = FaultRow::names_of(&rows, FaultProgress::is_failure);
    if unknown.is_empty() {
        Ok(code)
    } else {
        Err(Error::NotEnded(unknown))
    }
}

/// Removes the annotations of the claims that ask for a fault. Without `none`, a claim would get the
/// fault of its class.
async fn remove(
    cluster: &Cluster,
    claims: &[PersistentVolumeClaim],
    dry_run: bool,
) -> Result<(), Error> {
    let asking = claims.iter().filter(|claim| asks_for_one(claim));
    let faults: Vec<_> = asking.map(|claim| (claim, None)).collect();
    Ok(annotate(cluster, &faults, dry_run).await?)
}

/// Removes the annotations, and waits for what the driver says. Returns that in the order of the
/// claims.
async fn clear(
    args: &Args,
    cluster: &Cluster,
    claims: &[PersistentVolumeClaim],
) -> Result<Vec<FaultStatus>, Error> {
    let cleared = FaultStatus::new(FaultProgress::Cleared, "the claim asks for no fault");
    if !args.wait.wait {
        remove(cluster, claims, false).await?;
        return Ok(vec![cleared; claims.len()]);
    }
    let before = fault_events(cluster, Some(&cluster.namespace)).await?;
    let known = KnownEvents::of(&before);
    let all: Vec<_> = before.iter().collect();
    remove(cluster, claims, false).await?;
    let awaited: Vec<_> = claims
        .iter()
        .map(|claim| {
            let awaited = if has_an_end(claim, &all) {
                Ok(AwaitedFault::End)
            } else {
                Err(cleared.clone())
            };
            (claim, awaited)
        })
        .collect();
    Ok(until_said(cluster, &awaited, &known, args.wait.timeout).await?)
}

/// True if a claim asks for a fault by its annotation.
fn asks_for_one(claim: &PersistentVolumeClaim) -> bool {
    annotation(claim).is_some() && !asks_for_none(claim)
}

/// True if the driver will say that the fault of a claim has ended: it has one, as far as events say.
/// Of a fault that never began, or that is over, it says nothing more.
fn has_an_end(claim: &PersistentVolumeClaim, events: &[&Event]) -> bool {
    let last = last_said(events, claim).map(|said| said.progress);
    asks_for_one(claim) && matches!(last, Some(FaultProgress::Injected | FaultProgress::Failed))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::test_objects::read;

    #[rstest]
    #[case::in_force(Some("gone"), Some("FaultInjected"), true)]
    #[case::may_be_in_force(Some("gone"), Some("FaultFailed"), true)]
    #[case::never_began(Some("gone"), Some("FaultWaiting"), false)]
    #[case::refused(Some("gone"), Some("FaultRefused"), false)]
    #[case::over(Some("gone"), Some("FaultHealed"), false)]
    #[case::stopped(Some("gone"), Some("FaultNeedsRestage"), false)]
    #[case::nothing_is_known(Some("gone"), None, false)]
    #[case::no_annotation(None, Some("FaultInjected"), false)]
    #[case::asks_for_none(Some("none"), Some("FaultInjected"), false)]
    fn ends(#[case] fault: Option<&str>, #[case] reason: Option<&str>, #[case] expected: bool) {
        let claim = read(json!({"metadata": {
            "uid": "u",
            "annotations": fault.map(|fault| json!({"hostloop.csi.dev/fault": fault})),
        }}));
        let event: Event = read(json!({"involvedObject": {"uid": "u"}, "reason": reason}));
        assert_eq!(has_an_end(&claim, &[&event]), expected);
    }
}
