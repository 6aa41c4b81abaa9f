//! Writes many mutants into one copy of the checkout, so that one build has them all. A variable of
//! the environment switches one of them on. `test/mutants/run` uses it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod blame;
mod checkout;
mod edit;
mod mutant;
mod order;
mod plan;
mod rewriting;

use blame::Blame;
use checkout::Texts;
use mutant::Mutant;
use plan::{Plan, Region};

/// Writes many mutants into one copy of the checkout, each of which is switched on by a variable.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// What is known of the mutants in the copy, from one command to the next
    #[arg(long, global = true, default_value = ".")]
    folder: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Chooses mutants at random, and makes the copy. The standard input has the checkout's files,
    /// each with a NUL behind it
    Write {
        /// The checkout
        #[arg(long)]
        checkout: PathBuf,
        /// What `cargo mutants --list --json` printed of it
        #[arg(long)]
        list: PathBuf,
        /// How many mutants the copy has
        #[arg(long)]
        count: usize,
        /// The seed of the choice
        #[arg(long)]
        seed: u64,
    },
    /// Notes the mutants that the compiler refuses, so that the next copy has others. The standard
    /// input is the output of `cargo build --message-format json`
    Blame,
}

/// The files in the folder.
struct Files {
    /// The copy of the checkout.
    tree: PathBuf,
    /// Number, place and title of each mutant in the copy.
    plan: PathBuf,
    /// Number, file, first byte and end of the code of each mutant in the copy.
    regions: PathBuf,
    /// Place and title of each mutant that the compiler refused.
    unviable: PathBuf,
}

impl Files {
    fn of(folder: &Path) -> Files {
        Files {
            tree: folder.join("tree"),
            plan: folder.join("plan.tsv"),
            regions: folder.join("regions.tsv"),
            unviable: folder.join("unviable.tsv"),
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let files = Files::of(&args.folder);
    let done = match args.command {
        Command::Write {
            checkout,
            list,
            count,
            seed,
        } => write(&files, &checkout, &list, count, seed),
        Command::Blame => blame(&files),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(files: &Files, checkout: &Path, list: &Path, count: usize, seed: u64) -> io::Result<()> {
    let mutants = Mutant::list(&std::fs::read_to_string(list)?)?;
    println!("{}", plan::summary(&mutants));
    let unviable = rows::<2>(&files.unviable)?
        .into_iter()
        .map(|[place, title]| (place, title))
        .collect();
    let plan = Plan::of(checkout, mutants, &unviable, count, seed)?;
    for (mutant, why) in &plan.left_out {
        println!("left out: {}: {}: {why}", mutant.place(), mutant.title());
    }
    println!("chosen: {}", plan::summary(&plan.chosen));
    let lines: String = plan
        .chosen
        .iter()
        .map(|mutant| {
            format!(
                "{}\t{}\t{}\n",
                mutant.number,
                mutant.place(),
                mutant.title()
            )
        })
        .collect();

    let mut texts = Texts::new();
    checkout::add_switch(checkout, &mut texts)?;
    let regions = plan.write(checkout, &mut texts)?;
    checkout::copy(checkout, &files.tree, &tracked()?, &texts)?;
    std::fs::write(&files.plan, lines)?;
    let regions: String = regions
        .iter()
        .map(
            |Region {
                 number,
                 file,
                 bytes,
             }| { format!("{number}\t{file}\t{}\t{}\n", bytes.start, bytes.end) },
        )
        .collect();
    std::fs::write(&files.regions, regions)
}

/// The files that the standard input names.
fn tracked() -> io::Result<BTreeSet<PathBuf>> {
    let mut names = Vec::new();
    io::stdin().read_to_end(&mut names)?;
    Ok(names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| PathBuf::from(OsString::from_vec(name.to_vec())))
        .collect())
}

fn blame(files: &Files) -> io::Result<()> {
    let mut regions = Vec::new();
    for [number, file, start, end] in rows(&files.regions)? {
        let (start, end) = (parsed(&start)?, parsed(&end)?);
        let number = parsed(&number)?;
        regions.push(Region {
            number,
            file,
            bytes: start..end,
        });
    }
    let output = io::read_to_string(io::stdin())?;
    let Blame { numbers, others } = Blame::of(&output, &regions);
    if numbers.is_empty() || !others.is_empty() {
        let others = others.join("\n");
        return Err(io::Error::other(format!(
            "the copy is wrong without a mutant\n{others}"
        )));
    }
    let mut unviable = rows::<2>(&files.unviable)?;
    for [number, place, title] in rows(&files.plan)? {
        if numbers.contains(&parsed(&number)?) {
            println!("the compiler refuses {place}: {title}");
            unviable.push([place, title]);
        }
    }
    let lines: String = unviable.iter().map(|row| row.join("\t") + "\n").collect();
    std::fs::write(&files.unviable, lines)
}

fn parsed<T: std::str::FromStr>(text: &str) -> io::Result<T> {
    text.parse()
        .map_err(|_| io::Error::other(format!("{text} is not a number")))
}

/// The rows of a table, which has none if it is not there.
fn rows<const COLUMNS: usize>(file: &Path) -> io::Result<Vec<[String; COLUMNS]>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let mut rows = Vec::new();
    for line in text.lines() {
        let row: Vec<String> = line.split('\t').map(str::to_owned).collect();
        let row = row.try_into().map_err(|_| {
            io::Error::other(format!("{}: not {COLUMNS} columns: {line}", file.display()))
        })?;
        rows.push(row);
    }
    Ok(rows)
}
