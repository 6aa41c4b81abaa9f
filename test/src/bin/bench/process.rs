//! Memory and CPU time of processes, from `/proc`.

/// Units per second of times in `/proc`: hundredths on all common machines, whatever the
/// kernel itself counts in.
const TICKS: f64 = 100.0;

/// The processes of a container, by its ID, which is in the names of their cgroups.
pub(crate) fn of_container(id: &str) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").expect("/proc is there");
    let names = all.flatten().map(|entry| entry.file_name());
    let mut pids: Vec<u32> = names.filter_map(|n| n.to_str()?.parse().ok()).collect();
    // A process may have ended meanwhile.
    pids.retain(|pid| {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
        groups.is_ok_and(|groups| groups.contains(id))
    });
    assert!(!pids.is_empty(), "container {id} has no process");
    pids
}

/// A size in one of the process's files, in MiB: `VmRSS:` in `status`.
pub(crate) fn mib(pid: u32, file: &str, key: &str) -> f64 {
    let text = read(pid, file);
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.split_whitespace().next());
    let kib: f64 = number.map_or(0.0, |n| n.parse().expect("/proc shows a number"));
    kib / 1024.0
}

/// What the process has read from files, in MiB.
pub(crate) fn read_mib(pid: u32) -> f64 {
    let text = read(pid, "io");
    let line = text.lines().find_map(|line| line.strip_prefix("rchar:"));
    let bytes: f64 = line.map_or(0.0, |n| n.trim().parse().expect("/proc shows a number"));
    bytes / f64::from(1 << 20)
}

/// The process's time on a CPU, in seconds.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = read(pid, "stat");
    // The name may have spaces; user and system time are the 12th and 13th after it.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let times = after.split_whitespace().skip(11).take(2);
    times.filter_map(|n| n.parse::<f64>().ok()).sum::<f64>() / TICKS
}

/// The file's text; empty if the process has ended.
fn read(pid: u32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}
