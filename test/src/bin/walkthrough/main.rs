//! The life of a volume without a cluster: `scripts/demo --local`.
//!
//! The program plays the orchestrator of a driver process that it starts on a pool of its own.
//! For each step it prints the calls as the driver logged them, what changed on disk and in the
//! kernel, and its checks. All it made goes with its scratch directory, also after a failure or a
//! signal.

/// Prints a line with styles.
macro_rules! say {
    () => {
        $crate::styles::write(format_args!("\n"))
    };
    ($($text:tt)*) => {
        $crate::styles::write(format_args!("{}\n", format_args!($($text)*)))
    };
}

mod beside;
mod pace;
mod styles;
mod tour;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use hostloop_terminal::humanize::{bytes, count};
use hostloop_test::driver::binary;
use hostloop_test::leaks::Leaks;
use hostloop_test::pools::{MIB, state_dir, used_bytes};
use hostloop_test::steps::{Name, Origin, Spec, Step};
use hostloop_test::{data, loop_devices, machine, recording};
use nix::sys::statvfs::statvfs;
use tokio::signal::unix::{SignalKind, signal};

use beside::Shown;
use styles::{BAD, TITLE};
use tour::{POD, Tour};

/// Walk through the life of a volume on this machine, without a cluster.
#[derive(Parser)]
#[command(
    version,
    after_help = "Needs root and loop devices. Exit code: 0 every check held, 1 one did not or a \
                  call failed, 130 interrupted."
)]
struct Options {
    /// Filesystem of the volumes [default: ext4, or xfs where this machine can't grow ext4 in use]
    #[arg(long, value_name = "FS", value_parser = ["ext4", "xfs", "btrfs"])]
    fstype: Option<String>,

    /// Keep volumes, mounts and the driver until Ctrl-C
    #[arg(long)]
    keep: bool,

    #[command(flatten)]
    shown: Shown,
}

/// Size of the first volume, in MiB.
const SIZE: u64 = 512;
/// The log of an XFS of that size, in bytes.
const XFS_LOG: u64 = 64 * MIB;
/// Size of the file that is written and deleted again, in bytes.
const SCRAP: u64 = 64 * MIB;
/// A pool with reflinks takes no more than this for a snapshot, in bytes.
const SNAPSHOT_LIMIT: u64 = 4 * MIB;
/// Deleted space is back in the pool after this time.
const DISCARD_LIMIT: Duration = Duration::from_secs(300);
const SNAPSHOT: Name = "monday";
const VOLUMES: [Name; 3] = ["clone", "restored", "data"];
const INTERRUPTED: u8 = 130;

/// The size of the filesystem at a path, in bytes.
fn filesystem_bytes(path: &Path) -> u64 {
    let stat = statvfs(path).unwrap_or_else(|e| panic!("statvfs {}: {e}", path.display()));
    stat.blocks() * stat.fragment_size()
}

fn create(volume: Name, fs: &'static str, mib: u64, from: Option<Origin>) -> Step {
    let spec = Spec::fs(fs, mib);
    Step::Create { volume, spec, from }
}

/// Attaches, stages and publishes a volume to its pod.
fn mount(volume: Name) -> [Step; 3] {
    let (target, read_only) = (POD, false);
    let publish = Step::Publish {
        volume,
        target,
        read_only,
    };
    [Step::Attach(volume), Step::Stage(volume), publish]
}

/// The steps that make volumes and use them.
async fn make(t: &mut Tour, fs: &'static str) {
    let why = "CreateVolume makes a record and a sparse file. A second call finds the volume.";
    let twice = [create("data", fs, SIZE, None); 2];
    t.step("Create a volume", why, &twice).await;
    let listed = t.csi.volume_ids().await;
    t.check("both calls made one volume", listed == [t.world.id("data")]);
    let taken = t.taken("data");
    // mkfs.xfs writes the log of the filesystem.
    let (most, what) = match fs {
        "xfs" => (
            XFS_LOG + SIZE * MIB / 100,
            "it takes little more than its log",
        ),
        _ => (SIZE * MIB / 100, "it takes next to nothing"),
    };
    t.check(what, taken <= most);

    let [attach, stage, publish] = mount("data");
    let why = "ControllerPublishVolume records that the node may use it.";
    t.step("Publish it to the node", why, &[attach]).await;

    let why = "NodeStageVolume attaches the image to a loop device and mounts its filesystem.";
    t.step("Stage it", why, &[stage]).await;
    let devices = t.devices("data");
    t.check("it is on one loop device", devices.len() == 1);
    let well = devices.iter().all(|l| l.sector == 4096 && l.direct_io);
    t.check("with 4096-byte blocks and direct I/O", well);

    let why = "NodePublishVolume binds the staged filesystem to the pod's directory.";
    t.step("Publish it to a pod", why, &[publish]).await;
    let (mounts, staging) = (t.mounts(), t.world.staging("data"));
    let device = mounts.get(&staging).filter(|d| d.starts_with("/dev/loop"));
    let same = device.is_some() && device == mounts.get(&t.target("data"));
    t.check("both are the same filesystem on a loop device", same);

    write_and_delete(t, fs).await;
    copy(t, fs).await;
}

/// The image grows by what the pod writes, and shrinks when the pod deletes it.
async fn write_and_delete(t: &mut Tour, fs: &str) {
    let why = "The image takes what is written. Deleted space returns to the pool by discard.";
    let title = "The pod writes, and deletes";
    t.step(title, why, &[Step::Write("data")]).await;
    let (before, scrap) = (t.taken("data"), t.target("data").join("scrap"));
    let content = data::content(1, usize::try_from(SCRAP).expect("a small size"));
    fs::write(&scrap, content).expect("the volume takes writes");
    let full = t.taken("data");
    t.look();
    let grown = full.saturating_sub(before);
    // mkfs may have taken some of the blocks; the filesystem's own bookkeeping comes on top.
    let expected = SCRAP * 9 / 10..=SCRAP * 3 / 2 + 16 * MIB;
    let what = format!("the image has grown by {}", bytes(grown));
    t.check(&what, expected.contains(&grown));

    fs::remove_file(&scrap).expect("the file can be deleted");
    if fs == "btrfs" {
        // btrfs discards minutes later.
        used_bytes(&t.target("data"));
        machine::run("fstrim", &[machine::text(&t.target("data"))]);
    }
    let began = Instant::now();
    let back = |t: &Tour| t.taken("data") + SCRAP * 3 / 4 <= full;
    while !back(t) && began.elapsed() < DISCARD_LIMIT {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    t.look();
    t.check("the deleted space is back in the pool", back(t));
}

/// Snapshot, restore, expansion and clone.
async fn copy(t: &mut Tour, fs: &'static str) {
    let why = "The filesystem is frozen for a moment while the image is cloned.";
    let before = used_bytes(t.pool.root());
    let (snapshot, volume) = (SNAPSHOT, "data");
    let steps = [Step::Snapshot { snapshot, volume }];
    t.step("Take a snapshot", why, &steps).await;
    let grown = used_bytes(t.pool.root()).saturating_sub(before);
    let what = format!("it shares its blocks: the pool gave {}", bytes(grown));
    t.check(&what, grown <= SNAPSHOT_LIMIT);
    let then = t.content("data");

    let why = "CreateVolume from the snapshot. The filesystem grows when the volume is staged.";
    let from = Some(Origin::Snapshot(SNAPSHOT));
    let mut steps = vec![Step::Write("data")];
    steps.push(create("restored", fs, SIZE * 3 / 2, from));
    steps.extend(mount("restored"));
    let title = "Write again, and restore the snapshot to a larger volume";
    t.step(title, why, &steps).await;
    let now = t.content("data");
    let same = now != then && t.content("restored") == then;
    t.check("it holds what was there before the write", same);
    let size = filesystem_bytes(&t.target("restored"));
    t.check("its filesystem has grown", size > SIZE * MIB);

    let why = "ControllerExpandVolume for the image, NodeExpandVolume for device and filesystem. \
               Without CAP_SYS_RESOURCE, ext4 grows only when it is staged again.";
    let (volume, mib) = ("data", SIZE * 2);
    let steps = [Step::Expand { volume, mib }];
    t.step("Expand the volume", why, &steps).await;
    let size = filesystem_bytes(&t.target("data"));
    t.check("its filesystem has grown", size > SIZE * MIB * 3 / 2);
    t.check("it holds what the pod wrote", t.content("data") == now);

    let why = "CreateVolume from the volume, while its pod uses it.";
    let mut steps = vec![create("clone", fs, SIZE * 2, Some(Origin::Volume("data")))];
    steps.extend(mount("clone"));
    t.step("Clone it", why, &steps).await;
    t.check("it holds what the pod wrote", t.content("clone") == now);
    data::write(&t.target("clone").join("data"), 1);
    let apart = t.content("clone") != now && t.content("data") == now;
    t.check("a write to it leaves its source alone", apart);
}

/// The steps that take everything down again.
async fn take_down(t: &mut Tour, leaks: &Leaks) {
    let (pods, target) = (t.scratch.path().join("kubelet"), POD);
    let unpublish = VOLUMES.map(|volume| Step::Unpublish { volume, target });
    let why = "NodeUnpublishVolume removes the pods' mounts.";
    t.step("Unpublish from the pods", why, &unpublish).await;
    let why = "NodeUnstageVolume unmounts the filesystem and detaches the loop device.";
    t.step("Unstage", why, &VOLUMES.map(Step::Unstage)).await;
    let in_use = |t: &Tour| {
        let attached = VOLUMES.iter().any(|v| !t.devices(v).is_empty());
        attached || t.mounts().into_keys().any(|at| at.starts_with(&pods))
    };
    // A device that another program has open for a moment is detached after it.
    let began = Instant::now();
    while in_use(t) && began.elapsed() < hostloop_test::PATIENCE {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    t.check("no volume is mounted or on a loop device", !in_use(t));

    let why = "ControllerUnpublishVolume and DeleteVolume. The snapshot outlives its volume.";
    let detach = VOLUMES.map(Step::Detach).into_iter();
    let steps: Vec<_> = detach.chain(VOLUMES.map(Step::Delete)).collect();
    t.step("Delete the volumes", why, &steps).await;
    let there = t.csi.snapshot_ids().await == [t.world.snapshot_id(SNAPSHOT)];
    t.check("the snapshot is still there", there);
    let steps = [Step::DeleteSnapshot(SNAPSHOT)];
    t.step("Delete the snapshot", "DeleteSnapshot.", &steps)
        .await;
    look_back(t).await;
    let left = leaks.after(&[&t.pool], &t.driver);
    left.iter().for_each(|leak| say!("    left: {leak}"));
    t.check("pool and kernel are as at the start", left.is_empty());
}

/// Ends the page and the recording, once their last state was seen.
async fn look_back(t: &mut Tour) {
    if t.page.is_none() && t.recorder.is_none() {
        return;
    }
    t.pace.wait().await;
    t.steps += 1;
    say!("\n{TITLE}{:2}  Look back{TITLE:#}", t.steps);
    if let Some(page) = t.page.take() {
        t.check("the page was there until now", page.answers());
    }
    let Some(recorder) = t.recorder.take() else {
        return;
    };
    let Some(file) = recorder.end() else {
        return t.check("the recording is written", false);
    };
    let messages = recording::read(&file);
    let (events, reports) = (
        recording::count(&messages, "event"),
        recording::count(&messages, "report"),
    );
    let at = file.display();
    say!(
        "    {at}: {}, {}",
        count(events, "event"),
        count(reports, "report")
    );
    t.check(
        "the recording has the calls and what they changed",
        events > 0 && reports > 0,
    );
    // What is deleted is only known here.
    let id = |name| {
        t.names
            .iter()
            .find(|(_, n)| **n == name)
            .map_or("", |(id, _)| id.as_str())
    };
    let sharings = recording::sharings(&messages, id("data"), id(SNAPSHOT));
    t.check(
        "in it, the snapshot shares blocks",
        sharings.iter().any(|s| s.shared > 0),
    );
    let split = recording::was_split(&sharings, data::BYTES as u64 / 2);
    t.check("and a later write splits them", split);
}

/// Stops the driver, removes the scratch directory, and counts.
fn finish(mut t: Tour) -> ExitCode {
    let path = t.scratch.path().to_path_buf();
    t.driver.stop();
    drop(t.scratch);
    let left = path.exists() || !loop_devices::beneath(&path).is_empty();
    if left {
        say!("    {BAD}✗ {} is left{BAD:#}", path.display());
    }
    t.failed += usize::from(left);
    let (checks, failed) = (t.checks + 1, t.failed);
    let (steps, all) = (count(t.steps, "step"), count(checks, "check"));
    say!("\n{TITLE}{steps}, {all}{TITLE:#}");
    // The form that scripts/test counts.
    say!("{} passed, {failed} failed", checks - failed);
    ExitCode::from(u8::from(t.failed > 0))
}

/// Prints the commands that look at what the driver has, ready to be copied.
fn print_commands(t: &Tour) {
    let (program, pool, endpoint) = (binary(), t.pool.argument(), t.driver.endpoint());
    let (program, state) = (program.display(), state_dir(&t.scratch));
    let pool = format!("--pool {pool} --statedir {}", state.display());
    say!("    In another terminal:");
    say!("      sudo {program} status {pool}");
    say!("      sudo {program} fsck {pool}");
    say!("      sudo {program} events --endpoint {endpoint}");
}

/// The whole of it, or with `keep` the part before the volumes are taken down.
async fn tell(fs: &'static str, options: Options) -> ExitCode {
    let mut t = Tour::new(&options.shown).await;
    let leaks = Leaks::before(&t.scratch, &[&t.pool], &t.driver);
    say!("{TITLE}The life of a volume, from CreateVolume to DeleteVolume{TITLE:#}");
    let at = t.scratch.path().display();
    say!("Paths are beneath {at}. + is new, ~ changed, - gone.");
    if options.fstype.is_none() && fs == "xfs" {
        say!(
            "The volumes are xfs: this machine withholds CAP_SYS_RESOURCE, and without it the kernel \
             grows no ext4 that is in use."
        );
    }
    t.look();
    make(&mut t, fs).await;
    if !options.keep {
        take_down(&mut t, &leaks).await;
        return finish(t);
    }
    say!("\n{TITLE}Everything is kept until Ctrl-C{TITLE:#}");
    say!(
        "    Processes, mounts and devices: driver {}, findmnt, losetup",
        t.driver.pid()
    );
    print_commands(&t);
    std::future::pending().await
}

async fn signalled() {
    let listen = |kind| signal(kind).expect("signals can be listened for");
    let mut int = listen(SignalKind::interrupt());
    let mut term = listen(SignalKind::terminate());
    tokio::select! { _ = int.recv() => {}, _ = term.recv() => {} }
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let fs: &'static str = match &options.fstype {
        Some(chosen) => chosen.clone().leak(),
        None if machine::grows_mounted_ext4() => "ext4",
        None => "xfs",
    };
    let mut story = tokio::spawn(tell(fs, options));
    tokio::select! {
        // The panic of a failure has been printed; its unwinding has cleaned up.
        code = &mut story => code.unwrap_or(ExitCode::FAILURE),
        () = signalled() => {
            say!("\nCleaning up");
            story.abort();
            // Returns when the tour is dropped, which cleans up.
            let _ = story.await;
            ExitCode::from(INTERRUPTED)
        }
    }
}
