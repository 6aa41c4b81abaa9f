//! `hostloop controllers` as a separate process.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{LazyLock, mpsc};
use std::time::Duration;

use nix::sys::signal::Signal;
use parking_lot::Mutex;

use crate::PATIENCE;
use crate::child::{self, Program};
use crate::driver::binary;
use crate::machine;

/// Starts a program from a thread that lives as long as this process. The kernel's parent-death
/// signal follows the parent thread, and a test's own thread ends with the test.
fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static ORDERS: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
        let (orders, taken) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in taken {
                // The caller waits for this answer.
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let (answer, child) = mpsc::channel();
    ORDERS.send((command, answer)).map_err(io::Error::other)?;
    child.recv().map_err(io::Error::other)?
}

/// The running program. Dropping it kills it.
pub struct Controllers {
    program: Program,
}

impl Controllers {
    /// Starts the program as in a pod of this namespace. It logs into this directory.
    pub fn start(dir: &Path, namespace: &str, args: &[String]) -> Controllers {
        Controllers::in_pod(dir, namespace, None, args)
    }

    /// [`Controllers::start`] in a pod of this name, which is the holder of the leases.
    pub fn in_pod(dir: &Path, namespace: &str, pod: Option<&str>, args: &[String]) -> Controllers {
        let mut log = OpenOptions::new();
        let log = log.create(true).append(true).open(dir.join(LOG));
        let log = log.expect("a log can be made");
        // Without this signal, the program would outlive a killed test process.
        let mut command =
            child::command(machine::which("setpriv").expect("util-linux is installed"));
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(binary())
            .arg("controllers")
            .args(args)
            .env("POD_NAMESPACE", namespace);
        child::log_to(&mut command, log);
        if let Some(pod) = pod {
            command.env("POD_NAME", pod);
        }
        Controllers {
            program: Program::new(spawn(command).expect("the program starts")),
        }
    }

    /// The exit status, if the process has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.program.ended()
    }

    /// Waits at most `limit` for the end. Returns `None` if the process still runs.
    pub fn wait_ended(&mut self, limit: Duration) -> Option<ExitStatus> {
        self.program.wait(limit)
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        self.program.kill();
    }

    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Sends SIGSTOP: the process does nothing until [`resume`](Self::resume), and does not notice.
    pub fn pause(&self) {
        self.program.signal(Signal::SIGSTOP);
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.program.signal(Signal::SIGCONT);
    }

    /// Sends SIGTERM. The process must end soon and with success.
    pub fn stop(mut self) {
        if let Some(status) = self.ended() {
            panic!("the controllers have ended by themselves: {status}");
        }
        self.terminate();
        self.wait();
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.program.signal(Signal::SIGTERM);
    }

    /// Waits for the end after [`terminate`](Self::terminate), which must be a success.
    pub fn wait(mut self) {
        let status = self
            .program
            .wait(PATIENCE)
            .expect("the controllers obey SIGTERM");
        assert!(status.success(), "the controllers ended with {status}");
    }
}

/// A pod with controllers that a test can stop.
pub struct Pod {
    name: String,
    named: bool,
    dir: PathBuf,
    namespace: String,
    args: Vec<String>,
    controllers: Mutex<Option<Controllers>>,
}

impl Pod {
    pub(crate) fn new(name: &str, dir: PathBuf, namespace: &str, args: Vec<String>) -> Pod {
        let (name, namespace) = (name.to_owned(), namespace.to_owned());
        Pod {
            name,
            named: true,
            dir,
            namespace,
            args,
            controllers: Mutex::new(None),
        }
    }

    /// The controllers do not know the name of their pod.
    pub(crate) fn without_name(self) -> Pod {
        Pod {
            named: false,
            ..self
        }
    }

    /// The pod's name, used as its lease identity.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts the controllers. A later start counts as the same container in the same pod.
    pub fn start(&self) {
        let name = self.named.then_some(&*self.name);
        let started = Controllers::in_pod(&self.dir, &self.namespace, name, &self.args);
        *self.controllers.lock() = Some(started);
    }

    /// Sends SIGKILL.
    pub fn kill(&self) {
        if let Some(mut controllers) = self.controllers.lock().take() {
            controllers.kill();
        }
    }

    /// Stops the controllers as kubelet does; they must end with success.
    pub fn stop(&self) {
        if let Some(controllers) = self.controllers.lock().take() {
            controllers.stop();
        }
    }

    /// Sends SIGSTOP.
    pub fn pause(&self) {
        self.controllers.lock().as_ref().expect("they run").pause();
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.controllers.lock().as_ref().expect("they run").resume();
    }

    /// The process ID of the controllers.
    pub fn pid(&self) -> Option<u32> {
        self.controllers.lock().as_ref().map(Controllers::pid)
    }

    /// The log of the controllers.
    pub fn log(&self) -> String {
        log(&self.dir)
    }

    /// The metrics of the controllers.
    pub fn metrics(&self) -> String {
        let address = self
            .args
            .iter()
            .find_map(|arg| arg.strip_prefix("--http-endpoint="));
        http(address.expect("they have an address"), "/metrics")
    }

    /// The value of a counter with its labels, such as `name{label="value"}`. It is 0 if the
    /// metrics lack it.
    pub fn counter(&self, sample: &str) -> usize {
        let metrics = self.metrics();
        let mut lines = metrics.lines();
        let value = lines.find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().expect("a number"))
    }

    pub(crate) fn assert_running(&self) {
        let ended = self
            .controllers
            .lock()
            .as_mut()
            .and_then(Controllers::ended);
        if let Some(status) = ended {
            panic!("{} ended with {status}:\n{}", self.name, self.tail());
        }
    }

    /// The end of the log.
    pub fn tail(&self) -> String {
        tail(&self.dir)
    }

    /// Sends SIGTERM if the controllers run.
    pub(crate) fn ask_to_stop(&self) {
        if let Some(controllers) = &*self.controllers.lock() {
            controllers.terminate();
        }
    }

    /// Waits for the end after [`Pod::ask_to_stop`].
    pub(crate) fn stopped(&self) {
        if let Some(controllers) = self.controllers.lock().take() {
            controllers.wait();
        }
    }
}

const LOG: &str = "controllers.log";

/// Everything that the program logged to a directory.
pub fn log(dir: &Path) -> String {
    std::fs::read_to_string(dir.join(LOG)).unwrap_or_default()
}

/// The end of the log in this directory.
pub fn tail(dir: &Path) -> String {
    child::tail(&log(dir))
}

/// An HTTP response, including its head.
pub fn http(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap_or_else(|e| panic!("{address}: {e}"));
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .expect("a request can be sent");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("an answer is text");
    answer
}
