//! Memory and CPU time of a fleet's processes.

use hostloop_test::fleet::Fleet;
use serde::{Deserialize, Serialize};

use crate::process::{cpu_seconds, mib};

/// What the controllers of a fleet take.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Taken {
    /// Resident, in MiB, in the mean.
    pub(super) resident_mib: f64,
    /// The largest.
    pub(super) resident_max_mib: f64,
    /// The proportional share of what a process shares with others, and its own, in the mean.
    pub(super) proportional_mib: f64,
    /// The most it ever had resident, in the mean.
    pub(super) peak_mib: f64,
    /// The most of the leader, which sees everything.
    pub(super) peak_max_mib: f64,
    /// The largest of the others.
    pub(super) peak_next_mib: f64,
    /// Time on a CPU of all together, in seconds.
    pub(super) cpu_seconds: f64,
}

impl Taken {
    /// By the pods of all nodes. Of the leader's pod, only its peak and its CPU time count.
    pub(super) fn by(fleet: &Fleet) -> Taken {
        let pids: Vec<_> = fleet.members.iter().filter_map(|m| m.pid()).collect();
        let count = pids.len().max(1) as f64;
        let mut taken = Taken::default();
        if let Some(leader) = fleet.controller.as_ref().and_then(|pod| pod.pid()) {
            taken.peak_max_mib = mib(leader, "status", "VmHWM:");
            taken.cpu_seconds = cpu_seconds(leader);
        }
        for pid in pids {
            let (resident, peak) = (mib(pid, "status", "VmRSS:"), mib(pid, "status", "VmHWM:"));
            taken.resident_mib += resident / count;
            taken.resident_max_mib = taken.resident_max_mib.max(resident);
            taken.proportional_mib += mib(pid, "smaps_rollup", "Pss:") / count;
            taken.peak_mib += peak / count;
            taken.peak_next_mib = taken.peak_next_mib.max(peak);
            taken.cpu_seconds += cpu_seconds(pid);
        }
        taken
    }
}
