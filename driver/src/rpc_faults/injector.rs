//! Decides about calls by a file of rules, and reads the file again when it changes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostloop_events::Shortened;
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::active_rules::ActiveRules;
use super::call_subject::CallSubject;
use super::fault::Fault;
use super::rules_file::{self, RulesError};

#[cfg(test)]
mod tests;

/// The target of the log lines, for filters in `--log-level`.
const TARGET: &str = "hostloop::fault";
/// How often the file is read. Kubelet replaces a mounted ConfigMap by new links, which leaves no
/// file to watch.
const PERIOD: Duration = Duration::from_millis(500);
/// The largest file, in bytes.
const MAX_FILE: u64 = 256 << 10;
/// The most pairs of rule and effect that are counted. The rest counts as `other`.
const MAX_COUNTS: usize = 1000;
/// The longest subject of a log line, in characters.
const MAX_SUBJECT: usize = 128;

/// Why the rules of a file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FaultRulesError {
    #[error("fault rules: reading {path}: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("fault rules: {0} has more than {MAX_FILE} bytes")]
    TooLarge(PathBuf),
    #[error("fault rules: {path}: {source}")]
    Invalid { path: PathBuf, source: RulesError },
}

/// How many calls a rule has had an effect on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultCount {
    pub rule: String,
    /// As [`Fault::effect`] has it.
    pub effect: &'static str,
    pub calls: u64,
}

/// The faults of a process by the rules of a file.
#[derive(Debug)]
pub struct FaultInjector {
    path: PathBuf,
    /// The node of this process; empty if it is unknown.
    node: String,
    state: Mutex<InjectorState>,
    /// Cancelled once the process stops.
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct InjectorState {
    /// The content of the file as it was read last, whether or not it is valid.
    text: String,
    rules: ActiveRules,
    counts: BTreeMap<(Arc<str>, &'static str), u64>,
}

impl FaultInjector {
    /// Reads the file. One that is missing has no rules.
    pub fn open(path: &Path, node: Option<&str>) -> Result<FaultInjector, FaultRulesError> {
        let injector = FaultInjector {
            path: path.to_owned(),
            node: node.unwrap_or_default().to_owned(),
            state: Mutex::default(),
            stop: CancellationToken::new(),
        };
        let text = read_file(path)?;
        injector.use_rules(text)?;
        Ok(injector)
    }

    /// The fault of a call with this path, as `/csi.v1.Controller/CreateVolume`.
    pub fn decide(&self, path: &str, subject: &CallSubject<'_>) -> Option<Fault> {
        let mut state = self.state.lock();
        let rule = state
            .rules
            .decide(path, subject, &self.node, Instant::now())?;
        let fault = Fault {
            rule: rule.name.clone(),
            delay_before: rule.delay_before,
            delay_after: rule.delay_after,
            outcome: rule.outcome.clone(),
            stop: self.stop.clone(),
        };
        state.count(&fault);
        drop(state);
        let about = Shortened(subject.about(), MAX_SUBJECT).to_string();
        let about = about.as_str();
        let (rule, effect) = (&*fault.rule, fault.effect());
        let before_ms = fault.delay_before.as_millis() as u64;
        let after_ms = fault.delay_after.as_millis() as u64;
        tracing::warn!(
            target: TARGET, rule, method = path, about, effect, before_ms, after_ms, "fault"
        );
        Some(fault)
    }

    /// Ends the waits of all faults, also of later ones. The process calls it when it stops.
    pub fn end_waits(&self) {
        self.stop.cancel();
    }

    /// What the rules have done since the start, by rule and effect.
    pub fn counts(&self) -> Vec<FaultCount> {
        let state = self.state.lock();
        let counts = state.counts.iter();
        counts
            .map(|((rule, effect), calls)| FaultCount {
                rule: rule.to_string(),
                effect,
                calls: *calls,
            })
            .collect()
    }

    /// Reads the file again whenever it changes, forever. Rules that can't be used are logged, and
    /// those before them stay in force.
    pub async fn follow(self: Arc<Self>) {
        let mut logged = String::new();
        loop {
            sleep(PERIOD).await;
            let injector = self.clone();
            let reloaded = spawn_blocking(move || injector.reload()).await;
            // Without an answer, the runtime shuts down.
            let Ok(reloaded) = reloaded else {
                return;
            };
            let error = reloaded.err().map(|error| error.to_string());
            let error = error.unwrap_or_default();
            if !error.is_empty() && error != logged {
                let error = error.as_str();
                tracing::error!(target: TARGET, error, "the earlier fault rules stay in force");
            }
            logged = error;
        }
    }

    /// Takes the rules of the file if it has changed. An invalid file fails once, until it changes.
    fn reload(&self) -> Result<(), FaultRulesError> {
        let text = read_file(&self.path)?;
        if self.state.lock().text == text {
            return Ok(());
        }
        self.use_rules(text)
    }

    fn use_rules(&self, text: String) -> Result<(), FaultRulesError> {
        let read = rules_file::read(&text);
        let mut state = self.state.lock();
        state.text = text;
        let set = read.map_err(|source| FaultRulesError::Invalid {
            path: self.path.clone(),
            source,
        })?;
        let (seed, file) = (set.seed, self.path.display());
        state.rules.replace(set, Instant::now());
        let rules = state.rules.len();
        tracing::warn!(target: TARGET, %file, rules, seed, "fault rules are in force");
        Ok(())
    }
}

impl InjectorState {
    fn count(&mut self, fault: &Fault) {
        let mut key = (fault.rule.clone(), fault.effect());
        if self.counts.len() >= MAX_COUNTS && !self.counts.contains_key(&key) {
            key.0 = "other".into();
        }
        *self.counts.entry(key).or_default() += 1;
    }
}

/// The content of a file; nothing if it is missing.
fn read_file(path: &Path) -> Result<String, FaultRulesError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text));
    match read {
        Ok(_) if text.len() as u64 > MAX_FILE => Err(FaultRulesError::TooLarge(path.to_owned())),
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(source) => Err(FaultRulesError::Unreadable {
            path: path.to_owned(),
            source,
        }),
    }
}
