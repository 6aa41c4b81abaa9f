//! The machine's own tools, run by tests that make loop devices and filesystems by hand.

use std::path::Path;
use std::process::Command;

/// Runs a tool; its output.
pub(crate) fn run(tool: &str, args: &[&str]) -> String {
    for patience in (0..100).rev() {
        let output = Command::new(tool)
            .args(args)
            .output()
            .unwrap_or_else(|e| panic!("{tool} is needed: {e}"));
        let said = String::from_utf8_lossy(&output.stderr);
        // A process that another test is just forking holds our open files until it has become
        // its own program.
        if tool == "umount" && said.contains("busy") && patience > 0 {
            std::thread::sleep(std::time::Duration::from_millis(50));
            continue;
        }
        assert!(
            output.status.success(),
            "{tool} {args:?} (as root?): {said}"
        );
        return String::from_utf8(output.stdout).unwrap().trim().to_owned();
    }
    unreachable!("the last round returns or panics")
}

/// A path as a tool's argument.
pub(crate) fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Like [`run`], but a failure while the test fails already is only told.
pub(crate) fn release(tool: &str, args: &[&str]) {
    if std::thread::panicking() {
        let _ = Command::new(tool).args(args).status();
    } else {
        run(tool, args);
    }
}
