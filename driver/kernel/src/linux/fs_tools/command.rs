//! Runs a program, found by name, in an empty environment and directory, with a time limit. The
//! program never outlives this process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::mount as api;

use crate::file::name_of;
use crate::linux::{ioctl, loopdev, open_files, private_mounts};
use crate::{Error, Result};

/// Directories of programs, searched after `PATH`.
const SYSTEM_DIRS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Lines of a program's output that go into an error.
const LAST_LINES: usize = 5;

/// A program with its arguments, before the start.
pub(super) struct Tool {
    name: &'static str,
    arguments: Vec<OsString>,
    limit: Duration,
    without_volumes: bool,
    input: Stdio,
}

/// The result of a program.
pub(super) struct Output {
    /// The program, for messages.
    tool: &'static str,
    /// The object that it worked on, for messages.
    on: PathBuf,
    /// Exit code; 128 plus the signal's number if a signal killed the program.
    pub(super) code: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// The directories to search for programs: `PATH`, then the system's.
fn search_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .chain(SYSTEM_DIRS.map(PathBuf::from))
        .collect()
}

/// Path of a program, if it is installed. A program that was found is not searched again while its
/// file exists.
pub(super) fn find(name: &'static str) -> Option<PathBuf> {
    static FOUND: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    let known = FOUND.lock().get(name).cloned();
    known.filter(|path| is_executable(path)).or_else(|| {
        let path = search_path()
            .into_iter()
            .map(|dir| dir.join(name))
            .find(|path| is_executable(path))?;
        FOUND.lock().insert(name, path.clone());
        Some(path)
    })
}

fn is_executable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// The working directory of programs: the root of a read-only filesystem that is mounted nowhere. A
/// relative path finds nothing in it, and no process can create anything there.
fn empty_directory() -> rustix::io::Result<&'static OwnedFd> {
    static EMPTY: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(made) = EMPTY.get() {
        return Ok(made);
    }
    let context = api::fsopen("tmpfs", api::FsOpenFlags::FSOPEN_CLOEXEC)?;
    api::fsconfig_create(&context)?;
    let made = api::fsmount(
        &context,
        api::FsMountFlags::FSMOUNT_CLOEXEC,
        api::MountAttrFlags::MOUNT_ATTR_RDONLY
            | api::MountAttrFlags::MOUNT_ATTR_NOSUID
            | api::MountAttrFlags::MOUNT_ATTR_NODEV
            | api::MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )?;
    Ok(EMPTY.get_or_init(|| made))
}

impl Tool {
    pub(super) fn new(name: &'static str, limit: Duration) -> Tool {
        Tool {
            name,
            arguments: Vec::new(),
            limit,
            without_volumes: false,
            input: Stdio::null(),
        }
    }

    /// Hides all mounted volumes from the program.
    pub(super) fn without_volumes(self) -> Tool {
        Tool {
            without_volumes: true,
            ..self
        }
    }

    pub(super) fn arg(mut self, argument: impl Into<OsString>) -> Tool {
        self.arguments.push(argument.into());
        self
    }

    /// Adds an open file as an argument. The program inherits the handle as its standard input and
    /// opens the file through it.
    pub(super) fn arg_file(self, file: &File) -> Result<Tool> {
        let input = file
            .try_clone()
            .map_err(|e| Error::io("dup", name_of(file), e))?;
        Ok(Tool {
            input: input.into(),
            ..self
        }
        .arg("/proc/self/fd/0"))
    }

    pub(super) fn args(mut self, words: impl IntoIterator<Item: Into<OsString>>) -> Tool {
        self.arguments.extend(words.into_iter().map(Into::into));
        self
    }

    /// Runs the program and waits for its end. `on` is only for messages. [`Error::NotRun`] if the
    /// program can't be started.
    pub(super) fn run(self, on: &Path) -> Result<Output> {
        let program = find(self.name).ok_or_else(|| not_run(self.name, on, "not installed"))?;
        let path = std::env::join_paths(search_path()).map_err(|e| not_run(self.name, on, e))?;
        let empty = empty_directory();
        let empty = empty
            .map_err(|e| not_run(self.name, on, format!("no empty directory to run in: {e}")))?;
        #[expect(
            clippy::disallowed_methods,
            reason = "its environment is cleared below"
        )]
        let mut command = Command::new(program);
        command
            .args(&self.arguments)
            .current_dir(format!("/proc/self/fd/{}", empty.as_raw_fd()))
            .env_clear()
            .env("PATH", path)
            .env("LC_ALL", "C")
            .stdin(self.input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        ioctl::dies_with_us(&mut command);
        if let Some(soft) = open_files::former() {
            ioctl::opens_at_most(&mut command, soft);
        }
        if self.without_volumes {
            let namespace = private_mounts::namespace();
            let namespace = namespace
                .map_err(|e| not_run(self.name, on, format!("no mount namespace: {e}")))?;
            ioctl::enters(&mut command, namespace, empty.as_fd());
        }
        let child = command.spawn().map_err(|e| not_run(self.name, on, e))?;
        match finish(child, self.limit) {
            Ok(Some((status, stdout, stderr))) => Ok(Output {
                tool: self.name,
                on: on.to_path_buf(),
                code: code(status),
                stdout,
                stderr,
            }),
            Ok(None) => Err(Error::TimedOut {
                op: self.name,
                path: loopdev::image_of(on),
                seconds: self.limit.as_secs(),
            }),
            Err(e) => Err(Error::tool(self.name, on, None, e.to_string())),
        }
    }
}

fn not_run(tool: &'static str, on: &Path, why: impl fmt::Display) -> Error {
    Error::NotRun {
        tool,
        path: on.to_path_buf(),
        why: why.to_string(),
    }
}

/// Collects a program's output and waits for its end; `None` if the time limit killed it.
fn finish(
    mut child: Child,
    limit: Duration,
) -> std::io::Result<Option<(ExitStatus, String, String)>> {
    let end = Instant::now() + limit;
    let streams = (
        child.stdout.take().map(collect),
        child.stderr.take().map(collect),
    );
    let (Some(stdout), Some(stderr)) = (text(streams.0, end), text(streams.1, end)) else {
        child.kill()?;
        // The killed process stays in the kernel until its I/O ends, perhaps without limit, so this
        // does not wait. A thread reaps it when it ends.
        std::thread::spawn(move || child.wait());
        return Ok(None);
    };
    // Both streams are closed, so the program has ended or is about to.
    Ok(Some((child.wait()?, stdout, stderr)))
}

/// Reads a stream to its end on its own thread, so that neither of two streams fills up.
fn collect(mut stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // If reading fails, the output before the error is still useful.
        let _ = stream.read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

fn text(stream: Option<Receiver<String>>, end: Instant) -> Option<String> {
    let Some(stream) = stream else {
        return Some(String::new());
    };
    match stream.recv_timeout(end.saturating_duration_since(Instant::now())) {
        Ok(text) => Some(text),
        Err(RecvTimeoutError::Disconnected) => Some(String::new()),
        Err(RecvTimeoutError::Timeout) => None,
    }
}

fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

impl Output {
    /// An error unless the exit code is 0.
    pub(super) fn expect_zero(self) -> Result<()> {
        match self.code {
            0 => Ok(()),
            _ => Err(self.failed()),
        }
    }

    /// Builds an error from the code and the last lines of output before a description of the
    /// usage.
    pub(super) fn failed(self) -> Error {
        let mut lines: Vec<&str> = [&self.stdout, &self.stderr]
            .into_iter()
            .flat_map(|text| causes(text))
            .collect();
        lines.drain(..lines.len().saturating_sub(LAST_LINES));
        let how = if self.code > 128 {
            format!("killed by signal {}", self.code - 128)
        } else {
            format!("exit code {}", self.code)
        };
        let mut message = [how, lines.join(" | ")].join(": ");
        message.truncate(message.trim_end_matches(": ").len());
        let code = Some(self.code).filter(|code| *code <= 128);
        let image = loopdev::image_of(&self.on);
        let message = with_name(&message, &self.on, &image);
        Error::Tool {
            tool: self.tool.to_owned(),
            path: image,
            code,
            message,
        }
    }
}

/// A program's output, with another name for the device that it worked on.
fn with_name(output: &str, device: &Path, name: &Path) -> String {
    let (device, name) = (device.to_string_lossy(), name.to_string_lossy());
    let mut pieces = output.split(&*device);
    let mut named = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        // /dev/loop1 is not the start of /dev/loop12.
        let same = !piece.starts_with(|next: char| next.is_ascii_digit());
        named.push_str(if same { &name } else { &device });
        named.push_str(piece);
    }
    named
}

/// The lines of an output that say why a program failed. After a wrong option, most programs
/// describe their usage, which is longer than the cause.
fn causes(output: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = output
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let causes = lines.iter().take_while(|line| !begins_usage(line)).count();
    if causes > 0 {
        lines.truncate(causes);
    }
    lines
}

fn begins_usage(line: &str) -> bool {
    let start = line.get(.."usage".len());
    start.is_some_and(|start| start.eq_ignore_ascii_case("usage"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::named("/dev/loop1: RUN fsck MANUALLY", "/p/image: RUN fsck MANUALLY")]
    #[case::twice("a /dev/loop1 b /dev/loop1", "a /p/image b /p/image")]
    #[case::another("/dev/loop12: /dev/loop1.", "/dev/loop12: /p/image.")]
    #[case::none("no space", "no space")]
    fn messages_name_the_image(#[case] output: &str, #[case] expected: &str) {
        let named = with_name(output, Path::new("/dev/loop1"), Path::new("/p/image"));
        assert_eq!(named, expected);
    }

    #[test]
    fn a_program_that_is_not_installed_is_not_run() {
        let tool = Tool::new("hostloop-has-no-such-program", Duration::from_secs(1));
        let run = tool.run(Path::new("/dev/null"));
        assert!(matches!(run, Err(Error::NotRun { .. })));
    }
}
