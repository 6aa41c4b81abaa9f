//! Memory and CPU time of a fleet's processes.

use hostloop_test::fleet::Fleet;
use serde::{Deserialize, Serialize};

use crate::process::{cpu_seconds, mib};

/// What the controllers of a fleet take.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Taken {
    /// A process's resident memory, in the mean.
    pub(super) resident_mib: f64,
    /// The largest resident memory of a process.
    pub(super) resident_max_mib: f64,
    /// A process's own memory and its share of what it shares with others, in the mean.
    pub(super) proportional_mib: f64,
    /// The most that a process ever had resident, in the mean.
    pub(super) peak_mib: f64,
    /// The most that the leader, which sees everything, ever had resident.
    pub(super) peak_max_mib: f64,
    /// The most that any other process ever had resident.
    pub(super) peak_next_mib: f64,
    /// CPU time of all processes together, in seconds.
    pub(super) cpu_seconds: f64,
}

impl Taken {
    /// What the pods of all nodes take, and the peak and the CPU time of the leader's pod.
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
