//! `fault set`: claims ask for a fault.

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use hostloop_api_objects::claim_fault::{ClaimFault, FaultKind};
use hostloop_api_objects::duration;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim};

use super::Error;
use super::annotation::{annotate, annotation};
use super::claims::{is_bound, selected};
use super::fault_status::{
    AwaitedFault, FaultProgress, FaultStatus, KnownEvents, answer, fault_events,
};
use super::rows::{FaultRow, print};
use super::wait::{WaitArgs, until_said};
use crate::cluster::Cluster;
use crate::dry_run::{DryRun, DryRunArgs};
use crate::output::OutputArgs;

const EXAMPLES: &str = "\
Examples:
  The disk of a claim is gone for five minutes:
    kubectl hostloop fault set data gone --for 5m

  All I/O behind the first GiB of these claims fails:
    kubectl hostloop fault set -l app=db eio-from=1Gi

  On a fault disk, writes of a file's first 64 KiB fail:
    kubectl hostloop fault set data eio,op=write,file=db/log,range=0-64Ki

Faults: gone, eio-from=OFFSET, powercut, frozen, readonly (ext4), full; on a fault disk also eio, \
enospc, slow=DELAY and powercut,loss=LOSS. A claim that has another fault gets this one instead. \
docs/faults.md has what a pod sees of each, and how it heals. The driver needs --enable-faults.

Fields of eio, enospc and slow, each behind a comma:
  op=OPERATION   read, write, flush or discard; all of them without it
  share=NUMBER   of these, the part that fails or waits, such as 0.01
  file=PATH      of these, those of one file of an ext4 or XFS, by its path in the volume
  range=FROM-TO  with file: of these, those of some of its bytes, such as 4Ki-64Ki
LOSS of what the write cache (faultDiskCache) has not flushed: all, some, torn-blocks or \
torn-sectors.";

/// Arguments of `fault set`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    override_usage = "kubectl hostloop fault set [OPTIONS] <CLAIM...|-l LABELS> <FAULT>"
)]
pub struct Args {
    /// The claims, if -l does not select them, and at last the fault, such as gone
    #[arg(
        value_name = "CLAIM|FAULT",
        required = true,
        num_args = 1..,
        hide_possible_values = true,
        value_parser = ClaimOrFault
    )]
    words: Vec<String>,

    /// In place of names: the claims with these labels, such as app=web,tier!=cache
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,

    /// How long the fault lasts, such as 30s or 5m [default: 10m; of frozen, and of slow=DELAY
    /// beyond a second, 30s]
    #[arg(long = "for", value_name = "DURATION", value_parser = is_duration)]
    lasts: Option<String>,

    /// Another seed repeats a fault that is over
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    dry_run: DryRunArgs,
}

/// Takes any word, and tells shells the faults.
#[derive(Clone, Copy, Debug)]
struct ClaimOrFault;

impl TypedValueParser for ClaimOrFault {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(
            FaultKind::WORDS.into_iter().map(PossibleValue::new),
        ))
    }
}

/// A duration as it is typed: the fault has it in its own form.
pub(super) fn is_duration(word: &str) -> Result<String, String> {
    duration::parse(word)?;
    Ok(word.to_owned())
}

impl Args {
    /// The claims' names, and the fault as the driver reads it.
    fn read(&self) -> Result<(&[String], ClaimFault), Error> {
        let Some((word, names)) = self.words.split_last() else {
            return Err(Error::NoClaim(String::new()));
        };
        if self.selector.is_none() && names.is_empty() {
            return Err(Error::NoClaim(word.clone()));
        }
        if self.selector.is_some() && !names.is_empty() {
            return Err(Error::NamesAndLabels(names.join(" ")));
        }
        let mut text = word.clone();
        if let Some(lasts) = &self.lasts {
            text.push_str(&format!(",for={lasts}"));
        }
        if let Some(seed) = self.seed {
            text.push_str(&format!(",seed={seed}"));
        }
        match ClaimFault::parse(&text) {
            Ok(fault) => Ok((names, fault)),
            Err(why) => Err(Error::Fault { fault: text, why }),
        }
    }
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    let (names, fault) = args.read()?;
    let claims = selected(cluster, names, args.selector.as_deref()).await?;
    let said = if args.dry_run.how == DryRun::None {
        set(args, cluster, &claims, &fault).await?
    } else {
        if args.dry_run.how == DryRun::Server {
            ask(cluster, &claims, &fault, true).await?;
        }
        let planned = FaultStatus::new(FaultProgress::DryRun, "the claim would ask for this fault");
        vec![planned; claims.len()]
    };
    let rows: Vec<FaultRow> = claims
        .iter()
        .zip(said)
        .map(|(claim, said)| FaultRow::new(claim, Some(fault.to_string()), said))
        .collect();
    let code = print(&rows, &args.output, false)?;
    let without = FaultRow::names_of(&rows, FaultProgress::is_failure);
    if without.is_empty() {
        Ok(code)
    } else {
        Err(Error::NotInForce(without))
    }
}

/// Sets the annotations.
async fn ask(
    cluster: &Cluster,
    claims: &[PersistentVolumeClaim],
    fault: &ClaimFault,
    dry_run: bool,
) -> Result<(), Error> {
    let faults = claims.iter().map(|claim| (claim, Some(fault.to_string())));
    Ok(annotate(cluster, faults, dry_run).await?)
}

/// Sets the annotations, and waits for what the driver says. Returns that in the order of the claims.
async fn set(
    args: &Args,
    cluster: &Cluster,
    claims: &[PersistentVolumeClaim],
    fault: &ClaimFault,
) -> Result<Vec<FaultStatus>, Error> {
    if !args.wait.wait {
        ask(cluster, claims, fault, false).await?;
        let asked = FaultStatus::new(FaultProgress::Asked, "the claim asks for this fault now");
        return Ok(vec![asked; claims.len()]);
    }
    // Before the change, so that a missing right changes nothing.
    let before = fault_events(cluster, Some(&cluster.namespace)).await?;
    let known = KnownEvents::of(&before);
    let all: Vec<_> = before.iter().collect();
    ask(cluster, claims, fault, false).await?;
    let awaited: Vec<_> = claims
        .iter()
        .map(|claim| (claim, awaited(claim, fault, &all)))
        .collect();
    Ok(until_said(cluster, &awaited, &known, args.wait.timeout).await?)
}

/// What is awaited of a claim. It and the events are as they were before the change. `Err` has what is
/// known if no event can follow: the annotation has no effect yet, or is the same as before.
fn awaited(
    claim: &PersistentVolumeClaim,
    fault: &ClaimFault,
    events: &[&Event],
) -> Result<AwaitedFault, FaultStatus> {
    let begin = AwaitedFault::Begin(fault.clone());
    let before = annotation(claim).map(ClaimFault::parse);
    if !is_bound(claim) {
        Err(FaultStatus::new(
            FaultProgress::Asked,
            "the claim has no volume yet, and the fault begins once it has one",
        ))
    } else if matches!(&before, Some(Ok(before)) if before == fault) {
        Err(answer(events, claim, &begin).unwrap_or_else(|| {
            FaultStatus::new(
                FaultProgress::Asked,
                "the claim asks for this fault already; another --seed repeats one that is over",
            )
        }))
    } else {
        Ok(begin)
    }
}

#[cfg(test)]
mod tests {
    use hostloop_report::fault_disk::{Loss, Operation};
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::Command;
    use crate::fault::{self, FaultCommand};
    use crate::test_objects::{parsed, read};

    #[test]
    fn the_help_has_every_fault_and_every_field() {
        let operations = Operation::ALL.map(Operation::name);
        let losses = Loss::ALL.map(Loss::name);
        let words = FaultKind::WORDS.into_iter().chain(operations).chain(losses);
        for word in words.chain(["op=", "share=", "file=", "range=", "loss="]) {
            assert!(EXAMPLES.contains(word), "{word}");
        }
    }

    fn args(line: &str) -> Args {
        match parsed(&format!("fault set {line}")).unwrap().command {
            Command::Fault(fault::Args {
                command: FaultCommand::Set(args),
            }) => args,
            other => panic!("{other:?}"),
        }
    }

    #[rstest]
    #[case::plain("data gone", "data", "gone,for=600s")]
    #[case::several("data logs full", "data logs", "full,for=600s")]
    #[case::time("data gone --for 5m", "data", "gone,for=300s")]
    #[case::time_between("data --for 1m30s gone", "data", "gone,for=90s")]
    #[case::offset(
        "data eio-from=1Gi --seed 7",
        "data",
        "eio-from=1073741824,for=600s,seed=7"
    )]
    #[case::whole("data gone,for=5m", "data", "gone,for=300s")]
    #[case::instant("data powercut", "data", "powercut")]
    #[case::labels("-l app=db frozen", "", "frozen,for=30s")]
    fn faults(#[case] line: &str, #[case] names: &str, #[case] fault: &str) {
        let args = args(line);
        let (claims, read) = args.read().unwrap();
        assert_eq!(claims.join(" "), names);
        assert_eq!(read.to_string(), fault);
    }

    #[rstest]
    #[case::unknown("data speed", "speed: unknown fault \"speed\"; there are gone")]
    #[case::long(
        "data frozen --for 6m",
        "frozen,for=6m: for: \"6m\" is longer than 300 s"
    )]
    #[case::instant(
        "data powercut --for 1s",
        "powercut,for=1s: for: \"1s\" has no meaning"
    )]
    #[case::twice(
        "data gone,for=1m --for 2m",
        "gone,for=1m,for=2m: for: it is there twice"
    )]
    #[case::no_claim("gone", "name a claim before the fault gone, or select")]
    #[case::both(
        "data gone -l app=db",
        "-l selects claims by their labels: leave out data"
    )]
    fn refused(#[case] line: &str, #[case] expected: &str) {
        let error = args(line).read().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }

    #[rstest]
    #[case::new("Bound", None, None)]
    #[case::another("Bound", Some("full"), None)]
    #[case::longer("Bound", Some("gone,for=5m"), None)]
    #[case::wrong("Bound", Some("gnoe"), None)]
    #[case::same(
        "Bound",
        Some("gone,for=10m"),
        Some("the claim asks for this fault already")
    )]
    #[case::unbound("Pending", None, Some("the claim has no volume yet"))]
    fn waits(#[case] phase: &str, #[case] before: Option<&str>, #[case] known: Option<&str>) {
        let claim = read(json!({"status": {"phase": phase}, "metadata": {
            "annotations": before.map(|before| json!({"hostloop.csi.dev/fault": before})),
        }}));
        let fault = ClaimFault::parse("gone").unwrap();
        let said = awaited(&claim, &fault, &[]).err().map(|said| said.message);
        assert_eq!(said.is_some(), known.is_some(), "{said:?}");
        let said = said.unwrap_or_default();
        assert!(said.starts_with(known.unwrap_or_default()), "{said}");
    }
}
