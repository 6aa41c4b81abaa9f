//! A client of a CSI driver in memory, and a driver with scripted answers. All fake drivers in
//! the controllers' tests are this one with different handlers.

use std::collections::VecDeque;
use std::sync::Arc;

use hostloop_memory_driver::{Handlers, Rpc};
use hostloop_proto::csi::list_volumes_response::{Entry, VolumeStatus};
use hostloop_proto::csi::*;
use parking_lot::Mutex;
use tonic::Status;

use crate::csi::Csi;

/// The driver's ID of its node.
pub(crate) const NODE_ID: &str = "id-1";

/// A recorded call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Publish(ControllerPublishVolumeRequest),
    Unpublish(ControllerUnpublishVolumeRequest),
    List(ListVolumesRequest),
    Expand(ControllerExpandVolumeRequest),
    Modify(ControllerModifyVolumeRequest),
    Delete(DeleteVolumeRequest),
}

/// A volume that is published on these nodes, in the answer to ListVolumes.
pub(crate) fn entry(id: &str, nodes: &[&str]) -> Entry {
    let published_node_ids = nodes.iter().map(|node| (*node).to_owned()).collect();
    Entry {
        volume: Some(Volume {
            volume_id: id.to_owned(),
            ..Volume::default()
        }),
        status: Some(VolumeStatus { published_node_ids }),
    }
}

/// Connects to a driver with these handlers.
pub(crate) fn connect(handlers: &Handlers) -> Csi {
    Csi::within(handlers.services())
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    errors: VecDeque<Status>,
    pages: VecDeque<ListVolumesResponse>,
    expanded: Option<ControllerExpandVolumeResponse>,
}

impl State {
    fn called<T>(&mut self, call: Call, answer: T) -> Result<T, Status> {
        self.calls.push(call);
        self.errors.pop_front().map_or(Ok(answer), Err)
    }
}

/// A driver that records its calls and fails on request. Clones share it.
#[derive(Clone)]
pub(crate) struct Script {
    state: Arc<Mutex<State>>,
    handlers: Handlers,
}

impl Default for Script {
    fn default() -> Self {
        let script = Script {
            state: Arc::default(),
            handlers: Handlers::default(),
        };
        script.records(Call::Publish, |_| ControllerPublishVolumeResponse {
            publish_context: [("path".to_owned(), "/dev/x".to_owned())].into(),
        });
        script.records(Call::Unpublish, |_| ControllerUnpublishVolumeResponse {});
        script.records(Call::List, |state| {
            state.pages.pop_front().unwrap_or_default()
        });
        script.records(Call::Expand, |state| state.expanded.unwrap_or_default());
        script.records(Call::Modify, |_| ControllerModifyVolumeResponse {});
        script.records(Call::Delete, |_| DeleteVolumeResponse {});
        script.handlers.on(|_: NodeGetInfoRequest| {
            let node_id = NODE_ID.to_owned();
            Ok(NodeGetInfoResponse {
                node_id,
                ..Default::default()
            })
        });
        script
    }
}

impl Script {
    fn records<Q: Rpc>(&self, call: fn(Q) -> Call, answer: fn(&mut State) -> Q::Response) {
        let state = self.state.clone();
        self.handlers.on(move |request: Q| {
            let mut state = state.lock();
            let answer = answer(&mut state);
            state.called(call(request), answer)
        });
    }

    /// Makes the next call fail with this status.
    pub(crate) fn fail(&self, status: Status) {
        self.state.lock().errors.push_back(status);
    }

    /// Sets the next page of ListVolumes.
    pub(crate) fn page(&self, entries: Vec<Entry>, next_token: &str) {
        let next_token = next_token.to_owned();
        self.state.lock().pages.push_back(ListVolumesResponse {
            entries,
            next_token,
        });
    }

    /// Sets the answer to ControllerExpandVolume.
    pub(crate) fn expands(&self, answer: ControllerExpandVolumeResponse) {
        self.state.lock().expanded = Some(answer);
    }

    /// The calls since the last look.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.state.lock().calls)
    }

    /// Returns a channel to the driver.
    pub(crate) fn serve(&self) -> Csi {
        connect(&self.handlers)
    }
}
