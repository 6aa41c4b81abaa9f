//! `hostloop demo`: the complete life of a volume on this machine, without a cluster.
//!
//! It plays the orchestrator: an ordinary client of the driver, which runs as a process of its
//! own, with kubelet's paths mirrored under a scratch root. After each step it shows what disk and
//! kernel show, and it checks what it says. At the end nothing is left, and that is checked too;
//! whatever fails or interrupts it, it cleans up first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::pool::PoolSpec;
use crate::status::units::bytes;
use crate::sys::linux::Linux;
use crate::sys::{FsType, Kernel};

mod child;
mod choice;
mod client;
mod error;
mod ledger;
mod narrator;
mod orchestrator;
mod picture;
mod pod;
mod remains;
mod steps;
mod sweep;
mod tree;
mod world;

pub use error::Error;

use client::Client;
use error::Result;
use ledger::Ledger;
use narrator::Narrator;
use steps::{STEPS, Step};
use tree::Tree;
use world::{Setup, World};

/// `hostloop demo`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Needs root and loop devices, no cluster. Touches nothing outside its root. \
                  Exit code: 0 everything held, 1 something did not, 130 interrupted."
)]
pub struct Options {
    /// Leave everything as it is at the end, the driver running, and say how to clean up
    #[arg(long, env = "HOSTLOOP_KEEP")]
    pub keep: bool,

    /// Print one JSON object a step, and one at the end
    #[arg(long, env = "HOSTLOOP_JSON")]
    pub json: bool,

    /// Size of the volume it makes first; everything else follows from it
    #[arg(
        long,
        env = "HOSTLOOP_SIZE",
        value_name = "SIZE",
        default_value = "512Mi",
        value_parser = size
    )]
    pub size: u64,

    /// Filesystem of the volumes: ext4, xfs or btrfs [default: ext4, or one that can grow in use
    /// where ext4 can't]
    #[arg(long = "fstype", env = "HOSTLOOP_FSTYPE", value_name = "FS", value_parser = filesystem)]
    pub fs: Option<FsType>,

    /// The directory that everything happens under: new, or empty [default: a new one under
    /// TMPDIR, or /var/tmp]
    #[arg(long, env = "HOSTLOOP_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Pause after each step, to read along
    #[arg(
        long,
        env = "HOSTLOOP_PACE",
        value_name = "SECONDS",
        default_value_t = 0.0
    )]
    pub pace: f64,

    /// Clean up what an earlier demo left under this root, and do nothing else
    #[arg(long, value_name = "DIR", conflicts_with_all = ["keep", "root", "pace"])]
    pub cleanup: Option<PathBuf>,
}

/// The smallest volume that leaves room for what is written to it, in bytes.
const SIZE_LEAST: u64 = 64 << 20;
const SIZE_MOST: u64 = 64 << 30;
const PACE_MOST: f64 = 3600.0;

fn size(word: &str) -> std::result::Result<u64, String> {
    let size = crate::pool::config::size(word).map_err(|e| e.to_string())?;
    match size {
        SIZE_LEAST..=SIZE_MOST => Ok(size.next_multiple_of(1 << 20)),
        _ => Err(format!(
            "is not from {} to {}",
            bytes(SIZE_LEAST),
            bytes(SIZE_MOST)
        )),
    }
}

fn filesystem(word: &str) -> std::result::Result<FsType, String> {
    FsType::parse(word).ok_or_else(|| "is none of ext4, xfs, btrfs".to_owned())
}

impl Options {
    fn pace(&self) -> Duration {
        let seconds = if self.pace.is_finite() {
            self.pace
        } else {
            0.0
        };
        Duration::from_secs_f64(seconds.clamp(0.0, PACE_MOST))
    }
}

/// Everything held.
const DONE: u8 = 0;
/// Something did not hold, or failed.
const FAILED: u8 = 1;
/// A signal ended it (128 and SIGINT, as a shell says it).
const INTERRUPTED: u8 = 130;

/// Runs the demo, or cleans up after an earlier one.
pub fn run(options: &Options) -> Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    let code = match &options.cleanup {
        Some(root) => cleanup(options, root)?,
        None => perform(options)?,
    };
    Ok(ExitCode::from(code))
}

fn perform(options: &Options) -> Result<u8> {
    let kernel: Arc<dyn Kernel> = Arc::new(Linux::new());
    let (tree, made_root) = scratch_root(options.root.as_deref())?;
    let setup = Setup {
        bytes: options.size,
        fs: options.fs.unwrap_or(FsType::Ext4),
        ext4_grows: kernel.grows_mounted(FsType::Ext4),
    };
    let (offered, pool) = (
        choice::offered(&*kernel),
        choice::pool(&tree, &*kernel, setup.bytes),
    );
    let fs = choice::filesystem(options.fs, setup.ext4_grows, setup.bytes, &offered);
    let setup = Setup {
        fs: fs.what,
        ..setup
    };
    enough(setup)?;
    let word = pool.what;
    let spec = parse(&tree, &word)?;
    let mut narrator = Narrator::new(options.json, options.pace());
    greet(&mut narrator, &tree, &word, setup);
    for why in [pool.why, fs.why].into_iter().flatten() {
        narrator.say(&why);
    }
    let client = Client::new(&tree)?;
    let mut world = World::new(tree, narrator, client, kernel, setup, (spec, word))?;
    world.ledger.made_root = made_root;
    for dir in [world.tree.pool(), world.tree.state()] {
        fs::create_dir_all(&dir).map_err(Error::io("mkdir", &dir))?;
    }
    world.ledger.save(&world.tree)?;
    let steps: Vec<&Step> = STEPS.iter().filter(|s| !(s.ends && options.keep)).collect();
    let ended = tell(&mut world, &steps);
    if let Err(error) = &ended {
        world.narrator.cut_short();
        put_back(&mut world, steps.len(), error);
    } else if options.keep {
        keep(&mut world);
    }
    world.narrator.finish();
    Ok(match ended {
        Err(Error::Interrupted) => INTERRUPTED,
        Ok(()) if world.narrator.all_held() => DONE,
        _ => FAILED,
    })
}

/// Whether the filesystem takes so small a volume.
fn enough(setup: Setup) -> Result<()> {
    if setup.bytes >= setup.fs.minimum_bytes() {
        return Ok(());
    }
    Err(Error::Size {
        fs: setup.fs,
        least: bytes(setup.fs.minimum_bytes()),
    })
}

/// Tells the steps, to the first that fails.
fn tell(world: &mut World, steps: &[&Step]) -> Result<()> {
    for (i, step) in steps.iter().enumerate() {
        world.client.go_on()?;
        world
            .narrator
            .begin(i + 1, steps.len(), step.title, step.why);
        let acted = (step.act)(world);
        let error = acted.as_ref().err().map(ToString::to_string);
        world.narrator.end(error.as_deref());
        acted?;
    }
    Ok(())
}

/// Cleans up after something failed.
fn put_back(world: &mut World, steps: usize, error: &Error) {
    let why = match error {
        Error::Interrupted => "A signal has come. Everything is put back.",
        _ => "Something failed. Everything is put back; what the driver printed comes first.",
    };
    world
        .narrator
        .begin(steps + 1, steps + 1, "Cleaning up", why);
    if !matches!(error, Error::Interrupted) {
        for line in last_lines(&world.tree.log(), 8) {
            world.narrator.fact("log", line);
        }
    }
    let error = sweep(world).err().map(|e| e.to_string());
    world.narrator.end(error.as_deref());
}

fn last_lines(path: &Path, n: usize) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(n);
    lines[from..]
        .iter()
        .map(|line| (*line).to_owned())
        .collect()
}

/// Undoes everything, and checks that nothing is left.
fn sweep(world: &mut World) -> Result<()> {
    let mut left = world.undo_by_calls();
    left.extend(world.undo_by_hand());
    for what in &left {
        world.narrator.fact("left", what.as_str());
    }
    steps::remains(world)
}

fn cleanup(options: &Options, root: &Path) -> Result<u8> {
    let root = root.canonicalize().map_err(Error::io("find", root))?;
    let tree = Tree::new(root);
    let ledger = Ledger::load(&tree).map_err(|e| Error::Root {
        path: tree.root().to_path_buf(),
        why: format!("is not what a demo left: {e}"),
    })?;
    let mut narrator = Narrator::new(options.json, Duration::ZERO);
    narrator.begin(
        1,
        1,
        "Cleaning up",
        "By calls, as an orchestrator would; then by hand.",
    );
    let spec = parse(&tree, &ledger.pool)?;
    let client = Client::new(&tree)?;
    let setup = Setup {
        bytes: options.size,
        fs: FsType::Ext4,
        ext4_grows: true,
    };
    let pool = (spec, ledger.pool.clone());
    let kernel: Arc<dyn Kernel> = Arc::new(Linux::new());
    let mut world = World::new(tree, narrator, client, kernel, setup, pool)?;
    // Everything below this root is the demo's, whenever it was made.
    world.baseline = remains::Baseline::default();
    world.ledger = ledger;
    let swept = sweep(&mut world);
    let error = swept.as_ref().err().map(ToString::to_string);
    world.narrator.end(error.as_deref());
    world.narrator.finish();
    Ok(if world.narrator.all_held() {
        DONE
    } else {
        FAILED
    })
}

/// The scratch root, new or empty, and whether it was made here.
fn scratch_root(wanted: Option<&Path>) -> Result<(Tree, bool)> {
    let refuse = |path: &Path, why: &str| Error::Root {
        path: path.to_path_buf(),
        why: why.to_owned(),
    };
    let path = match wanted {
        Some(path) => path.to_path_buf(),
        None => {
            let parent = std::env::var_os("TMPDIR").map(PathBuf::from);
            let parent = parent.unwrap_or_else(|| PathBuf::from("/var/tmp"));
            parent.join(format!("hostloop-demo-{}", std::process::id()))
        }
    };
    let made = !path.exists();
    fs::create_dir_all(&path).map_err(Error::io("mkdir", &path))?;
    // As the kernel will show it.
    let path = path.canonicalize().map_err(Error::io("find", &path))?;
    let mut entries = fs::read_dir(&path).map_err(Error::io("read", &path))?;
    if entries.next().is_some() {
        let why = "is not empty; a demo left there is removed by --cleanup";
        return Err(refuse(&path, why));
    }
    if path.to_str().is_none_or(|p| p.contains([',', ';'])) {
        return Err(refuse(
            &path,
            "has a comma, a semicolon or broken UTF-8 in it",
        ));
    }
    let tree = Tree::new(path);
    if !tree.socket_fits() {
        return Err(refuse(
            tree.root(),
            "is too long a path for a socket in it: take a shorter one",
        ));
    }
    Ok((tree, made))
}

fn parse(tree: &Tree, word: &str) -> Result<PoolSpec> {
    word.parse()
        .map_err(|e: crate::pool::config::BadOption| Error::Root {
            path: tree.root().to_path_buf(),
            why: e.to_string(),
        })
}

fn greet(narrator: &mut Narrator, tree: &Tree, word: &str, setup: Setup) {
    narrator.heading("hostloop demo: the life of a volume, from CreateVolume to DeleteVolume");
    narrator.say(
        "The demo plays the orchestrator and calls the driver over its socket. After each step it \
         shows what changed on the disk and in the kernel (+ new, ~ changed, - gone), and checks \
         what it says.",
    );
    narrator.plain(&format!(
        "  root   {} (paths are shown from here)",
        tree.root().display()
    ));
    narrator.plain(&format!("  pool   {word}"));
    narrator.plain(&format!("  volume {}, {}", bytes(setup.bytes), setup.fs));
}

/// Says where everything is, and how it goes away.
fn keep(world: &mut World) {
    let root = world.tree.root().display().to_string();
    let (state, word) = (
        world.tree.state().display().to_string(),
        world.pool_word.clone(),
    );
    // The process is not waited for: it goes on without us.
    let driver = world.driver.take().map(|d| d.pid()).unwrap_or_default();
    let command = child::command_line(&world.tree, &world.pool_word);
    let n = &mut world.narrator;
    n.plain("");
    n.heading("Everything is kept.");
    n.plain(&format!(
        "  The driver goes on, as process {driver}; started with"
    ));
    n.plain(&format!("    {command}"));
    n.plain("  To look:");
    n.plain(&format!(
        "    hostloop status --statedir {state} --pool {word}"
    ));
    n.plain(&format!(
        "    hostloop fsck --statedir {state} --pool {word}"
    ));
    n.plain(&format!("    findmnt --list | grep {root}"));
    n.plain("    losetup --list");
    n.plain("  To clean up:");
    n.plain(&format!("    hostloop demo --cleanup {root}"));
}
