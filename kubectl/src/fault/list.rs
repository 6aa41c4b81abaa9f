//! `fault list`: the claims that ask for a fault, and what became of it.

use std::process::ExitCode;

use hostloop_api_objects::claim_fault::ClaimFault;
use hostloop_terminal::color::{WARNING, paint};
use hostloop_terminal::terminal;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim};
use kube::api::{Api, ListParams};

use super::Error;
use super::annotation::{annotation, asks_for_none};
use super::fault_status::{AwaitedFault, FaultProgress, FaultStatus, answer, fault_events};
use super::rows::{FaultRow, print};
use crate::api;
use crate::cluster::Cluster;
use crate::output::OutputArgs;

/// Arguments of `fault list`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "The state is what the last event says. The API server keeps events for an hour: \
                  without one, the state is asked. The fault of a class is not listed: kubectl \
                  hostloop describe CLAIM shows it."
)]
pub struct Args {
    /// Show all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,

    /// Only claims with these labels, such as app=web,tier!=cache
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    let namespace = (!args.all_namespaces).then_some(cluster.namespace.as_str());
    let labels = ListParams {
        label_selector: args.selector.clone(),
        ..ListParams::default()
    };
    let claims: Api<PersistentVolumeClaim> = cluster.namespaced(namespace);
    let (claims, events) =
        tokio::join!(api::list(&claims, labels), fault_events(cluster, namespace));
    let claims = claims?;
    let events = events.unwrap_or_else(|error| {
        terminal::warn(&paint(WARNING, &error.to_string()));
        Vec::new()
    });
    let rows = rows(&claims, &events);
    if rows.is_empty() && args.output.is_text() {
        let place = namespace.map_or_else(
            || "any namespace".to_owned(),
            |namespace| format!("namespace {namespace}"),
        );
        terminal::warn(&format!("no claim in {place} asks for a fault"));
    }
    Ok(print(&rows, &args.output, args.all_namespaces)?)
}

/// The rows of the claims that ask for a fault.
fn rows(claims: &[PersistentVolumeClaim], events: &[Event]) -> Vec<FaultRow> {
    let events: Vec<&Event> = events.iter().collect();
    claims
        .iter()
        .filter(|claim| !asks_for_none(claim))
        .filter_map(|claim| {
            let fault = annotation(claim)?;
            Some(FaultRow::new(
                claim,
                Some(fault),
                state(claim, fault, &events),
            ))
        })
        .collect()
}

/// What is known of the fault of a claim.
fn state(claim: &PersistentVolumeClaim, fault: &str, events: &[&Event]) -> FaultStatus {
    match ClaimFault::parse(fault) {
        Ok(fault) => answer(events, claim, &AwaitedFault::Begin(fault))
            .unwrap_or_else(|| FaultStatus::new(FaultProgress::Asked, "no event says more")),
        Err(why) => FaultStatus::new(FaultProgress::Refused, why.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::test_objects::read;

    #[test]
    fn claims_that_ask_for_a_fault() {
        let claim = |name: &str, fault: Option<&str>| {
            read::<PersistentVolumeClaim>(json!({"metadata": {
                "name": name, "uid": name,
                "annotations": fault.map(|fault| json!({"hostloop.csi.dev/fault": fault})),
            }}))
        };
        let claims = [
            claim("healthy", None),
            claim("data", Some("gone,for=5m")),
            claim("late", Some("gone,for=5m")),
            claim("wrong", Some("gnoe")),
            claim("spared", Some("none")),
        ];
        let message = "The volume has the fault gone,for=300s, which";
        let event: Event = read(json!({"involvedObject": {"uid": "data"},
            "reason": "FaultInjected", "message": message}));
        let row = |index: usize, fault: &str, progress, message: &str| {
            FaultRow::new(
                &claims[index],
                Some(fault),
                FaultStatus::new(progress, message),
            )
        };
        let why = "unknown fault \"gnoe\"; there are gone, eio-from=OFFSET, powercut, frozen, \
                   readonly, full, eio, enospc, slow=DELAY";
        assert_eq!(
            rows(&claims, &[event]),
            [
                row(1, "gone,for=5m", FaultProgress::Injected, message),
                row(2, "gone,for=5m", FaultProgress::Asked, "no event says more"),
                row(3, "gnoe", FaultProgress::Refused, why),
            ]
        );
    }
}
