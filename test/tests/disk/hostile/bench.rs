//! A driver with a volume in every state, and the requests that are thrown at it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hostloop_test::client::{Call, Csi, map};
use hostloop_test::driver::{Driver, DriverSpec};
use hostloop_test::leaks::Leaks;
use hostloop_test::machine::{self, text};
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;
use hostloop_test::steps::{Spec, Step};
use hostloop_test::world::World;
use tonic::Code;

use super::state::{State, differences, look};

/// Stands in every secret that is sent.
pub(crate) const SECRET: &str = "hush-9d41aa";

/// Where everything is.
pub(crate) struct Bench {
    pub(crate) csi: Csi,
    pub(crate) world: World,
    pub(crate) known: Known,
    pub(crate) driver: Driver,
    state: State,
    leaks: Leaks,
    sent: usize,
    failures: Vec<String>,
    pool: PoolFixture,
    scratch: Scratch,
}

/// What the tables name.
pub(crate) struct Known {
    /// Made, and nothing more.
    pub(crate) idle: String,
    /// Staged and published as a filesystem.
    pub(crate) used: String,
    /// Staged and published as a raw device.
    pub(crate) block: String,
    /// Attached only.
    pub(crate) attached: String,
    /// A snapshot of `idle`.
    pub(crate) snapshot: String,
    /// A snapshot of `used`.
    pub(crate) other_snapshot: String,
    /// A group of `idle` and `attached`.
    pub(crate) group: String,
    /// Its snapshots.
    pub(crate) members: Vec<String>,
    /// A directory with a file in it that is nobody's business.
    pub(crate) canary: PathBuf,
    /// Somebody else's mount.
    pub(crate) foreign_mount: PathBuf,
    /// A directory for paths to try.
    pub(crate) paths: PathBuf,
}

const EXT4: Spec = Spec::fs("ext4", 32);

const SITUATION: &[Step] = &[
    Step::Create {
        volume: "idle",
        spec: EXT4,
        from: None,
    },
    Step::Create {
        volume: "attached",
        spec: EXT4,
        from: None,
    },
    Step::Attach("attached"),
    Step::Create {
        volume: "used",
        spec: EXT4,
        from: None,
    },
    Step::Attach("used"),
    Step::Stage("used"),
    Step::Publish {
        volume: "used",
        target: "pod",
        read_only: false,
    },
    Step::Create {
        volume: "block",
        spec: Spec::block(32),
        from: None,
    },
    Step::Attach("block"),
    Step::Stage("block"),
    Step::Publish {
        volume: "block",
        target: "pod",
        read_only: false,
    },
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
        let known = known(&scratch, &world);
        let mut bench = Bench {
            csi,
            world,
            known,
            driver,
            state: State::new(),
            leaks,
            sent: 0,
            failures: Vec::new(),
            pool,
            scratch,
        };
        bench.remember();
        bench
    }

    /// Takes what is there now for what must stay.
    pub(crate) fn remember(&mut self) {
        self.state = self.look();
    }

    fn look(&self) -> State {
        let Known {
            canary,
            paths,
            foreign_mount,
            ..
        } = &self.known;
        let kubelet = self.scratch.path().join("kubelet");
        let trees = [self.pool.root(), canary, paths, foreign_mount, &kubelet];
        look(self.scratch.path(), &trees)
    }

    /// Secrets, as they come with every call that takes some.
    pub(crate) fn secrets(&self) -> BTreeMap<String, String> {
        map(&[("password", SECRET), ("key", SECRET)])
    }

    /// Sends a request that must be answered by one of these codes and change nothing.
    pub(crate) async fn refuse<C: Call>(&mut self, what: &str, request: C, codes: &[Code]) {
        let outcome = self.csi.call(request).await;
        let code = outcome.as_ref().err().map_or(Code::Ok, tonic::Status::code);
        let said = outcome
            .err()
            .map(|s| s.message().to_owned())
            .unwrap_or_default();
        self.judge::<C>(what, code, &said, codes);
        let now = self.look();
        let changed = differences(&self.state, &now);
        if !changed.is_empty() {
            self.fail::<C>(
                what,
                &format!("changed something:\n    {}", changed.join("\n    ")),
            );
            self.state = now;
        }
    }

    /// Sends a request that must be answered OK; it may change something.
    pub(crate) async fn take<C: Call>(&mut self, what: &str, request: C) -> Option<C::Answer> {
        let outcome = self.csi.call(request).await;
        let code = outcome.as_ref().err().map_or(Code::Ok, tonic::Status::code);
        let said = match &outcome {
            Ok(_) => String::new(),
            Err(status) => status.message().to_owned(),
        };
        self.judge::<C>(what, code, &said, &[Code::Ok]);
        outcome.ok()
    }

    fn judge<C: Call>(&mut self, what: &str, code: Code, said: &str, codes: &[Code]) {
        self.sent += 1;
        if !codes.contains(&code) {
            self.fail::<C>(what, &format!("{code:?}, not {codes:?}: {said}"));
        }
        if said.contains(SECRET) {
            self.fail::<C>(what, "the answer tells the secret");
        }
        if code != Code::Ok && said.is_empty() {
            self.fail::<C>(what, "refused without a word");
        }
    }

    fn fail<C: Call>(&mut self, what: &str, why: &str) {
        self.failures
            .push(format!("{} with {what}: {why}", C::NAME));
    }

    /// Takes everything down and fails if anything was wrong. Returns how many were sent.
    pub(crate) async fn finish(mut self) -> usize {
        let known = &self.known;
        machine::run("umount", &[text(&known.foreign_mount)]);
        self.world.tear_down(&self.driver, &self.csi).await;
        self.leaks.assert_none(&[&self.pool], &self.driver);
        let log = self.driver.log();
        for line in log.lines().filter(|line| line.contains(SECRET)) {
            self.failures
                .push(format!("a secret is in the log: {line}"));
        }
        assert!(
            self.failures.is_empty(),
            "{} of {} requests:\n{}",
            self.failures.len(),
            self.sent,
            self.failures.join("\n")
        );
        self.driver.stop();
        self.sent
    }
}

fn known(scratch: &Scratch, world: &World) -> Known {
    let canary = scratch.dir("canary");
    std::fs::write(canary.join("file"), "untouched").expect("the canary can be made");
    let foreign_mount = scratch.dir("foreign");
    machine::run("mount", &["-t", "tmpfs", "foreign", text(&foreign_mount)]);
    let paths = scratch.dir("paths");
    symlinks(&paths, &canary);
    let (group, members) = world.group_ids("g");
    Known {
        idle: world.id("idle").to_owned(),
        used: world.id("used").to_owned(),
        block: world.id("block").to_owned(),
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
