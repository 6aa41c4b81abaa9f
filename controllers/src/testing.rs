//! In-memory counterparts for tests of controllers: an API server and a CSI driver. Both record the
//! requests they receive.

use std::sync::Arc;

use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::api::scope::Scope;
use crate::cache::{Caches, Store};
use crate::client::events::reasons::is_listed;
use crate::client::events::{ClusterEvent, EventReceiver};
use crate::client::kube::trimmed;
use crate::client::{Events, Kube, Leadership, Resource};
use crate::controller::Context;
use crate::controller::context::Common;
use crate::csi::Driver;
use crate::csi::driver::{ControllerCapability, Service};
use crate::flags;
use crate::kept_fields::KEPT_FIELDS;
use crate::metrics::Metrics;
use crate::own_pod::OwnPod;

mod driver;
mod neighbours;
mod objects;
mod outage;

pub(crate) use driver::{Call, NODE_ID, Script, connect, entry};
pub(crate) use hostloop_fake_api::{FakeApi, Fault};
pub(crate) use objects::*;

/// The name of the scripted driver.
pub(crate) const DRIVER: &str = "csi.example";

/// Returns options with all defaults.
pub(crate) fn options<T: clap::Args>() -> T {
    parse(&[])
}

/// Parses flags.
pub(crate) fn parse<T: clap::Args>(flags: &[&str]) -> T {
    let command = flags::complete(T::augment_args(clap::Command::new("test")));
    let matches = command.get_matches_from(["test"].iter().chain(flags));
    T::from_arg_matches(&matches).expect("valid flags")
}

/// A client of the server that drops what controllers do not read, as that of a process does.
pub(crate) fn client(api: &FakeApi) -> Client {
    trimmed(api.client(), KEPT_FIELDS)
}

/// The surroundings of a controller under test.
pub(crate) struct World {
    pub(crate) api: FakeApi,
    pub(crate) script: Script,
    pub(crate) context: Context,
    events: EventReceiver,
}

impl World {
    /// Creates a world with a driver that has these capabilities.
    pub(crate) fn new(capabilities: &[ControllerCapability]) -> Self {
        let api = FakeApi::with_snapshots();
        let script = Script::default();
        let metrics = Arc::new(Metrics::default());
        let (sender, events) = Events::collected(metrics.clone());
        let services = [Service::ControllerService];
        let driver = Driver::with(script.serve(), DRIVER, &services, capabilities, &[]);
        let context = Context {
            driver: Arc::new(driver),
            kube: Kube::new(client(&api), None, metrics.clone(), "test"),
            caches: Arc::new(Caches::unwatched()),
            events: sender,
            metrics,
            scope: Scope::Cluster,
            pod: OwnPod::default(),
            pools: Default::default(),
            endpoint: None,
            leader: Leadership::always(),
            room: Arc::default(),
            freed: Default::default(),
            health_changed: Arc::default(),
            stop: CancellationToken::new(),
            common: Common::default(),
        };
        World {
            api,
            script,
            context,
            events,
        }
    }

    /// Stores an object in the server and in a cache.
    pub(crate) fn add<K: Resource>(&self, watch: &Store<K>, object: serde_json::Value) {
        let stored = self.api.put(object);
        watch.apply_write(kept(stored));
    }

    /// The events since the last look. Fails if the tables of events lack one.
    pub(crate) fn take_events(&mut self) -> Vec<ClusterEvent> {
        let events = self.events.drain();
        for ClusterEvent { kind, reason, .. } in &events {
            assert!(
                is_listed(*kind, reason),
                "client/events/reasons has no {kind:?} {reason}"
            );
        }
        events
    }

    /// The events since the last look, as `Normal Reason: message`.
    pub(crate) fn events(&mut self) -> Vec<String> {
        let events = self.take_events().into_iter();
        let line =
            |event: ClusterEvent| format!("{:?} {}: {}", event.kind, event.reason, event.message);
        events.map(line).collect()
    }
}
