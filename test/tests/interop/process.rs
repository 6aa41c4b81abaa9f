//! The programs in front of the driver: upstream's sidecars, and hostloop's controllers.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hostloop_test::driver::binary;
use hostloop_test::machine::text;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long one may take to stop.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running program. Dropping it kills it.
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// A program of upstream.
    pub(crate) fn sidecar(dir: &Path, name: &str, args: &[String]) -> Process {
        Process::start(dir, name, Command::new(sidecars().join(name)).args(args))
    }

    /// Hostloop's controllers.
    pub(crate) fn controllers(dir: &Path, args: &[String]) -> Process {
        let mut command = Command::new(binary());
        Process::start(dir, "hostloop", command.arg("controllers").args(args))
    }

    fn start(dir: &Path, name: &str, command: &mut Command) -> Process {
        let log = dir.join(format!("{name}.log"));
        let output = File::create(&log).expect("a log can be made");
        let child = command
            .env_remove("NODE_NAME")
            .env_remove("POD_NAME")
            .env_remove("POD_NAMESPACE")
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a file can be opened twice"))
            .stderr(output)
            .spawn();
        Process {
            name: name.to_owned(),
            log,
            child: child.unwrap_or_else(|e| panic!("{name} does not start: {e}")),
        }
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of its log, under its name.
    pub(crate) fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(15)..].iter();
        let short = |line: &&str| line.chars().take(600).collect::<String>();
        let end = end.map(short).collect::<Vec<_>>().join("\n");
        format!("--- the end of {}'s log:\n{end}", self.name)
    }

    /// SIGTERM, and waits for the end. It must have run until now, and have panicked nowhere.
    pub(crate) fn stop(mut self) {
        let ended = self.child.try_wait().expect("it is our child");
        let (name, tail) = (&self.name, self.tail());
        assert!(ended.is_none(), "{name} has ended: {ended:?}\n{tail}");
        let log = self.log();
        for bad in ["panic: ", "panicked", "forbidden"] {
            let name = &self.name;
            assert!(!log.contains(bad), "{bad:?} is in {name}'s log:\n{log}");
        }
        let pid = i32::try_from(self.child.id()).expect("a PID");
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("it is running");
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().expect("it is our child").is_none() {
            assert!(Instant::now() < deadline, "{} ignores SIGTERM", self.name);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has ended by itself already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder of upstream's programs, which `scripts/test` builds from `test/interop`.
fn sidecars() -> PathBuf {
    let folder = std::env::var_os("HOSTLOOP_SIDECARS").map(PathBuf::from);
    folder.expect(
        "This test needs upstream's sidecars: run `scripts/test --only interop`, or name their \
         folder by HOSTLOOP_SIDECARS.",
    )
}

/// Arguments that all sidecars take: the addresses of the driver and of the cluster.
pub(crate) fn common(endpoint: &str, kubeconfig: &Path) -> Vec<String> {
    vec![format!("--csi-address={endpoint}"), format!("--kubeconfig={}", text(kubeconfig))]
}
