//! Differences that are known and right: what the simulator does not model, and what depends on
//! time alone.

use crate::{Difference, Side};

/// A kind of difference that may be.
pub struct KnownDifference {
    pub what: &'static str,
    /// Why the simulator need not be the same.
    pub why: &'static str,
    is: fn(&Difference) -> bool,
}

/// All of them. A difference of a finding that will be mended does not belong here.
pub static KNOWN: [KnownDifference; 3] = [
    KnownDifference {
        what: "events of kubelet",
        why: "the model of kubelet makes the driver's calls and sends no events",
        is: |difference| sent(difference, &[Side::Cluster], &KUBELETS),
    },
    KnownDifference {
        what: "events while Kubernetes waits",
        why: "whether a controller looks before another one has acted depends on time alone",
        is: |difference| sent(difference, &[Side::Simulator, Side::Cluster], &WAITS),
    },
    KnownDifference {
        what: "events about work that takes long",
        why: "they are sent only for what takes longer than a second, and speeds differ",
        is: |difference| sent(difference, &[Side::Simulator, Side::Cluster], &TAKES_LONG),
    },
];

const KUBELETS: [&str; 15] = [
    "BackOff",
    "Created",
    "Failed",
    "FailedCreatePodSandBox",
    "FailedKillPod",
    "FailedMapVolume",
    "FailedMount",
    "FileSystemResizeSuccessful",
    "Killing",
    "NodeNotReady",
    "Pulled",
    "SandboxChanged",
    "Started",
    "SuccessfulAttachVolume",
    "SuccessfulMountVolume",
];

const WAITS: [&str; 5] = [
    "ExternalExpanding",
    "ExternalProvisioning",
    "FailedScheduling",
    "WaitForPodScheduled",
    "WaitingForSource",
];

const TAKES_LONG: [&str; 1] = ["Provisioning"];

/// The known kind of a difference, if it is of one.
pub fn known(difference: &Difference) -> Option<&'static KnownDifference> {
    KNOWN.iter().find(|known| (known.is)(difference))
}

/// True if one of these sides alone has sent an event with one of these reasons.
fn sent(difference: &Difference, sides: &[Side], reasons: &[&str]) -> bool {
    let mut sent = sides.iter().filter_map(|side| difference.event_of(*side));
    sent.any(|reason| reasons.contains(&reason))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::difference::tests::field;

    #[rstest]
    #[case::of_kubelet(field("event Pulled", "", "sent"), Some("events of kubelet"))]
    #[case::not_of_kubelet(field("event Pulled", "sent", ""), None)]
    #[case::while_waiting(
        field("event FailedScheduling", "sent", ""),
        Some("events while Kubernetes waits")
    )]
    #[case::long_work(
        field("event Provisioning", "", "sent"),
        Some("events about work that takes long")
    )]
    #[case::of_the_driver(field("event ProvisioningFailed", "", "sent"), None)]
    #[case::field(field("phase", "Bound", "Pending"), None)]
    fn only_what_is_listed_is_known(
        #[case] difference: Difference,
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(known(&difference).map(|known| known.what), expected);
    }
}
