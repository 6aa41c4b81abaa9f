//! Runs one history in this process, which ends with it.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hostloop_fidelity::Export;
use http::Method;
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::task::JoinSet;
use tracing_subscriber::filter::LevelFilter;

use crate::cluster::Cluster;
use crate::dice::Dice;
use crate::history::trouble::Trouble;
use crate::history::unusual::{ClassKind, Unusual};
use crate::history::{Action, History, Step, World};
use crate::oracle::{self, Advice, AdvisedRequest, AdvisedSteps, Oracle};
use crate::users::ending::Ending;
use crate::users::{self, Refused, send};
use crate::waits::{Wait, Waits};
use crate::{disk, effects, export, foreign, recording, secret, shim, trace};

/// What begins the line with the outcome of a history.
pub(crate) const OUTCOME: &str = "OUTCOME ";
const MINUTE: Duration = Duration::from_secs(60);
/// How long everything has to settle.
const QUIET: Duration = Duration::from_secs(30 * 60);
/// The longest time in which an empty volume without an object is deleted.
const ORPHANS: Duration = Duration::from_secs(4 * 3600);
/// The real time in which virtual time must move.
const STILL: u32 = 60;
/// More requests of all actors of a node and the cluster's own in a minute, on average, do not
/// count as rest.
const AT_REST: u64 = 150;
/// How often users look for advice at most, and follow it: a claim and its pod may have had several things
/// wrong.
const ROUNDS: usize = 8;
/// How often a user tries to make an object again while its predecessor exists.
const TRIES: usize = 10;
/// How often sizes are looked at, a second apart. Each work but copies is done by then.
const LOOKS: usize = 60;
/// The longest time that work of the drivers may last before everything settles: copies may wait
/// for many others.
const WORK: Duration = Duration::from_secs(24 * 3600);

/// How far a history goes. A shorter one does the same until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Until {
    /// A minute after its last step.
    Steps,
    /// The first quiet time, before users follow any advice.
    Quiet,
    /// After everything was deleted.
    End,
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Until::Steps => "steps",
            Until::Quiet => "quiet",
            Until::End => "end",
        })
    }
}

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
    /// How far it goes, unless it is exported.
    pub(crate) until: Until,
}

/// A history prints and writes nothing.
pub(crate) const SILENT: Output<'static> = Output {
    trace: false,
    log: LevelFilter::INFO,
    record: None,
    export: false,
    until: Until::End,
};

/// What came of a history.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The SHA-256 of all lines of the trace, so equal digests mean equal traces.
    pub(crate) digest: String,
    /// What must not have happened.
    pub(crate) violations: Vec<String>,
    /// The last lines before the end.
    pub(crate) last: Vec<String>,
    /// The virtual time, in seconds.
    pub(crate) seconds: u64,
    pub(crate) requests: u64,
    /// How long users have waited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) waits: Vec<Wait>,
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
            digest,
            violations,
            last,
            seconds,
            requests,
            waits: Vec::new(),
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
        recording::begin();
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
    // Nothing here has a socket. With a driver for them, each virtual instant would be a call of the
    // kernel, and there are some twenty in a virtual second.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()?;
    let waits = Waits::default();
    let (export, requests) = if output.export {
        let (export, requests) = runtime.block_on(export::export(history, &scratch.path));
        (Some(export), requests)
    } else {
        let lived = runtime.block_on(live(history, output.until, &scratch.path, &waits));
        (None, lived)
    };
    let seconds = shim::now().as_secs();
    drop(runtime);
    let outcome = Outcome {
        waits: waits.done(),
        export,
        ..Outcome::of(seconds, requests)
    };
    if let Some(file) = output.record
        && let Err(error) = recording::write(seed, file)
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
    recording::say("now", &format!("{who}: {does}"));
}

/// Adds the refusal of what a user wants to the trace.
fn say_refused(refused: &Refused) {
    let Refused { code, message } = refused;
    trace::line("user", format!("refused: {code} {message}"));
}

/// Lets a history happen until then, and checks it. Returns the number of requests.
async fn live(history: &History, until: Until, dir: &Path, waits: &Waits) -> u64 {
    shim::follow();
    effects::begin();
    disk::begin();
    let mut cluster = Cluster::start(history, dir);
    // The cluster does not start with them, because an export must not have them: no real cluster
    // has the other driver.
    foreign::objects().for_each(|object| drop(cluster.api.put(object)));
    oracle::watch_writes(&cluster.api);
    oracle::watch_capacities(&cluster.api);
    oracle::watch_choices(&cluster.api, &cluster.bars);
    oracle::watch_new_volumes(&cluster.api);
    if history.world == World::Calm {
        oracle::watch_returns(&cluster.api);
    }
    oracle::watch_rejections(&cluster.api);
    oracle::watch_calls(&cluster.api, cluster.doors.secret_reads.clone());
    let mut oracle = Oracle::default();
    oracle.watch(&cluster.api);
    history.traits().for_each(|about| say("world", about));
    let client = cluster.doors.client("user");
    // The processes find their caches and capacities.
    cluster.pass(Duration::from_secs(60)).await;
    let mut following = JoinSet::new();
    following.spawn(
        waits
            .clone()
            .follow(cluster.api.clone(), cluster.doors.writes()),
    );
    do_steps(history, &client, &mut cluster, &mut oracle, waits).await;
    settle(history, until, &client, &mut cluster, &mut oracle).await;
    if until == Until::End {
        end(history, &client, &mut cluster, &mut oracle).await;
        oracle.emptiness(&cluster);
        rest(&mut cluster).await;
    }
    cluster.doors.requests()
}

/// Does the steps of a history.
async fn do_steps(
    history: &History,
    client: &Client,
    cluster: &mut Cluster,
    oracle: &mut Oracle,
    waits: &Waits,
) {
    let mut number = 0;
    for step in &history.steps {
        pass(cluster, oracle, step.wait()).await;
        let done = match &step.action {
            Action::World { trouble } => {
                say("world", &step.action.to_string());
                cluster.suffer(trouble, client, oracle).await
            }
            action => {
                say("user", &action.to_string());
                let done = users::act(client, action, cluster.only_node()).await;
                if done.is_ok() {
                    waits.begin(&cluster.api, number, action);
                }
                number += 1;
                done
            }
        };
        if let Err(refused) = done {
            say_refused(&refused);
        }
        cluster.bury().await;
        oracle.safety(cluster);
        cluster.check_running();
    }
}

/// Lets time pass before the next look. One look is when the calls are over that were under way
/// when the API server went back to a backup: a later one does not tell what they did.
async fn pass(cluster: &mut Cluster, oracle: &mut Oracle, time: Duration) {
    let echo = oracle.rest_of_echo().min(time);
    if !echo.is_zero() {
        cluster.pass(echo).await;
        oracle.safety(cluster);
    }
    cluster.pass(time.saturating_sub(echo)).await;
}

/// Ends all troubles, and checks that the cluster settles, as it is and after users have followed
/// the advice of events.
async fn settle(
    history: &History,
    until: Until,
    client: &Client,
    cluster: &mut Cluster,
    oracle: &mut Oracle,
) {
    if history.world != World::Calm {
        cluster.recover_all().await;
        // Its copies could take a day.
        let moderation = Trouble::Moderation;
        say("world", &moderation.to_string());
        let _ = cluster.suffer(&moderation, client, oracle).await;
    }
    if history.fast_end {
        for machine in &cluster.machines {
            machine.hasten_copies();
        }
    }
    if history.steps.iter().any(reserves_node) {
        users::release_all(client).await;
    }
    say("user", "quiet");
    if until == Until::Steps {
        minute(cluster, oracle).await;
        return;
    }
    quiet(history, cluster, oracle).await;
    oracle.liveness(cluster, Advice::Open);
    if until == Until::Quiet {
        return;
    }
    // One cause may hide another.
    for round in 0..ROUNDS {
        let has_followed = follow_advice(client, cluster, oracle).await;
        if !has_followed && round > 0 {
            break;
        }
        quiet(history, cluster, oracle).await;
    }
    oracle.liveness(cluster, Advice::Followed);
}

/// Deletes everything.
async fn end(history: &History, client: &Client, cluster: &mut Cluster, oracle: &mut Oracle) {
    let mut number = 0;
    for ending in Ending::ALL {
        let last = history.last.as_ref();
        let last = last.filter(|_| ending == Ending::OfUsers);
        if let Some(trouble) = last {
            say("world", &trouble.to_string());
            let _ = cluster.suffer(trouble, client, oracle).await;
        }
        let mut paths = ending.paths(cluster);
        while !paths.is_empty() {
            let mut dice = Dice::of(history.seed, "deletes", number);
            number += 1;
            let at = usize::try_from(dice.below(paths.len() as u64)).unwrap_or_default();
            let path = paths.swap_remove(at);
            say("user", &format!("deletes {path}"));
            if let Err(refused) = send(client, Method::DELETE, &path, &json!({})).await {
                say_refused(&refused);
            }
            pass(cluster, oracle, dice.millis(0, 3000)).await;
            oracle.safety(cluster);
        }
        if last.is_some() {
            cluster.recover_all().await;
        }
        quiet(history, cluster, oracle).await;
        oracle.letting_go(cluster);
    }
    // The driver's node deletes an empty volume without an object after hours: its object may only
    // be late.
    let mut waited = Duration::ZERO;
    while may_leave_orphans(history) && waited < ORPHANS && has_empty(cluster) {
        cluster.pass(Duration::from_secs(600)).await;
        waited += Duration::from_secs(600);
    }
}

/// Checks that nothing is left to do.
async fn rest(cluster: &mut Cluster) {
    sizes_at_rest(cluster).await;
    let before = cluster.doors.requests();
    cluster.pass(Duration::from_secs(600)).await;
    let minute = (cluster.doors.requests() - before) / 10;
    if minute > AT_REST * cluster.machines.len() as u64 {
        trace::violation(format!("not at rest: {minute} requests in a minute"));
    }
}

/// True if a volume may lose its way to an object: something fails, or a class comes back as another
/// one while a volume of it is made.
fn may_leave_orphans(history: &History) -> bool {
    history.world != World::Calm || history.steps.iter().any(makes_class)
}

fn makes_class(step: &Step) -> bool {
    matches!(
        &step.action,
        Action::Unusual {
            unusual: Unusual::MakeClass {
                of: ClassKind::Storage,
                ..
            },
        }
    )
}

fn reserves_node(step: &Step) -> bool {
    matches!(
        &step.action,
        Action::Unusual {
            unusual: Unusual::Reserve { .. },
        }
    )
}

/// Lets users do what events advise. Returns false if there is nothing to do.
async fn follow_advice(client: &Client, cluster: &mut Cluster, oracle: &mut Oracle) -> bool {
    let AdvisedSteps { at_once, mut then } = oracle::advice(cluster);
    let is_any = !(at_once.is_empty() && then.is_empty());
    for advice in &at_once {
        let _ = take(client, advice).await;
    }
    for _ in 0..TRIES {
        if then.is_empty() {
            break;
        }
        pass(cluster, oracle, Duration::from_secs(60)).await;
        oracle.safety(cluster);
        let mut left = Vec::new();
        for advice in then {
            // The object before it may stay for a while.
            if take(client, &advice).await.is_err() {
                left.push(advice);
            }
        }
        then = left;
    }
    is_any
}

/// Sends a request that an event advises.
async fn take(client: &Client, request: &AdvisedRequest) -> Result<(), Refused> {
    let AdvisedRequest { method, path, body } = request;
    let text = body.to_string();
    let shown = secret::hidden(&text);
    say("user", &format!("follows advice: {method} {path} {shown}"));
    match send(client, method.clone(), path, body).await {
        Ok(_) => Ok(()),
        Err(refused) => {
            say_refused(&refused);
            Err(refused)
        }
    }
}

/// Checks that queues, locks and caches have their size at rest. What some work has at one moment, it
/// does not have for long.
async fn sizes_at_rest(cluster: &mut Cluster) {
    let mut wrong = oracle::not_at_rest(cluster);
    for _ in 0..LOOKS {
        if wrong.is_empty() {
            return;
        }
        cluster.pass(Duration::from_secs(1)).await;
        let now = oracle::not_at_rest(cluster);
        wrong.retain(|one| now.contains(one));
    }
    for one in wrong {
        trace::violation(format!("not at rest: {one}"));
    }
}

/// True if a pool has a volume that nothing was ever written to.
fn has_empty(cluster: &Cluster) -> bool {
    let volumes = cluster.contents().volumes;
    volumes.iter().any(|volume| volume.is_empty())
}

/// Lets the cluster settle: for some time after the drivers' last work in a rough world, where a
/// copy may take longer than that.
async fn quiet(history: &History, cluster: &mut Cluster, oracle: &mut Oracle) {
    let (mut settled, mut worked) = (Duration::ZERO, Duration::ZERO);
    let mut was_busy = false;
    while settled < QUIET {
        minute(cluster, oracle).await;
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

/// Lets a minute pass, and checks what must hold at any time.
async fn minute(cluster: &mut Cluster, oracle: &mut Oracle) {
    pass(cluster, oracle, MINUTE).await;
    oracle.safety(cluster);
    cluster.check_running();
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::Until;

    #[test]
    fn an_end_is_named_as_its_argument() {
        for until in Until::value_variants() {
            let named = Until::from_str(&until.to_string(), false);
            assert_eq!(named.as_ref(), Ok(until));
        }
    }
}
