//! Measures a release build of the driver against floors taken in the same run, alternating, so
//! that a noisy machine disturbs both alike. See `scripts/bench --help`.

mod attach;
mod busy;
mod cluster;
mod disk;
mod measure;
mod scale;
mod snapshot;
mod stage;

use std::process::ExitCode;

use measure::Figure;

/// A part of the run: its name, and what makes its figures.
type Part = (&'static str, fn(&tokio::runtime::Runtime) -> Vec<Figure>);

/// Needs a Kubernetes, which takes long to build: it runs if it is asked for by name.
const CLUSTER: &str = "cluster";

const PARTS: &[Part] = &[
    ("attach", attach::figures),
    ("stage", stage::figures),
    ("snapshot", snapshot::figures),
    ("fio", disk::figures),
    ("busy", busy::figures),
    ("scale", scale::figures),
    (CLUSTER, cluster::figures),
];

fn main() -> ExitCode {
    let mut only = Vec::new();
    let mut json = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => json = args.next(),
            name if PARTS.iter().any(|(part, _)| *part == name) => only.push(name.to_owned()),
            other => {
                eprintln!("bench: {other} is neither --json FILE nor one of the parts:");
                PARTS.iter().for_each(|(part, _)| eprintln!("  {part}"));
                return ExitCode::from(2);
            }
        }
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be made");
    let mut figures = Vec::new();
    for (name, part) in PARTS.iter().filter(|(n, _)| match only.is_empty() {
        true => *n != CLUSTER,
        false => only.iter().any(|o| o == n),
    }) {
        eprintln!("measuring: {name}");
        for figure in part(&runtime) {
            println!("{figure}");
            figures.push(figure);
        }
    }
    if let Some(file) = json {
        let text = serde_json::to_string_pretty(&figures).expect("figures are plain data");
        std::fs::write(&file, text).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
    let missed = figures.iter().filter(|f| !f.met()).count();
    println!("{} figures, {missed} aims missed", figures.len());
    ExitCode::from(u8::from(missed > 0))
}
