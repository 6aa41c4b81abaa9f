//! How fast the cluster itself binds claims at best, without any instance.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

use hostloop_test::cluster::Cluster;
use hostloop_test::fleet::Binding;
use hostloop_test::fleet::storm::Wish;
use hostloop_test::front::objects;
use hostloop_test::scratch::Scratch;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::requests::server_cpu_seconds;
use crate::cluster::floors::{By, provision};
use crate::cluster::ground::{Ground, NAMESPACE};
use crate::withheld::Cpus;

const NULL_WAIT: &str = "null-wait";
/// Claims before those that are counted: caches and connections are there afterwards.
const WARM_UP: usize = 20;

/// How fast volumes were bound.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Pace {
    /// Volumes a second.
    pub(super) rate: f64,
    /// How much of the CPU time that was wanted meanwhile the machine's host withheld, in percent.
    /// Old data lack it.
    pub(super) withheld: Option<f64>,
    /// The API server's CPU time, in milliseconds per volume. Old data lack it.
    pub(super) server_cpu: Option<f64>,
}

/// CPU times at the start of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    cpus: Cpus,
    server: f64,
}

impl Start {
    pub(super) fn now(cluster: &Cluster) -> Start {
        Start {
            server: server_cpu_seconds(cluster),
            cpus: Cpus::now(),
        }
    }

    /// The pace of so many volumes in so many seconds, which ended just now.
    pub(super) fn pace(self, volumes: usize, seconds: f64, cluster: &Cluster) -> Pace {
        let withheld = Cpus::now().withheld_since(self.cpus);
        let server = server_cpu_seconds(cluster) - self.server;
        Pace {
            rate: rate(volumes, seconds),
            withheld: Some(withheld),
            server_cpu: Some(server * 1e3 / volumes as f64),
        }
    }
}

/// The paces that the instances' are compared with.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Floors {
    /// The volumes are there already, and name their claims.
    pub(super) by_hand: Pace,
    /// A loop that writes the complete volume when the claim asks for it, and does nothing else.
    pub(super) null: Pace,
    /// The same, after the scheduler has chosen a node.
    pub(super) null_wait: Pace,
}

impl Display for Pace {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Pace { rate, withheld, .. } = self;
        let withheld = withheld.unwrap_or_default();
        write!(
            f,
            "{rate:.1} volumes/s, {withheld:.0} % of the CPU withheld"
        )
    }
}

impl Floors {
    /// What a null provisioner does with such claims.
    pub(super) fn null(&self, binding: Binding) -> Pace {
        match binding {
            Binding::Wait => self.null_wait,
            Binding::Immediate => self.null,
        }
    }
}

/// Measures the floors, as often as is wanted: the speed of a shared machine changes, so floors
/// and instances are measured one right after the other.
pub(super) struct Floor<'c> {
    cluster: &'c Cluster,
    /// The null provisioner's account.
    kubeconfig: PathBuf,
}

impl<'c> Floor<'c> {
    /// Makes what the measurements need in the cluster.
    pub(super) async fn on(cluster: &'c Cluster, scratch: &Scratch) -> Self {
        Ground::lay(cluster).await;
        let late = json!({"volumeBindingMode": "WaitForFirstConsumer"});
        let class = objects::class(NULL_WAIT, By::Null.provisioner(), late);
        cluster.apply(&class.to_string());
        let (_, kubeconfig) = cluster.account(NAMESPACE, "null", scratch.path());
        Floor {
            cluster,
            kubeconfig,
        }
    }

    /// Measures the floors with so many claims. The null provisioner ends with the measurement.
    pub(super) async fn measured(&self, claims: usize) -> Floors {
        let mut ground = Ground::lay(self.cluster).await;
        let client = objects::client(&self.kubeconfig).await;
        let provisioner = tokio::spawn(provision(client));
        ground.bind(By::Null, &names("warm", WARM_UP)).await;
        ground.clear().await;

        let hand = names("hand", claims);
        ground.prepare(By::Hand, &hand).await;
        let by_hand = self.bound(&mut ground, By::Hand, &hand).await;
        eprintln!("  floor: volumes made by hand {by_hand}");
        ground.clear().await;

        let null = self
            .bound(&mut ground, By::Null, &names("null", claims))
            .await;
        eprintln!("  floor: a null provisioner {null}");
        ground.clear().await;

        let null_wait = self.wait(&mut ground, claims).await;
        eprintln!("  floor: a null provisioner after the scheduler {null_wait}");
        ground.clear().await;
        provisioner.abort();
        Floors {
            by_hand,
            null,
            null_wait,
        }
    }

    async fn bound(&self, ground: &mut Ground, by: By, names: &[String]) -> Pace {
        let start = Start::now(self.cluster);
        let seconds = ground.bind(by, names).await.as_secs_f64();
        start.pace(names.len(), seconds, self.cluster)
    }

    async fn wait(&self, ground: &mut Ground, claims: usize) -> Pace {
        let node = Some("a-node".to_owned());
        let wish = |name| Wish {
            name,
            class: NULL_WAIT.to_owned(),
            node: node.clone(),
        };
        let wishes: Vec<_> = names("null-wait", claims).into_iter().map(wish).collect();
        let start = Start::now(self.cluster);
        let bound = ground.bind_wishes(&wishes).await;
        start.pace(claims, bound.as_secs_f64(), self.cluster)
    }
}

fn names(what: &str, count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("{what}-{number}"))
        .collect()
}

/// Volumes a second.
pub(super) fn rate(volumes: usize, seconds: f64) -> f64 {
    volumes as f64 / seconds
}
