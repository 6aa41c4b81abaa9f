//! What processes take of the machine, as `/proc` tells it.

use hostloop_test::fleet::Fleet;
use serde::{Deserialize, Serialize};

/// The unit of times in `/proc`: a hundredth of a second on all common machines, whatever the
/// kernel itself counts in.
const TICKS: f64 = 100.0;

/// What the controllers of a fleet take, each or in the mean.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Taken {
    /// Resident, in MiB, in the mean.
    pub(super) resident_mib: f64,
    /// The largest.
    pub(super) resident_max_mib: f64,
    /// Its part of what it shares with others counted once, in the mean.
    pub(super) proportional_mib: f64,
    /// The most it ever had resident, in the mean.
    pub(super) peak_mib: f64,
    /// The largest of those: that of the one that leads, which sees everything.
    pub(super) peak_max_mib: f64,
    /// The second largest: the largest of those that do not lead, if there are any.
    pub(super) peak_next_mib: f64,
    /// Time on a CPU of all together, in seconds.
    pub(super) cpu_seconds: f64,
}

impl Taken {
    /// By all of a fleet's controllers.
    pub(super) fn by(fleet: &Fleet) -> Taken {
        let pids: Vec<_> = fleet.members.iter().filter_map(|m| m.pid()).collect();
        let count = pids.len().max(1) as f64;
        let mut taken = Taken::default();
        for pid in pids {
            let (status, rollup) = (read(pid, "status"), read(pid, "smaps_rollup"));
            let (resident, peak) = (mib(&status, "VmRSS:"), mib(&status, "VmHWM:"));
            taken.resident_mib += resident / count;
            taken.resident_max_mib = taken.resident_max_mib.max(resident);
            taken.proportional_mib += mib(&rollup, "Pss:") / count;
            taken.peak_mib += peak / count;
            taken.peak(peak);
            taken.cpu_seconds += cpu_seconds(&read(pid, "stat"));
        }
        taken
    }

    fn peak(&mut self, peak: f64) {
        if peak > self.peak_max_mib {
            self.peak_next_mib = self.peak_max_mib;
            self.peak_max_mib = peak;
        } else {
            self.peak_next_mib = self.peak_next_mib.max(peak);
        }
    }
}

fn read(pid: u32, file: &str) -> String {
    let path = format!("/proc/{pid}/{file}");
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn mib(text: &str, key: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.split_whitespace().next());
    let kib: f64 = number.map_or(0.0, |n| n.parse().expect("/proc shows a number"));
    kib / 1024.0
}

fn cpu_seconds(stat: &str) -> f64 {
    // The name may have spaces; user and system time are the 12th and 13th after it.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let times = after.split_whitespace().skip(11).take(2);
    times.filter_map(|n| n.parse::<f64>().ok()).sum::<f64>() / TICKS
}
