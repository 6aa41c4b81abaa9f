//! The faults that claims of a node may ask for.

use hostloop_controllers::api::claim_fault::FaultKind;
use hostloop_report::node_faults::OfferedFault;

use crate::kernel::{FsType, Kernel};

/// The faults that only volumes on fault disks can have.
const OF_FAULT_DISKS: [&str; 4] = ["eio", "enospc", "slow", "powercut,loss"];

/// Each fault that volumes on any disk can have, and why none of this node can have it.
pub fn offered(kernel: &dyn Kernel) -> Vec<OfferedFault> {
    FaultKind::WORDS
        .into_iter()
        .map(|word| (word, word.trim_end_matches('=')))
        .filter(|(_, fault)| !OF_FAULT_DISKS.contains(fault))
        .map(|(word, fault)| OfferedFault {
            fault: fault.to_owned(),
            obstacle: obstacle(kernel, word),
        })
        .collect()
}

/// Each fault that only volumes on fault disks can have. `obstacle` is why there are none of these
/// disks on this node.
pub fn offered_by_fault_disks(obstacle: Option<&str>) -> Vec<OfferedFault> {
    OF_FAULT_DISKS
        .into_iter()
        .map(|fault| OfferedFault {
            fault: fault.to_owned(),
            obstacle: obstacle.map(str::to_owned),
        })
        .collect()
}

fn obstacle(kernel: &dyn Kernel, word: &str) -> Option<String> {
    if word != "readonly" {
        return None;
    }
    // An ext4 meets its error by a write to /sys.
    match kernel.check_device_attributes() {
        Err(error) => Some(format!(
            "the driver's container can't write to /sys, which a privileged one can: {error}"
        )),
        Ok(()) => kernel.offers(FsType::Ext4).err(),
    }
}

#[cfg(test)]
mod tests {
    use hostloop_controllers::api::claim_fault::ClaimFault;

    use super::*;

    #[test]
    fn faults_of_fault_disks_are_those_that_no_other_disk_has() {
        for word in FaultKind::WORDS {
            let fault = word.trim_end_matches('=');
            let text = match word {
                "eio-from=" => "eio-from=4096",
                "slow=" => "slow=1ms",
                whole => whole,
            };
            let kind = ClaimFault::parse(text).unwrap().kind;
            let is_listed = OF_FAULT_DISKS.contains(&fault);
            assert_eq!(is_listed, kind.is_of_fault_disks(), "{word}");
        }
        let cut = ClaimFault::parse("powercut,loss=all").unwrap();
        assert!(cut.kind.is_of_fault_disks());
    }
}
