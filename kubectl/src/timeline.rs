//! `events`: what happened to an object and to those that belong to it, in order of time.

use std::io;
use std::process::ExitCode;

use hostloop_report::clock::now_ns;
use hostloop_terminal::color::{WARNING, paint};
use hostloop_terminal::page::Page;
use hostloop_terminal::terminal;

use super::api::ApiError;
use super::cluster::Cluster;
use super::describe::{Moment, history, moments};
use super::output::{self, OutputArgs, TextForm};
use super::target::{TargetArgs, TargetError};

/// Arguments of `events`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: TargetArgs,

    #[command(flatten)]
    output: OutputArgs<false>,
}

/// Why `events` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The words name no object.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The API server can't be asked.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// There is no such object, or it can't be read.
    #[error(
        "{0} can't be read in namespace {1}; `kubectl hostloop status -A` shows all namespaces"
    )]
    NotFound(String, String),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

/// The data of the output. Names and meanings are stable; fields may be added.
#[derive(serde::Serialize)]
struct Timeline {
    events: Vec<Moment>,
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    let target = args.target.target()?;
    let mut objects = target.gather(cluster).await?;
    let is_known = target.is_in(&objects);
    if is_known {
        target.complete(cluster, &mut objects).await;
    }
    for note in &objects.missing {
        terminal::warn(&paint(WARNING, note));
    }
    if !is_known {
        let namespace = cluster.namespace.clone();
        return Err(Error::NotFound(target.to_string(), namespace));
    }
    let timeline = Timeline {
        events: history(&objects),
    };
    let lines = match args.output.document(&timeline, Vec::new)? {
        Some(lines) => lines,
        None => text(&timeline.events, args.output.text_form()),
    };
    Ok(output::end(terminal::print(&lines))?)
}

fn text(events: &[Moment], form: TextForm) -> Vec<String> {
    let mut page = Page::new(form.width, now_ns());
    page.no_headers = form.no_headers;
    moments(events, &mut page);
    page.lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim_objects::tests::cluster_with_claim;
    use crate::target::Target;
    use crate::test_objects::{cluster_of, plain};

    #[tokio::test]
    async fn the_history_of_a_claim() {
        let cluster = cluster_of(&cluster_with_claim());
        let target = Target::parse("data").unwrap();
        let mut objects = target.gather(&cluster).await.unwrap();
        target.complete(&cluster, &mut objects).await;
        let events = history(&objects);
        let rows = plain(&text(
            &events,
            TextForm {
                no_headers: true,
                ..TextForm::default()
            },
        ));
        assert_eq!(rows.len(), events.len());
        assert!(
            rows.iter().any(|row| row.ends_with("Reason: m")),
            "{rows:?}"
        );
        let with_titles = plain(&text(&events, TextForm::default()));
        assert_eq!(with_titles.len(), events.len() + 2);
        assert_eq!(with_titles[0], "History");
    }
}
