//! Runs histories in processes of their own.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use crate::history::History;
use crate::run::{self, OUTCOME, Outcome, Output};

/// The real time that one history may take.
const LIMIT: Duration = Duration::from_secs(900);

/// Runs a history in a process of its own.
pub(crate) fn in_process(history: &History, output: Output<'_>) -> std::io::Result<Outcome> {
    #[expect(clippy::disallowed_methods, reason = "it has an empty environment")]
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command
        .arg("--alone")
        .arg(format!("--log={}", output.log))
        .arg(format!("--until={}", output.until));
    if output.export {
        command.arg("--export");
    }
    if output.trace {
        command.arg("--trace");
    }
    if let Some(file) = output.record {
        command.arg("--record").arg(file);
    }
    let mut child = command
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(serde_json::to_string(history)?.as_bytes())?;
    }
    let output = child.stdout.take();
    let (sender, outcome) = mpsc::channel();
    std::thread::spawn(move || {
        let mut outcome = None;
        let lines = output.map(|output| BufReader::new(output).lines());
        for line in lines.into_iter().flatten().map_while(Result::ok) {
            match line.strip_prefix(OUTCOME) {
                Some(text) => outcome = serde_json::from_str::<Outcome>(text).ok(),
                None => println!("{line}"),
            }
        }
        // The other end is gone after the limit.
        let _ = sender.send(outcome);
    });
    // The output ends with the process.
    let outcome = outcome.recv_timeout(LIMIT);
    if outcome.is_err() {
        child.kill()?;
    }
    let status = child.wait()?;
    if outcome.is_err() {
        run::clean(history.seed);
    }
    let outcome = outcome.ok().flatten();
    Ok(outcome.unwrap_or_else(|| Outcome {
        digest: String::new(),
        violations: vec![format!("the process ended without an outcome: {status}")],
        last: Vec::new(),
        seconds: 0,
        requests: 0,
        waits: Vec::new(),
        export: None,
    }))
}
