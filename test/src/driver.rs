//! The built driver, as a separate process.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::PATIENCE;
use crate::child::{self, Program};
use crate::client::Csi;
use crate::machine::{self, text};
use crate::namespace::Namespace;
use crate::pools::{PoolFixture, state_dir};
use crate::scratch::Scratch;

/// The node ID of a test's driver, unless it shares the kernel with others.
pub const NODE: &str = "node-under-test";

/// How to start a driver.
pub struct DriverSpec<'a> {
    scratch: &'a Scratch,
    pools: Vec<String>,
    args: Vec<String>,
    node: &'a str,
    namespace: Option<&'a Namespace>,
    failpoints: Option<String>,
    controllers: Option<String>,
}

impl<'a> DriverSpec<'a> {
    /// A driver with these pools.
    pub fn new(scratch: &'a Scratch, pools: &[&PoolFixture]) -> Self {
        DriverSpec {
            scratch,
            pools: pools.iter().map(|p| p.argument()).collect(),
            args: Vec::new(),
            node: NODE,
            namespace: None,
            failpoints: None,
            controllers: None,
        }
    }

    /// Adds arguments.
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Lets pools promise more than the disk beneath them has room for. The data have to fit.
    pub fn overcommitted(self) -> Self {
        self.args(["--overcommit", "1000"])
    }

    /// Gives the driver another node ID.
    pub fn node(mut self, node: &'a str) -> Self {
        self.node = node;
        self
    }

    /// Starts the driver inside this mount namespace.
    pub fn inside(mut self, namespace: &'a Namespace) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// Enables fail points; uses the build that has them.
    pub fn failpoints(mut self, failpoints: impl Into<String>) -> Self {
        self.failpoints = Some(failpoints.into());
        self
    }

    /// Runs the Kubernetes controllers in the same process, as in a pod of this namespace.
    pub fn with_controllers(mut self, namespace: &str) -> Self {
        self.controllers = Some(namespace.to_owned());
        self
    }

    /// Starts the driver and waits until it serves; panics if it does not.
    pub fn start(self) -> Driver {
        match self.try_start() {
            Ok(driver) => driver,
            Err(dead) => panic!(
                "the driver ended before it served: {}\n{}",
                dead.status, dead.log
            ),
        }
    }

    /// Starts the driver and waits until it serves or has ended.
    pub fn try_start(self) -> Result<Driver, Dead> {
        machine::require();
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = self.scratch.path().join(format!("driver-{number}.log"));
        let socket = self.scratch.path().join("csi.sock");
        let mut driver = Driver {
            program: Program::new(
                self.command(&socket, &log)
                    .spawn()
                    .expect("the driver's binary starts"),
            ),
            socket,
            log,
            view: self.namespace.map(|n| n.view(Path::new("/"))),
        };
        match driver.wait_serving() {
            None => Ok(driver),
            Some(status) => Err(driver.dead(status)),
        }
    }

    /// Pools keep a small reserve: 5 % of a large disk may be more than is free there.
    fn command(&self, socket: &Path, log: &Path) -> Command {
        let binary = self
            .failpoints
            .as_ref()
            .map_or_else(binary, |_| failpoints_binary());
        let mut command = match self.namespace {
            None => child::command(&binary),
            Some(namespace) => {
                let mut enter = child::command(machine::which("nsenter").expect("was required"));
                enter
                    .arg(format!("--mount={}", text(&namespace.handle())))
                    // Otherwise nsenter would start in the namespace's root.
                    .args(["--", text(&binary)]);
                enter
            }
        };
        command
            .arg(self.controllers.as_ref().map_or("serve", |_| "run"))
            .args(["--endpoint", &format!("unix://{}", text(socket))])
            .args(["--nodeid", self.node])
            // A busy disk must not refuse a copy.
            .args(["--max-freeze", "300s"])
            .args(["--statedir", text(&state_dir(self.scratch))])
            .args(self.pools.iter().flat_map(|p| ["--pool", p]))
            .args(&self.args)
            .env("HOSTLOOP_RESERVE", "64Mi");
        child::log_to(&mut command, File::create(log).expect("a log can be made"));
        if let Some(failpoints) = &self.failpoints {
            command.env("FAILPOINTS", failpoints);
        }
        if let Some(namespace) = &self.controllers {
            command.env("POD_NAMESPACE", namespace);
        }
        command
    }
}

/// The normal driver: `HOSTLOOP_BIN`, or the debug build of this workspace.
pub fn binary() -> PathBuf {
    built("HOSTLOOP_BIN", "hostloop", "cargo build -p hostloop-driver")
}

/// The driver with fail points: `HOSTLOOP_FAILPOINTS_BIN`, or the debug build of this workspace
/// that is saved under another name.
fn failpoints_binary() -> PathBuf {
    built(
        "HOSTLOOP_FAILPOINTS_BIN",
        "hostloop-failpoints",
        "scripts/test --only crash",
    )
}

/// A program under test: at the path in the variable, or of this workspace.
pub(crate) fn built(variable: &str, name: &str, how: &str) -> PathBuf {
    let path = std::env::var_os(variable).map_or_else(
        || machine::root().join("target/debug").join(name),
        PathBuf::from,
    );
    assert!(
        path.is_file(),
        "This test needs the built program, and there is none at {} ({variable}): run `{how}`.",
        path.display()
    );
    path
}

/// A driver that ended before it had a client.
#[derive(Debug)]
pub struct Dead {
    pub status: ExitStatus,
    /// The end of the driver's log.
    pub log: String,
}

impl Dead {
    /// True if SIGKILL ended the driver, which is how a fail point ends it.
    pub fn killed(&self) -> bool {
        self.status.signal() == Some(Signal::SIGKILL as i32)
    }
}

/// A running driver. Dropping it kills it.
pub struct Driver {
    program: Program,
    socket: PathBuf,
    log: PathBuf,
    view: Option<PathBuf>,
}

impl Driver {
    /// The driver's socket, as an endpoint for other programs.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", text(&self.socket))
    }

    /// The path of the driver's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The driver's process ID.
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// A client of the driver.
    pub async fn csi(&self) -> Csi {
        Csi::connect(&self.socket).await
    }

    /// Connects to this driver, unless a fail point kills it first.
    pub async fn try_csi(&mut self) -> Result<Csi, Dead> {
        match Csi::try_connect(&self.socket).await {
            Ok(csi) => Ok(csi),
            Err(why) => match self.wait_ended(PATIENCE) {
                Some(status) => Err(self.dead(status)),
                None => panic!("the driver runs and does not serve: {why:?}"),
            },
        }
    }

    fn dead(&self, status: ExitStatus) -> Dead {
        Dead {
            status,
            log: self.tail(),
        }
    }

    /// The path on this machine of a file that the driver sees at `path`.
    pub fn view(&self, path: &Path) -> PathBuf {
        match &self.view {
            None => path.to_path_buf(),
            Some(root) => root.join(path.strip_prefix("/").expect("an absolute path")),
        }
    }

    /// Resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        child::memory_kib(self.pid(), "VmRSS")
    }

    /// The driver's whole log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of the driver's log.
    pub fn tail(&self) -> String {
        child::tail(&self.log())
    }

    /// The exit status, if the driver has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.program.ended()
    }

    /// Waits at most `limit` for the end; `None` if the driver still runs.
    pub fn wait_ended(&mut self, limit: Duration) -> Option<ExitStatus> {
        self.program.wait(limit)
    }

    fn wait_serving(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(&self.socket).is_err() {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            assert!(
                Instant::now() < deadline,
                "the driver does not serve after {} s:\n{}",
                PATIENCE.as_secs(),
                self.tail()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        self.program.kill();
    }

    /// Sends SIGTERM. The driver must end with success and remove its socket.
    pub fn stop(self) {
        if let Err(dead) = self.try_stop() {
            panic!(
                "the driver ended with {}:\n{}",
                dead.status,
                child::tail(&dead.log)
            );
        }
    }

    /// Like [`Driver::stop`], unless a fail point kills the driver first. The log is a whole one.
    pub fn try_stop(mut self) -> Result<(), Dead> {
        self.program.signal(Signal::SIGTERM);
        // The driver waits until its clients close their connections, and they are on this runtime.
        let status = match tokio::runtime::Handle::try_current() {
            Ok(_) => tokio::task::block_in_place(|| self.wait_ended(PATIENCE)),
            Err(_) => self.wait_ended(PATIENCE),
        };
        let Some(status) = status else {
            panic!("the driver ignores SIGTERM:\n{}", self.tail());
        };
        let dead = Dead {
            status,
            log: self.log(),
        };
        if dead.killed() {
            return Err(dead);
        }
        assert!(
            status.success(),
            "the driver ended with {status}:\n{}",
            self.tail()
        );
        assert!(!self.socket.exists(), "the driver left its socket behind");
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the end of the driver's log:\n{}", self.tail());
        }
    }
}
