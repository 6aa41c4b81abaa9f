//! The cost of the ring of events without a reader, against the CPU time of claims.
//!
//! A process always keeps its events, so there is no run without them to compare with. Instead, the
//! time of an event is measured beside each round of claims, and their events are counted.

mod report;
mod ring;

use std::path::Path;

use hostloop_events::read;
use hostloop_events::serve::Request;
use hostloop_test::cluster::{Cluster, Options};
use hostloop_test::driver::Driver;
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
/// Claims before the measurement. They fill caches and open connections.
const WARM_UP: usize = 20;

/// The figures. They need no node, and limits are raised.
pub(crate) fn figures(runtime: &Runtime, quick: bool, docs: &Docs) -> Vec<Figure> {
    docs.figures(|| {
        let (claims, rounds) = if quick {
            (WARM_UP, 1)
        } else {
            (CLAIMS, ROUNDS)
        };
        // This comes first: later, the process would reuse memory that it has freed.
        let ring_mib = ring::mebibytes();
        Cost {
            ring_mib,
            rounds: measured(runtime, claims, rounds),
        }
    })
}

fn measured(runtime: &Runtime, claims: usize, rounds: usize) -> Vec<Round> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 200 * GIB);
    let cluster = Cluster::up(&Options::default());
    runtime.block_on(async {
        let mut ground = Ground::lay(&cluster).await;
        let (_, driver) = provisioner(&cluster, &pool, &scratch).await;
        let mut measured = Vec::new();
        round(&mut ground, &driver, "warm", WARM_UP).await;
        for count in 0..rounds {
            let mut round = round(&mut ground, &driver, &format!("r{count}"), claims).await;
            round.event_us = ring::microseconds();
            measured.push(round);
        }
        tokio::task::block_in_place(|| driver.stop());
        measured
    })
}

/// Creates claims until all are bound, and deletes them.
async fn round(ground: &mut Ground, driver: &Driver, name: &str, claims: usize) -> Round {
    let names: Vec<_> = (0..claims).map(|i| format!("{name}-{i}")).collect();
    let socket = driver.socket().with_extension("events.sock");
    // The CPU time excludes mkfs and other tools.
    let (before, cpu) = (events(&socket).await, process::cpu_seconds(driver.pid()));
    let took = ground.bind(By::Ours, &names).await;
    ground.clear().await;
    let each = |total: f64| total / claims as f64;
    Round {
        claims,
        rate: claims as f64 / took.as_secs_f64(),
        events: each((events(&socket).await - before) as f64),
        cpu_ms: each((process::cpu_seconds(driver.pid()) - cpu) * 1e3),
        ..Round::default()
    }
}

/// The number of a process's next event. A request from the end gets no earlier events.
async fn events(socket: &Path) -> u64 {
    let request = Request {
        from: u64::MAX,
        ..Request::default()
    };
    let stream = read::open(socket, &request).await;
    stream.unwrap_or_else(|e| panic!("{e}")).header.from
}
