//! `explore`: cuts the power of a claim's volume many times under the person's load, and lets the
//! person's Job check what each cut has left.
//!
//! The node takes all cuts in one burst, without objects of the API server. Then a few at a time become
//! claims, by snapshots with contents that name them. A cut that passes is deleted. One that does not stays as
//! a snapshot.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use hostloop_api_objects::duration;
use hostloop_api_objects::snapshots::VolumeSnapshot;
use hostloop_report::cuts::{MAX_CUTS, MAX_EVERY, MIN_EVERY};
use hostloop_terminal::color::{GOOD, QUIET, paint};
use hostloop_terminal::humanize::count;
use hostloop_terminal::terminal;
use k8s_openapi::api::batch::v1::Job;
use kube::Api;
use kube::api::ListParams;
use uuid::Uuid;

use super::api::{self, ApiError};
use super::cluster::Cluster;
use super::fault::SelectionError;
use super::output::{self, OutputArgs};
use super::platform::interrupted;
use super::progress_line::ProgressLine;

mod check_template;
mod clean_up;
mod cut_check;
mod cut_node;
mod cut_objects;
mod explored_claim;
mod job_end;
mod order;
mod render;
mod report;
mod steps;
#[cfg(test)]
mod testing;

use check_template::{CheckTemplate, TemplateError};
use clean_up::CleanUpError;
use cut_node::{CutNode, PodNode};
use cut_objects::{ExplorationId, KEPT};
use explored_claim::ExploredClaim;
pub(crate) use report::ExplorationReport;
use report::Explored;
use steps::Steps;

/// The number of the checks that may run at the same time.
const MAX_PARALLEL: u64 = 64;

const ABOUT: &str = "\
What it does:
  1. The node takes the cuts in one burst, while your software writes to the claim. A cut is what \
     a power cut at that moment would have left. The volume and its pods go on.
  2. A few at a time, cuts become claims, and a Job checks each: it passes if the Job completes. The \
     order is that of the seed.
  3. A cut that passes is deleted. One that does not stays as VolumeSnapshot \
     explore-CLAIM-EXPLORATION-NUMBER, and the report has a claim that shows its content again.

The file of --check has one Job. Its pod has a volume with `claimName: $(CLAIM)`, which becomes the \
claim of the cut, and its containers have the variables CLAIM and CUT, the number of the cut. \
deploy/examples/explore has some. It needs a driver with --enable-faults, a pool with reflinks (XFS, \
btrfs or an image) and a snapshot controller.

Examples:
  kubectl hostloop explore data --cuts 200 --every 100ms --check check.yaml
  kubectl hostloop explore data --check check.yaml --seed 7 --fail-fast -o json

Ctrl-C deletes what is not kept. After a kill, do that by: kubectl hostloop explore --clean-up";

/// Arguments of `explore`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ABOUT)]
pub struct Args {
    /// The claim, while a pod uses it
    #[arg(value_name = "CLAIM", required_unless_present = "clean_up")]
    claim: Option<String>,

    /// The file with the Job that checks a cut
    #[arg(long, value_name = "FILE", required_unless_present = "clean_up")]
    check: Option<PathBuf>,

    /// How many cuts are taken, up to 1000
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 100,
        value_parser = RangedU64ValueParser::<u32>::new().range(1..=u64::from(MAX_CUTS))
    )]
    cuts: u32,

    /// The time from one cut to the next, from 10ms to 1m
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = interval)]
    every: Duration,

    /// How many checks run at the same time
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 4,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=MAX_PARALLEL)
    )]
    parallel: usize,

    /// Draws the order of the checks [default: a random one, which the report has]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// End with the first cut that does not pass
    #[arg(long)]
    fail_fast: bool,

    /// How long each check may take, and each deletion
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration::parse)]
    timeout: Duration,

    /// In place of an exploration: delete what those of the namespace have left, and end those that run.
    /// Kept snapshots stay
    #[arg(
        long,
        conflicts_with_all = ["claim", "check", "cuts", "every", "parallel", "seed", "fail_fast"]
    )]
    clean_up: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Why `explore` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Selection(#[from] SelectionError),
    #[error("--check: {}: {source}", .file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("--check: {}: {why}; docs/power-cuts.md has an example", .file.display())]
    Template {
        file: PathBuf,
        #[source]
        why: TemplateError,
    },
    #[error("claim {0} has no volume yet: create the pod that uses it")]
    Unbound(String),
    #[error("claim {0}: its PersistentVolume is missing, or is another driver's")]
    NoVolume(String),
    #[error(
        "claim {0} has no StorageClass that exists: create it, because its cuts become claims of it"
    )]
    NoClass(String),
    #[error(
        "StorageClass {0} retains its volumes, so each check would leave one: use a class with \
         reclaimPolicy Delete"
    )]
    Retained(String),
    #[error("no node has the volume of claim {claim}{}", because(.silent))]
    NoNode { claim: String, silent: String },
    /// The node has taken no cut.
    #[error("no cut was taken: {0}")]
    NotTaken(String),
    /// The node names the exploration of others.
    #[error(
        "the node names exploration {0} as a new one, and there are objects of it: nothing was checked \
         or deleted. The node's driver is not to be trusted"
    )]
    OtherExploration(String),
    /// A check could not be made.
    #[error("the exploration ended early: {0}")]
    Check(String),
    #[error("stopped by {0}; the report has the cuts that were checked")]
    Interrupted(&'static str),
    #[error(
        "{failed} of {checked} checked cuts have lost what the check looks for; their snapshots are kept"
    )]
    Failed { failed: usize, checked: usize },
    #[error(
        "the check of {0} has not begun, so the exploration ended early; the column WHY says why, and the \
         snapshot is kept"
    )]
    Unknown(String),
    #[error("{taken} of {requested} cuts were taken: {why}")]
    Fewer {
        taken: usize,
        requested: u32,
        why: String,
    },
    #[error(
        "not everything was deleted: {0}. Once the reason is gone: kubectl hostloop explore --clean-up"
    )]
    CleanUp(#[from] CleanUpError),
    /// The cuts of the exploration may be left on the node.
    #[error("cuts may be left: {0}. Once the reason is gone: kubectl hostloop explore --clean-up")]
    CutsLeft(String),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

/// The reason at the end of a message, if there is one.
fn because(why: &str) -> String {
    if why.is_empty() {
        String::new()
    } else {
        format!(" ({why})")
    }
}

/// The time between two cuts.
fn interval(word: &str) -> Result<Duration, String> {
    let interval = duration::parse(word)?;
    if (MIN_EVERY..=MAX_EVERY).contains(&interval) {
        Ok(interval)
    } else {
        Err("cuts are taken every 10ms to 1m".to_owned())
    }
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    let (Some(claim), Some(file)) = (&args.claim, &args.check) else {
        return run_clean_up(args, cluster).await;
    };
    let template = read_template(file)?;
    let claim = ExploredClaim::find(cluster, claim).await?;
    let pod = claim.node_pod(cluster).await?;
    let node = PodNode { cluster, pod: &pod };
    explore(args, cluster, &claim, &template, &node).await
}

fn read_template(file: &Path) -> Result<CheckTemplate, Error> {
    let text = std::fs::read_to_string(file).map_err(|source| Error::Read {
        file: file.to_owned(),
        source,
    })?;
    CheckTemplate::parse(&text).map_err(|why| Error::Template {
        file: file.to_owned(),
        why,
    })
}

/// `--clean-up`.
async fn run_clean_up(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    let cleaned = clean_up::clean_up(cluster, args.timeout).await?;
    let lines = match args.output.document(&cleaned, || cleaned.names())? {
        Some(lines) => lines,
        None => {
            let deleted = cleaned_up(cleaned.objects, cleaned.cuts);
            let mut lines = vec![format!("{} {deleted}", paint(GOOD, "✓"))];
            if !cleaned.kept.is_empty() {
                lines.push(paint(
                    QUIET,
                    &kept_note(cleaned.kept.len(), &cleaned.namespace),
                ));
            }
            lines
        }
    };
    Ok(output::end(terminal::print(&lines))?)
}

/// What is said of a clean-up.
fn cleaned_up(objects: usize, cuts: usize) -> String {
    format!(
        "{} and {} deleted",
        count(objects, "object"),
        count(cuts, "cut")
    )
}

/// What is said of the snapshots that a clean-up leaves.
fn kept_note(snapshots: usize, namespace: &str) -> String {
    let kept = count(snapshots, "snapshot");
    format!("{kept} kept. To delete: kubectl -n {namespace} delete volumesnapshots -l {KEPT}")
}

/// Explores a claim: cuts, checks, cleans up, and says what was found.
async fn explore(
    args: &Args,
    cluster: &Cluster,
    claim: &ExploredClaim,
    template: &CheckTemplate,
    node: &impl CutNode,
) -> Result<ExitCode, Error> {
    prove_rights(cluster, claim, template).await?;
    let steps = Steps {
        args,
        cluster,
        claim,
        template,
        node,
        seed: args.seed.unwrap_or_else(random_seed),
        found: RefCell::default(),
        progress: RefCell::new(ProgressLine::new()),
    };
    let ended = tokio::select! {
        ended = steps.run() => ended,
        signal = interrupted() => Err(Error::Interrupted(signal)),
    };
    let cleaned = tokio::select! {
        cleaned = steps.clean_up() => cleaned,
        signal = interrupted() => Err(Error::CutsLeft(format!("stopped by {signal}"))),
    };
    steps.progress.borrow_mut().clear();
    let found = steps.found.take();
    let Some(exploration) = &found.exploration else {
        // Nothing was begun.
        ended?;
        return Ok(ExitCode::SUCCESS);
    };
    let problems = [ended.as_ref().err(), cleaned.as_ref().err()];
    let explored = Explored {
        claim,
        node: node.node_name(),
        exploration,
        seed: steps.seed,
        requested: args.cuts,
        every_ns: u64::try_from(args.every.as_nanos()).unwrap_or(u64::MAX),
        taken: &found.taken,
        ended: found.ended.as_ref(),
        checked: &found.checked,
        problems: problems
            .into_iter()
            .flatten()
            .map(ToString::to_string)
            .collect(),
    };
    let report = explored.report();
    let code = print(args, &report)?;
    ended?;
    cleaned?;
    verdict(&report)?;
    Ok(code)
}

/// What a report is for the exit code.
fn verdict(report: &ExplorationReport) -> Result<(), Error> {
    if report.failed > 0 {
        return Err(Error::Failed {
            failed: report.failed,
            checked: report.checked(),
        });
    }
    if report.unknown > 0 {
        return Err(Error::Unknown(count(report.unknown, "cut")));
    }
    match &report.burst_ended {
        None => Ok(()),
        Some(why) => Err(Error::Fewer {
            taken: report.taken,
            requested: report.requested,
            why: why.clone(),
        }),
    }
}

fn print(args: &Args, report: &ExplorationReport) -> io::Result<ExitCode> {
    let lines = match args.output.document(report, || report.names())? {
        Some(lines) => lines,
        None => render::text(report, args.output.text_form())?,
    };
    output::end(terminal::print(&lines))
}

/// A seed that is short enough to be typed.
fn random_seed() -> u64 {
    let (seed, ..) = Uuid::new_v4().as_fields();
    u64::from(seed)
}

/// What would fail for each cut fails before the first one: a kind that is not served, a missing right,
/// and a Job that the API server refuses.
async fn prove_rights(
    cluster: &Cluster,
    claim: &ExploredClaim,
    template: &CheckTemplate,
) -> Result<(), Error> {
    let snapshots: Api<VolumeSnapshot> = cluster.own();
    api::list(&snapshots, ListParams::default().labels(KEPT)).await?;
    let jobs: Api<Job> = cluster.own();
    let name = format!("explore-{}", Uuid::new_v4().simple());
    let job = template.job(&name, &claim.namespace, &ExplorationId::of_dry_run(), 0);
    api::create(&jobs, &job, true).await?;
    Ok(())
}

#[cfg(test)]
mod tests;
