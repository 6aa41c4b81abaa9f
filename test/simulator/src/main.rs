//! A whole cluster in one process: the real controllers and the real driver over a modelled world,
//! in virtual time. A seed is a history, and two runs of a seed are the same.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use tracing_subscriber::filter::LevelFilter;

mod batch;
mod cluster;
mod dice;
mod disk;
mod door;
mod effects;
mod export;
mod fairness;
mod filesystems;
mod foreign;
mod heartbeats;
mod history;
mod kubelet;
mod machine;
mod messages;
mod model;
mod oracle;
mod process;
mod recording;
mod run;
mod secret;
mod shim;
mod shrink;
mod stamps;
mod trace;
mod users;
mod waits;

use batch::Sum;
use history::{History, World};
use process::in_process;
use run::{Outcome, Output, Until};

/// Simulates clusters: the real controllers and driver over a modelled world, in virtual time.
///
/// Exits with 1 if something happened that must not happen, and prints the history and how to run
/// it again.
#[derive(Debug, Parser)]
struct Args {
    /// Run the history of this seed
    #[arg(long)]
    seed: Option<u64>,

    /// The number of things that users do in a history [default: 60 in a calm world, and 240 in
    /// another one]
    #[arg(long)]
    steps: Option<u64>,

    /// The kind of cluster that new histories have; by default, of three seeds each has another
    #[arg(long)]
    world: Option<World>,

    /// Run the histories of new seeds for this many seconds
    #[arg(long)]
    seconds: Option<u64>,

    /// Run the histories of so many new seeds
    #[arg(long, conflicts_with = "seconds")]
    count: Option<u64>,

    /// Let a history fail only by a sentence that begins like this
    #[arg(long, value_name = "SENTENCE")]
    violation: Option<String>,

    /// Run so many histories of new seeds at once [default: as many as there are processors]
    #[arg(long)]
    jobs: Option<NonZeroUsize>,

    /// Run the history of this file
    #[arg(long, value_name = "FILE", visible_alias = "history")]
    replay: Option<PathBuf>,

    /// Run all kept histories
    #[arg(long)]
    kept: bool,

    /// Run each history twice, and compare what happened
    #[arg(long)]
    twice: bool,

    /// Print all that happens
    #[arg(long)]
    trace: bool,

    /// The level of the product's log in the trace
    #[arg(long, default_value = "info")]
    log: LevelFilter,

    /// Leave a failed history as long as it is
    #[arg(long)]
    whole: bool,

    /// Save the failed history to this file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,

    /// Export the comparable history of the seed: print what users send, and the state of the
    /// cluster after each step and a quiet time, as JSON
    #[arg(long)]
    export: bool,
    /// Write a recording of the history to this file, for `kubectl hostloop ui --replay`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seconds", "count", "kept"])]
    record: Option<PathBuf>,

    /// Run the history of the standard input in this process
    #[arg(long, hide = true)]
    alone: bool,

    /// End the history of the standard input there
    #[arg(long, hide = true, default_value_t = Until::End)]
    until: Until,
}

impl Args {
    /// The history of a seed.
    fn history(&self, seed: u64) -> History {
        let world = self.world.unwrap_or_else(|| World::of(seed));
        History::of(seed, world, self.steps_in(world))
    }

    /// The number of steps of a history in a world.
    fn steps_in(&self, world: World) -> u64 {
        self.steps.unwrap_or_else(|| world.steps())
    }

    /// What a history prints and writes.
    fn output(&self) -> Output<'_> {
        Output {
            trace: self.trace,
            log: self.log,
            record: self.record.as_deref(),
            export: self.export,
            until: self.until,
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.alone {
        return alone(&args);
    }
    let ran = if args.export {
        print_export(&args)
    } else {
        all(&args)
    };
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("simulator: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the history of the standard input, and prints its outcome.
fn alone(args: &Args) -> ExitCode {
    let ran = std::io::read_to_string(std::io::stdin())
        .and_then(|text| Ok(serde_json::from_str(&text)?))
        .and_then(|history| run::run(&history, args.output()));
    match ran {
        Ok(outcome) => outcome.print(),
        Err(error) => {
            eprintln!("simulator: {error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// Prints what a real cluster needs to do the history of the seed. True if all went well.
fn print_export(args: &Args) -> std::io::Result<bool> {
    let seed = args
        .seed
        .ok_or_else(|| std::io::Error::other("--export needs a --seed"))?;
    let history = History::comparable(seed, args.steps_in(World::Calm));
    let outcome = in_process(&history, args.output())?;
    for violation in &outcome.violations {
        eprintln!("✗ {violation}");
    }
    let Some(export) = &outcome.export else {
        return Ok(false);
    };
    println!("{}", serde_json::to_string(export)?);
    Ok(outcome.violations.is_empty())
}

/// Runs the chosen histories until one fails. True if none does.
fn all(args: &Args) -> std::io::Result<bool> {
    let (mut sum, started) = (Sum::default(), Instant::now());
    let mut good = true;
    if args.kept {
        for file in kept()? {
            good &= one(args, &read(&file)?, &mut sum, Some(&file))?;
        }
    }
    if let Some(file) = &args.replay {
        good &= one(args, &read(file)?, &mut sum, Some(file))?;
    }
    if args.seconds.is_some() || args.count.is_some() {
        let first = args.seed.unwrap_or_else(new_seed);
        println!("seeds from {first}");
        let until = args
            .seconds
            .map(|seconds| started + Duration::from_secs(seconds));
        if good && let Some((history, outcome)) = batch::new_seeds(args, first, until, &mut sum)? {
            // The time until a history failed, without the search for a shorter one.
            println!("{}", sum.line(started.elapsed()));
            failed(args, &history, outcome, None)?;
            return Ok(false);
        }
    } else if let Some(seed) = args.seed {
        good &= one(args, &args.history(seed), &mut sum, None)?;
    }
    println!("{}", sum.line(started.elapsed()));
    Ok(good)
}

/// A seed that differs from run to run.
fn new_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_secs() % 100_000_000 * 1000)
}

/// The files of the kept histories.
fn kept() -> std::io::Result<Vec<PathBuf>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("histories");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        files.push(entry?.path());
    }
    files.retain(|file| file.extension().is_some_and(|end| end == "json"));
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> std::io::Result<History> {
    let history = serde_json::from_str(&std::fs::read_to_string(file)?);
    history.map_err(|error| std::io::Error::other(format!("{}: {error}", file.display())))
}

/// Runs a history, and reports it if it fails. True if it does not.
fn one(
    args: &Args,
    history: &History,
    sum: &mut Sum,
    file: Option<&Path>,
) -> std::io::Result<bool> {
    let outcome = batch::outcome_of(args, history)?;
    sum.add(history, &outcome);
    if args.seed.is_some() {
        println!(
            "seed {}: {}, {} requests in {} virtual minutes",
            history.seed,
            outcome.digest,
            outcome.requests,
            outcome.seconds / 60
        );
    }
    if outcome.violations.is_empty() {
        if let Some(recorded) = args.record.as_deref().filter(|file| file.exists()) {
            say_how_to_watch(recorded);
        }
        return Ok(true);
    }
    failed(args, history, outcome, file)?;
    Ok(false)
}

/// Reports a failed history, as short and plain as it still fails, unless it is kept whole.
fn failed(
    args: &Args,
    history: &History,
    outcome: Outcome,
    file: Option<&Path>,
) -> std::io::Result<()> {
    let whole = args.whole || file.is_some() || args.twice;
    let (short, outcome) = if whole {
        (history.clone(), outcome)
    } else {
        shrink::shrink(history, outcome, args.violation.as_deref())?
    };
    report(args, &short, &outcome, file)
}

/// Prints a failed history as sentences, and how to run it again.
fn report(
    args: &Args,
    history: &History,
    outcome: &Outcome,
    file: Option<&Path>,
) -> std::io::Result<()> {
    println!("\nFAILED: seed {}", history.seed);
    history.traits().for_each(|about| println!("  {about}"));
    let mut at = 0;
    for step in &history.steps {
        at += step.wait;
        println!("  {:>7}.{:03} s  {}", at / 1000, at % 1000, step.action);
    }
    if let Some(last) = &history.last {
        println!("  while everything is deleted: {last}");
    }
    for violation in &outcome.violations {
        println!("✗ {violation}");
    }
    if !args.trace {
        println!("The last that happened:");
        outcome.last.iter().for_each(|line| println!("  {line}"));
    }
    let saved = match (&args.save, file) {
        (Some(file), _) => Some(file.clone()),
        (None, Some(file)) => Some(file.to_owned()),
        (None, None) => {
            let name = format!("hostloop-simulator-{}.json", history.seed);
            Some(std::env::temp_dir().join(name))
        }
    };
    if let Some(recorded) = recording_of(args, history, outcome)? {
        say_how_to_watch(&recorded);
    }
    if let Some(saved) = saved {
        if Some(saved.as_path()) != file {
            let about = outcome.violations.first().cloned().unwrap_or_default();
            let history = History {
                about,
                ..history.clone()
            };
            std::fs::write(&saved, history.text()?)?;
        }
        println!(
            "To run it again: simulator --replay {} --trace",
            saved.display()
        );
    }
    println!(
        "The whole history: simulator --seed {} --world {} --steps {} --whole --trace",
        history.seed,
        history.world,
        args.steps_in(history.world)
    );
    Ok(())
}

fn say_how_to_watch(recording: &Path) {
    let file = recording.display();
    println!("To watch it: kubectl hostloop ui --replay {file}");
}

/// Runs a failed history once more for its recording. Returns the file, if the history comes to its
/// end.
fn recording_of(
    args: &Args,
    history: &History,
    outcome: &Outcome,
) -> std::io::Result<Option<PathBuf>> {
    if outcome.digest.is_empty() {
        return Ok(None);
    }
    let file = args.record.clone().unwrap_or_else(|| {
        let name = format!("hostloop-simulator-{}.recording.json", history.seed);
        std::env::temp_dir().join(name)
    });
    // The file of an earlier history.
    let _ = std::fs::remove_file(&file);
    let output = Output {
        trace: false,
        record: Some(&file),
        ..args.output()
    };
    in_process(history, output)?;
    Ok(file.exists().then_some(file))
}
