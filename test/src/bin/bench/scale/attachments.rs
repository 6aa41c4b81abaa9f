//! What attachments cost, from their creation to `attached` and until they are gone.

use std::collections::HashSet;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use hostloop_test::fleet::Fleet;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::timeout;

use super::floor::rate;
use super::requests::{WatchTraffic, server_cpu_seconds};
use super::round::Fielded;
use super::taken::Taken;

/// How many attachments are made at once.
const AT_ONCE: usize = 50;
/// The longest time in which nothing may happen.
const PATIENCE: Duration = Duration::from_secs(180);

/// What attachments cost.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Attached {
    pub(super) volumes: usize,
    /// Volumes attached a second.
    pub(super) rate: f64,
    /// Volumes detached a second.
    pub(super) detach_rate: f64,
    /// Requests of all instances together per attachment.
    pub(super) requests: f64,
    pub(super) conflicts: usize,
    /// What the API server sent to all its watchers, per attachment.
    pub(super) traffic: WatchTraffic,
    /// CPU time of all instances together, in milliseconds per attachment.
    pub(super) cpu: f64,
    /// The API server's CPU time, in milliseconds per attachment. Old data lack it.
    pub(super) server_cpu: Option<f64>,
}

/// Attaches so many of the existing volumes, and detaches them.
pub(super) async fn attached(fielded: &mut Fielded<'_>, volumes: usize) -> Attached {
    let api: Api<VolumeAttachment> = Api::all(fielded.fleet.client());
    let wanted = wanted(&fielded.fleet, volumes).await;
    let (each, params) = (wanted.len() as f64, PostParams::default());
    let names: Vec<_> = wanted.iter().map(VolumeAttachment::name_any).collect();
    let (taken, traffic) = (Taken::by(&fielded.fleet), WatchTraffic::by(fielded.cluster));
    let server = server_cpu_seconds(fielded.cluster);
    let began = Instant::now();
    let make = async {
        let made = stream::iter(&wanted).map(|one| api.create(&params, one));
        let made: Result<Vec<_>, _> = made.buffer_unordered(AT_ONCE).try_collect().await;
        made.expect("attachments can be made");
    };
    let ((), last) = tokio::join!(make, seen(&api, &names, true));
    let attached_in = last - began;
    let server = server_cpu_seconds(fielded.cluster) - server;
    let asked = fielded.requests.settled().await;
    let traffic = WatchTraffic::by(fielded.cluster).since(traffic);
    let busy = Taken::by(&fielded.fleet).cpu_seconds - taken.cpu_seconds;
    let began = Instant::now();
    let delete = async {
        let params = DeleteParams::default();
        let gone = stream::iter(&names).map(|name| api.delete(name, &params));
        let gone: Result<Vec<_>, _> = gone.buffer_unordered(AT_ONCE).try_collect().await;
        gone.expect("attachments can be deleted");
    };
    let ((), last) = tokio::join!(delete, seen(&api, &names, false));
    let detached_in = last - began;
    fielded.requests.settled().await;
    Attached {
        volumes: wanted.len(),
        rate: rate(wanted.len(), attached_in.as_secs_f64()),
        detach_rate: rate(wanted.len(), detached_in.as_secs_f64()),
        requests: asked.requests as f64 / each,
        conflicts: asked.conflicts,
        traffic: traffic.each(each),
        cpu: busy * 1e3 / each,
        server_cpu: Some(server * 1e3 / each),
    }
}

/// The attachments of so many volumes, each to the node it is on.
async fn wanted(fleet: &Fleet, count: usize) -> Vec<VolumeAttachment> {
    let volumes = fleet.all_volumes().await.into_iter().take(count);
    let wanted = volumes.map(|volume| {
        let name = volume.name_any();
        let attachment = json!({
            "metadata": {"name": format!("csi-{name}")},
            "spec": {
                "attacher": fleet.driver_name, "nodeName": fleet.node_of(&volume),
                "source": {"persistentVolumeName": name},
            },
        });
        serde_json::from_value(attachment).expect("it is an attachment")
    });
    wanted.collect()
}

/// Waits until all of these were seen attached, or gone. Returns when the last one was.
async fn seen(api: &Api<VolumeAttachment>, names: &[String], attached: bool) -> Instant {
    let mut missing: HashSet<&str> = names.iter().map(String::as_str).collect();
    let mut events = pin!(watcher(api.clone(), watcher::Config::default()));
    let mut listed = HashSet::new();
    while !missing.is_empty() {
        let event = timeout(PATIENCE, events.next()).await;
        let Ok(Some(event)) = event else {
            panic!("{} attachments do not get on", missing.len());
        };
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(one)) => {
                listed.insert(one.name_any());
                note(&mut missing, &one, attached);
            }
            Ok(Event::Apply(one)) => note(&mut missing, &one, attached),
            Ok(Event::Delete(one)) if !attached => drop(missing.remove(&*one.name_any())),
            Ok(Event::InitDone) if !attached => missing.retain(|name| listed.contains(*name)),
            // The watch starts again by itself.
            Ok(Event::Delete(_) | Event::InitDone) | Err(_) => {}
        }
    }
    Instant::now()
}

fn note(missing: &mut HashSet<&str>, one: &VolumeAttachment, attached: bool) {
    let is = one.status.as_ref().is_some_and(|status| status.attached);
    if attached && is {
        missing.remove(&*one.name_any());
    }
}
