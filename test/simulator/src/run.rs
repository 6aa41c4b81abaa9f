//! Runs one history in this process, which ends with it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hostloop_fidelity::Export;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing_subscriber::filter::LevelFilter;

use crate::cluster::Cluster;
use crate::dice::Dice;
use crate::history::trouble::Trouble;
use crate::history::{Action, History, World};
use crate::oracle::{self, Advice, Oracle};
use crate::users::{self, send};
use crate::{disk, effects, export, record, shim, trace};

/// What begins the line with the outcome of a history.
pub(crate) const OUTCOME: &str = "OUTCOME ";
/// How long everything has to settle.
const QUIET: Duration = Duration::from_secs(30 * 60);
/// The longest time in which an empty volume without an object is deleted.
const ORPHANS: Duration = Duration::from_secs(4 * 3600);
/// The real time in which virtual time must move.
const STILL: u32 = 60;
/// More requests of all actors of a node and the cluster's own in a minute, on average, do not
/// count as rest.
const AT_REST: u64 = 150;
/// The longest time that work of the drivers may last before everything settles: copies may wait
/// for many others.
const WORK: Duration = Duration::from_secs(24 * 3600);

/// What a history prints and writes, beside what comes of it.
#[derive(Clone, Copy)]
pub(crate) struct Output<'a> {
    /// Print all that happens.
    pub(crate) trace: bool,
    /// How much of the product's log is a part of what happens.
    pub(crate) log: LevelFilter,
    /// The file for a recording.
    pub(crate) record: Option<&'a Path>,
    /// Export the history instead, for a real cluster.
    pub(crate) export: bool,
}

/// What came of a history.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// A digest of all that happened.
    pub(crate) digest: String,
    /// What must not have happened.
    pub(crate) violations: Vec<String>,
    /// The last lines before the end.
    pub(crate) last: Vec<String>,
    /// The virtual time, in seconds.
    pub(crate) seconds: u64,
    pub(crate) requests: u64,
    /// What a real cluster needs to do the same, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) export: Option<Export>,
}

impl Outcome {
    /// What the trace says, after this virtual time and number of requests.
    fn of(seconds: u64, requests: u64) -> Outcome {
        let violations = trace::violations();
        let (digest, last) = trace::end();
        Outcome {
            digest: format!("{digest:016x}"),
            violations,
            last,
            seconds,
            requests,
            export: None,
        }
    }

    /// Prints it for the process that started this one.
    pub(crate) fn print(&self) {
        let text = serde_json::to_string(self).unwrap_or_default();
        trace::print(&format!("{OUTCOME}{text}"));
    }
}

/// A directory that each run of a seed has under the same name, because a path may decide an order.
struct Scratch {
    path: PathBuf,
    _lock: File,
}

/// The path of the directory of a seed.
fn scratch(seed: u64) -> PathBuf {
    let parent = if Path::new("/dev/shm").is_dir() {
        PathBuf::from("/dev/shm")
    } else {
        std::env::temp_dir()
    };
    parent.join(format!("hostloop-simulator-{seed}"))
}

/// Removes what a process left that was killed.
pub(crate) fn clean(seed: u64) {
    let path = scratch(seed);
    let _ = std::fs::remove_dir_all(&path);
    let _ = std::fs::remove_file(path.with_extension("lock"));
}

impl Scratch {
    fn of(seed: u64) -> std::io::Result<Scratch> {
        let path = scratch(seed);
        let lock = path.with_extension("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(lock)?;
        lock.lock()?;
        // What a killed run left.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path)?;
        Ok(Scratch { path, _lock: lock })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
        let _ = std::fs::remove_file(self.path.with_extension("lock"));
    }
}

/// Runs a history, or exports it.
pub(crate) fn run(history: &History, output: Output<'_>) -> std::io::Result<Outcome> {
    let scratch = Scratch::of(history.seed)?;
    let seed = history.seed;
    std::thread::spawn(move || watch(seed));
    shim::arm(history.seed);
    if output.record.is_some() {
        record::begin();
    }
    trace::begin(output.trace, &scratch.path.display().to_string());
    std::panic::set_hook(Box::new(|panic| {
        trace::violation(format!("a panic: {panic}"))
    }));
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(output.log)
        .without_time()
        .with_ansi(false)
        .with_writer(|| trace::Log);
    subscriber.init();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()?;
    let (export, requests) = if output.export {
        let (export, requests) = runtime.block_on(export::export(history, &scratch.path));
        (Some(export), requests)
    } else {
        (None, runtime.block_on(live(history, &scratch.path)))
    };
    let seconds = shim::now().as_secs();
    drop(runtime);
    let outcome = Outcome {
        export,
        ..Outcome::of(seconds, requests)
    };
    if let Some(file) = output.record
        && let Err(error) = record::write(seed, file)
    {
        trace::print(&format!("no recording in {}: {error}", file.display()));
    }
    Ok(outcome)
}

/// Ends a process in which virtual time stands still: something runs without end, or waits for what
/// no timer ends.
fn watch(seed: u64) {
    let (mut before, mut still) = (Duration::ZERO, 0);
    loop {
        shim::sleep_really(Duration::from_secs(1));
        let now = shim::now();
        still = if now == before { still + 1 } else { 0 };
        before = now;
        if still == STILL {
            trace::violation(format!(
                "virtual time stands still at {now:?}: a loop without a wait"
            ));
            Outcome::of(now.as_secs(), 0).print();
            clean(seed);
            std::process::exit(0);
        }
    }
}

/// Adds what someone does to the trace and to the recording.
fn say(who: &str, does: &str) {
    trace::line(who, does);
    record::say("now", &format!("{who}: {does}"));
}

async fn live(history: &History, dir: &Path) -> u64 {
    shim::follow();
    effects::begin();
    disk::begin();
    let mut cluster = Cluster::start(history, dir);
    let mut oracle = Oracle::default();
    let client = cluster.doors.client("user");
    // The processes find their caches and capacities.
    cluster.pass(Duration::from_secs(60)).await;
    for step in &history.steps {
        cluster.pass(step.wait()).await;
        let done = match &step.action {
            Action::World { trouble } => {
                say("world", &step.action.to_string());
                cluster.suffer(trouble, &client, &mut oracle).await
            }
            action => {
                say("user", &action.to_string());
                users::act(&client, action, cluster.only_node()).await
            }
        };
        if let Err(refused) = done {
            trace::line(
                "user",
                format!("refused: {} {}", refused.code, refused.message),
            );
        }
        cluster.bury().await;
        oracle.safety(&cluster);
        cluster.check_running();
    }
    if history.world != World::Calm {
        cluster.recover_all().await;
        // Its copies could take a day.
        let moderation = Trouble::Moderation;
        say("world", &moderation.to_string());
        let _ = cluster.suffer(&moderation, &client, &mut oracle).await;
    }
    say("user", "quiet");
    quiet(history, &mut cluster, &mut oracle).await;
    oracle.liveness(&cluster, false);
    for Advice { method, path, body } in oracle::advice(&cluster) {
        say("user", &format!("follows advice: {method} {path} {body}"));
        if let Err(refused) = send(&client, method, &path, &body).await {
            trace::line(
                "user",
                format!("refused: {} {}", refused.code, refused.message),
            );
        }
    }
    quiet(history, &mut cluster, &mut oracle).await;
    oracle.liveness(&cluster, true);
    let mut number = 0;
    for part in 0..2 {
        let mut paths = oracle::everything(&cluster)[part].clone();
        while !paths.is_empty() {
            let mut dice = Dice::of(history.seed, "deletes", number);
            number += 1;
            let at = usize::try_from(dice.below(paths.len() as u64)).unwrap_or_default();
            let path = paths.swap_remove(at);
            say("user", &format!("deletes {path}"));
            if let Err(refused) = send(&client, Method::DELETE, &path, &json!({})).await {
                trace::line(
                    "user",
                    format!("refused: {} {}", refused.code, refused.message),
                );
            }
            cluster.pass(dice.millis(0, 3000)).await;
            oracle.safety(&cluster);
        }
        quiet(history, &mut cluster, &mut oracle).await;
    }
    // The driver's node deletes an empty volume without an object after hours: its object may only
    // be late.
    let mut waited = Duration::ZERO;
    while history.world != World::Calm && waited < ORPHANS && has_empty(&cluster) {
        cluster.pass(Duration::from_secs(600)).await;
        waited += Duration::from_secs(600);
    }
    oracle.emptiness(&cluster);
    let before = cluster.doors.requests();
    cluster.pass(Duration::from_secs(600)).await;
    let minute = (cluster.doors.requests() - before) / 10;
    if minute > AT_REST * cluster.machines.len() as u64 {
        trace::violation(format!("not at rest: {minute} requests in a minute"));
    }
    cluster.doors.requests()
}

/// True if a pool has a volume that nothing was ever written to.
fn has_empty(cluster: &Cluster) -> bool {
    let volumes = cluster.contents().volumes;
    volumes.iter().any(|volume| volume.is_empty())
}

/// Lets the cluster settle: for some time after the drivers' last work in a rough world, where a
/// copy may take longer than that.
async fn quiet(history: &History, cluster: &mut Cluster, oracle: &mut Oracle) {
    const MINUTE: Duration = Duration::from_secs(60);
    let (mut settled, mut worked) = (Duration::ZERO, Duration::ZERO);
    let mut was_busy = false;
    while settled < QUIET {
        cluster.pass(MINUTE).await;
        oracle.safety(cluster);
        cluster.check_running();
        let is_busy = history.world != World::Calm && cluster.is_busy();
        // A single short call in a minute does not last.
        if is_busy && was_busy {
            (settled, worked) = (Duration::ZERO, worked + MINUTE);
        } else {
            settled += MINUTE;
        }
        was_busy = is_busy;
        if worked > WORK {
            trace::violation("not at rest: the drivers still work on calls after a day");
            return;
        }
    }
}
