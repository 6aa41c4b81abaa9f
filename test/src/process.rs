//! Programs with a log: upstream's sidecars, hostloop's controllers, and the driver of another
//! author.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use nix::sys::signal::Signal;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};

use crate::PATIENCE;
use crate::child::{self, Program};
use crate::cluster::wait_for;
use crate::driver::binary;
use crate::machine::text;
use crate::tools;

/// A running program with its log.
pub struct Process {
    name: String,
    log: PathBuf,
    program: Program,
}

impl Process {
    /// A program of upstream.
    pub fn sidecar(dir: &Path, name: &str, args: &[String]) -> Process {
        Process::start(
            dir,
            name,
            child::command(tools::sidecars().join(name)).args(args),
        )
    }

    /// Hostloop's controllers.
    pub fn controllers(dir: &Path, args: &[String]) -> Process {
        let mut command = child::command(binary());
        Process::start(dir, "hostloop", command.arg("controllers").args(args))
    }

    /// `hostloop proxy` at this socket in front of a driver, once it serves. `rules`: the file of its
    /// faults.
    pub async fn proxy(dir: &Path, driver: &str, socket: &Path, rules: Option<&Path>) -> Process {
        let mut command = child::command(binary());
        command
            .arg("proxy")
            .args(["--csi-address", driver])
            .args(["--endpoint", text(socket)])
            .args(
                rules
                    .iter()
                    .flat_map(|rules| ["--fault-rules", text(rules)]),
            );
        Process::start(dir, "proxy", &mut command)
            .until_serving(socket)
            .await
    }

    /// `hostloop fault-disks` for the driver with this state directory, once it serves.
    pub async fn fault_disks(dir: &Path, state: &Path) -> Process {
        let socket = state.join("fault-disks/sock");
        let mut command = child::command(binary());
        command.arg("fault-disks").args(["--socket", text(&socket)]);
        Process::start(dir, "fault-disks", &mut command)
            .until_listening(&socket, connect_packets)
            .await
    }

    /// Hostloop with a command line of the sidecars, which names no subcommand, as in a pod of this
    /// namespace.
    pub fn one_sidecar(dir: &Path, namespace: &str, args: &[String]) -> Process {
        let mut command = child::command(binary());
        let command = command.args(args).env("POD_NAMESPACE", namespace);
        Process::start(dir, "hostloop", command)
    }

    /// Starts a program. Its log is NAME.log in `dir`.
    pub(crate) fn start(dir: &Path, name: &str, command: &mut Command) -> Process {
        let log = dir.join(format!("{name}.log"));
        child::log_to(command, File::create(&log).expect("a log can be made"));
        let child = command
            .spawn()
            .unwrap_or_else(|e| panic!("{name} does not start: {e}"));
        Process {
            name: name.to_owned(),
            log,
            program: Program::new(child),
        }
    }

    /// Waits until the program listens at this socket.
    pub(crate) async fn until_serving(self, socket: &Path) -> Process {
        self.until_listening(socket, connect_stream).await
    }

    /// Waits until the program listens at this socket, to which `connect` connects.
    async fn until_listening(
        mut self,
        socket: &Path,
        connect: fn(&Path) -> io::Result<()>,
    ) -> Process {
        wait_for("a program that listens", PATIENCE, async || {
            if let Some(status) = self.ended() {
                panic!("{} has ended: {status}\n{}", self.name, self.tail());
            }
            connect(socket).map_err(|e| format!("{}: {e}", socket.display()))
        })
        .await;
        self
    }

    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// The exit status, if the program has ended.
    fn ended(&mut self) -> Option<ExitStatus> {
        self.program.ended()
    }

    /// The program's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of the program's log, under the program's name.
    pub fn tail(&self) -> String {
        format!(
            "--- the end of {}'s log:\n{}",
            self.name,
            child::tail(&self.log())
        )
    }

    /// Sends SIGTERM and waits for the end. The program must still run, and must not have panicked.
    pub fn stop(mut self) {
        let ended = self.ended();
        let (name, tail) = (&self.name, self.tail());
        assert!(ended.is_none(), "{name} has ended: {ended:?}\n{tail}");
        let log = self.log();
        for bad in ["panic: ", "panicked", "forbidden"] {
            assert!(!log.contains(bad), "{bad:?} is in {name}'s log:\n{log}");
        }
        self.program.signal(Signal::SIGTERM);
        assert!(
            self.program.wait(PATIENCE).is_some(),
            "{name} ignores SIGTERM"
        );
    }
}

/// Connects to a socket of a stream, as those of gRPC are.
fn connect_stream(path: &Path) -> io::Result<()> {
    UnixStream::connect(path).map(drop)
}

/// Connects to a socket that keeps the bounds of messages.
fn connect_packets(path: &Path) -> io::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let own = socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    socket::connect(own.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(())
}

/// Arguments that all sidecars take: the addresses of the driver and of the cluster.
pub fn common(endpoint: &str, kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--csi-address={endpoint}"),
        format!("--kubeconfig={}", text(kubeconfig)),
    ]
}
