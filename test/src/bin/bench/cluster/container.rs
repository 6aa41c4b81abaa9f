//! What the processes of one container take, as `/proc` tells it.

use std::path::{Path, PathBuf};

/// The unit of times in `/proc`: a hundredth of a second on all common machines, whatever the
/// kernel itself counts in.
const TICKS: f64 = 100.0;

/// The processes of a container, by its ID, which is in the names of their cgroups.
pub(super) struct Container {
    processes: Vec<PathBuf>,
}

impl Container {
    /// Its processes of now; there must be one.
    pub(super) fn find(id: &str) -> Container {
        let all = std::fs::read_dir("/proc").expect("/proc is there");
        let mut processes: Vec<_> = all.flatten().map(|entry| entry.path()).collect();
        processes.retain(|process| {
            let number = process.file_name().and_then(|name| name.to_str());
            let is_process = number.is_some_and(|n| n.parse::<u32>().is_ok());
            is_process && read(process, "cgroup").contains(id)
        });
        assert!(!processes.is_empty(), "container {id} has no process");
        Container { processes }
    }

    /// Resident memory of all of them, in MiB.
    pub(super) fn resident_mib(&self) -> f64 {
        let kib = |process: &PathBuf| {
            let status = read(process, "status");
            let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
            let number = line.and_then(|l| l.split_whitespace().next());
            number.map_or(0.0, |n| n.parse().expect("/proc shows a number"))
        };
        self.processes.iter().map(kib).sum::<f64>() / 1024.0
    }

    /// The time they have been on a CPU, in seconds.
    pub(super) fn busy_seconds(&self) -> f64 {
        let busy = |process: &PathBuf| {
            let stat = read(process, "stat");
            // The name may have spaces; user and system time are the 12th and 13th after it.
            let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
            let times = after.split_whitespace().skip(11).take(2);
            times.filter_map(|n| n.parse::<f64>().ok()).sum::<f64>()
        };
        self.processes.iter().map(busy).sum::<f64>() / TICKS
    }
}

/// A file about a process; nothing if that has ended.
fn read(process: &Path, file: &str) -> String {
    std::fs::read_to_string(process.join(file)).unwrap_or_default()
}
