//! `check`: whether the cluster has what hostloop needs, and whether hostloop works.
//!
//! [`gather`] asks, [`decide`] judges, [`render`] prints. Each expectation is a line. What a person
//! may not see is skipped and says which right is missing.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use hostloop_api_objects::duration;
use hostloop_terminal::terminal;
use uuid::Uuid;

use super::Cluster;
use super::output::OutputArgs;
use super::progress_line::ProgressLine;

mod decide;
mod facts;
mod gather;
mod line;
mod live;
mod render;

use line::{Line, Section};

/// The heading of the live check.
const LIVE: &str = "A volume from claim to deletion";

/// Arguments of `check`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 if no expectation failed, else 1. It changes nothing, except \
                        with --live: then it makes claims and pods, and deletes them."
)]
pub struct Args {
    /// Also make a claim, write to it, snapshot, restore, read and delete it
    #[arg(long)]
    pub live: bool,

    /// The StorageClass for --live [default: of those that delete their volumes, the driver's default
    /// class, else hostloop-ext4 or another one that waits for a pod; thick ones come last]
    #[arg(long, value_name = "NAME", requires = "live")]
    pub class: Option<String>,

    /// How long each step of --live may take
    #[arg(
        long,
        value_name = "DURATION",
        requires = "live",
        default_value = "2m",
        value_parser = duration::parse
    )]
    pub timeout: Duration,

    #[command(flatten)]
    pub output: OutputArgs<false>,
}

/// Why a check could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no answer from the API server.
    #[error("the API server does not answer: {0}; check the kubeconfig and the context")]
    Unreachable(String),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    let mut progress = ProgressLine::new();
    let facts = gather::gather(cluster, &mut progress)
        .await
        .map_err(Error::Unreachable)?;
    let mut sections = decide::decide(&facts);
    let printer = CheckPrinter {
        is_text: args.output.is_text(),
        no_headers: args.output.no_headers,
    };
    for section in &sections {
        printer.heading(section.title)?;
        printer.lines(&render::lines(section))?;
        printer.end_section()?;
    }
    if args.live {
        let choice = live::LiveOptions {
            namespace: cluster.namespace.clone(),
            class: args.class.clone(),
            timeout: args.timeout,
            name: new_name(),
        };
        let planned = live::plan(&facts, choice);
        sections.push(run_live(cluster, planned, &mut progress, &printer).await?);
    }
    let report = render::Report::of(&sections);
    match args.output.document(&report, Vec::new)? {
        Some(document) => terminal::print(&document)?,
        None if args.output.no_headers => {}
        None => printer.lines(&[render::summary(&sections)])?,
    }
    Ok(if report.passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the live check. Its lines are printed as soon as they are known. A failure to print does
/// not stop it, because it has to clean up.
async fn run_live(
    cluster: &Cluster,
    planned: Result<live::LivePlan, Line>,
    progress: &mut ProgressLine,
    printer: &CheckPrinter,
) -> io::Result<Section> {
    let mut said = Said {
        printer,
        printed: printer.heading(LIVE),
        lines: Vec::new(),
    };
    match planned {
        Ok(plan) => {
            if let Some(line) = plan.left_out() {
                said.say(line);
            }
            live::run(cluster, &plan, progress, &mut |line| said.say(line)).await;
        }
        Err(line) => said.say(line),
    }
    said.printed?;
    printer.end_section()?;
    Ok(Section {
        title: LIVE,
        lines: said.lines,
    })
}

/// Lines that are printed and kept.
struct Said<'a> {
    printer: &'a CheckPrinter,
    /// The first failure to print.
    printed: io::Result<()>,
    lines: Vec<Line>,
}

impl Said<'_> {
    fn say(&mut self, line: Line) {
        let printed = self.printer.lines(&render::line(&line));
        if self.printed.is_ok() {
            self.printed = printed;
        }
        self.lines.push(line);
    }
}

/// A name that no other check has.
fn new_name() -> String {
    let id = Uuid::new_v4().simple().to_string();
    format!("hostloop-check-{}", &id[..8])
}

/// Prints lines as soon as they are known.
struct CheckPrinter {
    /// False if only a document goes to standard output, at the end.
    is_text: bool,
    /// True for the lines of the expectations alone.
    no_headers: bool,
}

impl CheckPrinter {
    fn lines(&self, lines: &[String]) -> io::Result<()> {
        if self.is_text {
            terminal::print(lines)
        } else {
            Ok(())
        }
    }

    fn heading(&self, title: &str) -> io::Result<()> {
        if self.no_headers {
            return Ok(());
        }
        self.lines(&[render::heading(title)])
    }

    /// The empty line behind a section.
    fn end_section(&self) -> io::Result<()> {
        if self.no_headers {
            return Ok(());
        }
        self.lines(&[String::new()])
    }
}
