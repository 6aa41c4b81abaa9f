//! A driver with a volume in every state, and the checks of each hostile request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use hostloop_proto::csi;
use hostloop_test::client::{Call, Csi, map};
use hostloop_test::driver::{Driver, DriverSpec};
use hostloop_test::leaks::Leaks;
use hostloop_test::machine;
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scenarios::{create, publish};
use hostloop_test::scratch::Scratch;
use hostloop_test::steps::{Spec, Step};
use hostloop_test::world::World;
use tonic::Code;

use hostloop_test::requests::text;

use super::codes::{INVALID, OK};
use super::state::{State, differences, look};
use super::strings::{not_capabilities, not_ids, not_names, not_paths};

/// The value of every secret in the requests.
pub(crate) const SECRET: &str = "hush-9d41aa";

/// How long a device may stay that a refused call has attached and detached: another program can have
/// it open for a moment.
const MOMENT: Duration = Duration::from_secs(20);

/// The secrets of each call that takes secrets.
pub(crate) fn secrets() -> BTreeMap<String, String> {
    map(&[("password", SECRET), ("key", SECRET)])
}

/// The attacked driver, and the state that must not change.
pub(crate) struct Bench {
    pub(crate) csi: Csi,
    pub(crate) known: Rc<Known>,
    world: World,
    driver: Driver,
    state: State,
    leaks: Leaks,
    /// The number of requests of each RPC.
    sent: BTreeMap<&'static str, usize>,
    /// The beginning of the last request, for messages.
    last: String,
    failures: Vec<String>,
    pool: PoolFixture,
    scratch: Scratch,
}

/// The IDs and paths that the tables use.
pub(crate) struct Known {
    /// A volume that was never used.
    pub(crate) idle: String,
    /// A volume that is staged and published as a filesystem.
    pub(crate) used: String,
    pub(crate) used_staging: String,
    pub(crate) used_target: String,
    /// A volume that is staged and published as a raw device.
    pub(crate) block: String,
    pub(crate) block_staging: String,
    pub(crate) block_target: String,
    /// A volume that is attached and not staged.
    pub(crate) attached: String,
    /// A snapshot of `idle`.
    pub(crate) snapshot: String,
    /// A snapshot of `used`.
    pub(crate) other_snapshot: String,
    /// A group of `idle` and `attached`.
    pub(crate) group: String,
    /// The snapshots of the group.
    pub(crate) members: Vec<String>,
    /// A directory with a file that no volume has.
    pub(crate) canary: PathBuf,
    /// A mount that the driver did not make.
    pub(crate) foreign_mount: PathBuf,
    /// A directory for paths to try: see [`symlinks`].
    pub(crate) paths: PathBuf,
}

const EXT4: Spec = Spec::fs("ext4", 32);

const SITUATION: &[Step] = &[
    create("idle", EXT4),
    create("attached", EXT4),
    Step::Attach("attached"),
    create("used", EXT4),
    Step::Attach("used"),
    Step::Stage("used"),
    publish("used"),
    create("block", Spec::block(32)),
    Step::Attach("block"),
    Step::Stage("block"),
    publish("block"),
    Step::Snapshot {
        snapshot: "idle",
        volume: "idle",
    },
    Step::Snapshot {
        snapshot: "used",
        volume: "used",
    },
    Step::Group {
        group: "g",
        volumes: &["idle", "attached"],
    },
];

impl Bench {
    pub(crate) async fn new() -> Bench {
        let scratch = Scratch::new();
        let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 8 * GIB);
        let driver = DriverSpec::new(&scratch, &[&pool])
            .args(["--log-level", "debug"])
            .start();
        let leaks = Leaks::before(&scratch, &[&pool], &driver);
        let csi = driver.csi().await;
        let mut world = World::new(scratch.dir("kubelet"));
        world.insist_all(&driver, &csi, SITUATION).await;
        let mut bench = Bench {
            csi,
            known: Rc::new(Known::new(&scratch, &world)),
            world,
            driver,
            state: State::new(),
            leaks,
            sent: BTreeMap::new(),
            last: String::new(),
            failures: Vec::new(),
            pool,
            scratch,
        };
        bench.state = bench.look();
        bench
    }

    fn look(&self) -> State {
        let Known {
            canary,
            paths,
            foreign_mount,
            ..
        } = &*self.known;
        let kubelet = self.scratch.path().join("kubelet");
        let trees = [self.pool.root(), canary, paths, foreign_mount, &kubelet];
        look(self.scratch.path(), &trees)
    }

    /// Sends a request that must be answered by one of these codes and change nothing.
    pub(crate) async fn refuse<C: Call>(&mut self, what: &str, request: C, codes: &[Code]) {
        self.send(what, request, codes).await;
        let end = Instant::now() + MOMENT;
        let (now, changed) = loop {
            let now = self.look();
            let changed = differences(&self.state, &now);
            if changed.is_empty() || Instant::now() > end {
                break (now, changed);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        if !changed.is_empty() {
            let changed = changed.join("\n    ");
            self.fail::<C>(what, &format!("changed something:\n    {changed}"));
            self.state = now;
        }
    }

    /// [`Bench::refuse`] for each row.
    pub(crate) async fn refuse_all<'a, C: Call>(
        &mut self,
        rows: impl IntoIterator<Item = (impl AsRef<str>, C, &'a [Code])>,
    ) {
        for (what, request, codes) in rows {
            self.refuse(what.as_ref(), request, codes).await;
        }
    }

    /// Sends requests with malformed IDs instead of the `real` one.
    pub(crate) async fn not_ids<C: Call>(
        &mut self,
        real: &str,
        request: impl Fn(&str) -> C,
        codes: &[Code],
    ) {
        for (what, id) in not_ids(real) {
            self.refuse(what, request(&id), codes).await;
        }
    }

    /// [`Bench::not_ids`], and the empty string, which is always invalid.
    pub(crate) async fn ids<C: Call>(
        &mut self,
        real: &str,
        request: impl Fn(&str) -> C,
        codes: &[Code],
    ) {
        self.refuse("no ID", request(""), INVALID).await;
        self.not_ids(real, request, codes).await;
    }

    /// Sends requests with invalid names.
    pub(crate) async fn names<C: Call>(&mut self, request: impl Fn(&str) -> C) {
        for (what, name) in not_names() {
            self.refuse(what, request(&name), INVALID).await;
        }
    }

    /// Sends requests with paths that break CSI's rules.
    pub(crate) async fn paths<C: Call>(&mut self, request: impl Fn(&str) -> C, codes: &[Code]) {
        for (what, path) in not_paths() {
            self.refuse(what, request(&path), codes).await;
        }
    }

    /// Sends requests without a capability, and with invalid capabilities.
    pub(crate) async fn capabilities<C: Call>(
        &mut self,
        request: impl Fn(Option<csi::VolumeCapability>) -> C,
    ) {
        self.refuse("no capability", request(None), INVALID).await;
        for (what, capability) in not_capabilities() {
            self.refuse(what, request(Some(capability)), INVALID).await;
        }
    }

    /// Sends requests with each of these invalid parameters.
    pub(crate) async fn parameters<C: Call>(
        &mut self,
        pairs: &[(&str, &str)],
        request: impl Fn(&str, &str) -> C,
    ) {
        for (key, value) in pairs {
            let what = format!("{key:?}={value:?}");
            self.refuse(&what, request(key, value), INVALID).await;
        }
    }

    /// Sends a request that must be answered OK; it may change something.
    pub(crate) async fn take<C: Call>(&mut self, what: &str, request: C) -> Option<C::Answer> {
        self.send(what, request, OK).await
    }

    async fn send<C: Call>(&mut self, what: &str, request: C, codes: &[Code]) -> Option<C::Answer> {
        *self.sent.entry(C::NAME).or_default() += 1;
        self.last = format!("{request:?}").chars().take(1000).collect();
        let (answer, code, message) = match self.csi.call(request).await {
            Ok(answer) => (Some(answer), Code::Ok, String::new()),
            Err(status) => (None, status.code(), status.message().to_owned()),
        };
        if !codes.contains(&code) {
            self.fail::<C>(what, &format!("{code:?}, not {codes:?}: {message}"));
        }
        if message.contains(SECRET) {
            self.fail::<C>(what, "the secret is in the answer");
        }
        if code != Code::Ok && message.is_empty() {
            self.fail::<C>(what, "the error has no message");
        }
        answer
    }

    fn fail<C: Call>(&mut self, what: &str, why: &str) {
        self.failures
            .push(format!("{} with {what}: {why}\n    {}", C::NAME, self.last));
    }

    /// Takes everything down and fails if anything was wrong. Returns how many requests of each RPC
    /// were sent.
    pub(crate) async fn finish(mut self) -> BTreeMap<&'static str, usize> {
        machine::run("umount", &[&text(&self.known.foreign_mount)]);
        self.world.tear_down(&self.driver, &self.csi).await;
        self.leaks.assert_none(&[&self.pool], &self.driver);
        let log = self.driver.log();
        let leaked = log.lines().filter(|line| line.contains(SECRET));
        self.failures
            .extend(leaked.map(|line| format!("a secret is in the log: {line}")));
        assert!(
            self.failures.is_empty(),
            "{} of {} requests:\n{}",
            self.failures.len(),
            self.sent.values().sum::<usize>(),
            self.failures.join("\n")
        );
        self.driver.stop();
        self.sent
    }
}

impl Known {
    fn new(scratch: &Scratch, world: &World) -> Known {
        let canary = scratch.dir("canary");
        std::fs::write(canary.join("file"), "untouched").expect("the canary can be made");
        let foreign_mount = scratch.dir("foreign");
        machine::run("mount", &["-t", "tmpfs", "foreign", &text(&foreign_mount)]);
        let paths = scratch.dir("paths");
        symlinks(&paths, &canary);
        let (group, members) = world.group_ids("g");
        Known {
            idle: world.id("idle").to_owned(),
            used: world.id("used").to_owned(),
            used_staging: text(world.staging("used")),
            used_target: text(world.target("used", "pod")),
            block: world.id("block").to_owned(),
            block_staging: text(world.staging("block")),
            block_target: text(world.target("block", "pod")),
            attached: world.id("attached").to_owned(),
            snapshot: world.snapshot_id("idle").to_owned(),
            other_snapshot: world.snapshot_id("used").to_owned(),
            group: group.to_owned(),
            members,
            canary,
            foreign_mount,
            paths,
        }
    }

    /// The path of this name in [`Known::paths`].
    pub(crate) fn path(&self, name: &str) -> String {
        text(self.paths.join(name))
    }
}

/// `link` leads to the canary, `dangling` nowhere, `loop` to itself, `file` is a file and `full` a
/// directory that is not empty.
fn symlinks(paths: &Path, canary: &Path) {
    let link = |to: &Path, name: &str| {
        std::os::unix::fs::symlink(to, paths.join(name)).expect("a symlink can be made");
    };
    link(canary, "link");
    link(Path::new("/nonexistent/there"), "dangling");
    link(&paths.join("loop"), "loop");
    std::fs::write(paths.join("file"), "untouched").expect("a file can be made");
    std::fs::create_dir(paths.join("full")).expect("a directory can be made");
    std::fs::write(paths.join("full/file"), "untouched").expect("a file can be made");
}
