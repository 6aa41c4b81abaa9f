//! Nodes that share a kernel. What the driver does when a pod moves to another node with its volume, against
//! a new pod on the same node, both without what Kubernetes waits for. And the life of a volume of one node
//! with a driver that may share its kernel, against one that may not.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_test::client::{Csi, mounted, new_volume};
use hostloop_test::pools::MIB;
use hostloop_test::requests::id_of;
use hostloop_test::sharing::{Sharing, SharingNode, shared_volume};

use crate::calls::{create, delete, publish, stage, unpublish, unstage};
use crate::measure::{Aim, Figure, timed_async};
use crate::runtime::Runtime;

/// Moves, half of them to each node.
const MOVES: usize = 40;
/// Lives of volumes: enough to decide a difference of two percent.
const LIVES: usize = 151;
const BYTES: u64 = 64 * MIB;

/// The calls of a life.
const CALLS: [&str; 6] = [
    "create",
    "stage",
    "publish",
    "unpublish",
    "unstage",
    "delete",
];

pub(crate) fn figures() -> Vec<Figure> {
    let runtime = Runtime::of_one_thread();
    let nodes = Sharing::up();
    // The moves come later: a pool that has had many volumes is slower than a new one.
    let lives = lives(&runtime, &nodes.owner, &SharingNode::alone());
    let mut figures = moves(&runtime, &nodes);
    figures.extend(lives);
    figures
}

/// A volume with a pod, and the capability that its claim asks for.
struct Used {
    name: &'static str,
    id: String,
    capability: csi::VolumeCapability,
}

/// A node, and a client of its driver.
struct Place<'a> {
    node: &'a SharingNode,
    csi: Csi,
}

impl Place<'_> {
    /// What the driver does before a pod starts. The owner attaches.
    async fn start(&self, owner: &Csi, used: &Used) {
        let (name, id, capability) = (used.name, &used.id, &used.capability);
        let attached = owner.ok(self.node.attach(id, capability)).await;
        let context = attached.publish_context;
        let stage = self.node.stage(name, id, &context, capability);
        self.csi.ok(stage).await;
        let publish = self.node.publish(name, id, &context, capability);
        self.csi.ok(publish).await;
    }

    /// What kubelet asks for after a pod has ended.
    async fn stop(&self, used: &Used) {
        self.csi.ok(self.node.unpublish(used.name, &used.id)).await;
        self.csi.ok(self.node.unstage(used.name, &used.id)).await;
    }

    /// Detaches a volume from this node, and starts a pod with it on another. Only this is timed.
    async fn moved(&self, to: &Place<'_>, owner: &Csi, used: &Used) -> f64 {
        self.stop(used).await;
        timed_async(async {
            owner.ok(self.node.detach(&used.id)).await;
            to.start(owner, used).await;
        })
        .await
    }

    async fn end(&self, owner: &Csi, used: &Used) {
        self.stop(used).await;
        owner.ok(self.node.detach(&used.id)).await;
        delete(owner, &used.id).await;
    }
}

/// A volume that moves, beside one that stays on each node, and one of the owner alone.
fn moves(runtime: &Runtime, nodes: &Sharing) -> Vec<Figure> {
    let capability = mounted("ext4", Mode::SingleNodeWriter);
    let (mut moved, mut still, mut own) = (Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        let owner = nodes.owner.csi().await;
        let places = [
            Place {
                node: &nodes.owner,
                csi: owner.clone(),
            },
            Place {
                node: &nodes.user,
                csi: nodes.user.csi().await,
            },
        ];
        let mut used = Vec::new();
        for name in ["moves", "on-owner", "on-user", "own"] {
            let request = if name == "own" {
                new_volume(name, BYTES)
            } else {
                shared_volume(name, BYTES, &capability)
            };
            used.push(Used {
                name,
                id: id_of(owner.ok(request).await),
                capability: capability.clone(),
            });
        }
        let at = [0, 0, 1, 0];
        for (used, at) in used.iter().zip(at) {
            places[at].start(&owner, used).await;
        }
        // The first two warm the nodes up. They are not counted. The sides take turns at going first.
        for round in 0..MOVES + 2 {
            let (from, to) = (&places[round % 2], &places[(round + 1) % 2]);
            let stays = &used[1 + (round + 1) % 2];
            let times = if round / 2 % 2 == 0 {
                let time = from.moved(to, &owner, &used[0]).await;
                (time, to.moved(to, &owner, stays).await)
            } else {
                let time = to.moved(to, &owner, stays).await;
                (from.moved(to, &owner, &used[0]).await, time)
            };
            let of_own = places[0].moved(&places[0], &owner, &used[3]).await;
            if round >= 2 {
                moved.push(times.0);
                still.push(times.1);
                own.push(of_own);
            }
        }
        // An even number of moves has led back to the owner.
        for (used, at) in used.iter().zip(at) {
            places[at].end(&owner, used).await;
        }
    });
    vec![
        Figure::beside(
            "a move of a shared volume, against a restart",
            moved.clone(),
            still,
            "ms",
            Aim::RatioAtMost(1.5),
        ),
        Figure::beside(
            "a move, against a restart of a volume of one node",
            moved,
            own,
            "ms",
            Aim::None,
        ),
    ]
}

/// Lives of volumes of one node, in turns.
fn lives(runtime: &Runtime, with: &SharingNode, without: &SharingNode) -> Vec<Figure> {
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    runtime.block_on(async {
        let clients = [with.csi().await, without.csi().await];
        // The first round warms both up. It is not counted.
        for round in 0..=LIVES {
            let name = format!("life-{round}");
            let (a, b) = if round % 2 == 0 {
                let a = life(&clients[0], with, &name).await;
                (a, life(&clients[1], without, &name).await)
            } else {
                let b = life(&clients[1], without, &name).await;
                (life(&clients[0], with, &name).await, b)
            };
            if round > 0 {
                ours.push(a);
                floor.push(b);
            }
        }
    });
    let all = Figure::beside(
        "lives of volumes of one node, with --kernels",
        rates(&ours),
        rates(&floor),
        "a second",
        Aim::RatioAtLeast(0.98),
    );
    let each = CALLS.iter().enumerate().map(|(call, name)| {
        let what = format!("{name} of a volume of one node, with --kernels");
        Figure::beside(
            what,
            times(&ours, call),
            times(&floor, call),
            "ms",
            Aim::None,
        )
    });
    std::iter::once(all).chain(each).collect()
}

/// How many lives like each of these fit into a second.
fn rates(lives: &[[f64; 6]]) -> Vec<f64> {
    let times = lives.iter().map(|life| life.iter().sum::<f64>());
    times.map(|time| 1e3 / time).collect()
}

/// The times of one of the calls.
fn times(lives: &[[f64; 6]], call: usize) -> Vec<f64> {
    lives.iter().map(|life| life[call]).collect()
}

/// The time of each call of a life.
async fn life(csi: &Csi, node: &SharingNode, name: &str) -> [f64; 6] {
    // Each life is at the same paths.
    let (staging, target) = (node.staging("life"), node.target("life"));
    let mut id = String::new();
    let created = timed_async(async { id = create(csi, name, BYTES).await }).await;
    [
        created,
        timed_async(stage(csi, &id, &staging)).await,
        timed_async(publish(csi, &id, &staging, &target)).await,
        timed_async(unpublish(csi, &id, &target)).await,
        timed_async(unstage(csi, &id, &staging)).await,
        timed_async(delete(csi, &id)).await,
    ]
}
