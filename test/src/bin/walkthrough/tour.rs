//! The driver, what it has, and what is printed of it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hostloop_terminal::humanize::bytes;
use hostloop_test::client::Csi;
use hostloop_test::driver::{Driver, DriverSpec};
use hostloop_test::leaks::{files_in, mounted, mountinfo};
use hostloop_test::pools::{GIB, PoolFixture, PoolKind, state_dir, used_bytes};
use hostloop_test::scratch::Scratch;
use hostloop_test::steps::{Name, Step};
use hostloop_test::world::World;
use hostloop_test::{data, loop_devices, machine};

use crate::beside::{Page, Recorder, Shown};
use crate::pace::Pace;
use crate::styles::{BAD, CALL, GOOD, QUIET, TITLE};

pub(crate) const POD: Name = "pod";

/// The images, loop devices and mounts beneath the scratch directory, each with its properties.
pub(crate) type Picture = BTreeMap<String, String>;

pub(crate) struct Tour {
    // Dropped first: they end before their driver.
    pub(crate) page: Option<Page>,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) pace: Pace,
    pub(crate) world: World,
    pub(crate) csi: Csi,
    pub(crate) driver: Driver,
    pub(crate) pool: PoolFixture,
    /// Volume and snapshot IDs with the names to print for them.
    pub(crate) names: BTreeMap<String, Name>,
    pub(crate) before: Picture,
    /// Lines of the driver's log that were printed or skipped.
    pub(crate) logged: usize,
    pub(crate) steps: usize,
    pub(crate) checks: usize,
    pub(crate) failed: usize,
    // Dropped last: it unmounts and detaches all that is left.
    pub(crate) scratch: Scratch,
}

impl Tour {
    pub(crate) async fn new(shown: &Shown) -> Tour {
        let scratch = Scratch::new();
        let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 16 * GIB);
        let log = ["--log-format=json", "--log-level=warn,hostloop::call=debug"];
        let driver = DriverSpec::new(&scratch, &[&pool]).args(log).start();
        let state = state_dir(&scratch);
        let record = shown.record.as_deref();
        Tour {
            recorder: record.map(|file| Recorder::start(&driver, &state, &pool, file)),
            page: shown
                .ui
                .then(|| Page::open(&driver, &state, &pool, shown.no_open)),
            pace: Pace::new(shown.pause, shown.ui, record.is_some()),
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
    pub(crate) async fn step(&mut self, title: &str, why: &str, steps: &[Step]) {
        self.pace.wait().await;
        self.steps += 1;
        say!("\n{TITLE}{:2}  {title}{TITLE:#}", self.steps);
        say!("    {QUIET}{why}{QUIET:#}");
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

    pub(crate) fn check(&mut self, what: &str, held: bool) {
        self.checks += 1;
        self.failed += usize::from(!held);
        if held {
            say!("    {GOOD}✓{GOOD:#} {what}")
        } else {
            say!("    {BAD}✗ {what}{BAD:#}")
        }
    }

    pub(crate) fn look(&mut self) {
        for call in self.calls() {
            say!("    {CALL}{}{CALL:#}", self.short(&call));
        }
        let now = self.picture();
        for (thing, was) in &self.before {
            match now.get(thing) {
                None => say!("    - {thing}  {was}"),
                Some(is) if is != was => say!("    ~ {thing}  {was} → {is}"),
                Some(_) => {}
            }
        }
        for (thing, is) in now.iter().filter(|(t, _)| !self.before.contains_key(*t)) {
            say!("    + {thing}  {is}");
        }
        self.before = now;
    }

    /// The calls in the driver's log since the last time.
    pub(crate) fn calls(&mut self) -> Vec<String> {
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
    pub(crate) fn short(&self, text: &str) -> String {
        let root = format!("{}/", machine::text(self.scratch.path()));
        let text = text.replace(&root, "");
        let named = |text: String, (id, name): (&String, &Name)| text.replace(id, name);
        self.names.iter().fold(text, named)
    }

    pub(crate) fn picture(&self) -> Picture {
        let mut picture = Picture::new();
        for entry in files_in(self.pool.root()) {
            if let Ok(image) = entry.join("image").metadata() {
                let (size, taken) = (bytes(image.len()), bytes(image.blocks() * 512));
                let image = format!("image {}", self.short(machine::text(&entry)));
                picture.insert(image, format!("{size}, {taken} on disk"));
            }
        }
        for l in loop_devices::beneath(self.scratch.path()) {
            let io = if l.direct_io {
                "direct I/O"
            } else {
                "buffered"
            };
            let is = format!("{}, {}-byte blocks, {io}", self.short(&l.backing), l.sector);
            picture.insert(format!("loop  /dev/loop{}", l.minor), is);
        }
        for (at, device) in self.mounts() {
            picture.insert(format!("mount {}", self.short(machine::text(&at))), device);
        }
        picture
    }

    /// The mounts beneath the scratch directory, with their devices.
    pub(crate) fn mounts(&self) -> BTreeMap<PathBuf, String> {
        let ours = mounted(&mountinfo("self")).into_iter();
        ours.filter(|m| m.at.starts_with(self.scratch.path()))
            .map(|m| (m.at, m.source))
            .collect()
    }

    pub(crate) fn target(&self, volume: Name) -> PathBuf {
        self.world.target(volume, POD)
    }

    /// What the pod last wrote to a volume.
    pub(crate) fn content(&self, volume: Name) -> data::Checksum {
        data::read(&self.target(volume).join("data"))
    }

    pub(crate) fn image(&self, volume: Name) -> PathBuf {
        let volumes = self.pool.root().join("volumes");
        volumes.join(self.world.id(volume)).join("image")
    }

    /// Bytes that a volume's image takes on the disk, once everything is written back.
    pub(crate) fn taken(&self, volume: Name) -> u64 {
        let target = self.target(volume);
        if target.exists() {
            used_bytes(&target);
        }
        used_bytes(self.pool.root());
        let image = self.image(volume).metadata().expect("the image is there");
        image.blocks() * 512
    }

    /// The loop devices over a volume's image.
    pub(crate) fn devices(&self, volume: Name) -> Vec<loop_devices::Loop> {
        let image = self.image(volume);
        let mut devices = loop_devices::beneath(self.scratch.path());
        devices.retain(|l| Path::new(&l.backing) == image);
        devices
    }
}
