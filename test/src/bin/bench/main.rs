//! Measures a release build of the driver against floors taken in the same run, alternating, so
//! that a noisy machine disturbs both alike. See `scripts/bench --help`.

mod attach;
mod attached;
mod bare_loop;
mod busy;
mod by_hand;
mod calls;
mod changed_blocks;
mod cluster;
mod copies;
mod density;
mod disk;
mod events;
mod limits;
mod measure;
mod page;
mod parallel;
mod process;
mod proxy;
mod runtime;
mod scale;
mod sharing;
mod sidecars;
mod snapshot;
mod stage;
mod volumes;
mod withheld;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use measure::{Aim, Figure, Verdict};
use page::Docs;
use runtime::Runtime;
use withheld::Cpus;

/// These parts alternate their own runs, all numbers of volumes or instances in turn.
const IN_TURNS: [&str; 2] = ["density", "scale"];

/// A part of the run: its name, and the function that makes its figures.
type Part = (&'static str, fn(&Runtime, &Args) -> Vec<Figure>);

/// These parts run only if they are named: they take long, or need a Kubernetes, which takes long
/// to build.
const IF_NAMED: [&str; 7] = [
    "limits",
    "changed-blocks",
    "density",
    "cluster",
    "events",
    "scale",
    "sidecars",
];

const PARTS: &[Part] = &[
    ("attach", |runtime, _| attach::figures(runtime)),
    ("stage", |runtime, _| stage::figures(runtime)),
    ("snapshot", |runtime, _| snapshot::figures(runtime)),
    ("fio", |runtime, _| disk::figures(runtime)),
    ("faults", |runtime, _| disk::with_faults_allowed(runtime)),
    ("proxy", |_, _| proxy::figures()),
    ("busy", |runtime, _| busy::figures(runtime)),
    ("copies", |runtime, args| {
        copies::figures(runtime, args.data)
    }),
    ("volumes", |runtime, _| volumes::figures(runtime)),
    ("parallel", |runtime, _| parallel::figures(runtime)),
    ("sharing", |_, _| sharing::figures()),
    ("limits", |runtime, _| limits::figures(runtime)),
    ("changed-blocks", |runtime, _| {
        changed_blocks::figures(runtime)
    }),
    ("density", |_, args| {
        density::figures(&args.density(), &args.docs())
    }),
    ("cluster", |runtime, _| cluster::figures(runtime)),
    ("events", |runtime, args| {
        events::figures(runtime, args.quick, &args.docs())
    }),
    ("scale", |runtime, args| {
        scale::figures(runtime, &args.scale(), &args.docs())
    }),
    ("sidecars", |runtime, args| {
        sidecars::figures(runtime, &args.sidecars())
    }),
];

/// Measures the driver and its controllers against floors taken in the same run.
#[derive(Parser)]
#[command(name = "bench")]
struct Args {
    /// The parts to measure; by default, all but limits, changed-blocks, density, cluster,
    /// events, scale and sidecars
    #[arg(value_name = "PART", value_parser = PossibleValuesParser::new(PARTS.iter().map(|p| p.0)))]
    parts: Vec<String>,
    /// Keep the figures
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// density, events, scale, sidecars: few volumes, instances and claims
    #[arg(long)]
    quick: bool,
    /// density: numbers of attached volumes
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    volumes: Vec<usize>,
    /// scale: numbers of instances
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    instances: Vec<usize>,
    /// scale: claims of each kind for each number; sidecars: claims of a round
    #[arg(long, value_name = "N")]
    claims: Option<usize>,
    /// Runs of each part: more of them decide closer aims, and three decide an aim of scale
    #[arg(long, value_name = "N", default_value = "1", conflicts_with = "quick")]
    runs: std::num::NonZeroUsize,
    /// scale: volumes to attach, 0 for none
    #[arg(long, value_name = "N")]
    attach: Option<usize>,
    /// copies: data of each copy, in MiB; the machine's disk needs room for 42 copies
    #[arg(long, value_name = "MIB", default_value_t = copies::DATA)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    data: u64,
    /// scale: without the policy that makes the API server place and label claims
    #[arg(long)]
    without_policy: bool,
    /// density, events, scale: write data, table and charts into this directory
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
    /// density, events, scale: draw the data in that directory again, and measure nothing
    #[arg(long, requires = "docs")]
    again: bool,
}

impl Args {
    fn docs(&self) -> Docs {
        Docs {
            dir: self.docs.clone(),
            again: self.again,
        }
    }

    fn density(&self) -> density::Settings {
        let mut settings = density::Settings {
            runs: self.runs.get(),
            ..Default::default()
        };
        if self.quick {
            settings = settings.quick();
        }
        if !self.volumes.is_empty() {
            settings.volumes.clone_from(&self.volumes);
        }
        settings
    }

    fn sidecars(&self) -> sidecars::Settings {
        let settings = if self.quick {
            sidecars::Settings::quick()
        } else {
            sidecars::Settings::default()
        };
        sidecars::Settings {
            claims: self.claims.unwrap_or(settings.claims),
            ..settings
        }
    }

    fn scale(&self) -> scale::Settings {
        let mut settings = scale::Settings {
            policy: !self.without_policy,
            runs: self.runs.get(),
            ..Default::default()
        };
        if self.quick {
            settings = settings.quick();
        }
        if !self.instances.is_empty() {
            settings.instances.clone_from(&self.instances);
        }
        if let Some(claims) = self.claims {
            settings.claims = claims;
        }
        if let Some(attachments) = self.attach {
            settings.attachments = attachments;
        }
        settings
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let only = &args.parts;
    let runtime = Runtime::new();
    let mut figures = Vec::new();
    let before = Cpus::now();
    for (name, part) in PARTS.iter().filter(|(n, _)| {
        if only.is_empty() {
            !IF_NAMED.contains(n)
        } else {
            only.iter().any(|o| o == n)
        }
    }) {
        eprintln!("measuring: {name}");
        let mut of_part = part(&runtime, &args);
        let runs = if IN_TURNS.contains(name) {
            1
        } else {
            args.runs.get()
        };
        for run in 2..=runs {
            eprintln!("measuring: {name}, run {run} of {runs}");
            let more = part(&runtime, &args);
            of_part
                .iter_mut()
                .zip(more)
                .for_each(|(all, more)| all.extend(more));
        }
        of_part.iter().for_each(|figure| println!("{figure}"));
        figures.extend(of_part);
    }
    let withheld = vec![Cpus::now().withheld_since(before)];
    let what = "CPU withheld by the machine's host meanwhile";
    let withheld = Figure::alone(what, withheld, "%", Aim::None);
    println!("{withheld}");
    figures.push(withheld);
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&figures).expect("figures are plain data");
        std::fs::write(file, text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
    let verdicts: Vec<_> = figures.iter().map(Figure::verdict).collect();
    let missed = verdicts.iter().filter(|v| **v == Verdict::Missed).count();
    let undecided = verdicts.iter().filter(|v| v.undecided()).count();
    let all = figures.len();
    println!("{all} figures, {missed} aims missed, {undecided} undecided");
    ExitCode::from(u8::from(missed > 0))
}
