//! Two nodes of one kernel use volumes, and the drivers of the owner, of the user and of both are killed
//! at random moments. What was synced on either node stays, and nothing else does.
//!
//! The seed decides who is killed and what the nodes do, not when each of it happens. A few kills are in
//! the sample; with `HOSTLOOP_WALK_ALL=1` there are hundreds.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_test::PATIENCE;
use hostloop_test::client::{Call, Csi, mounted, raw_block};
use hostloop_test::data::{self, Checksum};
use hostloop_test::dice::Dice;
use hostloop_test::pools::MIB;
use hostloop_test::requests::{delete, delete_snapshot, id_of, snapshot};
use hostloop_test::sharing::{Sharing, SharingNode, shared_volume};

use crate::walk::is_passing;

/// Seeds and kills of the sample, and of all.
const SAMPLE: (u64, u32) = (1, 24);
const ALL: (u64, u32) = (6, 80);

/// The longest time that a driver serves before the next kill.
const SERVES_MS: u64 = 1500;
/// The longest time that it is away.
const AWAY_MS: u64 = 300;
/// How long a caller waits before it repeats a call.
const AGAIN: Duration = Duration::from_millis(50);

/// Files of a filesystem that are written again and again.
const FILES: u64 = 6;
const BYTES: u64 = 512 * MIB;

/// A volume of the storm.
#[derive(Clone, Copy)]
struct Plan {
    name: &'static str,
    /// `None` for a raw block volume.
    fs: Option<&'static str>,
    /// Both nodes may have it at once.
    many: bool,
}

const PLANS: [Plan; 5] = [
    Plan {
        name: "moves-ext4",
        fs: Some("ext4"),
        many: false,
    },
    Plan {
        name: "moves-xfs",
        fs: Some("xfs"),
        many: false,
    },
    Plan {
        name: "moves-raw",
        fs: None,
        many: false,
    },
    Plan {
        name: "together-xfs",
        fs: Some("xfs"),
        many: true,
    },
    Plan {
        name: "together-raw",
        fs: None,
        many: true,
    },
];

impl Plan {
    fn capability(&self) -> csi::VolumeCapability {
        let mode = if self.many {
            Mode::MultiNodeMultiWriter
        } else {
            Mode::SingleNodeWriter
        };
        match self.fs {
            Some(fs) => mounted(fs, mode),
            None => raw_block(mode),
        }
    }

    fn files(&self) -> u64 {
        if self.fs.is_some() { FILES } else { 1 }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_two_nodes_have_synced_survives_a_storm_of_kills() {
    let (seeds, kills) = if std::env::var_os("HOSTLOOP_WALK_ALL").is_some() {
        ALL
    } else {
        SAMPLE
    };
    for seed in 1..=seeds {
        storm(seed, kills).await;
    }
}

async fn storm(seed: u64, kills: u32) {
    let storm = Arc::new(Storm::begin().await);
    let lives = (1..).zip(PLANS).map(|(number, plan)| {
        let storm = storm.clone();
        tokio::spawn(async move { storm.live(plan, Dice::new(seed * 100 + number)).await })
    });
    let lives: Vec<_> = lives.collect();
    let killer = storm.clone();
    let killed = tokio::task::spawn_blocking(move || killer.kill_all_over(seed, kills)).await;
    storm.over.store(true, Ordering::Relaxed);
    let lives = join_all(lives).await.into_iter();
    let volumes: Vec<Volume> = lives
        .map(|life| life.unwrap_or_else(|why| panic!("seed {seed}: {why}")))
        .collect();
    let killed = killed.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    println!("seed {seed}: killed {killed}");
    for volume in &volumes {
        println!("{:6} turns of {}", volume.turns, volume.plan.name);
        assert!(volume.turns > 0, "{} did nothing", volume.plan.name);
        storm.finish(volume).await;
    }
    let storm = Arc::into_inner(storm).expect("its lives have ended");
    storm.end().await;
}

/// A node, and how often its driver was killed and started.
struct Served {
    csi: Csi,
    /// Odd while the driver is away.
    changes: AtomicU64,
}

impl Served {
    async fn of(node: &SharingNode) -> Served {
        Served {
            csi: node.csi().await,
            changes: AtomicU64::new(0),
        }
    }

    /// Waits until the driver serves.
    async fn serving(&self) -> u64 {
        let end = Instant::now() + PATIENCE;
        loop {
            let changes = self.changes.load(Ordering::SeqCst);
            if changes.is_multiple_of(2) {
                return changes;
            }
            assert!(Instant::now() < end, "the driver does not start again");
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Repeats a call until it is answered OK, as an orchestrator does. Only the death of the driver
    /// explains each error; few others pass by themselves.
    async fn insist<C: Call + Clone>(&self, request: C) -> C::Answer {
        let end = Instant::now() + PATIENCE;
        loop {
            let changes = self.serving().await;
            let status = match self.csi.call(request.clone()).await {
                Ok(answer) => return answer,
                Err(status) => status,
            };
            // An answer has no source, a broken connection has one.
            let was_killed = changes != self.changes.load(Ordering::SeqCst);
            let passes = was_killed || status.source().is_some() || is_passing(&status);
            assert!(passes, "{request:?}: {status:?}");
            assert!(Instant::now() < end, "{request:?}: still {status:?}");
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// A volume after the storm.
struct Volume {
    plan: Plan,
    id: String,
    /// File → what was synced to it last.
    synced: BTreeMap<u64, Checksum>,
    turns: u64,
}

/// Which node a step is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Owner,
    User,
}

const ROLES: [Role; 2] = [Role::Owner, Role::User];

struct Storm {
    owner: Served,
    user: Served,
    nodes: Sharing,
    over: AtomicBool,
}

impl Storm {
    async fn begin() -> Storm {
        let nodes = Sharing::up();
        Storm {
            owner: Served::of(&nodes.owner).await,
            user: Served::of(&nodes.user).await,
            nodes,
            over: AtomicBool::new(false),
        }
    }

    fn node(&self, role: Role) -> &SharingNode {
        match role {
            Role::Owner => &self.nodes.owner,
            Role::User => &self.nodes.user,
        }
    }

    fn served(&self, role: Role) -> &Served {
        match role {
            Role::Owner => &self.owner,
            Role::User => &self.user,
        }
    }

    /// Kills drivers and starts them again. Says how often of whom.
    fn kill_all_over(&self, seed: u64, kills: u32) -> String {
        let dice = Dice::new(seed);
        let mut counts = [0; 3];
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(dice.below(SERVES_MS)));
            let who = dice.below(3) as usize;
            let victims: &[Role] = match who {
                0 => &[Role::Owner],
                1 => &[Role::User],
                _ => &ROLES,
            };
            for role in victims {
                self.served(*role).changes.fetch_add(1, Ordering::SeqCst);
                self.node(*role).kill_running();
            }
            std::thread::sleep(Duration::from_millis(dice.below(AWAY_MS)));
            for role in victims {
                self.node(*role).start();
                self.served(*role).changes.fetch_add(1, Ordering::SeqCst);
            }
            counts[who] += 1;
        }
        let [owner, user, both] = counts;
        format!("the owner {owner} times, the user {user} times, and both {both} times")
    }

    /// Uses a new volume until the storm is over. Then no node has it any more.
    async fn live(&self, plan: Plan, dice: Dice) -> Volume {
        let request = shared_volume(plan.name, BYTES, &plan.capability());
        let mut volume = Volume {
            plan,
            id: id_of(self.owner.insist(request).await),
            synced: BTreeMap::new(),
            turns: 0,
        };
        while !self.over.load(Ordering::Relaxed) {
            volume.turns += 1;
            if plan.many {
                self.used_by_both(&mut volume, &dice).await;
            } else {
                let role = ROLES[dice.below(2) as usize];
                self.begin_use(&volume, role).await;
                self.check(&volume, role);
                self.write(&mut volume, role, &dice);
                self.end_use(&volume, role).await;
            }
        }
        for role in ROLES {
            self.end_use(&volume, role).await;
        }
        volume
    }

    /// One node writes, and the other reads it at once. Then one of them leaves, or both do.
    async fn used_by_both(&self, volume: &mut Volume, dice: &Dice) {
        for role in ROLES {
            self.begin_use(volume, role).await;
        }
        for role in ROLES {
            self.write(volume, role, dice);
            ROLES.iter().for_each(|reader| self.check(volume, *reader));
        }
        if dice.below(3) == 0 {
            self.copy(volume).await;
        }
        let leaving = dice.below(4);
        for (number, role) in (0..).zip(ROLES) {
            if leaving == number || leaving == 2 {
                self.end_use(volume, role).await;
            }
        }
    }

    /// Takes a snapshot, which freezes a filesystem on both nodes, and deletes it.
    async fn copy(&self, volume: &Volume) {
        let name = format!("{}-{}", volume.plan.name, volume.turns);
        let taken = self.owner.insist(snapshot(&name, &volume.id)).await;
        let id = taken.snapshot.expect("there is one").snapshot_id;
        self.owner.insist(delete_snapshot(&id)).await;
    }

    async fn begin_use(&self, volume: &Volume, role: Role) {
        let (node, served) = (self.node(role), self.served(role));
        let (name, id, capability) = (volume.plan.name, &volume.id, volume.plan.capability());
        let attached = self.owner.insist(node.attach(id, &capability)).await;
        let context = attached.publish_context;
        let stage = node.stage(name, id, &context, &capability);
        served.insist(stage).await;
        let publish = node.publish(name, id, &context, &capability);
        served.insist(publish).await;
    }

    /// Succeeds if the node does not have the volume.
    async fn end_use(&self, volume: &Volume, role: Role) {
        let (node, served) = (self.node(role), self.served(role));
        let (name, id) = (volume.plan.name, &volume.id);
        served.insist(node.unpublish(name, id)).await;
        served.insist(node.unstage(name, id)).await;
        self.owner.insist(node.detach(id)).await;
    }

    fn path(&self, volume: &Volume, role: Role, file: u64) -> PathBuf {
        let at = self.node(role).in_pod(volume.plan.name);
        match volume.plan.fs {
            Some(_) => at.join(format!("file-{file}")),
            None => at,
        }
    }

    fn write(&self, volume: &mut Volume, role: Role, dice: &Dice) {
        let file = dice.below(volume.plan.files());
        let path = self.path(volume, role, file);
        let written = tokio::task::block_in_place(|| data::write(&path, dice.below(u64::MAX)));
        volume.synced.insert(file, written);
    }

    /// All that was synced is there.
    fn check(&self, volume: &Volume, role: Role) {
        for (file, synced) in &volume.synced {
            let path = self.path(volume, role, *file);
            let read = tokio::task::block_in_place(|| data::read(&path));
            assert!(
                read == *synced,
                "turn {}: the {role:?} reads another {}",
                volume.turns,
                path.display()
            );
        }
    }

    /// Reads a volume once more on each node, each time from another device, and deletes it.
    async fn finish(&self, volume: &Volume) {
        for role in ROLES {
            self.begin_use(volume, role).await;
            self.check(volume, role);
            self.end_use(volume, role).await;
        }
        self.owner.insist(delete(&volume.id)).await;
    }

    /// Nothing of volumes is left on the nodes, and nothing at all once they end.
    async fn end(mut self) {
        let left = until_none(|| self.nodes.left()).await;
        assert!(left.is_empty(), "left behind:\n  {}", left.join("\n  "));
        self.nodes.stop();
        let left = until_none(|| self.nodes.left_after_the_end()).await;
        let left = left.join("\n  ");
        assert!(left.is_empty(), "left behind after the end:\n  {left}");
    }
}

/// Looks until there is nothing, or for long enough. The kernel and the driver free some of it later.
async fn until_none(look: impl Fn() -> Vec<String>) -> Vec<String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let left = tokio::task::block_in_place(&look);
        if left.is_empty() || Instant::now() > end {
            return left;
        }
        tokio::time::sleep(AGAIN).await;
    }
}
