//! A fake driver with scripted health answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use hostloop_memory_driver::Handlers;
use hostloop_proto::csi;
use parking_lot::{Mutex, MutexGuard};
use tonic::Status;

use crate::csi::Csi;
use crate::csi::driver::{ControllerCapability, NodeCapability, Service};
use crate::testing::connect;

/// The answer for one volume.
#[derive(Clone)]
pub(super) enum Answer {
    Healthy,
    Ill(&'static str),
    Error,
}

#[derive(Default)]
pub(super) struct State {
    /// The driver has no health capability.
    pub(super) silent: bool,
    pub(super) lists: bool,
    /// ControllerListVolumeHealth is supported but fails now.
    pub(super) list_fails: bool,
    pub(super) volumes: BTreeMap<&'static str, Answer>,
    pub(super) storage: Vec<&'static str>,
    pub(super) calls: Vec<String>,
}

#[derive(Clone, Default)]
pub(super) struct Fake(Arc<Mutex<State>>);

impl Fake {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    pub(super) fn set(&self, volume: &'static str, answer: Answer) {
        self.state().volumes.insert(volume, answer);
    }

    pub(super) fn serve(&self) -> Csi {
        let handlers = Handlers::default();
        handlers.on(|_: csi::GetPluginInfoRequest| {
            let name = "d".to_owned();
            Ok(csi::GetPluginInfoResponse {
                name,
                ..Default::default()
            })
        });
        handlers.on(|_: csi::ProbeRequest| Ok(csi::ProbeResponse::default()));
        handlers.on(|_: csi::GetPluginCapabilitiesRequest| Ok(plugin_capabilities()));
        let fake = self.clone();
        handlers.on(move |_: csi::ControllerGetCapabilitiesRequest| {
            Ok(fake.state().controller_capabilities())
        });
        let fake = self.clone();
        handlers.on(move |_: csi::NodeGetCapabilitiesRequest| Ok(fake.state().node_capabilities()));
        let fake = self.clone();
        handlers.on(move |request: csi::ControllerListVolumeHealthRequest| {
            fake.state().list(&request.starting_token)
        });
        let fake = self.clone();
        handlers.on(move |request: csi::ControllerGetVolumeHealthRequest| {
            fake.state().get(&request.volume_id)
        });
        let fake = self.clone();
        handlers.on(move |_: csi::NodeGetStorageHealthRequest| Ok(fake.state().storage_health()));
        connect(&handlers)
    }
}

fn health(id: &str, answer: &Answer) -> csi::VolumeHealth {
    let health_statuses = match answer {
        Answer::Ill(reason) => vec![csi::volume_health::VolumeHealthEntry {
            status: csi::VolumeHealthErrorType::Inaccessible as i32,
            reason: (*reason).to_owned(),
            message: "it is away".to_owned(),
        }],
        Answer::Healthy | Answer::Error => Vec::new(),
    };
    csi::VolumeHealth {
        volume_id: id.to_owned(),
        health_statuses,
    }
}

fn plugin_capabilities() -> csi::GetPluginCapabilitiesResponse {
    use csi::plugin_capability::{Service as Has, Type};
    let r#type = Some(Type::Service(Has {
        r#type: Service::ControllerService as i32,
    }));
    let capabilities = vec![csi::PluginCapability { r#type }];
    csi::GetPluginCapabilitiesResponse { capabilities }
}

impl State {
    fn controller_capabilities(&self) -> csi::ControllerGetCapabilitiesResponse {
        use csi::controller_service_capability::{Rpc, Type};
        let mut has = vec![ControllerCapability::GetVolumeHealth];
        if self.silent {
            has.clear();
        }
        has.extend(self.lists.then_some(ControllerCapability::ListVolumeHealth));
        let capabilities = has.into_iter().map(|one| csi::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: one as i32 })),
        });
        let capabilities = capabilities.collect();
        csi::ControllerGetCapabilitiesResponse { capabilities }
    }

    fn node_capabilities(&self) -> csi::NodeGetCapabilitiesResponse {
        use csi::node_service_capability::{Rpc, Type};
        let r#type = NodeCapability::GetStorageHealth as i32;
        let r#type = Some(Type::Rpc(Rpc { r#type }));
        let mut capabilities = vec![csi::NodeServiceCapability { r#type }];
        if self.silent {
            capabilities.clear();
        }
        csi::NodeGetCapabilitiesResponse { capabilities }
    }

    /// Pages hold one volume each.
    fn list(&mut self, from: &str) -> Result<csi::ControllerListVolumeHealthResponse, Status> {
        self.calls.push(format!("list {from}"));
        if self.list_fails {
            return Err(Status::unavailable("a pool is missing"));
        }
        let mut ill = self.volumes.iter().filter_map(|(id, answer)| match answer {
            Answer::Ill(_) if *id >= from => Some(health(id, answer)),
            _ => None,
        });
        let entries = ill.next().into_iter().collect();
        let next_token = ill.next().map(|next| next.volume_id).unwrap_or_default();
        Ok(csi::ControllerListVolumeHealthResponse {
            entries,
            next_token,
        })
    }

    fn get(&mut self, id: &str) -> Result<csi::ControllerGetVolumeHealthResponse, Status> {
        self.calls.push(format!("get {id}"));
        match self.volumes.get(id) {
            None => Err(Status::not_found(id)),
            Some(Answer::Error) => Err(Status::internal("no idea")),
            Some(answer) => Ok(csi::ControllerGetVolumeHealthResponse {
                volume_health: Some(health(id, answer)),
            }),
        }
    }

    fn storage_health(&self) -> csi::NodeGetStorageHealthResponse {
        use csi::node_get_storage_health_response::StorageBackendHealth;
        let backend_health = self
            .storage
            .iter()
            .map(|reason| StorageBackendHealth {
                status: csi::StorageHealthErrorType::StorageDegraded as i32,
                reason: (*reason).to_owned(),
                ..Default::default()
            })
            .collect();
        csi::NodeGetStorageHealthResponse { backend_health }
    }
}
