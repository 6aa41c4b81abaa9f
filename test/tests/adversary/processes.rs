//! The driver's processes: whether they are the same ones, and how much memory they take.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hostloop_test::deployed::NAMESPACE;
use hostloop_test::front::fields::{list, name, text};
use hostloop_test::front::objects::Objects;
use serde_json::Value;
use tokio::task::JoinHandle;

/// The time between two looks at a process's memory.
const PACE: Duration = Duration::from_millis(100);

/// How much memory a process may take for ordinary work.
const ORDINARY: u64 = 32 << 20;

/// The processes of the deployed pods.
pub(crate) struct Processes {
    all: Vec<Process>,
    sampling: JoinHandle<()>,
}

#[derive(Clone)]
struct Process {
    pod: String,
    uid: String,
    pid: u32,
    /// The memory limit of its container, in bytes.
    limit: u64,
    /// Counts what the kernel killed in the container for want of memory.
    kills: Option<PathBuf>,
    /// The most anonymous memory that was seen.
    peak: Arc<AtomicU64>,
}

impl Processes {
    /// Finds the processes of the pods, and begins to look at their memory.
    pub(crate) async fn find(objects: &Objects) -> Processes {
        let pods = objects.list("Pod", NAMESPACE).await;
        let all: Vec<_> = pods.iter().map(Process::of).collect();
        assert!(all.len() > 1, "the driver has pods");
        let watched = all.clone();
        let sampling = tokio::spawn(async move {
            loop {
                for process in &watched {
                    let now = process.status("RssAnon").unwrap_or_default();
                    process.peak.fetch_max(now, Ordering::Relaxed);
                }
                tokio::time::sleep(PACE).await;
            }
        });
        Processes { all, sampling }
    }

    /// Forgets the peaks so far, and returns what each process has now.
    pub(crate) fn begin(&self) -> Vec<u64> {
        let now = |process: &Process| {
            let now = process.status("RssAnon").unwrap_or_default();
            process.peak.store(now, Ordering::Relaxed);
            now
        };
        self.all.iter().map(now).collect()
    }

    /// What is wrong with the processes, after an attack that began with this memory and sent objects
    /// of this many bytes.
    pub(crate) async fn problems(
        &self,
        objects: &Objects,
        began: &[u64],
        sent: u64,
    ) -> Vec<String> {
        let pods = objects.list("Pod", NAMESPACE).await;
        let mut wrong = Vec::new();
        for (process, began) in self.all.iter().zip(began) {
            let Process { pod, limit, .. } = process;
            let now = pods
                .iter()
                .find(|now| text(&now["metadata"]["uid"]) == process.uid);
            let container = now.map(|now| &now["status"]["containerStatuses"][0]);
            if container.is_none_or(|now| now["restartCount"] != 0 || now["ready"] != true) {
                wrong.push(format!(
                    "{pod} has restarted or is not ready: {container:?}"
                ));
            }
            let kills = process.kills();
            if kills != 0 {
                wrong.push(format!(
                    "{pod}: {kills} processes were killed for want of memory"
                ));
            }
            let most = process.status("VmHWM").unwrap_or(u64::MAX);
            if most >= *limit {
                wrong.push(format!("{pod} took {} of {} MiB", most >> 20, limit >> 20));
            }
            let grown = process.peak.load(Ordering::Relaxed).saturating_sub(*began);
            println!(
                "{pod}: at most {} of {} MiB, {} MiB more than before for {} MiB that were sent",
                most >> 20,
                limit >> 20,
                grown >> 20,
                sent >> 20
            );
            // A cache of what users write could be filled.
            if grown > (sent / 2).max(ORDINARY) {
                wrong.push(format!(
                    "{pod} takes {} MiB more for {} MiB that were sent",
                    grown >> 20,
                    sent >> 20
                ));
            }
        }
        wrong
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.sampling.abort();
    }
}

impl Process {
    fn of(pod: &Value) -> Process {
        let container = text(&pod["status"]["containerStatuses"][0]["containerID"]);
        let container = container.rsplit('/').next().unwrap_or_default();
        let limit = text(&pod["spec"]["containers"][0]["resources"]["limits"]["memory"]);
        let pid = pid_of(container).unwrap_or_else(|| panic!("{pod} has no process"));
        Process {
            pod: name(pod).to_owned(),
            uid: text(&pod["metadata"]["uid"]).to_owned(),
            pid,
            limit: bytes(limit).unwrap_or_else(|| panic!("{limit:?} as a memory limit")),
            kills: kills_file(pid),
            peak: Arc::default(),
        }
    }

    /// A figure of the kernel about the process, in bytes. None if the process is gone.
    fn status(&self, key: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    }

    /// How many processes the kernel has killed in the container for want of memory.
    fn kills(&self) -> u64 {
        let read = self
            .kills
            .as_ref()
            .and_then(|file| std::fs::read_to_string(file).ok());
        let read = read.unwrap_or_default();
        let count = read.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count
            .and_then(|count| count.parse().ok())
            .unwrap_or_default()
    }
}

/// The bytes of a limit such as `256Mi`.
fn bytes(limit: &str) -> Option<u64> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let (number, shift) = units
        .iter()
        .find_map(|(unit, shift)| Some((limit.strip_suffix(unit)?, shift)))?;
    Some(number.parse::<u64>().ok()? << shift)
}

/// The first process in a container: its cgroup has the container's ID.
fn pid_of(container: &str) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc is there");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let is_in = |pid: &u32| {
        let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
        !container.is_empty() && cgroups.is_ok_and(|cgroups| cgroups.contains(container))
    };
    pids.filter(is_in).min()
}

/// The file with the kills of a process's memory cgroup, in either version of cgroups.
fn kills_file(pid: u32) -> Option<PathBuf> {
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let found = cgroups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        match controllers {
            "memory" => Some(format!("/sys/fs/cgroup/memory{path}/memory.oom_control")),
            "" => Some(format!("/sys/fs/cgroup{path}/memory.events")),
            _ => None,
        }
    });
    found.map(PathBuf::from).filter(|file| file.exists())
}

/// The pods' names and states, for the message of a failed test.
pub(crate) fn states(pods: &[Value]) -> String {
    let state = |pod: &Value| {
        let containers = list(&pod["status"]["containerStatuses"]);
        let states = containers.map(|c| format!("{} {}", c["restartCount"], c["state"]));
        format!("{}: {}", name(pod), states.collect::<Vec<_>>().join(", "))
    };
    pods.iter().map(state).collect::<Vec<_>>().join("\n")
}
