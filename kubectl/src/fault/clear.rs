//! `fault clear`: claims ask for no fault any more.

use std::process::ExitCode;

use hostloop_api_objects::claim_fault::NONE;
use hostloop_api_objects::constants::FAULT;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim};

use super::Error;
use super::annotation::{annotate, annotation, asks_for_none};
use super::claims::{ClaimArgs, selected};
use super::class_fault::{ClassFault, of_classes};
use super::fault_status::{
    AwaitedFault, FaultProgress, FaultStatus, KnownEvents, fault_events, last_said, last_stop,
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
                  not enough.\n\
                  If the class of a claim has a fault, the claim gets the annotation none."
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
            let faulty = faulty_claims(&claims, of_classes(cluster, &claims).await?, &[]);
            write(cluster, &faulty, true).await?;
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

/// Changes the annotations, and waits for what the driver says. Returns that in the order of the
/// claims.
async fn clear(
    args: &Args,
    cluster: &Cluster,
    claims: &[PersistentVolumeClaim],
) -> Result<Vec<FaultStatus>, Error> {
    let classes = of_classes(cluster, claims).await?;
    if !args.wait.wait {
        let faulty = faulty_claims(claims, classes, &[]);
        write(cluster, &faulty, false).await?;
        return Ok(faulty.iter().map(FaultyClaim::cleared).collect());
    }
    let before = fault_events(cluster, Some(&cluster.namespace)).await?;
    let known = KnownEvents::of(&before);
    let all: Vec<_> = before.iter().collect();
    let faulty = faulty_claims(claims, classes, &all);
    write(cluster, &faulty, false).await?;
    let awaited: Vec<_> = faulty
        .iter()
        .map(|faulty| (faulty.claim, faulty.awaited()))
        .collect();
    Ok(until_said(cluster, &awaited, &known, args.wait.timeout).await?)
}

/// Changes the annotations of the claims that have or may get a fault.
async fn write(cluster: &Cluster, faulty: &[FaultyClaim<'_>], dry_run: bool) -> Result<(), Error> {
    let faults = faulty.iter().filter_map(|faulty| match faulty.change() {
        AnnotationChange::Keep => None,
        AnnotationChange::Remove => Some((faulty.claim, None)),
        AnnotationChange::WriteNone => Some((faulty.claim, Some(NONE.to_owned()))),
    });
    Ok(annotate(cluster, faults, dry_run).await?)
}

/// The claims with what their classes have, and what events say.
fn faulty_claims<'c>(
    claims: &'c [PersistentVolumeClaim],
    classes: Vec<ClassFault>,
    events: &[&Event],
) -> Vec<FaultyClaim<'c>> {
    claims
        .iter()
        .zip(classes)
        .map(|(claim, class)| FaultyClaim {
            claim,
            class,
            last: last_said(events, claim).map(|said| said.progress),
            stopped: last_stop(events, claim),
        })
        .collect()
}

/// What becomes of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnnotationChange {
    /// It asks for no fault already.
    Keep,
    Remove,
    /// Without the annotation, the claim would have the fault of its class.
    WriteNone,
}

/// A claim that is to ask for no fault.
struct FaultyClaim<'c> {
    claim: &'c PersistentVolumeClaim,
    class: ClassFault,
    /// What the last event says of its fault.
    last: Option<FaultProgress>,
    /// What an event says of an earlier fault, if that has left the filesystem stopped.
    stopped: Option<FaultStatus>,
}

impl FaultyClaim<'_> {
    fn change(&self) -> AnnotationChange {
        let has_annotation = annotation(self.claim).is_some();
        let has_fault_of_class = match self.class {
            ClassFault::Present => true,
            ClassFault::Absent => false,
            // Without an annotation, what the event is about is the fault of the class.
            ClassFault::Unknown => {
                !has_annotation && (self.is_in_force() || self.last == Some(FaultProgress::Waiting))
            }
        };
        if asks_for_none(self.claim) {
            AnnotationChange::Keep
        } else if has_fault_of_class {
            AnnotationChange::WriteNone
        } else if has_annotation {
            AnnotationChange::Remove
        } else {
            AnnotationChange::Keep
        }
    }

    /// True if the volume has the fault, as far as events say.
    fn is_in_force(&self) -> bool {
        matches!(
            self.last,
            Some(FaultProgress::Injected | FaultProgress::Failed)
        )
    }

    /// The end of the fault, if the driver will say it. Of a fault that never began, or that is over,
    /// it says nothing more: `Err` has what is known then.
    fn awaited(&self) -> Result<AwaitedFault, FaultStatus> {
        if self.is_in_force() && self.change() != AnnotationChange::Keep {
            Ok(AwaitedFault::End)
        } else {
            Err(self.cleared())
        }
    }

    /// What is said of the claim without an event.
    fn cleared(&self) -> FaultStatus {
        if let Some(stopped) = &self.stopped {
            return stopped.clone();
        }
        let may_have_one_of_class =
            self.class == ClassFault::Unknown && self.change() != AnnotationChange::WriteNone;
        let message = if may_have_one_of_class && !asks_for_none(self.claim) {
            format!(
                "the claim asks for no fault itself, and you may not read its class. If that has one, \
                 end it by the annotation {FAULT}={NONE} of the claim"
            )
        } else {
            "the claim asks for no fault".to_owned()
        };
        FaultStatus::new(FaultProgress::Cleared, message)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::test_objects::read;

    #[rstest]
    #[case::of_the_claim(Some("gone"), ClassFault::Absent, None, AnnotationChange::Remove)]
    #[case::of_the_class(None, ClassFault::Present, None, AnnotationChange::WriteNone)]
    #[case::of_both(Some("gone"), ClassFault::Present, None, AnnotationChange::WriteNone)]
    #[case::none(Some("none"), ClassFault::Present, None, AnnotationChange::Keep)]
    #[case::nothing(None, ClassFault::Absent, None, AnnotationChange::Keep)]
    #[case::nothing_is_known(None, ClassFault::Unknown, None, AnnotationChange::Keep)]
    #[case::of_an_unknown_class(
        None,
        ClassFault::Unknown,
        Some(FaultProgress::Injected),
        AnnotationChange::WriteNone
    )]
    #[case::of_an_unknown_class_later(
        None,
        ClassFault::Unknown,
        Some(FaultProgress::Waiting),
        AnnotationChange::WriteNone
    )]
    #[case::of_the_claim_alone(
        Some("gone"),
        ClassFault::Unknown,
        Some(FaultProgress::Injected),
        AnnotationChange::Remove
    )]
    fn changes(
        #[case] fault: Option<&str>,
        #[case] class: ClassFault,
        #[case] last: Option<FaultProgress>,
        #[case] expected: AnnotationChange,
    ) {
        let claim = claim(fault);
        let faulty = FaultyClaim {
            claim: &claim,
            class,
            last,
            stopped: None,
        };
        assert_eq!(faulty.change(), expected);
    }

    #[rstest]
    #[case::in_force(Some("gone"), Some(FaultProgress::Injected), true)]
    #[case::may_be_in_force(Some("gone"), Some(FaultProgress::Failed), true)]
    #[case::never_began(Some("gone"), Some(FaultProgress::Waiting), false)]
    #[case::refused(Some("gone"), Some(FaultProgress::Refused), false)]
    #[case::over(Some("gone"), Some(FaultProgress::Healed), false)]
    #[case::stopped(Some("gone"), Some(FaultProgress::NeedsRestage), false)]
    #[case::nothing_is_known(Some("gone"), None, false)]
    #[case::no_annotation(None, Some(FaultProgress::Injected), false)]
    #[case::asks_for_none(Some("none"), Some(FaultProgress::Injected), false)]
    fn ends(
        #[case] fault: Option<&str>,
        #[case] last: Option<FaultProgress>,
        #[case] expected: bool,
    ) {
        let claim = claim(fault);
        let faulty = FaultyClaim {
            claim: &claim,
            class: ClassFault::Absent,
            last,
            stopped: None,
        };
        assert_eq!(faulty.awaited().is_ok(), expected);
    }

    #[rstest]
    #[case::of_the_claim(Some("gone"), ClassFault::Absent, "the claim asks for no fault")]
    #[case::of_the_class(None, ClassFault::Present, "the claim asks for no fault")]
    #[case::unknown(
        None,
        ClassFault::Unknown,
        "the claim asks for no fault itself, and you may"
    )]
    #[case::none(Some("none"), ClassFault::Unknown, "the claim asks for no fault")]
    fn sentences(#[case] fault: Option<&str>, #[case] class: ClassFault, #[case] expected: &str) {
        let claim = claim(fault);
        let faulty = FaultyClaim {
            claim: &claim,
            class,
            last: None,
            stopped: None,
        };
        let said = faulty.cleared().message;
        assert!(said.starts_with(expected), "{said}");
        assert_eq!(said.contains("fault=none"), expected.contains("itself"));
    }

    #[test]
    fn what_a_fault_has_left_is_said_again() {
        let claim = claim(None);
        let event = |second: u32, reason: &str| {
            read::<Event>(json!({
                "involvedObject": {"uid": "u"}, "reason": reason, "message": reason,
                "lastTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
            }))
        };
        let stopped = event(1, "FaultNeedsRestage");
        let refused = event(2, "FaultRefused");
        let healed = event(3, "FaultHealed");
        for (events, expected) in [
            (vec![&stopped], FaultProgress::NeedsRestage),
            (vec![&stopped, &refused], FaultProgress::NeedsRestage),
            (vec![&stopped, &refused, &healed], FaultProgress::Cleared),
            (vec![], FaultProgress::Cleared),
        ] {
            let claims = std::slice::from_ref(&claim);
            let faulty = faulty_claims(claims, vec![ClassFault::Absent], &events);
            assert_eq!(faulty[0].cleared().progress, expected, "{events:?}");
        }
    }

    fn claim(fault: Option<&str>) -> PersistentVolumeClaim {
        read(json!({"metadata": {
            "uid": "u",
            "annotations": fault.map(|fault| json!({"hostloop.csi.dev/fault": fault})),
        }}))
    }
}
