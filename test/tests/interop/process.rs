//! The programs in front of the driver: upstream's sidecars, and hostloop's controllers.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use hostloop_test::PATIENCE;
use hostloop_test::child::{self, Program};
use hostloop_test::driver::binary;
use hostloop_test::machine::text;
use hostloop_test::tools;
use nix::sys::signal::Signal;

/// A running program with its log.
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    program: Program,
}

impl Process {
    /// A program of upstream.
    pub(crate) fn sidecar(dir: &Path, name: &str, args: &[String]) -> Process {
        Process::start(
            dir,
            name,
            child::command(tools::sidecars().join(name)).args(args),
        )
    }

    /// Hostloop's controllers.
    pub(crate) fn controllers(dir: &Path, args: &[String]) -> Process {
        let mut command = child::command(binary());
        Process::start(dir, "hostloop", command.arg("controllers").args(args))
    }

    fn start(dir: &Path, name: &str, command: &mut Command) -> Process {
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

    /// The program's log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of the program's log, under the program's name.
    pub(crate) fn tail(&self) -> String {
        format!(
            "--- the end of {}'s log:\n{}",
            self.name,
            child::tail(&self.log())
        )
    }

    /// Sends SIGTERM and waits for the end. The program must still run, and must not have panicked.
    pub(crate) fn stop(mut self) {
        let ended = self.program.ended();
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

/// Arguments that all sidecars take: the addresses of the driver and of the cluster.
pub(crate) fn common(endpoint: &str, kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--csi-address={endpoint}"),
        format!("--kubeconfig={}", text(kubeconfig)),
    ]
}
