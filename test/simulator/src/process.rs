//! Runs histories in processes of their own.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::history::History;
use crate::run::{self, OUTCOME, Outcome, Output};

/// The real time that one history may take.
const LIMIT: Duration = Duration::from_secs(900);

/// Runs a history in a process of its own.
pub(crate) fn in_process(history: &History, output: Output<'_>) -> std::io::Result<Outcome> {
    #[expect(clippy::disallowed_methods, reason = "it has an empty environment")]
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.arg("--alone").arg(format!("--log={}", output.log));
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
    let reader = std::thread::spawn(move || {
        let mut outcome = None;
        let lines = output.map(|output| BufReader::new(output).lines());
        for line in lines.into_iter().flatten().map_while(Result::ok) {
            match line.strip_prefix(OUTCOME) {
                Some(text) => outcome = serde_json::from_str::<Outcome>(text).ok(),
                None => println!("{line}"),
            }
        }
        outcome
    });
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > LIMIT {
            child.kill()?;
            let status = child.wait()?;
            run::clean(history.seed);
            break status;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let outcome = reader.join().ok().flatten();
    Ok(outcome.unwrap_or_else(|| Outcome {
        digest: String::new(),
        violations: vec![format!("the process ended without an outcome: {status}")],
        last: Vec::new(),
        seconds: 0,
        requests: 0,
    }))
}
