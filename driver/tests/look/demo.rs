//! The demo, from beginning to end, interrupted, killed, and cleaned up after.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hostloop_driver::sys::Kernel;
use hostloop_driver::sys::linux::Linux;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Longer than the demo takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// A scratch root whose name nobody else has, cleaned up after when the test fails.
struct Root {
    path: PathBuf,
}

impl Root {
    fn new(name: &str) -> Root {
        let path = format!("/var/tmp/hostloop-look-{name}-{}", std::process::id());
        Root { path: path.into() }
    }

    fn demo(&self, words: &[&str]) -> Command {
        Root::demo_of(Path::new(env!("CARGO_BIN_EXE_hostloop")), words)
    }

    fn demo_of(program: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(["demo", "--json"]).args(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, words: &[&str]) -> (Option<i32>, Vec<Value>) {
        let output = self.demo(words).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|l| serde_json::from_str(l).unwrap());
        (output.status.code(), lines.collect())
    }

    fn start(&self, words: &[&str]) -> Child {
        self.demo(words).spawn().unwrap()
    }

    fn text(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Mounts and loop devices below the root.
    fn traces(&self) -> usize {
        let kernel = Linux::new();
        let mounts = kernel.mounts().unwrap().entries;
        let mounts = mounts
            .iter()
            .filter(|m| m.mount_point.starts_with(&self.path));
        let loops = kernel.loops().unwrap();
        let below = |l: &&hostloop_driver::sys::LoopInfo| {
            Path::new(&l.backing_path).starts_with(&self.path)
        };
        mounts.count() + loops.iter().filter(below).count()
    }

    fn assert_gone(&self) {
        assert_eq!(self.traces(), 0);
        assert!(!self.path.exists());
    }

    /// Waits until the demo has staged something.
    fn wait_for_traces(&self, n: usize) {
        let began = Instant::now();
        while self.traces() < n {
            assert!(began.elapsed() < LIMIT, "nothing was mounted in time");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if self.path.exists() {
            let _ = self.demo(&["--cleanup", self.text()]).output();
        }
    }
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
}

/// Every step has a title and a time; the last line is the summary.
fn assert_told(lines: &[Value]) {
    let (summary, steps) = lines.split_last().unwrap();
    for step in steps {
        assert!(
            step["title"].is_string() && step["milliseconds"].is_number(),
            "{step}"
        );
        let failed = step["checks"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|c| c["ok"] != true);
        assert_eq!(failed.count(), 0, "{step}");
        assert!(step["error"].is_null(), "{step}");
    }
    assert_eq!(summary["failed"], 0);
}

#[test]
fn it_shows_everything_and_leaves_nothing() {
    let root = Root::new("whole");
    let (code, lines) = root.run(&["--root", root.text(), "--size", "320Mi"]);
    assert_told(&lines);
    assert_eq!(code, Some(0));
    assert_eq!(lines.len(), 24, "23 steps and the summary");
    root.assert_gone();
}

/// An upgrade replaces the program while it runs.
#[test]
fn it_needs_its_program_file_no_more() {
    let root = Root::new("replaced");
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("hostloop");
    std::fs::copy(env!("CARGO_BIN_EXE_hostloop"), &program).unwrap();
    let words = ["--root", root.text(), "--size", "320Mi"];
    let demo = Root::demo_of(&program, &words).spawn().unwrap();
    std::fs::remove_file(&program).unwrap();
    let output = demo.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    root.assert_gone();
}

#[test]
fn kept_it_stays_and_is_cleaned_up_later() {
    let root = Root::new("keep");
    let (code, lines) = root.run(&["--root", root.text(), "--size", "320Mi", "--keep"]);
    assert_told(&lines);
    assert_eq!(code, Some(0));
    assert!(root.traces() > 10);
    // A root that is taken is not taken twice.
    assert_eq!(root.run(&["--root", root.text()]).0, Some(1));
    let (code, lines) = root.run(&["--cleanup", root.text()]);
    assert_told(&lines);
    assert_eq!(code, Some(0));
    root.assert_gone();
}

#[test]
fn interrupted_it_puts_everything_back() {
    let root = Root::new("stop");
    let mut demo = root.start(&["--root", root.text(), "--size", "320Mi"]);
    root.wait_for_traces(4);
    signal(&demo, Signal::SIGINT);
    assert_eq!(demo.wait().unwrap().code(), Some(130));
    root.assert_gone();
}

#[test]
fn killed_it_is_cleaned_up_later() {
    let root = Root::new("kill");
    let mut demo = root.start(&["--root", root.text(), "--size", "320Mi"]);
    root.wait_for_traces(4);
    signal(&demo, Signal::SIGKILL);
    demo.wait().unwrap();
    let (code, lines) = root.run(&["--cleanup", root.text()]);
    assert_told(&lines);
    assert_eq!(code, Some(0));
    root.assert_gone();
}

#[test]
fn it_cleans_up_only_after_a_demo() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine");
    std::fs::write(&file, "").unwrap();
    let root = Root::new("none");
    for words in [
        ["--cleanup", dir.path().to_str().unwrap()],
        ["--root", dir.path().to_str().unwrap()],
    ] {
        assert_eq!(root.run(&words).0, Some(1));
        assert!(file.exists());
    }
}
