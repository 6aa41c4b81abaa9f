//! Runs the simulator: the kept histories, and those of new seeds.
//!
//! `SIMULATOR_SECONDS` is the time for new seeds.

use std::process::Command;

/// The time for new seeds, in seconds.
const SECONDS: &str = "60";

#[expect(clippy::disallowed_methods, reason = "it has an empty environment")]
fn simulate(args: &[&str]) {
    let mut simulator = Command::new(env!("CARGO_BIN_EXE_simulator"));
    let ended = simulator.env_clear().args(args).status().expect("the simulator runs");
    assert!(ended.success(), "simulator {}: {ended}", args.join(" "));
}

#[test]
fn kept_histories_have_the_same_end() {
    simulate(&["--kept"]);
}

#[test]
fn one_seed_is_one_history() {
    simulate(&["--seed", "1", "--steps", "20", "--twice"]);
}

#[test]
fn nothing_goes_wrong_in_new_histories() {
    let seconds = std::env::var("SIMULATOR_SECONDS").unwrap_or(SECONDS.to_owned());
    simulate(&["--seconds", &seconds]);
}
