//! The faults that claims of a node may ask for.

use hostloop_controllers::api::claim_fault::FaultKind;
use hostloop_report::node_faults::OfferedFault;

use crate::kernel::{FsType, Kernel};

/// Each fault, and why no volume of this node can have it.
pub fn offered(kernel: &dyn Kernel) -> Vec<OfferedFault> {
    FaultKind::WORDS
        .into_iter()
        .map(|word| OfferedFault {
            fault: word.trim_end_matches('=').to_owned(),
            obstacle: obstacle(kernel, word),
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
