//! Shows the status again whenever it may have changed.

use std::time::Duration;

use futures::future::FutureExt;
use futures::stream::{self, Stream, StreamExt};
use hostloop_terminal::terminal;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};

use super::report::ClusterReport;
use super::{Args, Error, report};
use crate::api::Namespaced;
use crate::cluster::Cluster;
use crate::output::Format;

/// The least time between two looks.
const PAUSE: Duration = Duration::from_secs(2);
/// The most time between two looks: what nodes report can change without a change of an object.
const REFRESH: Duration = Duration::from_secs(15);
/// Clears a terminal, and moves to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Shows the status until the person interrupts it. An interruption during a look counts, too.
pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<(), Error> {
    tokio::select! {
        ended = show(args, cluster) => ended,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// Shows the status until that fails.
async fn show(args: &Args, cluster: &Cluster) -> Result<(), Error> {
    let namespace = (!args.all_namespaces).then_some(&*cluster.namespace);
    let claims = changes::<PersistentVolumeClaim>(cluster, namespace);
    let pods = changes::<Pod>(cluster, namespace);
    let mut changes = stream::select(claims.boxed(), pods.boxed());
    let mut shown = None;
    loop {
        let report = report(args, cluster).await?;
        if let Some(lines) = next_lines(args, &report, shown.as_ref(), terminal::is_terminal())? {
            terminal::print(&lines)?;
        }
        shown = Some(report);
        next_look(&mut changes).await;
    }
}

/// The lines to print, if there are any. A terminal shows current ages, so it is redrawn each time.
/// Another reader gets what differs from the last output.
fn next_lines(
    args: &Args,
    report: &ClusterReport,
    shown: Option<&ClusterReport>,
    terminal: bool,
) -> std::io::Result<Option<Vec<String>>> {
    let redraw = terminal && args.output.is_text();
    if !redraw && shown == Some(report) {
        return Ok(None);
    }
    let mut lines = args.lines(report)?;
    match (redraw, lines.first_mut()) {
        (true, Some(first)) => first.insert_str(0, &terminal::control(CLEAR)),
        (false, _) if shown.is_some() => lines.insert(0, separator(args).to_owned()),
        _ => {}
    }
    Ok(Some(lines))
}

/// The line between two outputs.
fn separator(args: &Args) -> &'static str {
    match args.output.format() {
        Some(Format::Yaml) => "---",
        _ => "",
    }
}

/// Waits for the next look: for a change, but at least for the pause. Changes during the pause
/// count as one.
async fn next_look(changes: &mut (impl Stream<Item = ()> + Unpin)) {
    tokio::time::sleep(PAUSE).await;
    let change = async {
        if changes.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    };
    let _ = tokio::time::timeout(REFRESH - PAUSE, change).await;
    // Without a budget, tokio would report an empty queue after some of the changes.
    while let Some(Some(())) = tokio::task::unconstrained(changes.next()).now_or_never() {}
}

/// The changes of a kind. A failed watch is tried again, later and later; meanwhile the periodic
/// look shows changes.
fn changes<K>(cluster: &Cluster, namespace: Option<&str>) -> impl Stream<Item = ()> + Send + use<K>
where
    K: Namespaced + Send + 'static,
{
    let api: Api<PartialObjectMeta<K>> = cluster.namespaced(namespace);
    let events = watcher(api, watcher::Config::default()).default_backoff();
    events.filter_map(|event| async move { event.ok().map(|_| ()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::OutputArgs;

    #[test]
    fn only_what_differs_is_printed() {
        let report = |missing: &str| ClusterReport {
            missing: vec![missing.to_owned()],
            ..ClusterReport::default()
        };
        let (a, b) = (report("a"), report("b"));
        for (format, terminal, shown, starts_with) in [
            (None, true, None, Some(CLEAR)),
            (None, true, Some(&a), Some(CLEAR)),
            (Some(Format::Wide), true, Some(&a), Some(CLEAR)),
            (None, false, None, Some("\u{1b}[1mNot known")),
            (None, false, Some(&a), None),
            (None, false, Some(&b), Some("")),
            (Some(Format::Json), true, Some(&a), None),
            (Some(Format::Json), true, None, Some("{")),
            (Some(Format::Yaml), false, Some(&b), Some("---")),
            (Some(Format::Yaml), false, Some(&a), None),
        ] {
            let args = Args {
                output: OutputArgs {
                    output: format.clone(),
                    ..OutputArgs::default()
                },
                ..Args::default()
            };
            let lines = next_lines(&args, &a, shown, terminal).unwrap();
            let first = lines.as_ref().map(|lines| terminal::printed(&lines[0]));
            let first = first.as_deref();
            let matches = match (first, starts_with) {
                (Some(first), Some("")) => first.is_empty(),
                (Some(first), Some(start)) => first.starts_with(start),
                (first, start) => first == start,
            };
            assert!(matches, "{format:?} {terminal}: {first:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_changes_is_one_look() {
        let (send, receive) = tokio::sync::mpsc::unbounded_channel();
        let mut changes = tokio_stream::wrappers::UnboundedReceiverStream::new(receive);
        for _ in 0..1000 {
            send.send(()).unwrap();
        }
        let start = tokio::time::Instant::now();
        next_look(&mut changes).await;
        assert_eq!(start.elapsed().as_secs(), PAUSE.as_secs());
        next_look(&mut changes).await;
        let end = PAUSE + REFRESH;
        assert_eq!(
            start.elapsed().as_secs(),
            end.as_secs(),
            "the burst is over"
        );
        send.send(()).unwrap();
        next_look(&mut changes).await;
        assert_eq!(start.elapsed().as_secs(), (end + PAUSE).as_secs());
    }
}
