//! `powercut`: cuts the power of claims, deletes the pods that use them, and lets the next pods find
//! what a machine that crashed would have left.

use std::collections::BTreeSet;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use futures::future::join_all;
use hostloop_api_objects::claim_fault::{ClaimFault, FaultKind, NONE};
use hostloop_terminal::color::{GOOD, QUIET, paint};
use hostloop_terminal::humanize::count;
use hostloop_terminal::terminal;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt};
use tokio::time::{Instant, sleep};

use super::api::{self, ApiError};
use super::cluster::Cluster;
use super::dry_run::{DryRun, DryRunArgs};
use super::fault::{
    self, AwaitedFault, ClaimArgs, FaultProgress, FaultRow, FaultStatus, INTERVAL, KnownEvents,
    SelectionError, WaitArgs,
};
use super::output::{self, OutputArgs};
use super::volume_objects::pods_of;

const ABOUT: &str = "\
What it does:
  1. Each claim asks for the fault powercut, all at the same time, and the command waits until each \
     has it. What was not synced is lost, and from then on pods see I/O errors.
  2. With --delete-pods, it deletes the pods that use the claims, and waits until they are gone.
  3. It takes the faults away. The next pods mount the volumes again, which replays the journals.

What it is not:
  - One instant for all claims: each is cut within milliseconds of its own request. What spans \
    several volumes may be cut between them, as by a disk that fails before the machine does.
  - A disk that lies: what it has completed since its last flush stays. On a fault disk with a write \
    cache, kubectl hostloop fault set CLAIM powercut,loss=all loses it.
  - A fault of the node: only these volumes have it, and only if the driver has --enable-faults.

Pods of a Deployment are replaced before they have ended. Their successors then keep the old mount, \
and the volume needs a restage: scale to 0 first, and up again afterwards. A StatefulSet replaces a \
pod once it is gone.

Examples:
  The crash of a whole StatefulSet, which makes its pods again:
    kubectl hostloop powercut -l app=db --delete-pods

  The cut alone. Delete the pods yourself, and then: kubectl hostloop fault clear data
    kubectl hostloop powercut data";

/// Arguments of `powercut`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ABOUT)]
pub struct Args {
    #[command(flatten)]
    claims: ClaimArgs,

    /// Then delete the pods that use the claims, so that the next ones mount the volumes again
    #[arg(long)]
    delete_pods: bool,

    /// With --delete-pods: end the pods within a second
    #[arg(long, requires = "delete_pods")]
    now: bool,

    /// With --delete-pods: delete the pods' objects at once (grace period 0). Their successors may come
    /// before the containers have ended, and then keep the old mount
    #[arg(long, requires = "delete_pods", conflicts_with = "now")]
    force: bool,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    dry_run: DryRunArgs,
}

/// Why `powercut` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// There are no such claims.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// Claims have no volume that could lose power.
    #[error("claims without a volume: {0}; wait until they are bound, or leave them out")]
    Unbound(String),
    /// Some of the claims were not cut, so it would not be the crash of all.
    #[error(
        "claims that may have kept their power: {0}; the column MESSAGE says why. No claim asks for the cut \
         any more, and no pod was deleted. Delete the pods of those that were cut"
    )]
    NotCut(String),
    #[error(
        "pods that do not end within {} s: {pods}. Once they are gone: kubectl hostloop fault clear \
         {claims}",
        .timeout.as_secs()
    )]
    PodsStay {
        pods: String,
        claims: String,
        timeout: Duration,
    },
    /// Other pods came before the old ones had ended.
    #[error(
        "claims with a volume that stays stopped: {0}; other pods use it without a new mount, as those of a \
         Deployment do. Scale it to 0, wait until its pods are gone, and scale it up again"
    )]
    StillMounted(String),
    /// The faults of claims have perhaps not ended.
    #[error("claims with a fault that may go on: {0}; the column MESSAGE says why")]
    NotEnded(String),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

impl Args {
    /// The grace period of the pods in seconds, if it is not their own.
    fn grace(&self) -> Option<u32> {
        if self.force {
            Some(0)
        } else {
            self.now.then_some(1)
        }
    }

    /// Prints a line for people.
    fn say(&self, line: String) -> io::Result<()> {
        if self.output.is_text() && !self.output.no_headers {
            terminal::print(&[line])?;
        }
        Ok(())
    }

    /// Says that a step is done.
    fn say_done(&self, step: &str) -> io::Result<()> {
        self.say(format!("{} {step}", paint(GOOD, "✓")))
    }
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    let ClaimArgs { claims, selector } = &args.claims;
    let claims = fault::selected(cluster, claims, selector.as_deref()).await?;
    let unbound = claims.iter().filter(|claim| !fault::is_bound(claim));
    let unbound = output::names(unbound.map(ResourceExt::name_any));
    if !unbound.is_empty() {
        return Err(Error::Unbound(unbound));
    }
    let cuts: Vec<ClaimFault> = claims.iter().map(next_cut).collect();
    if args.dry_run.how != DryRun::None {
        return plan(args, cluster, &claims, &cuts).await;
    }
    if !args.wait.wait && !args.delete_pods {
        ask(cluster, &claims, &cuts, false).await?;
        let asked = FaultStatus::new(FaultProgress::Asked, "the claim asks for this fault now");
        return Ok(print(
            args,
            &rows(&claims, &cuts, vec![asked; claims.len()]),
        )?);
    }
    let said = cut(args, cluster, &claims, &cuts).await?;
    args.say_done(&is_cut(claims.len()))?;
    if !args.delete_pods {
        let code = print(args, &rows(&claims, &cuts, said))?;
        return next_steps(args, &claims, code);
    }
    let pods = users(cluster, &claims).await?;
    delete(args, cluster, &pods, false).await?;
    if !args.wait.wait {
        let code = print(args, &rows(&claims, &cuts, said))?;
        return next_steps(args, &claims, code);
    }
    until_gone(args, cluster, &claims, &pods).await?;
    args.say_done(&are_deleted(pods.len()))?;
    let said = restore(args, cluster, &claims, said).await?;
    end(args, &rows(&claims, &cuts, said))
}

/// The cut that a claim is to ask for: another one than it has had.
fn next_cut(claim: &PersistentVolumeClaim) -> ClaimFault {
    let before = fault::annotation(claim).map(ClaimFault::parse);
    let seed = match before {
        Some(Ok(ClaimFault {
            kind: FaultKind::Powercut,
            seed,
            ..
        })) => seed.wrapping_add(1),
        _ => 0,
    };
    ClaimFault {
        kind: FaultKind::Powercut,
        file: None,
        lasts: None,
        seed,
    }
}

/// Says what would be done.
async fn plan(
    args: &Args,
    cluster: &Cluster,
    claims: &[PersistentVolumeClaim],
    cuts: &[ClaimFault],
) -> Result<ExitCode, Error> {
    if args.dry_run.how == DryRun::Server {
        ask(cluster, claims, cuts, true).await?;
    }
    let pods = if args.delete_pods {
        users(cluster, claims).await?
    } else {
        Vec::new()
    };
    if args.dry_run.how == DryRun::Server {
        delete(args, cluster, &pods, true).await?;
    }
    let planned: Vec<FaultStatus> = claims
        .iter()
        .map(|claim| {
            let pods = pods_of(&pods, claim).into_iter().map(ResourceExt::name_any);
            let message = match &*output::names(pods) {
                "" => "the claim would ask for this fault".to_owned(),
                pods => format!("the claim would ask for this fault, and {pods} be deleted"),
            };
            FaultStatus::new(FaultProgress::DryRun, message)
        })
        .collect();
    Ok(print(args, &rows(claims, cuts, planned))?)
}

/// Sets the annotations, all at the same time.
async fn ask(
    cluster: &Cluster,
    claims: &[PersistentVolumeClaim],
    cuts: &[ClaimFault],
    dry_run: bool,
) -> Result<(), ApiError> {
    let faults = claims.iter().zip(cuts);
    let faults = faults.map(|(claim, cut)| (claim, Some(cut.to_string())));
    fault::annotate(cluster, faults, dry_run).await
}

/// Removes the annotations. `claims` are as they were before the cut: one that asked for none does so
/// again, or it would get the fault of its class.
async fn forget(cluster: &Cluster, claims: &[PersistentVolumeClaim]) -> Result<(), ApiError> {
    let faults = claims.iter().map(|claim| {
        let none = fault::asks_for_none(claim).then(|| NONE.to_owned());
        (claim, none)
    });
    fault::annotate(cluster, faults, false).await
}

/// Cuts the power of all claims, or of none for good: if one of them is not cut, none asks for it any
/// more. Returns what the driver says of each.
async fn cut(
    args: &Args,
    cluster: &Cluster,
    claims: &[PersistentVolumeClaim],
    cuts: &[ClaimFault],
) -> Result<Vec<FaultStatus>, Error> {
    let known = KnownEvents::read(cluster).await?;
    let asked = match ask(cluster, claims, cuts, false).await {
        Ok(()) => {
            let awaited: Vec<(&PersistentVolumeClaim, Result<AwaitedFault, FaultStatus>)> = claims
                .iter()
                .zip(cuts)
                .map(|(claim, cut)| (claim, Ok(AwaitedFault::Begin(cut.clone()))))
                .collect();
            fault::until_said(cluster, &awaited, &known, args.wait.timeout).await
        }
        Err(error) => Err(error),
    };
    let said = match asked {
        Ok(said) => said,
        Err(error) => {
            // The first error is the one that a person has to know.
            let _ = forget(cluster, claims).await;
            return Err(error.into());
        }
    };
    let rows = rows(claims, cuts, said.clone());
    let failed = FaultRow::names_of(&rows, FaultProgress::is_failure);
    if failed.is_empty() {
        return Ok(said);
    }
    forget(cluster, claims).await?;
    print(args, &rows)?;
    Err(Error::NotCut(failed))
}

/// The pods that use the claims and have not ended.
async fn users(cluster: &Cluster, claims: &[PersistentVolumeClaim]) -> Result<Vec<Pod>, ApiError> {
    let pods: Vec<Pod> = api::list_all(&cluster.own()).await?;
    let mut names = BTreeSet::new();
    for claim in claims {
        names.extend(pods_of(&pods, claim).into_iter().map(ResourceExt::name_any));
    }
    let mut using = pods;
    using.retain(|pod| names.contains(&pod.name_any()));
    Ok(using)
}

/// Deletes the pods, all at the same time.
async fn delete(
    args: &Args,
    cluster: &Cluster,
    pods: &[Pod],
    dry_run: bool,
) -> Result<(), ApiError> {
    let api: Api<Pod> = cluster.own();
    let deletions = pods
        .iter()
        .map(|pod| delete_pod(&api, pod, args.grace(), dry_run));
    join_all(deletions).await.into_iter().collect()
}

async fn delete_pod(
    api: &Api<Pod>,
    pod: &Pod,
    grace: Option<u32>,
    dry_run: bool,
) -> Result<(), ApiError> {
    api::delete(api, &pod.name_any(), pod.uid(), grace, dry_run).await
}

/// Waits until none of the pods is left.
async fn until_gone(
    args: &Args,
    cluster: &Cluster,
    claims: &[PersistentVolumeClaim],
    pods: &[Pod],
) -> Result<(), Error> {
    let uids: BTreeSet<Option<String>> = pods.iter().map(ResourceExt::uid).collect();
    let started = Instant::now();
    loop {
        let is_late = started.elapsed() >= args.wait.timeout;
        let listed = api::list_all::<Pod>(&cluster.own()).await;
        let mut left = match listed {
            Err(error) if error.is_transient() && !is_late => {
                sleep(INTERVAL).await;
                continue;
            }
            listed => listed?,
        };
        left.retain(|pod| uids.contains(&pod.uid()));
        if left.is_empty() {
            return Ok(());
        }
        if is_late {
            let claims: Vec<String> = claims.iter().map(ResourceExt::name_any).collect();
            return Err(Error::PodsStay {
                pods: output::names(left.iter().map(ResourceExt::name_any)),
                claims: claims.join(" "),
                timeout: args.wait.timeout,
            });
        }
        sleep(INTERVAL).await;
    }
}

/// Takes the faults away, and waits for the end of those that were in force. Returns what is known of
/// each claim; `said` is what was said of its cut.
async fn restore(
    args: &Args,
    cluster: &Cluster,
    claims: &[PersistentVolumeClaim],
    said: Vec<FaultStatus>,
) -> Result<Vec<FaultStatus>, Error> {
    let known = KnownEvents::read(cluster).await?;
    forget(cluster, claims).await?;
    let left = left(cluster, claims).await?;
    let awaited: Vec<_> = claims
        .iter()
        .zip(said)
        .map(|(claim, said)| (claim, awaited_end(claim, said, &left)))
        .collect();
    let timeout = args.wait.timeout;
    Ok(fault::until_said(cluster, &awaited, &known, timeout).await?)
}

/// What is awaited of a claim after its cut, of which this was said. `Err` has what is known if no
/// event can follow.
fn awaited_end(
    claim: &PersistentVolumeClaim,
    said: FaultStatus,
    left: &BTreeSet<Option<String>>,
) -> Result<AwaitedFault, FaultStatus> {
    if !left.contains(&claim.uid()) {
        Err(FaultStatus::new(
            FaultProgress::Cleared,
            "the claim is gone with its pod",
        ))
    } else if said.progress == FaultProgress::Injected {
        Ok(AwaitedFault::End)
    } else {
        Err(said)
    }
}

/// The UIDs of the claims that are still there and stay: an ephemeral one ends with its pod.
async fn left(
    cluster: &Cluster,
    claims: &[PersistentVolumeClaim],
) -> Result<BTreeSet<Option<String>>, ApiError> {
    let api: Api<PersistentVolumeClaim> = cluster.own();
    let mut left = BTreeSet::new();
    for claim in claims {
        let found = api::get(&api, &claim.name_any()).await?;
        let stays = found.filter(|found| found.metadata.deletion_timestamp.is_none());
        left.extend(stays.map(|found| found.uid()));
    }
    Ok(left)
}

/// Prints the rows at the end of it all, and fails if not every claim works again.
fn end(args: &Args, rows: &[FaultRow]) -> Result<ExitCode, Error> {
    let code = print(args, rows)?;
    let stopped = FaultRow::names_of(rows, |state| state == FaultProgress::NeedsRestage);
    if !stopped.is_empty() {
        return Err(Error::StillMounted(stopped));
    }
    let unknown = FaultRow::names_of(rows, FaultProgress::is_failure);
    if !unknown.is_empty() {
        return Err(Error::NotEnded(unknown));
    }
    Ok(code)
}

/// What is said of the cut.
fn is_cut(claims: usize) -> String {
    format!("The power of {} is cut", count(claims, "claim"))
}

/// What is said of the pods that are gone.
fn are_deleted(pods: usize) -> String {
    format!("{} deleted", count(pods, "pod"))
}

/// Says what is left to do, for people.
fn next_steps(
    args: &Args,
    claims: &[PersistentVolumeClaim],
    code: ExitCode,
) -> Result<ExitCode, Error> {
    let claims: Vec<String> = claims.iter().map(ResourceExt::name_any).collect();
    let pods = if args.delete_pods {
        "once the pods are gone"
    } else {
        "delete the pods that use them, and once they are gone"
    };
    let next = format!(
        "Next: {pods}, kubectl hostloop fault clear {}",
        claims.join(" ")
    );
    args.say(paint(QUIET, &next))?;
    Ok(code)
}

fn rows(
    claims: &[PersistentVolumeClaim],
    cuts: &[ClaimFault],
    said: Vec<FaultStatus>,
) -> Vec<FaultRow> {
    let cuts = claims.iter().zip(cuts);
    cuts.zip(said)
        .map(|((claim, cut), said)| FaultRow::new(claim, Some(cut.to_string()), said))
        .collect()
}

fn print(args: &Args, rows: &[FaultRow]) -> io::Result<ExitCode> {
    fault::print(rows, &args.output, false)
}

#[cfg(test)]
mod tests;
