//! `logs`: the log lines of all nodes and of the controller about a claim, snapshot, group or pod.

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use hostloop_api_objects::duration;
use hostloop_terminal::color::{BAD, QUIET, WARNING, paint};
use hostloop_terminal::terminal;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::api::ApiError;
use super::cluster::Cluster;
use super::log_line::LogLine;
use super::output;
use super::pod_logs::{self, LogEntry, LogPod};
use super::subject::Subject;
use super::target::{Target, TargetArgs, TargetError};

/// The pause before a log that ended is asked for again, and before a search for new pods.
const PAUSE: Duration = Duration::from_secs(5);

/// Arguments of `logs`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: TargetArgs,

    /// Only lines that are not older than this, such as 15m or 1h30m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    since: Option<Duration>,

    /// Wait for more lines
    #[arg(short, long)]
    follow: bool,
}

/// Why `logs` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The words name no object.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Logs do not have the object.
    #[error(
        "{0} in namespace {1} has no volume or snapshot that logs could name, or it can't be read"
    )]
    NoNames(String, String),
    /// The API server can't be asked.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// There is no pod with a log.
    #[error(
        "there are no pods of hostloop in namespace {0}; set --system-namespace to where it is"
    )]
    NoPods(String),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    let target = args.target.target()?;
    let objects = target.gather(cluster).await?;
    for note in &objects.missing {
        warn(note);
    }
    let subject = target.subject(cluster, &objects);
    if subject.is_empty() {
        let namespace = cluster.namespace.clone();
        return Err(Error::NoNames(target.to_string(), namespace));
    }
    if !target.is_in(&objects) {
        let namespace = &cluster.namespace;
        warn(&format!(
            "{target} can't be read in namespace {namespace}; lines are found by its name alone"
        ));
    }
    let pods = pod_logs::log_pods(cluster).await?;
    if pods.is_empty() {
        return Err(Error::NoPods(cluster.system_namespace.clone()));
    }
    let mut lines = pod_logs::read(cluster, &pods, &subject, args.since).await;
    for (source, error) in &lines.unread {
        warn(&format!("{source}: {error}"));
    }
    if lines.unread.len() == pods.len()
        && let Some((_, error)) = lines.unread.pop()
    {
        return Err(error.into());
    }
    if lines.entries.is_empty() {
        let namespace = &cluster.namespace;
        let note = no_lines(&target, namespace, args.since, lines.complete_from);
        warn(&note);
    }
    let mut printer = LogPrinter::of(&pods);
    let printed = lines
        .entries
        .iter()
        .try_for_each(|entry| printer.print(entry));
    if printed.is_err() || !args.follow {
        return Ok(output::end(printed)?);
    }
    let followers = Followers::new(cluster, subject, lines.last);
    Ok(output::end(follow(followers, pods, printer).await)?)
}

/// Why nothing is printed, and where else to look.
fn no_lines(
    target: &Target,
    namespace: &str,
    since: Option<Duration>,
    complete_from: Option<Timestamp>,
) -> String {
    let logs = match (since, complete_from) {
        (Some(_), _) => "This is about lines within --since; older ones may be there.".to_owned(),
        (None, Some(at)) => format!(
            "All logs reach back to {}.",
            at.strftime("%Y-%m-%dT%H:%M:%SZ")
        ),
        (None, None) => "The logs have no line at all.".to_owned(),
    };
    format!(
        "No line names {target} in namespace {namespace}. {logs} Its objects, its history and what \
         its node has are in: kubectl hostloop describe -n {namespace} {target}"
    )
}

fn warn(text: &str) {
    terminal::warn(&paint(WARNING, text));
}

/// Prints new lines until the reader of the output or the person ends it.
async fn follow(
    (mut followers, mut entries): (Followers, mpsc::UnboundedReceiver<LogEntry>),
    pods: Vec<LogPod>,
    mut printer: LogPrinter,
) -> io::Result<()> {
    followers.set(pods);
    let mut look = tokio::time::interval(PAUSE);
    loop {
        tokio::select! {
            Some(entry) = entries.recv() => printer.print(&entry)?,
            _ = look.tick() => {
                // A failed search is repeated; the known pods are followed meanwhile.
                if let Ok(pods) = pod_logs::log_pods(&followers.cluster).await {
                    followers.set(pods);
                }
            }
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

/// The tasks that follow the logs, by pod.
struct Followers {
    cluster: Cluster,
    subject: Subject,
    /// The time of the last line that was read, by pod.
    last: BTreeMap<String, Timestamp>,
    found: mpsc::UnboundedSender<LogEntry>,
    tasks: BTreeMap<String, JoinHandle<()>>,
}

impl Followers {
    fn new(
        cluster: &Cluster,
        subject: Subject,
        last: BTreeMap<String, Timestamp>,
    ) -> (Followers, mpsc::UnboundedReceiver<LogEntry>) {
        let (found, entries) = mpsc::unbounded_channel();
        let (cluster, tasks) = (cluster.clone(), BTreeMap::new());
        (
            Followers {
                cluster,
                subject,
                last,
                found,
                tasks,
            },
            entries,
        )
    }

    /// Follows these pods and no others.
    fn set(&mut self, pods: Vec<LogPod>) {
        self.tasks.retain(|name, task| {
            let stays = pods.iter().any(|pod| pod.name == *name);
            if !stays {
                task.abort();
            }
            stays
        });
        for pod in pods {
            let name = pod.name.clone();
            if self.tasks.contains_key(&name) {
                continue;
            }
            let (cluster, subject) = (self.cluster.clone(), self.subject.clone());
            let last = self.last.get(&name).copied();
            let follower = follow_pod(cluster, subject, pod, last, self.found.clone());
            self.tasks.insert(name, tokio::spawn(follower));
        }
    }
}

/// Follows the log of a pod through the restarts of its container.
async fn follow_pod(
    cluster: Cluster,
    subject: Subject,
    pod: LogPod,
    mut last: Option<Timestamp>,
    found: mpsc::UnboundedSender<LogEntry>,
) {
    loop {
        let from = last;
        let followed = pod_logs::follow(&cluster, &pod, &subject, from, |entry| {
            last = last.max(Some(entry.at));
            // Without a receiver, the command ends.
            let _ = found.send(entry);
        })
        .await;
        if let Err(ApiError::Forbidden { .. }) = followed {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Prints lines with their source before them, in a color for each source.
struct LogPrinter {
    width: usize,
    styles: BTreeMap<String, Style>,
}

/// The colors of sources. Red and yellow are for errors and warnings.
const COLORS: [AnsiColor; 4] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Magenta,
    AnsiColor::Blue,
];

impl LogPrinter {
    fn of(pods: &[LogPod]) -> LogPrinter {
        let mut printer = LogPrinter {
            width: 0,
            styles: BTreeMap::new(),
        };
        for pod in pods {
            printer.style(&pod.source);
        }
        printer
    }

    fn style(&mut self, source: &str) -> Style {
        self.width = self.width.max(source.chars().count());
        let next = COLORS[self.styles.len() % COLORS.len()];
        *self
            .styles
            .entry(source.to_owned())
            .or_insert_with(|| next.on_default())
    }

    fn print(&mut self, entry: &LogEntry) -> io::Result<()> {
        let line = self.line(entry);
        terminal::print(&[line])
    }

    fn line(&mut self, entry: &LogEntry) -> String {
        let style = self.style(&entry.source);
        let width = self.width;
        let source = paint(style, &format!("{:<width$}", entry.source));
        let text = entry.text.clone();
        let level = LogLine::parse(&entry.text)
            .map(|line| line.level)
            .unwrap_or_default();
        let text = match level.as_str() {
            "ERROR" => paint(BAD, &text),
            "WARN" => paint(WARNING, &text),
            "DEBUG" | "TRACE" => paint(QUIET, &text),
            _ => text,
        };
        format!("{source}  {text}")
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::reach_of_the_logs(
        Target::Claim("data".to_owned()),
        None,
        Some("2026-01-02T03:04:05.5Z"),
        "No line names claim data in namespace shop. All logs reach back to 2026-01-02T03:04:05Z. \
         Its objects, its history and what its node has are in: \
         kubectl hostloop describe -n shop claim data"
    )]
    #[case::limited(
        Target::Snapshot("s".to_owned()),
        Some(60),
        Some("2026-01-02T03:04:05.5Z"),
        "No line names snapshot s in namespace shop. This is about lines within --since; older ones \
         may be there. Its objects, its history and what its node has are in: \
         kubectl hostloop describe -n shop snapshot s"
    )]
    #[case::empty_logs(
        Target::Claim("data".to_owned()),
        None,
        None,
        "No line names claim data in namespace shop. The logs have no line at all. \
         Its objects, its history and what its node has are in: \
         kubectl hostloop describe -n shop claim data"
    )]
    fn without_lines(
        #[case] target: Target,
        #[case] since: Option<u64>,
        #[case] complete_from: Option<&str>,
        #[case] text: &str,
    ) {
        let complete_from = complete_from.map(|at| at.parse().unwrap());
        let since = since.map(Duration::from_secs);
        assert_eq!(no_lines(&target, "shop", since, complete_from), text);
    }

    #[test]
    fn lines_have_their_source_and_the_color_of_their_level() {
        let pod = |source: &str| LogPod {
            source: source.to_owned(),
            ..LogPod::default()
        };
        let mut printer = LogPrinter::of(&[pod("n1"), pod("controller")]);
        for (source, text, line) in [
            (
                "n1",
                r#"2026-01-02T03:04:05Z  INFO hostloop::call: call method="NodeStageVolume" code=OK ms=85"#,
                r#"n1          2026-01-02T03:04:05Z  INFO hostloop::call: call method="NodeStageVolume" code=OK ms=85"#,
            ),
            (
                "controller",
                r#"2026-01-02T03:04:06Z  WARN hostloop_controllers::resizer: resizing a claim failed, and is tried again claim="data""#,
                r#"controller  2026-01-02T03:04:06Z  WARN hostloop_controllers::resizer: resizing a claim failed, and is tried again claim="data""#,
            ),
            ("n1", "bell \u{7}", "n1          bell \\u{7}"),
            ("a-new-long-node", "x", "a-new-long-node  x"),
            ("n1", "y", "n1               y"),
        ] {
            let entry = LogEntry {
                at: Timestamp::UNIX_EPOCH,
                source: source.to_owned(),
                text: text.to_owned(),
            };
            let printed = printer.line(&entry);
            assert_eq!(terminal::plain(&printed), line);
        }
        let line = |level: &str| {
            let text = format!("2026-01-02T03:04:05Z {level} h: m");
            let entry = LogEntry {
                at: Timestamp::UNIX_EPOCH,
                source: "n1".to_owned(),
                text,
            };
            LogPrinter::of(&[pod("n1")]).line(&entry)
        };
        assert!(line("ERROR").contains(&BAD.to_string()));
        assert!(line(" WARN").contains(&WARNING.to_string()));
        assert!(!line(" INFO").contains(&WARNING.to_string()));
    }
}
