//! What the ring of events costs while no one reads it, against the CPU time of claims.
//!
//! A process always keeps its events, so there is no run without them to compare with. Instead, the
//! time of an event is measured beside each round of claims, and their events are counted.

mod report;
mod ring;

use std::path::{Path, PathBuf};

use hostloop_events::read::Stream;
use hostloop_events::serve::Request;
use hostloop_test::cluster::{Cluster, Options};
use hostloop_test::driver::DriverSpec;
use hostloop_test::machine::text;
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;

use crate::cluster::claims::provisioner;
use crate::cluster::floors::By;
use crate::cluster::ground::Ground;
use crate::measure::Figure;
use crate::page::Docs;
use crate::process;
use crate::runtime::Runtime;
use report::{Cost, Round};

/// Claims made at once.
const CLAIMS: usize = 300;
const ROUNDS: usize = 9;
/// Claims before those that are counted: caches and connections are there afterwards.
const WARM_UP: usize = 20;

/// The figures. They need no node, and limits are raised.
pub(crate) fn figures(runtime: &Runtime, quick: bool, docs: &Docs) -> Vec<Figure> {
    docs.figures(|| {
        let (claims, rounds) = if quick { (WARM_UP, 1) } else { (CLAIMS, ROUNDS) };
        // Before the process has memory that it gave back.
        let ring_mib = ring::mebibytes();
        Cost { ring_mib, rounds: measured(runtime, claims, rounds) }
    })
}

fn measured(runtime: &Runtime, claims: usize, rounds: usize) -> Vec<Round> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 200 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    let cluster = Cluster::up(&Options::default());
    runtime.block_on(async {
        let mut ground = Ground::lay(&cluster).await;
        let events = scratch.path().join("provisioner.events.sock");
        let served = [format!("--events-socket={}", text(&events))];
        let (_, controllers) = provisioner(&cluster, &driver, &scratch, &served);
        let processes = Processes {
            pids: [driver.pid(), controllers.pid()],
            sockets: [driver.socket().with_extension("events.sock"), events],
        };
        let mut measured = Vec::new();
        round(&mut ground, &processes, "warm", WARM_UP).await;
        for count in 0..rounds {
            let mut round = round(&mut ground, &processes, &format!("r{count}"), claims).await;
            round.event_us = ring::microseconds();
            measured.push(round);
        }
        tokio::task::block_in_place(|| {
            controllers.stop();
            driver.stop();
        });
        measured
    })
}

/// So many claims from nothing to bound, and away again.
async fn round(ground: &mut Ground, processes: &Processes, name: &str, claims: usize) -> Round {
    let names: Vec<_> = (0..claims).map(|i| format!("{name}-{i}")).collect();
    let (events, cpu) = (processes.events().await, processes.cpu_seconds());
    let took = ground.bind(By::Ours, &names).await;
    ground.clear().await;
    let each = |total: f64| total / claims as f64;
    Round {
        claims,
        rate: claims as f64 / took.as_secs_f64(),
        events: each((processes.events().await - events) as f64),
        cpu_ms: each((processes.cpu_seconds() - cpu) * 1e3),
        ..Round::default()
    }
}

/// The driver and the provisioner.
struct Processes {
    pids: [u32; 2],
    sockets: [PathBuf; 2],
}

impl Processes {
    /// The number of their events so far.
    async fn events(&self) -> u64 {
        let mut sum = 0;
        for socket in &self.sockets {
            sum += events(socket).await;
        }
        sum
    }

    /// Their CPU time. That of mkfs and other tools is not part of it.
    fn cpu_seconds(&self) -> f64 {
        self.pids.iter().map(|pid| process::cpu_seconds(*pid)).sum()
    }
}

/// The number of the next event of a process. Its ring sends none of the earlier ones.
async fn events(socket: &Path) -> u64 {
    let request = Request { from: u64::MAX, ..Request::default() };
    let stream = Stream::open(socket, &request).await;
    stream.unwrap_or_else(|e| panic!("{e}")).header.from
}
