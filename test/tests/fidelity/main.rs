//! Histories of the simulator on a real cluster of one node.
//!
//! The simulator exports what its users sent and the state after each step. Here the same is sent
//! to Kubernetes and the deployed driver. After each step, both states are compared: objects,
//! events and the records in the pool, in the form of the crate `hostloop-fidelity`. A difference
//! is printed as a sentence beneath its step, and fails the test unless it is known.
//!
//!     cargo test -p hostloop-test --test fidelity -- --nocapture
//!
//! - `FIDELITY_SEEDS=3,7`: the seeds of the histories. By default there are twenty.
//! - `FIDELITY_STEPS=9`: the number of steps before the end of a history.
//! - `HOSTLOOP_SIMULATOR_BIN=FILE`: the simulator, instead of the debug build of this workspace.
//!
//! `target/fidelity` has the export of each history and, if anything differs, the driver's log.

mod replay;
mod site;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use hostloop_fidelity::{Export, KNOWN};
use hostloop_test::child::{self, tail};
use hostloop_test::machine;

use site::Site;

/// The seeds, unless `FIDELITY_SEEDS` has others.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=20;
/// The number of steps, unless `FIDELITY_STEPS` has another.
const STEPS: &str = "9";

#[tokio::test(flavor = "multi_thread")]
async fn a_real_cluster_does_what_the_simulator_does() {
    machine::require();
    // A mistake in them shows before the cluster starts.
    let exports: Vec<Export> = seeds().into_iter().map(exported).collect();
    let site = Site::up().await;
    let (mut wrong, mut known) = (Vec::new(), BTreeMap::new());
    for export in &exports {
        let started = Instant::now();
        println!("seed {}:", export.seed);
        site.prepare(&export.setup).await;
        let replayed = replay::replay(&site, export).await;
        println!(
            "seed {}: {} steps in {} s, {} differences, {} known ones",
            export.seed,
            export.steps.len(),
            started.elapsed().as_secs(),
            replayed.wrong.len(),
            replayed.known.len()
        );
        wrong.extend(replayed.wrong);
        for what in replayed.known {
            *known.entry(what).or_insert(0_usize) += 1;
        }
        let stays = site.clear().await;
        wrong.extend(stays.map(|what| format!("seed {}: {what}", export.seed)));
    }
    println!("Known differences:");
    for one in &KNOWN {
        let count = known.get(one.what).copied().unwrap_or_default();
        println!("  {count} {}: {}", one.what, one.why);
    }
    if !wrong.is_empty() {
        save("driver.log", &site.log());
    }
    tokio::task::block_in_place(|| site.down());
    assert!(
        wrong.is_empty(),
        "{} differences:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn seeds() -> Vec<u64> {
    let Ok(chosen) = std::env::var("FIDELITY_SEEDS") else {
        return SEEDS.collect();
    };
    let seeds = chosen.split(',').map(|seed| seed.trim().parse::<u64>());
    seeds
        .collect::<Result<Vec<u64>, _>>()
        .unwrap_or_else(|e| panic!("FIDELITY_SEEDS={chosen}: {e}"))
}

/// The history of a seed, and what it came to in the simulator.
fn exported(seed: u64) -> Export {
    let steps = std::env::var("FIDELITY_STEPS").unwrap_or_else(|_| STEPS.to_owned());
    let seed_word = seed.to_string();
    let arguments = ["--export", "--seed", &seed_word, "--steps", &steps];
    let ran = child::command(simulator())
        .args(arguments)
        .output()
        .expect("the simulator runs");
    let [printed, failed] =
        [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let end = tail(&printed);
    assert!(
        ran.status.success(),
        "simulator {}: {}\n{end}\n{failed}",
        arguments.join(" "),
        ran.status
    );
    let file = format!("{seed}.json");
    save(&file, &printed);
    serde_json::from_str(&printed).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Saves a text for people.
fn save(file: &str, content: &str) {
    let folder = machine::root().join("target/fidelity");
    std::fs::create_dir_all(&folder).expect("a folder can be made in target");
    std::fs::write(folder.join(file), content).expect("a file can be written in target");
}

/// The simulator: `HOSTLOOP_SIMULATOR_BIN`, or the debug build of this workspace.
fn simulator() -> PathBuf {
    let chosen = std::env::var_os("HOSTLOOP_SIMULATOR_BIN");
    let path = chosen.map_or_else(
        || machine::root().join("target/debug/simulator"),
        PathBuf::from,
    );
    assert!(
        path.is_file(),
        "This test needs the simulator, and there is none at {} (HOSTLOOP_SIMULATOR_BIN): run \
         `cargo build -p hostloop-simulator`.",
        path.display()
    );
    path
}
