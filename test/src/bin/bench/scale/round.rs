//! A fleet of instances at rest, and under many claims at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hostloop_test::cluster::Cluster;
use hostloop_test::fleet::storm::{self, Wish};
use hostloop_test::fleet::{Binding, Fleet};
use hostloop_test::front::process::Pod;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedReceiver;

use super::floor::{Pace, Start, rate};
use super::requests::{Reader, WatchTraffic, sum, sum_with};
use super::taken::Taken;
use crate::cluster::ground::{last_bound, watch_bound};

/// Claims before those that are counted: caches and connections are there afterwards.
const WARM_UP: usize = 20;
const PATIENCE: Duration = Duration::from_secs(900);

/// A fleet in a cluster, and what watches it: the audit log's reader, and the claims' watch.
pub(super) struct Fielded<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) fleet: Fleet,
    pub(super) requests: Reader,
    bound: UnboundedReceiver<(String, Instant)>,
}

/// What the instances take while nothing is asked of them.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Rest {
    pub(super) taken: Taken,
    /// How much of one CPU an instance takes in the mean, in percent.
    pub(super) cpu_percent: f64,
    /// API requests an instance sends in a minute, those of leases and events included.
    pub(super) requests_a_minute: f64,
}

/// What it took to make some claims and bind them all.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Round {
    pub(super) binding: String,
    /// The pace from the first claim made to the last one bound.
    pub(super) pace: Pace,
    /// The time from the last claim made to the last one bound, in seconds.
    pub(super) tail: f64,
    /// Writes of the instances that were refused because the object had changed.
    pub(super) conflicts: usize,
    pub(super) conflicts_by_kind: BTreeMap<String, usize>,
    /// Writes of the scheduler that were refused for the same reason.
    pub(super) scheduler_conflicts: usize,
    /// Writes of all other users that were refused for the same reason.
    pub(super) conflicts_of_others: BTreeMap<String, usize>,
    /// Requests of all instances together per volume, without those of events.
    pub(super) requests: f64,
    /// Events written until the storm was over, per volume.
    pub(super) events: f64,
    pub(super) requests_by_kind: BTreeMap<String, f64>,
    /// Requests that failed on the server's side.
    pub(super) failed: usize,
    /// What the watches of all instances together received, per volume.
    pub(super) traffic: WatchTraffic,
    /// CPU time of all instances together, in milliseconds per volume.
    pub(super) cpu: f64,
    /// What the instances take afterwards.
    pub(super) taken: Taken,
}

impl Rest {
    pub(super) async fn of(fielded: &mut Fielded<'_>, time: Duration) -> Rest {
        tokio::time::sleep(time).await;
        fielded.requests.settled().await;
        let (before, began) = (Taken::by(&fielded.fleet), Instant::now());
        tokio::time::sleep(time).await;
        let asked = fielded.requests.settled().await;
        let (taken, seconds) = (Taken::by(&fielded.fleet), began.elapsed().as_secs_f64());
        let count = fielded.fleet.members.len() as f64;
        let requests = (asked.requests + asked.leases + asked.events) as f64;
        let busy = taken.cpu_seconds - before.cpu_seconds;
        Rest {
            taken,
            cpu_percent: busy / seconds / count * 100.0,
            requests_a_minute: requests / seconds / count * 60.0,
        }
    }
}

impl<'a> Fielded<'a> {
    pub(super) fn new(cluster: &'a Cluster, fleet: Fleet, requests: Reader) -> Fielded<'a> {
        Fielded {
            bound: watch_bound(fleet.claims.clone()),
            cluster,
            fleet,
            requests,
        }
    }

    /// Binds some claims before those that are counted.
    pub(super) async fn warm_up(&mut self) {
        for binding in Binding::ALL {
            let wishes = self.fleet.wishes(binding, 0..WARM_UP);
            self.bind(&wishes).await;
        }
        self.clear().await;
    }

    /// Makes claims. Returns when the last was made, when the last was bound, and how many of the
    /// scheduler's writes were refused because the object had changed.
    async fn bind(&mut self, wishes: &[Wish]) -> (Instant, Instant, usize) {
        let made = storm::make(&self.fleet.claims, wishes);
        let (made, bound) = tokio::join!(made, last_bound(&mut self.bound, wishes));
        (made.last, bound, made.scheduler_conflicts)
    }

    /// Makes so many claims, binds them, and measures that.
    pub(super) async fn round(&mut self, binding: Binding, count: usize) -> Round {
        let numbers = WARM_UP..WARM_UP + count;
        let wishes = self.fleet.wishes(binding, numbers);
        let each = count as f64;
        let (taken_before, before) = (Taken::by(&self.fleet), self.traffic());
        let start = Start::now(self.cluster);
        let began = Instant::now();
        let (made, bound, scheduler_conflicts) = self.bind(&wishes).await;
        let pace = start.pace(count, (bound - began).as_secs_f64(), self.cluster);
        let asked = self.requests.settled().await;
        let (taken, after) = (Taken::by(&self.fleet), self.traffic());
        self.fleet.each_once(PATIENCE).await;
        Round {
            binding: binding.mode().to_owned(),
            pace,
            tail: bound.saturating_duration_since(made).as_secs_f64(),
            conflicts: asked.conflicts,
            conflicts_by_kind: asked.conflicts_by_kind,
            scheduler_conflicts,
            conflicts_of_others: asked.conflicts_of_others,
            requests: asked.requests as f64 / each,
            events: asked.events as f64 / each,
            requests_by_kind: asked
                .by_kind
                .into_iter()
                .map(|(kind, n)| (kind, n as f64 / each))
                .collect(),
            failed: asked.failed,
            traffic: after.since(before).each(each),
            cpu: (taken.cpu_seconds - taken_before.cpu_seconds) * 1e3 / each,
            taken,
        }
    }

    /// What the instances' watches have received so far.
    fn traffic(&self) -> WatchTraffic {
        let shown: Vec<_> = tokio::task::block_in_place(|| {
            let members = self.fleet.members.iter().map(|member| &**member);
            members
                .chain(&self.fleet.controller)
                .map(Pod::metrics)
                .collect()
        });
        let events = shown.iter().map(|one| sum(one, EVENTS)).sum();
        let bytes = shown
            .iter()
            .map(|one| sum_with(one, BYTES, OF_WATCHES))
            .sum();
        WatchTraffic { events, bytes }
    }

    /// Deletes all claims and waits until nothing is left. Returns how many volumes were deleted a
    /// second.
    pub(super) async fn clear(&mut self) -> f64 {
        let volumes: usize = self
            .fleet
            .members
            .iter()
            .map(|m| m.driver.left().volumes)
            .sum();
        let began = Instant::now();
        self.fleet.clear(PATIENCE).await;
        let rate = rate(volumes, began.elapsed().as_secs_f64());
        self.requests.settled().await;
        rate
    }

    pub(super) async fn down(self) {
        self.fleet.down().await;
    }
}

/// Of the instances' own metrics.
const EVENTS: &str = "hostloop_watch_events_total";
const BYTES: &str = "hostloop_api_received_bytes_total";
const OF_WATCHES: &str = "verb=\"watch\"";
