//! `ui`: a page in the browser on which the life of every volume is watched.
//!
//! The program joins watches of objects, the events of all processes and the nodes' reports to one
//! stream of messages, and serves it with the page on 127.0.0.1. It works with the person's rights:
//! what they do not allow is a line on the page, and the rest goes on.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hostloop_api_objects::duration;
use hostloop_http_server::{self as http_server, Limits};
use hostloop_report::flags;
use hostloop_terminal::terminal;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::cluster::{self, Cluster, ClusterArgs};
use super::manifests::Pool;

mod block_maps;
mod browser;
mod concerns;
mod history;
mod keys;
mod kinds;
mod local_pools;
mod message;
mod metrics;
mod pods;
mod problems;
mod recorder;
mod recording;
mod reports;
mod server;
mod streams;
#[cfg(test)]
mod tests;
mod verdict_facts;
mod verdicts;
mod watches;

use browser::{Address, Place};
use concerns::Concerns;
use history::History;
use keys::Keys;
use local_pools::LocalPools;
use message::PageSubject;
use problems::Problems;
use reports::Nodes;
use server::ServedPage;
use verdict_facts::VerdictFacts;

pub use recorder::{RecordedCluster, Recorder};
pub use recording::read as read_recording;

/// The page: one HTML file with its scripts and styles; `None` if this build has none.
#[cfg(feature = "ui")]
const PAGE: Option<&str> = Some(include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/ui/dist/index.html"
)));
#[cfg(not(feature = "ui"))]
const PAGE: Option<&str> = None;

/// Connections at the same time. A page has one that stays.
const CONNECTIONS: usize = 64;
/// How long a browser may take to receive an answer other than the stream.
const ANSWER: Duration = Duration::from_secs(60);

/// The size of all messages that are kept, in bytes.
const HISTORY: usize = 64 << 20;

/// Arguments of `ui`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The port on 127.0.0.1 [default: any free one]
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 0,
        hide_default_value = true
    )]
    port: u16,

    /// Print the address, and open no browser
    #[arg(long)]
    no_open: bool,

    /// Show the driver at this socket on this machine, without a cluster
    #[arg(
        long,
        value_name = "unix:///PATH",
        value_parser = flags::endpoint,
        conflicts_with = "replay"
    )]
    endpoint: Option<PathBuf>,

    /// With --endpoint: a pool of that driver, to show its volumes by `hostloop status`; repeat the
    /// flag for several
    #[arg(
        long = "pool",
        value_name = "NAME=PATH[,OPTION...]",
        requires = "endpoint"
    )]
    pools: Vec<Pool>,

    /// With --pool: the driver's directory for pools that are devices or images
    #[arg(long = "statedir", value_name = "DIR", requires = "pools")]
    state_dir: Option<PathBuf>,

    /// Show a recording, or the report of `kubectl hostloop explore -o json`
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,

    /// Write what happens to a page that opens anywhere, and open no browser
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    record: Option<PathBuf>,

    /// With --record: end after this time, such as 90s or 10m [default: at Ctrl-C]
    #[arg(
        long = "for",
        value_name = "DURATION",
        value_parser = duration::parse,
        requires = "record"
    )]
    time: Option<Duration>,

    /// Serve this page instead of the built-in one, to try a change of it
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// Why `ui` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "this build does not include the page: make the client by Docker or scripts/image with \
         Node.js (docs/start.md), or run scripts/ui and add `--page kubectl/ui/dist/index.html`"
    )]
    NoPage,
    /// The page of `--page` can't be read.
    #[error("page {0}: {1}; make it with scripts/ui")]
    Page(PathBuf, #[source] io::Error),
    /// There is no cluster.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The recording can't be used.
    #[error(transparent)]
    Recording(#[from] recording::Error),
    /// The port can't be used.
    #[error("port {0} of 127.0.0.1: {1}; choose another --port")]
    Port(u16, #[source] io::Error),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

/// Where messages go. Clones share the history.
#[derive(Clone)]
struct Out {
    history: Arc<History>,
    problems: Problems,
    concerns: Concerns,
    verdict_facts: VerdictFacts,
    /// The node of a driver without a cluster, once it is known.
    node: Arc<OnceLock<String>>,
    /// Has a receiver for each page and recording.
    viewers: watch::Sender<()>,
}

/// Keeps [`Out::is_watched`] true until it is dropped.
type Viewer = watch::Receiver<()>;

impl Out {
    fn new() -> Out {
        Out::over(Arc::new(History::new(HISTORY)))
    }

    fn over(history: Arc<History>) -> Out {
        let problems = Problems::new(history.clone());
        let verdict_facts = VerdictFacts::default();
        let concerns = Concerns::new(history.clone(), verdict_facts.clone());
        Out {
            problems,
            concerns,
            verdict_facts,
            history,
            node: Arc::default(),
            viewers: watch::Sender::default(),
        }
    }

    /// A page or a recording begins.
    fn viewer(&self) -> Viewer {
        self.viewers.subscribe()
    }

    /// True if there is a page or a recording.
    fn is_watched(&self) -> bool {
        self.viewers.receiver_count() > 0
    }
}

/// The tasks that join the messages. Dropping it ends them.
struct Join {
    subject: PageSubject,
    _tasks: JoinSet<()>,
}

pub(super) async fn run(args: &Args, cluster: &ClusterArgs) -> Result<ExitCode, Error> {
    let page = page(args)?;
    let out = Out::new();
    let join = Join::start(args, cluster, &out).await?;
    match &args.record {
        Some(file) => record(args, &join, &out, file, &page).await?,
        None => {
            let recording = args.replay.as_deref().map(recording::read).transpose()?;
            serve(args, join, out, page, recording).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The page of the argument, or of this build.
fn page(args: &Args) -> Result<String, Error> {
    match &args.page {
        Some(file) => {
            std::fs::read_to_string(file).map_err(|error| Error::Page(file.clone(), error))
        }
        None => PAGE.map(str::to_owned).ok_or(Error::NoPage),
    }
}

impl Join {
    async fn start(args: &Args, cluster: &ClusterArgs, out: &Out) -> Result<Join, Error> {
        if args.replay.is_some() {
            // The page has all its messages.
            return Ok(Join {
                subject: PageSubject::default(),
                _tasks: JoinSet::new(),
            });
        }
        if let Some(endpoint) = &args.endpoint {
            return Ok(Join::of_driver(args, endpoint, out));
        }
        Ok(Join::of_cluster(&Cluster::connect(cluster).await?, out))
    }

    fn of_driver(args: &Args, endpoint: &std::path::Path, out: &Out) -> Join {
        let nodes = if args.pools.is_empty() {
            Nodes::None
        } else {
            Nodes::Local(LocalPools {
                pools: args.pools.clone(),
                state_dir: args.state_dir.clone(),
            })
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(streams::of_socket(
            flags::events_beside(endpoint),
            out.clone(),
        ));
        tasks.spawn(reports::send(nodes, out.clone()));
        tasks.spawn(verdicts::send(String::new(), 0, out.clone()));
        let endpoint = Some(format!("unix://{}", endpoint.display()));
        let subject = PageSubject {
            endpoint,
            ..PageSubject::default()
        };
        Join {
            subject,
            _tasks: tasks,
        }
    }

    fn of_cluster(cluster: &Cluster, out: &Out) -> Join {
        let mut tasks = JoinSet::new();
        for kind in kinds::KINDS {
            tasks.spawn(watches::watch(cluster.clone(), kind, out.clone()));
        }
        let (found, pods) = watch::channel(Vec::new());
        tasks.spawn(pods::list(cluster.clone(), out.clone(), found));
        tasks.spawn(streams::of_pods(cluster.clone(), pods.clone(), out.clone()));
        tasks.spawn(metrics::send(cluster.clone(), pods.clone(), out.clone()));
        tasks.spawn(reports::send(
            Nodes::Cluster(cluster.clone(), pods),
            out.clone(),
        ));
        tasks.spawn(verdicts::send(
            cluster.driver_name.clone(),
            kinds::KINDS.len(),
            out.clone(),
        ));
        let subject = PageSubject {
            cluster: cluster.context.clone(),
            endpoint: None,
            namespace: cluster.namespace.clone(),
            driver: cluster.driver_name.clone(),
        };
        Join {
            subject,
            _tasks: tasks,
        }
    }

    /// The first message of a stream.
    fn hello(&self) -> Arc<str> {
        self.subject.hello()
    }
}

/// Serves the page until the person ends it.
async fn serve(
    args: &Args,
    join: Join,
    out: Out,
    page: String,
    recording: Option<String>,
) -> Result<(), Error> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| Error::Port(args.port, error))?;
    let bound = listener
        .local_addr()
        .map_err(|error| Error::Port(args.port, error))?;
    let port = bound.port();
    let (keys, mut notices) = Keys::new();
    browser::open(
        &Place::of_environment(args.no_open),
        &Address::new(port, &keys.token()),
    )?;
    let served = ServedPage {
        keys,
        page,
        recording,
        hello: Box::new(move || join.hello()),
        out,
    };
    let limits = Limits {
        connections: CONNECTIONS,
        answer: ANSWER,
    };
    let serving = http_server::serve(
        listener,
        server::router(served),
        limits,
        std::future::pending(),
    );
    let noticing = async {
        while let Some(notice) = notices.recv().await {
            browser::say(port, &notice)?;
        }
        Ok(())
    };
    tokio::select! {
        () = serving => Ok(()),
        said = noticing => said.map_err(Error::Print),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// Waits, and then writes the recording.
async fn record(
    args: &Args,
    join: &Join,
    out: &Out,
    file: &std::path::Path,
    page: &str,
) -> Result<(), Error> {
    let hello = join.hello();
    let _viewer = out.viewer();
    terminal::warn("Recording; Ctrl-C ends it.");
    let time = async {
        match args.time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = time => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    let messages: Vec<Arc<str>> = [hello].into_iter().chain(out.history.all().texts).collect();
    recording::write(file, page, &messages)?;
    terminal::warn(&format!(
        "{} messages are in {}.",
        messages.len(),
        file.display()
    ));
    Ok(())
}
