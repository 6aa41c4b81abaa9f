//! An exploration for tests.

use hostloop_report::cuts::TakenCut;

use super::cut_check::{CutReason, CutResult};
use super::cut_objects::ExplorationId;
use super::explored_claim::ExploredClaim;
use super::report::{ExplorationReport, Explored};

/// A Job that checks a claim.
pub(super) const TEMPLATE: &str = "\
apiVersion: batch/v1
kind: Job
metadata:
  generateName: check-
  labels: {team: storage}
spec:
  newField: true
  ttlSecondsAfterFinished: 0
  template:
    spec:
      containers:
        - name: check
          image: busybox:1
          env:
            - {name: CUT, value: of the file}
            - {name: MODE, value: strict}
      volumes:
        - name: data
          persistentVolumeClaim: {claimName: $(CLAIM)}
        - name: more
          persistentVolumeClaim: {claimName: other}
        - name: scratch
          emptyDir: {}
";

pub(super) fn exploration() -> ExplorationId {
    ExplorationId::parse("exploration-0123456789abcdef0123456789abcdef").expect("an ID")
}

pub(super) fn explored() -> ExploredClaim {
    ExploredClaim {
        namespace: "demo".to_owned(),
        name: "data".to_owned(),
        class: "hostloop-ext4".to_owned(),
        access_modes: vec!["ReadWriteOnce".to_owned()],
        volume_mode: Some("Filesystem".to_owned()),
        handle: "vol-1".to_owned(),
        node: Some("n1".to_owned()),
    }
}

/// One of the cuts of a burst, every 100 ms.
pub(super) fn cut(number: u32) -> TakenCut {
    let at_ns = 5_000_000_000 + u64::from(number) * 100_000_000;
    TakenCut {
        number,
        snapshot: format!("snap-{number}"),
        size_bytes: 1 << 30,
        monotonic_ns: at_ns,
        taken_ns: at_ns,
        clone_ns: 160_000,
        late_ms: 0,
        promised_bytes: 4096,
    }
}

pub(super) fn reason() -> CutReason {
    CutReason {
        why: "BackoffLimitExceeded: Job has reached the specified backoff limit".to_owned(),
        log: vec!["120 records were acknowledged, and 87 are there".to_owned()],
    }
}

/// A hundred cuts, of which one failed and one could not be checked.
pub(super) fn report() -> ExplorationReport {
    let taken: Vec<TakenCut> = (1..=100).map(cut).collect();
    let checked: Vec<(u32, CutResult)> = (1..=100)
        .rev()
        .map(|number| {
            let result = match number {
                17 => CutResult::Failed(reason()),
                42 => CutResult::Unknown(CutReason {
                    why: "the check has not begun within 300 s; FailedMount: no loop".to_owned(),
                    log: Vec::new(),
                }),
                _ => CutResult::Passed,
            };
            (number, result)
        })
        .collect();
    Explored {
        claim: &explored(),
        node: "n1",
        exploration: &exploration(),
        seed: 42,
        requested: 100,
        every_ns: 100_000_000,
        taken: &taken,
        ended: None,
        checked: &checked,
        problems: Vec::new(),
    }
    .report()
}
