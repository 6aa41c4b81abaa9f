//! A driver with scripted answers. It adds its calls to the API server's log.

use std::collections::VecDeque;
use std::sync::Arc;

use hostloop_memory_driver::Handlers;
use hostloop_proto::csi;
use parking_lot::{Mutex, MutexGuard};
use tonic::Status;

use crate::csi::Csi;
use crate::testing::{FakeApi, connect};

/// The requests, and the answers to give.
#[derive(Default)]
pub(super) struct State {
    /// The errors of the next CreateVolume calls; without one, the call succeeds.
    pub(super) failures: VecDeque<Status>,
    /// The errors of the next DeleteVolume calls.
    pub(super) undeletable: VecDeque<Status>,
    /// The requests of CreateVolume calls.
    pub(super) created: Vec<csi::CreateVolumeRequest>,
    /// IDs of volumes that ControllerGetVolume finds.
    pub(super) known: Vec<String>,
}

#[derive(Clone, Default)]
pub(super) struct TestDriver(Arc<Mutex<State>>);

impl TestDriver {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Returns a client of the driver.
    pub(super) fn serve(&self, api: &FakeApi) -> Csi {
        let handlers = Handlers::default();
        let (driver, log) = (self.clone(), api.clone());
        handlers.on(move |request: csi::CreateVolumeRequest| {
            log.note(format!("CreateVolume {}", request.name));
            driver.state().create_volume(request)
        });
        let (driver, log) = (self.clone(), api.clone());
        handlers.on(move |request: csi::DeleteVolumeRequest| {
            log.note(format!("DeleteVolume {}", request.volume_id));
            let refused = driver.state().undeletable.pop_front();
            refused.map_or(Ok(csi::DeleteVolumeResponse {}), Err)
        });
        let driver = self.clone();
        handlers.on(move |request: csi::ControllerGetVolumeRequest| {
            if driver.state().known.contains(&request.volume_id) {
                Ok(csi::ControllerGetVolumeResponse::default())
            } else {
                Err(Status::not_found("not here"))
            }
        });
        connect(&handlers)
    }
}

impl State {
    fn create_volume(
        &mut self,
        request: csi::CreateVolumeRequest,
    ) -> Result<csi::CreateVolumeResponse, Status> {
        self.created.push(request.clone());
        let required = request.accessibility_requirements.unwrap_or_default();
        let volume = csi::Volume {
            volume_id: "handle".to_owned(),
            content_source: request.volume_content_source,
            accessible_topology: required.requisite.into_iter().take(1).collect(),
            ..csi::Volume::default()
        };
        let answer = csi::CreateVolumeResponse {
            volume: Some(volume),
        };
        self.failures.pop_front().map_or(Ok(answer), Err)
    }
}
