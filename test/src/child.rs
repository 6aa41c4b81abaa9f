//! Programs as child processes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::machine::root;

/// What programs inherit of this process's environment: no kubeconfig, no cluster around a pod, no
/// setting of hostloop or of a library.
const INHERITED: [&str; 6] = [
    "PATH",
    "TMPDIR",
    "LANG",
    "RUST_BACKTRACE",
    "GOGC",
    "TEST_RUN",
];

/// Where the desktop of a person is.
const DESKTOP: [&str; 10] = [
    "BROWSER",
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "HOME",
    "SSH_CONNECTION",
    "USER",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_CURRENT_DESKTOP",
    "XDG_RUNTIME_DIR",
];

/// A command in an environment made for it. So it only touches the cluster that its arguments name.
/// `scripts/lib.sh` does the same for the programs of scripts, which need more to build.
#[expect(clippy::disallowed_methods, reason = "this makes the environment")]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(&program);
    if Path::new(&program).starts_with(root().join("scripts")) {
        return command;
    }
    // Without a home, Go's programs would look for .kube/config in the working directory. In this one,
    // nothing can be created.
    command
        .env_clear()
        .envs(inherited(&INHERITED))
        .env("HOME", "/proc/home");
    command
}

/// [`command`], for a program that opens a browser before a person.
pub fn desktop_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = command(program);
    command
        .envs(inherited(&DESKTOP))
        .env("KUBECONFIG", root().join("test/no-cluster.yaml"));
    command
}

/// These variables, if they are set.
fn inherited(names: &[&'static str]) -> Vec<(&'static str, OsString)> {
    names
        .iter()
        .filter_map(|name| Some((*name, std::env::var_os(name)?)))
        .collect()
}

/// A running program. Dropping it kills it.
pub struct Program(Child);

impl Program {
    pub fn new(child: Child) -> Program {
        Program(child)
    }

    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The end of a pipe with the program's output.
    pub fn output(&mut self) -> ChildStdout {
        self.0.stdout.take().expect("the output is a pipe")
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a PID");
        kill(Pid::from_raw(pid), signal).expect("the program runs");
    }

    /// The exit status, if the program has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("it is this process's child")
    }

    /// Waits at most `limit` for the end. Returns `None` if the program still runs.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.ended();
            if status.is_some() || Instant::now() > deadline {
                return status;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        // An error means that the program has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A size of a running process in KiB, from `/proc`: `VmRSS` is what is resident now, and `VmHWM`
/// the most that has been.
pub fn memory_kib(pid: u32, size: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.expect("the process is running");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(size)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.expect("/proc says how much memory the process has")
}

/// Gives a program no input, and this file for its output and errors.
pub fn log_to(command: &mut Command, log: File) {
    let output = log.try_clone().expect("a file can be opened twice");
    command.stdin(Stdio::null()).stdout(output).stderr(log);
}

/// The last lines of a log, without the end of long lines.
pub fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    let end = lines[lines.len().saturating_sub(30)..].iter();
    let short = |line: &&str| line.chars().take(600).collect::<String>();
    end.map(short).collect::<Vec<_>>().join("\n")
}
