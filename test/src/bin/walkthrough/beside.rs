//! `kubectl hostloop ui` beside the driver: its page, and its recording.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use hostloop_test::child::{self, Program};
use hostloop_test::driver::Driver;
use hostloop_test::machine::{self, text};
use hostloop_test::plugin::binary;
use hostloop_test::pools::PoolFixture;
use nix::sys::signal::Signal;

/// How the story is shown.
#[derive(clap::Args)]
pub(crate) struct Shown {
    /// Show it on a page in the browser, too; on a terminal, each step waits for Enter
    #[arg(long)]
    pub(crate) ui: bool,

    /// Print the page's address, and open no browser
    #[arg(long, requires = "ui")]
    pub(crate) no_open: bool,

    /// Keep all of it as a page, which shows it again in any browser
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// Wait this long before each step, instead of for Enter [default with --record: 2]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) pause: Option<f64>,
}

/// A time that a person waits for.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text
        .parse()
        .ok()
        .filter(|seconds| (0.0..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "must be a number of seconds up to 3600".to_owned())
}

/// How long the page may take to appear, and the program to end.
const LIMIT: Duration = Duration::from_secs(300);

/// A running `kubectl hostloop ui`. Dropping it ends it as Ctrl-C does, and waits.
struct Ui(Program);

impl Ui {
    fn start(driver: &Driver, state_dir: &Path, pool: &PoolFixture, arguments: &[&str]) -> Ui {
        let page = machine::root().join("kubectl/ui/dist/index.html");
        assert!(
            page.is_file(),
            "There is no page: run ./scripts/ui, which needs Node.js and npm."
        );
        let mut command = child::desktop_command(binary());
        command
            .args([
                "ui",
                "--endpoint",
                &driver.endpoint(),
                "--pool",
                &pool.argument(),
            ])
            .args(["--statedir", text(state_dir), "--page", text(&page)])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Ui(Program::new(command.spawn().expect("the client starts")))
    }

    /// Ends it, and returns whether it succeeded.
    fn end(&mut self) -> bool {
        if self.0.ended().is_none() {
            self.0.signal(Signal::SIGINT);
        }
        self.0.wait(LIMIT).is_some_and(|status| status.success())
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) struct Page {
    /// Its address, with the key.
    address: String,
    _ui: Ui,
}

impl Page {
    /// Serves the page, and opens a browser unless `no_open`. Prints what the program says.
    pub(crate) fn open(
        driver: &Driver,
        state_dir: &Path,
        pool: &PoolFixture,
        no_open: bool,
    ) -> Page {
        let arguments: &[&str] = if no_open { &["--no-open"] } else { &[] };
        let mut ui = Ui::start(driver, state_dir, pool, arguments);
        let output = ui.0.output();
        let (sender, addresses) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                say!("    {line}");
                if line.starts_with("http://") {
                    let _ = sender.send(line);
                }
            }
        });
        // It has said why, if it has no address.
        let address = addresses
            .recv_timeout(LIMIT)
            .expect("`kubectl hostloop ui` prints an address");
        Page { address, _ui: ui }
    }

    /// True if the page is served.
    pub(crate) fn answers(&self) -> bool {
        let host = self
            .address
            .trim_start_matches("http://")
            .split('/')
            .next()
            .unwrap_or("");
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(host)?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        answer().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 ") && answer.contains("<html"))
    }
}

/// A recording.
pub(crate) struct Recorder {
    file: PathBuf,
    ui: Ui,
}

impl Recorder {
    /// Records from now on.
    pub(crate) fn start(
        driver: &Driver,
        state_dir: &Path,
        pool: &PoolFixture,
        file: &Path,
    ) -> Recorder {
        let ui = Ui::start(driver, state_dir, pool, &["--record", text(file)]);
        Recorder {
            file: file.to_path_buf(),
            ui,
        }
    }

    /// Writes the file. `None` if that fails.
    pub(crate) fn end(mut self) -> Option<PathBuf> {
        self.ui.end().then(|| self.file.clone())
    }
}
