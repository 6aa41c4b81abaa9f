//! ControllerPublishVolume and ControllerUnpublishVolume.

use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use tonic::Status;

use super::{Answer, Publication, State, can, check};
use crate::options::Options;

impl State {
    pub(crate) fn controller_publish_volume(
        &mut self,
        options: &Options,
        request: csi::ControllerPublishVolumeRequest,
    ) -> Answer<csi::ControllerPublishVolumeResponse> {
        can(options, ControllerRpc::PublishUnpublishVolume)?;
        check::given("volume_id", &request.volume_id)?;
        check::path("node_id", &request.node_id)?;
        let capability = check::capability(request.volume_capability.as_ref())?;
        if request.readonly {
            can(options, ControllerRpc::PublishReadonly)?;
        }
        let mode = check::mode(&capability)?;
        let at_node = self.published_at(&request.node_id);
        let volume = self.volume_mut(&request.volume_id)?;
        let node = request.node_id;
        if !options.knows_node(&node) {
            return Err(Status::not_found(format!("node {node} does not exist")));
        }
        let wanted = Publication {
            readonly: request.readonly,
            capability,
        };
        match volume.published.get(&node) {
            Some(there) if *there == wanted => {}
            Some(_) => {
                let why = format!(
                    "volume {} is published to {node} with another capability",
                    volume.id
                );
                return Err(Status::already_exists(why));
            }
            None => {
                let elsewhere = volume.published.keys().next();
                if let Some(elsewhere) = elsewhere.filter(|_| check::single_node(mode)) {
                    let why = format!("volume {} is published to {elsewhere}", volume.id);
                    return Err(Status::failed_precondition(why));
                }
                if options.attach_limit > 0 && at_node >= options.attach_limit {
                    let why = format!("node {node} has {at_node} volumes already, its limit");
                    return Err(Status::resource_exhausted(why));
                }
                volume.published.insert(node.clone(), wanted);
            }
        }
        let device = format!("memory/{}@{node}", volume.id);
        Ok(csi::ControllerPublishVolumeResponse {
            publish_context: [("device".to_owned(), device)].into(),
        })
    }

    fn published_at(&self, node: &str) -> i64 {
        let here = self
            .volumes
            .values()
            .filter(|v| v.published.contains_key(node));
        here.count() as i64
    }

    pub(crate) fn controller_unpublish_volume(
        &mut self,
        options: &Options,
        request: csi::ControllerUnpublishVolumeRequest,
    ) -> Answer<csi::ControllerUnpublishVolumeResponse> {
        can(options, ControllerRpc::PublishUnpublishVolume)?;
        check::path("volume_id", &request.volume_id)?;
        // A deleted volume has no publications.
        if let Some(volume) = self.volumes.get_mut(&request.volume_id) {
            match request.node_id.as_str() {
                "" => volume.published.clear(),
                node => drop(volume.published.remove(node)),
            }
        }
        Ok(csi::ControllerUnpublishVolumeResponse {})
    }
}
