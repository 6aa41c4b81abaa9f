//! The driver as a process of its own: this very executable, run as `serve`.

use std::fs::{File, OpenOptions};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Pid;

use super::error::{Error, Result};
use super::tree::Tree;

/// How long the driver may take to start.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long it may take to end once asked to.
const STOP_LIMIT: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(10);
/// Environment variables that would change how the driver behaves.
const OWN_ENVIRONMENT: [&str; 2] = ["HOSTLOOP_", "CSI_"];

/// This node's ID in the demo.
pub(super) const NODE_ID: &str = "demo-node";

/// A driver that runs.
pub(super) struct Driver {
    tree: Tree,
    child: Running,
}

/// Whose child it is.
enum Running {
    /// Ours.
    Child(Child),
    /// Of an earlier demo that left it running.
    Found(Pid),
}

impl Driver {
    /// Starts it over a tree and waits until its socket takes connections.
    pub(super) fn start(tree: &Tree, pool: &str) -> Result<Driver> {
        let log = open_log(&tree.log())?;
        let err = log.try_clone().map_err(Error::io("open", tree.log()))?;
        // Its path may lead to another program by now, as after an upgrade, or to none.
        let program = Path::new("/proc/self/exe");
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let own = |prefix: &&str| name.to_str().is_some_and(|n| n.starts_with(*prefix));
            if OWN_ENVIRONMENT.iter().any(own) {
                command.env_remove(&name);
            }
        }
        command
            .arg0("hostloop")
            .args(arguments(tree, pool))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(err)
            // Ctrl-C at the terminal is for the demo, which still needs its driver to clean up.
            .process_group(0);
        let child = command.spawn().map_err(Error::io("run", program))?;
        let mut driver = Driver {
            tree: tree.clone(),
            child: Running::Child(child),
        };
        driver.wait_for_socket()?;
        Ok(driver)
    }

    /// Finds the one that serves a tree's socket already, if there is one.
    pub(super) fn find(tree: &Tree) -> Option<Driver> {
        let stream = UnixStream::connect(tree.socket()).ok()?;
        let peer = getsockopt(&stream, PeerCredentials).ok()?;
        Some(Driver {
            tree: tree.clone(),
            child: Running::Found(Pid::from_raw(peer.pid())),
        })
    }

    fn wait_for_socket(&mut self) -> Result<()> {
        let began = Instant::now();
        let socket = self.tree.socket();
        loop {
            if UnixStream::connect(&socket).is_ok() {
                return Ok(());
            }
            if let Some(status) = self.ended()? {
                return Err(self.gone(&format!("ended at once ({status})")));
            }
            if began.elapsed() > START_LIMIT {
                return Err(self.gone(&format!("did not serve within {START_LIMIT:?}")));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Its process ID.
    pub(super) fn pid(&self) -> u32 {
        match &self.child {
            Running::Child(child) => child.id(),
            Running::Found(pid) => pid.as_raw().unsigned_abs(),
        }
    }

    /// How it ended, if it did.
    pub(super) fn ended(&mut self) -> Result<Option<String>> {
        match &mut self.child {
            Running::Child(child) => match child.try_wait() {
                Ok(status) => Ok(status.map(|s: ExitStatus| s.to_string())),
                Err(e) => Err(Error::io("wait for", "the driver")(e)),
            },
            Running::Found(pid) => Ok(kill(*pid, None).is_err().then(|| "gone".to_owned())),
        }
    }

    /// SIGKILL: nothing of it runs after this, no handler and no destructor.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL);
        self.wait(STOP_LIMIT)?;
        Ok(())
    }

    /// Asks it to end, and makes it if it doesn't. Says how it ended.
    pub(super) fn stop(&mut self) -> Result<String> {
        self.signal(Signal::SIGTERM);
        if let Some(status) = self.wait(STOP_LIMIT)? {
            return Ok(status);
        }
        self.signal(Signal::SIGKILL);
        self.wait(STOP_LIMIT)?;
        Err(self.gone(&format!("did not end within {STOP_LIMIT:?} and was killed")))
    }

    fn wait(&mut self, limit: Duration) -> Result<Option<String>> {
        let began = Instant::now();
        while began.elapsed() < limit {
            if let Some(status) = self.ended()? {
                return Ok(Some(status));
            }
            std::thread::sleep(POLL);
        }
        Ok(None)
    }

    fn signal(&mut self, signal: Signal) {
        // A driver that has ended already can't be signalled, and need not be.
        let _ = match &mut self.child {
            Running::Child(child) => match child.try_wait() {
                Ok(None) => kill(Pid::from_raw(child.id().cast_signed()), signal),
                _ => Ok(()),
            },
            Running::Found(pid) => kill(*pid, signal),
        };
    }

    /// An error with the last lines it printed.
    pub(super) fn gone(&self, what: &str) -> Error {
        let log = std::fs::read_to_string(self.tree.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(12)..].join("\n  ");
        Error::Driver(match tail.is_empty() {
            true => format!("{what}, and printed nothing"),
            false => format!("{what}. Its last lines:\n  {tail}"),
        })
    }
}

fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(Error::io("open", path))
}

/// The arguments of `serve`.
fn arguments(tree: &Tree, pool: &str) -> Vec<String> {
    let path = |path: PathBuf| path.display().to_string();
    vec![
        "serve".into(),
        "--endpoint".into(),
        format!("unix://{}", path(tree.socket())),
        "--nodeid".into(),
        NODE_ID.into(),
        "--statedir".into(),
        path(tree.state()),
        "--pool".into(),
        pool.to_owned(),
    ]
}

/// The command line that starts the driver again, for a person.
pub(super) fn command_line(tree: &Tree, pool: &str) -> String {
    format!("hostloop {}", arguments(tree, pool).join(" "))
}
