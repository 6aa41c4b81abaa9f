//! Runs the simulator: the kept histories, a seed of each world twice, an export and, for
//! `SIMULATOR_SECONDS`, new seeds.

use std::process::Command;

use hostloop_fidelity::{Export, State};

#[expect(clippy::disallowed_methods, reason = "it has an empty environment")]
fn simulate(args: &[&str]) {
    let mut simulator = Command::new(env!("CARGO_BIN_EXE_simulator"));
    let ended = simulator
        .env_clear()
        .args(args)
        .status()
        .expect("the simulator runs");
    assert!(ended.success(), "simulator {}: {ended}", args.join(" "));
}

#[test]
fn kept_histories_have_the_same_end() {
    simulate(&["--kept"]);
}

#[test]
fn one_seed_is_one_history() {
    // In a hard world, the first steps seldom meet what is hard.
    for (world, steps) in [("calm", "5"), ("rough", "5"), ("hard", "25")] {
        simulate(&["--seed", "1", "--world", world, "--steps", steps, "--twice"]);
    }
}

#[expect(clippy::disallowed_methods, reason = "it has an empty environment")]
fn exported(seed: &str) -> String {
    let mut simulator = Command::new(env!("CARGO_BIN_EXE_simulator"));
    let ended = simulator
        .env_clear()
        .args(["--export", "--steps", "4", "--seed", seed])
        .output()
        .expect("the simulator runs");
    let printed = String::from_utf8_lossy(&ended.stdout).into_owned();
    let failed = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{printed}{failed}");
    printed
}

#[test]
fn an_export_has_what_users_sent_and_what_came_of_it() {
    let first = exported("1");
    assert_eq!(first, exported("1"));
    let export: Export = serde_json::from_str(&first).expect("an export");
    assert!((4..=6).contains(&export.steps.len()), "{first}");
    assert!(export.steps.iter().any(|step| !step.calls.is_empty()));
    assert!(
        export
            .steps
            .iter()
            .any(|step| step.state != State::default())
    );
}

#[test]
fn power_cuts_lose_nothing_that_was_synced() {
    let history = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/power-cuts.json");
    simulate(&["--history", history, "--twice"]);
}

#[test]
fn nothing_goes_wrong_in_new_histories() {
    if let Ok(seconds) = std::env::var("SIMULATOR_SECONDS") {
        simulate(&["--seconds", &seconds]);
    }
}
