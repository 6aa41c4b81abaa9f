//! The life of a volume without a cluster: `scripts/demo --local`.
//!
//! The program plays the orchestrator of a driver process that it starts on a pool of its own.
//! For each step it prints the calls as the driver logged them, what changed on disk and in the
//! kernel, and its checks. All it made goes with its scratch directory, also after a failure or a
//! signal.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anstream::println;
use anstyle::{AnsiColor, Style};
use clap::Parser;
use hostloop_driver::inspect::status::humanize::{bytes, count};
use hostloop_test::client::Csi;
use hostloop_test::driver::{Driver, DriverSpec};
use hostloop_test::leaks::{Leaks, files_in, mounted};
use hostloop_test::pools::{GIB, MIB, PoolFixture, PoolKind, used_bytes};
use hostloop_test::scratch::Scratch;
use hostloop_test::steps::{Name, Origin, Spec, Step};
use hostloop_test::world::World;
use hostloop_test::{data, loops, machine};
use nix::sys::statvfs::statvfs;
use tokio::signal::unix::{SignalKind, signal};

/// Walk through the life of a volume on this machine, without a cluster.
#[derive(Parser)]
#[command(
    version,
    after_help = "Needs root and loop devices. Exit code: 0 every check held, 1 one did not or a \
                  call failed, 130 interrupted."
)]
struct Options {
    /// Filesystem of the volumes
    #[arg(long, value_name = "FS", default_value = "ext4", value_parser = ["ext4", "xfs", "btrfs"])]
    fstype: String,

    /// Keep volumes, mounts and the driver until Ctrl-C
    #[arg(long)]
    keep: bool,
}

/// Size of the first volume, in MiB.
const SIZE: u64 = 512;
/// Size of the file that is written and deleted again, in bytes.
const SCRAP: u64 = 64 * MIB;
/// A pool with reflinks takes no more than this for a snapshot, in bytes.
const SNAPSHOT_LIMIT: u64 = 4 * MIB;
/// Deleted space is back in the pool after this time.
const DISCARD_LIMIT: Duration = Duration::from_secs(20);
const POD: Name = "pod";
const SNAPSHOT: Name = "monday";
const VOLUMES: [Name; 3] = ["clone", "restored", "data"];
const INTERRUPTED: u8 = 130;

const TITLE: Style = Style::new().bold();
const QUIET: Style = Style::new().dimmed();
const CALL: Style = AnsiColor::Cyan.on_default();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// The images, loop devices and mounts beneath the scratch directory, each with its properties.
type Picture = BTreeMap<String, String>;

struct Tour {
    world: World,
    csi: Csi,
    driver: Driver,
    pool: PoolFixture,
    /// Volume and snapshot IDs with the names to print for them.
    names: BTreeMap<String, Name>,
    before: Picture,
    /// Lines of the driver's log that were printed or skipped.
    logged: usize,
    steps: usize,
    checks: usize,
    failed: usize,
    // Dropped last: it unmounts and detaches all that is left.
    scratch: Scratch,
}

/// The size of the filesystem at a path, in bytes.
fn filesystem_bytes(path: &Path) -> u64 {
    let stat = statvfs(path).unwrap_or_else(|e| panic!("statvfs {}: {e}", path.display()));
    stat.blocks() * stat.fragment_size()
}

impl Tour {
    async fn new() -> Tour {
        let scratch = Scratch::new();
        let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 16 * GIB);
        let log = ["--log-format=json", "--log-level=warn,hostloop::call=debug"];
        let driver = DriverSpec::new(&scratch, &[&pool]).args(log).start();
        Tour {
            world: World::new(scratch.dir("kubelet")),
            csi: driver.csi().await,
            driver,
            pool,
            names: BTreeMap::new(),
            before: Picture::new(),
            logged: 0,
            steps: 0,
            checks: 0,
            failed: 0,
            scratch,
        }
    }

    /// Prints what comes, does the steps, and prints the calls and what they changed.
    async fn step(&mut self, title: &str, why: &str, steps: &[Step]) {
        self.steps += 1;
        println!("\n{TITLE}{:2}  {title}{TITLE:#}", self.steps);
        println!("    {QUIET}{why}{QUIET:#}");
        for step in steps {
            self.world.insist(&self.driver, &self.csi, *step).await;
            let (id, name) = match *step {
                Step::Create { volume, .. } => (self.world.id(volume), volume),
                Step::Snapshot { snapshot, .. } => (self.world.snapshot_id(snapshot), snapshot),
                _ => continue,
            };
            self.names.insert(id.to_owned(), name);
        }
        self.look();
    }

    fn check(&mut self, what: &str, held: bool) {
        self.checks += 1;
        self.failed += usize::from(!held);
        match held {
            true => println!("    {GOOD}✓{GOOD:#} {what}"),
            false => println!("    {BAD}✗ {what}{BAD:#}"),
        }
    }

    fn look(&mut self) {
        for call in self.calls() {
            println!("    {CALL}{}{CALL:#}", self.short(&call));
        }
        let now = self.picture();
        for (thing, was) in &self.before {
            match now.get(thing) {
                None => println!("    - {thing}  {was}"),
                Some(is) if is != was => println!("    ~ {thing}  {was} → {is}"),
                Some(_) => {}
            }
        }
        for (thing, is) in now.iter().filter(|(t, _)| !self.before.contains_key(*t)) {
            println!("    + {thing}  {is}");
        }
        self.before = now;
    }

    /// The calls in the driver's log since the last time.
    fn calls(&mut self) -> Vec<String> {
        let log = self.driver.log();
        let lines: Vec<&str> = log.lines().collect();
        let from = std::mem::replace(&mut self.logged, lines.len());
        let new = lines[from..].iter().filter_map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let of = |name: &str| {
                let value = &line[name];
                value.as_str().map_or(value.to_string(), str::to_owned)
            };
            (line["target"] == "hostloop::call").then(|| {
                let (method, about, code, ms) = (of("method"), of("about"), of("code"), of("ms"));
                format!("{method}  {about}  {code}, {ms} ms")
            })
        });
        new.collect()
    }

    /// The text with paths from the scratch directory on, and names for IDs.
    fn short(&self, text: &str) -> String {
        let root = format!("{}/", machine::text(self.scratch.path()));
        let text = text.replace(&root, "");
        let named = |text: String, (id, name): (&String, &Name)| text.replace(id, name);
        self.names.iter().fold(text, named)
    }

    fn picture(&self) -> Picture {
        let mut picture = Picture::new();
        for entry in files_in(self.pool.root()) {
            if let Ok(image) = entry.join("image").metadata() {
                let (size, taken) = (bytes(image.len()), bytes(image.blocks() * 512));
                let image = format!("image {}", self.short(machine::text(&entry)));
                picture.insert(image, format!("{size}, {taken} on disk"));
            }
        }
        for l in loops::beneath(self.scratch.path()) {
            let io = if l.direct_io { "direct I/O" } else { "buffered" };
            let is = format!("{}, {}-byte blocks, {io}", self.short(&l.backing), l.sector);
            picture.insert(format!("loop  /dev/loop{}", l.minor), is);
        }
        for (at, device) in self.mounts() {
            picture.insert(format!("mount {}", self.short(machine::text(&at))), device);
        }
        picture
    }

    /// The mounts beneath the scratch directory, with their devices.
    fn mounts(&self) -> BTreeMap<PathBuf, String> {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is there");
        let ours = mounted(&table).into_iter();
        ours.filter(|m| m.at.starts_with(self.scratch.path())).map(|m| (m.at, m.source)).collect()
    }

    fn target(&self, volume: Name) -> PathBuf {
        self.world.target(volume, POD)
    }

    /// What the pod last wrote to a volume.
    fn content(&self, volume: Name) -> data::Checksum {
        data::read(&self.target(volume).join("data"))
    }

    fn image(&self, volume: Name) -> PathBuf {
        let volumes = self.pool.root().join("volumes");
        volumes.join(self.world.id(volume)).join("image")
    }

    /// Bytes that a volume's image takes on the disk, once everything is written back.
    fn taken(&self, volume: Name) -> u64 {
        let target = self.target(volume);
        if target.exists() {
            used_bytes(&target);
        }
        used_bytes(self.pool.root());
        let image = self.image(volume).metadata().expect("the image is there");
        image.blocks() * 512
    }

    /// The loop devices over a volume's image.
    fn devices(&self, volume: Name) -> Vec<loops::Loop> {
        let image = self.image(volume);
        let mut devices = loops::beneath(self.scratch.path());
        devices.retain(|l| Path::new(&l.backing) == image);
        devices
    }
}

fn create(volume: Name, fs: &'static str, mib: u64, from: Option<Origin>) -> Step {
    let spec = Spec::fs(fs, mib);
    Step::Create { volume, spec, from }
}

/// Attaches, stages and publishes a volume to its pod.
fn mount(volume: Name) -> [Step; 3] {
    let (target, read_only) = (POD, false);
    let publish = Step::Publish { volume, target, read_only };
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
    t.check("it takes next to nothing", taken <= SIZE * MIB / 100);

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
    let attached = VOLUMES.iter().any(|v| !t.devices(v).is_empty());
    let mounted = t.mounts().into_keys().any(|at| at.starts_with(&pods));
    let what = "no volume is mounted or on a loop device";
    t.check(what, !attached && !mounted);

    let why = "ControllerUnpublishVolume and DeleteVolume. The snapshot outlives its volume.";
    let detach = VOLUMES.map(Step::Detach).into_iter();
    let steps: Vec<_> = detach.chain(VOLUMES.map(Step::Delete)).collect();
    t.step("Delete the volumes", why, &steps).await;
    let there = t.csi.snapshot_ids().await == [t.world.snapshot_id(SNAPSHOT)];
    t.check("the snapshot is still there", there);
    let steps = [Step::DeleteSnapshot(SNAPSHOT)];
    t.step("Delete the snapshot", "DeleteSnapshot.", &steps).await;
    let left = leaks.after(&[&t.pool], &t.driver);
    left.iter().for_each(|leak| println!("    left: {leak}"));
    t.check("pool and kernel are as at the start", left.is_empty());
}

/// Stops the driver, removes the scratch directory, and counts.
fn finish(mut t: Tour) -> ExitCode {
    let path = t.scratch.path().to_path_buf();
    t.driver.stop();
    drop(t.scratch);
    let left = path.exists() || !loops::beneath(&path).is_empty();
    if left {
        println!("    {BAD}✗ {} is left{BAD:#}", path.display());
    }
    t.failed += usize::from(left);
    let (checks, failed) = (t.checks + 1, t.failed);
    let (steps, all) = (count(t.steps, "step"), count(checks, "check"));
    println!("\n{TITLE}{steps}, {all}{TITLE:#}");
    // The form that scripts/test counts.
    println!("{} passed, {failed} failed", checks - failed);
    ExitCode::from(u8::from(t.failed > 0))
}

/// The whole of it, or with `keep` the part before the volumes are taken down.
async fn tell(fs: &'static str, keep: bool) -> ExitCode {
    let mut t = Tour::new().await;
    let leaks = Leaks::before(&t.scratch, &[&t.pool], &t.driver);
    println!("{TITLE}The life of a volume, from CreateVolume to DeleteVolume{TITLE:#}");
    let at = t.scratch.path().display();
    println!("Paths are beneath {at}. + is new, ~ changed, - gone.");
    t.look();
    make(&mut t, fs).await;
    if !keep {
        take_down(&mut t, &leaks).await;
        return finish(t);
    }
    println!("\n{TITLE}Everything is kept until Ctrl-C{TITLE:#}");
    println!("    Processes, mounts and devices: driver {}, findmnt, losetup", t.driver.pid());
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
    let Options { fstype, keep } = Options::parse();
    let mut story = tokio::spawn(tell(fstype.leak(), keep));
    tokio::select! {
        // The panic of a failure has been printed; its unwinding has cleaned up.
        code = &mut story => code.unwrap_or(ExitCode::FAILURE),
        () = signalled() => {
            println!("\nCleaning up");
            story.abort();
            // Returns when the tour is dropped, which cleans up.
            let _ = story.await;
            ExitCode::from(INTERRUPTED)
        }
    }
}
