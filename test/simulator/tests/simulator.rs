//! Runs the simulator: the kept histories, a seed of each world twice, an export, a history that is
//! recorded and, for a minute or `SIMULATOR_SECONDS`, new seeds.

use std::path::{Path, PathBuf};
use std::process::Command;

use hostloop_fidelity::{ClusterState, Export};
use serde_json::{Value, json};

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
    let dir = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/histories"));
    let files = dir.expect("a directory").flatten();
    let kept = files.filter(|file| file.path().extension().is_some_and(|end| end == "json"));
    assert!(kept.count() > 0, "no history is kept");
    // A second time takes minutes, and finds only what `one_seed_is_one_history` mostly finds too.
    if std::env::var_os("SIMULATOR_SECONDS").is_some() {
        simulate(&["--kept", "--twice"]);
    } else {
        simulate(&["--kept"]);
    }
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
            .any(|step| step.state != ClusterState::default())
    );
}

#[test]
fn nothing_goes_wrong_in_new_histories() {
    let seconds = std::env::var("SIMULATOR_SECONDS").unwrap_or_else(|_| "60".to_owned());
    // Longer histories take minutes each in a debug build.
    simulate(&["--seconds", &seconds, "--steps", "60"]);
}

/// The start of virtual time, in microseconds since the epoch.
const START: u64 = 1_767_225_600_000_000;

/// Writes a history of a calm world, and simulates it twice, of which it records one.
fn recorded(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (history, recording) = (
        dir.join(format!("{name}.json")),
        dir.join(format!("{name}.recording")),
    );
    let steps = json!({"seed": 90_210, "world": "calm", "steps": [
        {"wait": 1000, "do": "claim", "name": "c1", "class": "ext4-now", "size": "10Mi",
            "mode": "ReadWriteOnce"},
        {"wait": 20_000, "do": "pod", "name": "p1", "claims": ["c1"]},
    ]});
    std::fs::write(&history, steps.to_string()).expect("a history");
    let [history, file] = [&history, &recording].map(|path| path.display().to_string());
    // A history that is recorded is the same as one that is not.
    simulate(&["--replay", &history, "--record", &file, "--twice"]);
    recording
}

/// The messages of a recording, as the client reads it.
fn messages(recording: &Path) -> Vec<Value> {
    let text = hostloop_kubectl::read_recording(recording).expect("a recording");
    let recording: Value = serde_json::from_str(&text).expect("JSON");
    let messages = recording["messages"].as_array().expect("messages");
    messages.clone()
}

/// The virtual time of a message, in seconds.
fn seconds(message: &Value) -> u64 {
    let time = message["t"].as_u64().expect("a time");
    (time - START) / 1_000_000
}

#[test]
fn a_recording_has_what_happened_and_when() {
    let [first, second] = ["first", "second"].map(recorded);
    let messages = messages(&first);
    assert_eq!(messages[0]["type"], "hello");
    assert!(messages.is_sorted_by_key(|message| message["t"].as_u64()));
    let claim: Vec<&Value> = messages
        .iter()
        .filter(|one| one["kind"] == "PersistentVolumeClaim" && one["key"] == "u/c1")
        .collect();
    // The cluster starts for a minute.
    assert!((61..65).contains(&seconds(claim[0])), "{}", claim[0]);
    let bound = claim
        .iter()
        .find(|one| one["object"]["status"]["phase"] == "Bound")
        .expect("a bound claim");
    assert!((61..81).contains(&seconds(bound)), "{bound}");
    assert_eq!(claim.last().expect("an end")["op"], "delete");
    for expected in [
        json!({"type": "problem", "about": "now",
            "text": "user: claim c1: 10Mi of class ext4-now, ReadWriteOnce"}),
        json!({"type": "report", "node": "n1"}),
        json!({"type": "event", "node": "n1", "process": "node"}),
        json!({"type": "verdict"}),
    ] {
        let fields = expected.as_object().expect("fields");
        let found = messages
            .iter()
            .any(|one| fields.iter().all(|(field, value)| one[field] == *value));
        assert!(found, "{expected}");
    }
    let volumes = messages.iter().filter(|one| one["type"] == "report");
    let mut volumes = volumes.filter_map(|one| one["report"]["volumes"].as_array());
    assert!(volumes.any(|volumes| volumes.len() == 1));
    let [first, second] = [first, second].map(std::fs::read);
    assert!(first.expect("a recording") == second.expect("a recording"));
}
