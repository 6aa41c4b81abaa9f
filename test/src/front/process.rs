//! `hostloop controllers`, as a process of its own.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::driver::binary;

/// How long it may take to stop.
const PATIENCE: Duration = Duration::from_secs(20);

/// The running program. Dropping it kills it.
pub struct Controllers {
    child: Child,
}

impl Controllers {
    /// Starts it as if in a pod of this namespace, logging into this directory.
    pub fn start(dir: &Path, namespace: &str, args: &[String]) -> Controllers {
        let mut log = OpenOptions::new();
        let log = log.create(true).append(true).open(dir.join(LOG));
        let log = log.expect("a log can be made");
        let child = Command::new(binary())
            .arg("controllers")
            .args(args)
            .env_remove("NODE_NAME")
            .env_remove("POD_NAME")
            .env("POD_NAMESPACE", namespace)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be opened twice"))
            .stderr(log)
            .spawn();
        Controllers {
            child: child.expect("the program starts"),
        }
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// SIGKILL, and waits for the end.
    pub(super) fn kill(&mut self) {
        // An error means that it has ended by itself already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM; it must end soon, and with success.
    pub fn stop(mut self) {
        if let Some(status) = self.ended() {
            panic!("the controllers have ended by themselves: {status}");
        }
        let pid = i32::try_from(self.child.id()).expect("a PID");
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("it is running");
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.ended() {
                break status;
            }
            assert!(Instant::now() < deadline, "the controllers ignore SIGTERM");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "the controllers ended with {status}");
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.kill();
    }
}

const LOG: &str = "controllers.log";

pub(super) fn log(dir: &Path) -> String {
    std::fs::read_to_string(dir.join(LOG)).unwrap_or_default()
}

/// What is answered over HTTP, head and all.
pub(super) fn http(address: &str, path: &str) -> String {
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
