//! Determines the size to expand a volume to, which may differ from the current request. An
//! expansion that was begun may still be running in the driver or in kubelet, and must finish
//! first. After a failure the user may have requested a smaller size.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::claim::{
    FILE_SYSTEM_RESIZE_PENDING, allocated, capacity, holds, is_bound, resize_status, size,
    volume_capacity,
};
use crate::api::pvc;

/// The driver is expanding, or it is unknown whether it is.
pub(super) const CONTROLLER_IN_PROGRESS: &str = "ControllerResizeInProgress";
/// The driver can never do this expansion.
pub(super) const CONTROLLER_INFEASIBLE: &str = "ControllerResizeInfeasible";
/// Kubelet must expand next.
pub(super) const NODE_PENDING: &str = "NodeResizePending";
/// Kubelet is expanding.
pub(super) const NODE_IN_PROGRESS: &str = "NodeResizeInProgress";
/// Kubelet can never do this expansion.
pub(super) const NODE_INFEASIBLE: &str = "NodeResizeInfeasible";

/// The inputs of the decision.
#[derive(Clone, Debug)]
pub(super) struct Sizes<'a> {
    /// The size that the user requests.
    pub(super) requested: &'a Quantity,
    /// The capacity of the PV.
    pub(super) volume: Option<&'a Quantity>,
    /// The target of the expansion that was begun.
    pub(super) allocated: Option<&'a Quantity>,
    /// The progress of that expansion.
    pub(super) status: &'a str,
    /// True if the driver's last error was final, so that no expansion is running.
    pub(super) final_error: bool,
    /// True if the condition FileSystemResizePending holds.
    pub(super) node_pending: bool,
    /// True if the driver expands in its controller, not only on the node.
    pub(super) controller_expands: bool,
}

impl<'a> Sizes<'a> {
    /// Reads the sizes of a claim and its PV; `None` if the claim requests no more than it has.
    pub(super) fn of(
        claim: &'a PersistentVolumeClaim,
        volume: &'a PersistentVolume,
        final_error: bool,
        controller_expands: bool,
    ) -> Option<Self> {
        if !is_wanted(claim) {
            return None;
        }
        Some(Sizes {
            requested: pvc::request(claim)?,
            volume: volume_capacity(volume),
            allocated: allocated(claim),
            status: resize_status(claim),
            final_error,
            node_pending: holds(claim, FILE_SYSTEM_RESIZE_PENDING),
            controller_expands,
        })
    }

    /// The size to expand to; `None` if there is nothing to do here.
    pub(super) fn target(&self) -> Option<&'a Quantity> {
        let begun = self.allocated.unwrap_or(self.requested);
        if !self.has_reached(self.requested) {
            return match self.status {
                NODE_INFEASIBLE => Some(begun),
                NODE_PENDING | NODE_IN_PROGRESS => {
                    Some(begun).filter(|begun| !self.has_reached(begun))
                }
                CONTROLLER_IN_PROGRESS if !self.final_error => Some(begun),
                _ => Some(self.requested),
            };
        }
        match self.status {
            NODE_PENDING | NODE_IN_PROGRESS => None,
            NODE_INFEASIBLE if self.controller_expands => Some(begun),
            NODE_INFEASIBLE => Some(self.requested),
            CONTROLLER_IN_PROGRESS if !self.final_error => Some(begun),
            CONTROLLER_IN_PROGRESS | CONTROLLER_INFEASIBLE if self.has_reached(begun) => {
                Some(begun)
            }
            // The PV has more than the claim once a size was rounded up, and what failed for good is
            // not the target of a request that was taken back.
            CONTROLLER_IN_PROGRESS | CONTROLLER_INFEASIBLE => Some(self.requested),
            // Kubelet says that a claim has what was begun, and not what its PV has.
            "" if self.allocated.is_some() && size(self.allocated) < size(Some(self.requested)) => {
                Some(self.requested)
            }
            "" if self.allocated.is_some() => self.allocated,
            // An older API server without this recovery keeps only the condition.
            _ => Some(self.requested).filter(|_| !self.node_pending),
        }
    }

    /// True if the volume has this size at least.
    fn has_reached(&self, quantity: &Quantity) -> bool {
        size(self.volume) >= size(Some(quantity))
    }
}

/// True if a claim requests more than it has.
pub(super) fn is_wanted(claim: &PersistentVolumeClaim) -> bool {
    is_bound(claim) && size(pvc::request(claim)) > size(capacity(claim))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table() {
        use super::{
            CONTROLLER_IN_PROGRESS as CP, CONTROLLER_INFEASIBLE as CI, NODE_IN_PROGRESS as NP,
            NODE_INFEASIBLE as NI, NODE_PENDING as NW,
        };
        let stop = None;
        // PV size, begun target, progress, final error, condition, and expected target. The request
        // is 4.
        for (volume, allocated, status, final_error, node_pending, expected) in [
            // The PV is smaller than the request.
            (2, Some(3), NI, false, false, Some(3)),
            (2, None, NI, false, false, Some(4)),
            (2, Some(3), NW, false, false, Some(3)),
            (3, Some(3), NW, false, false, stop),
            (3, Some(2), NW, false, false, stop),
            (2, None, NW, false, false, Some(4)),
            (2, Some(3), NP, false, false, Some(3)),
            (3, Some(3), NP, false, false, stop),
            (2, Some(3), CP, true, false, Some(4)),
            (2, Some(3), CP, false, false, Some(3)),
            (2, Some(8), CP, false, false, Some(8)),
            (2, Some(8), CP, true, false, Some(4)),
            (2, None, CP, false, false, Some(4)),
            (2, Some(8), CI, false, false, Some(4)),
            (2, Some(3), CI, true, false, Some(4)),
            (2, None, CI, false, false, Some(4)),
            (2, None, "", false, false, Some(4)),
            (2, Some(3), "", false, false, Some(4)),
            (2, None, "", false, true, Some(4)),
            (2, Some(3), "Newer", false, false, Some(4)),
            // The PV has at least the requested size.
            (4, Some(4), NW, false, true, stop),
            (8, Some(8), NW, false, true, stop),
            (4, None, NW, false, false, stop),
            (4, Some(4), NP, false, true, stop),
            (4, Some(4), NI, false, false, Some(4)),
            (8, Some(8), NI, false, false, Some(8)),
            (8, None, NI, false, false, Some(4)),
            (4, Some(4), CP, false, false, Some(4)),
            (8, Some(8), CP, true, false, Some(8)),
            (4, None, CP, false, false, Some(4)),
            (8, Some(8), CI, false, false, Some(8)),
            (4, None, CI, false, false, Some(4)),
            (4, Some(8), CI, false, false, Some(4)),
            (5, Some(8), CI, true, false, Some(4)),
            (4, Some(8), CP, true, false, Some(4)),
            (4, Some(8), CP, false, false, Some(8)),
            (8, Some(8), "", false, false, Some(8)),
            (8, Some(3), "", false, false, Some(4)),
            (8, Some(8), "", false, true, Some(8)),
            (4, None, "", false, true, stop),
            (4, None, "", false, false, Some(4)),
            (4, Some(8), "Newer", false, true, stop),
            (4, Some(8), "Newer", false, false, Some(4)),
        ] {
            let quantity = |gib: i64| Quantity(format!("{gib}Gi"));
            let (asked, volume) = (quantity(4), quantity(volume));
            let allocated = allocated.map(quantity);
            let sizes = Sizes {
                requested: &asked,
                volume: Some(&volume),
                allocated: allocated.as_ref(),
                status,
                final_error,
                node_pending,
                controller_expands: true,
            };
            assert_eq!(sizes.target().cloned(), expected.map(quantity), "{sizes:?}");
        }
    }

    #[test]
    fn where_only_nodes_expand_a_failure_there_is_no_reason_for_more() {
        let (four, eight) = (Quantity("4Gi".to_owned()), Quantity("8Gi".to_owned()));
        let sizes = Sizes {
            requested: &four,
            volume: Some(&eight),
            allocated: Some(&eight),
            status: NODE_INFEASIBLE,
            final_error: false,
            node_pending: false,
            controller_expands: false,
        };
        assert_eq!(sizes.target(), Some(&four));
    }

    #[test]
    fn what_is_wanted() {
        for (phase, volume, requested, capacity, expected) in [
            ("Bound", "pv", "2Gi", "1Gi", true),
            ("Bound", "pv", "1025Mi", "1Gi", true),
            ("Bound", "pv", "1Gi", "1024Mi", false),
            ("Bound", "pv", "1Gi", "2Gi", false),
            ("Bound", "", "2Gi", "1Gi", false),
            ("Lost", "pv", "2Gi", "1Gi", false),
            ("Pending", "", "2Gi", "1Gi", false),
        ] {
            let claim = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "c", "namespace": "ns"},
                "spec": {"volumeName": volume, "resources": {"requests": {"storage": requested}}},
                "status": {"phase": phase, "capacity": {"storage": capacity}},
            }))
            .unwrap();
            assert_eq!(is_wanted(&claim), expected, "{claim:?}");
        }
    }
}
