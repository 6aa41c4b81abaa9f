//! The tests' requirements of the machine, and running its tools.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::child;

/// The tools that the tests use, with the Debian package of each.
const TOOLS: [(&str, &str); 9] = [
    ("losetup", "mount"),
    ("mount", "mount"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("fsfreeze", "util-linux"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("blkid", "util-linux"),
];

/// Panics with a sentence if this machine can't run tests of the real kernel.
pub fn require() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "This test mounts filesystems and attaches loop devices: run it as root."
    );
    assert!(
        Path::new("/dev/loop-control").exists(),
        "This test needs loop devices: there is no /dev/loop-control here."
    );
    for (tool, package) in TOOLS {
        assert!(
            which(tool).is_some(),
            "This test needs {tool}: install the package {package}."
        );
    }
}

/// The path of a tool, searched as in a login shell of root.
pub fn which(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(tool))
        .find(|file| file.is_file())
}

/// Runs a tool to its end and returns its output, or a description of the failure.
pub fn try_run(tool: &str, args: &[&str]) -> Result<String, String> {
    let program = which(tool).ok_or_else(|| format!("{tool} is not installed"))?;
    let Output {
        status,
        stdout,
        stderr,
    } = child::command(program)
        .args(args)
        .output()
        .map_err(|e| format!("{tool}: {e}"))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).trim_end().to_owned());
    }
    let said = [stdout, stderr]
        .map(|said| String::from_utf8_lossy(&said).into_owned())
        .concat();
    Err(format!(
        "{tool} {}: {status}: {}",
        args.join(" "),
        said.trim()
    ))
}

/// [`try_run`], but an error fails the test.
pub fn run(tool: &str, args: &[&str]) -> String {
    try_run(tool, args).unwrap_or_else(|why| panic!("{why}"))
}

/// What `find` prints with these arguments. It also succeeds if a folder vanishes meanwhile.
pub fn found(args: &[&str]) -> String {
    let script = "find \"$@\" 2>/dev/null || true";
    run("sh", &[&["-c", script, "find"][..], args].concat())
}

/// An address for a server of this process alone: another process has another IP address, and each
/// call another port. A port that was free a moment ago could be in use by now.
pub fn own_address() -> SocketAddr {
    static PORT: AtomicU16 = AtomicU16::new(7000);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, a | 0x80, b, c], PORT.fetch_add(1, Ordering::Relaxed)))
}

/// Writes a program. This process never has it open to write: a child of another test would have a
/// copy of the open file until its exec, and until then the kernel would refuse to run it.
pub fn script(path: &Path, content: &str) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, content).expect("a program can be written");
    run("install", &["--mode=0755", text(&draft), text(path)]);
    std::fs::remove_file(draft).expect("the draft can be removed");
}

/// Prints a line that `scripts/test` repeats in its summary. The test runner hides `println` output
/// of passing tests, so this does not use it.
pub fn not_run(what: &str, why: &str) {
    use std::io::Write;
    // An error is ignored: the line does not affect the test.
    let line = format!("not run: {what}: {why}\n");
    #[expect(clippy::disallowed_methods, reason = "a test's own words")]
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The project's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folder of the tools that scripts build, as `scripts/lib.sh` chooses it.
pub fn tool_cache() -> PathBuf {
    let home = || Path::new(&std::env::var_os("HOME").expect("HOME is set")).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, Into::into);
    std::env::var_os("HOSTLOOP_CACHE").map_or(cache.join("hostloop"), Into::into)
}

/// A path as text. The tests only choose paths that are valid UTF-8.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}

/// True if this process can grow a mounted ext4. The kernel asks for CAP_SYS_RESOURCE, which many
/// sandboxes remove from root.
pub fn grows_mounted_ext4() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is there");
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let effective = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.expect("/proc shows capabilities") >> CAP_SYS_RESOURCE & 1 == 1
}
