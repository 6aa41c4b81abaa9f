//! What a volume's record asks of its fault disk: the limits, and the rule of a fault.

use std::ops::Range;
use std::time::Duration;

use hostloop_controllers::api::claim_fault::{ClaimFault, DiskOperations, FaultKind};
use hostloop_fault_disk::Settings;
use hostloop_fault_disk::limits::Limits;
use hostloop_fault_disk::rules::{DiskError, Effect, Rule};

use super::VolumeRecord;

impl VolumeRecord {
    /// The settings of the volume's fault disk now.
    pub(crate) fn disk_settings(&self) -> Settings {
        let recorded = self.fault.as_deref().filter(|fault| !fault.over);
        let fault = recorded.and_then(|fault| ClaimFault::parse(&fault.fault).ok());
        let ranges = recorded.map_or(&[][..], |fault| fault.ranges.as_slice());
        let rule = fault.as_ref().and_then(|fault| rule(fault, ranges));
        let mut settings = self.disk_settings_without_fault();
        if let Some(fault) = fault {
            settings.seed = fault.seed;
            if fault.kind == FaultKind::Frozen {
                // A freeze writes back first. Under a limit, that could take longer than the fault.
                settings.limits = Limits::default();
            }
        }
        settings.rules.extend(rule);
        settings
    }

    /// The settings of the volume's fault disk without its fault. A staging begins with these, as it
    /// does without the other faults: a mount must not fail because of one.
    pub(crate) fn disk_settings_without_fault(&self) -> Settings {
        let limits = self.fault_disk.as_ref().map(|disk| disk.limits);
        Settings {
            limits: limits.unwrap_or_default(),
            ..Settings::default()
        }
    }

    /// True if a fault delays operations of the volume's fault disk.
    pub(crate) fn has_slow_disk(&self) -> bool {
        let rules = self.disk_settings().rules;
        self.fault_disk.is_some()
            && rules
                .iter()
                .any(|rule| matches!(rule.effect, Effect::DelayMicros(_)))
    }
}

/// The rule of a fault; `None` for one that is not of single operations. That of a file is for these
/// bytes of the disk. A disk refuses it if there are none.
fn rule(fault: &ClaimFault, ranges: &[Range<u64>]) -> Option<Rule> {
    let (effect, taken) = match fault.kind {
        FaultKind::Eio(taken) => (Effect::Fail(DiskError::Io), taken),
        FaultKind::NoSpace(taken) => (Effect::Fail(DiskError::NoSpace), taken),
        FaultKind::Slow(delay, taken) => (Effect::DelayMicros(micros(delay)), taken),
        _ => return None,
    };
    let DiskOperations { only, share_ppm } = taken;
    Some(Rule {
        operations: only.into_iter().collect(),
        bytes: fault.file.as_ref().map(|_| ranges.to_vec()),
        share: f64::from(share_ppm) / 1e6,
        effect,
    })
}

fn micros(delay: Duration) -> u64 {
    u64::try_from(delay.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use hostloop_fault_disk::rules::Operation;

    use super::*;

    #[test]
    fn faults_of_operations_are_rules_that_a_disk_accepts() {
        use DiskError::{Io, NoSpace};
        for (text, expected) in [
            ("eio", Some((vec![], 1.0, Effect::Fail(Io)))),
            (
                "enospc,op=write,share=0.5",
                Some((vec![Operation::Write], 0.5, Effect::Fail(NoSpace))),
            ),
            (
                "slow=30s,op=flush",
                Some((vec![Operation::Flush], 1.0, Effect::DelayMicros(30_000_000))),
            ),
            ("gone", None),
            ("powercut,loss=all", None),
        ] {
            let made = rule(&ClaimFault::parse(text).unwrap(), &[]);
            let found = made
                .clone()
                .map(|rule| (rule.operations, rule.share, rule.effect));
            assert_eq!(found, expected, "{text}");
            assert!(made.is_none_or(|rule| rule.check().is_ok()), "{text}");
        }
    }

    #[test]
    fn a_fault_of_a_file_is_a_rule_for_its_bytes_and_never_for_the_disk() {
        let fault = ClaimFault::parse("eio,op=read,file=log,range=0-4Ki").unwrap();
        let ranges = [4096..8192, 16_384..20_480];
        let made = rule(&fault, &ranges).unwrap();
        assert_eq!(made.bytes.as_deref(), Some(&ranges[..]));
        assert!(made.check().is_ok());
        assert!(rule(&fault, &[]).unwrap().check().is_err());
        let disk = rule(&ClaimFault::parse("eio").unwrap(), &ranges);
        assert_eq!(disk.unwrap().bytes, None);
    }
}
