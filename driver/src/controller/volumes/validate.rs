//! ValidateVolumeCapabilities: compares a volume with an orchestrator's expectations.

use std::collections::BTreeMap;

use hostloop_controllers::api::constants::{REACH, REACH_KERNEL};
use hostloop_proto::csi;
use hostloop_proto::csi::validate_volume_capabilities_response::Confirmed;
use hostloop_proto::csi::volume_capability::access_mode::Mode;

use crate::controller::capability_set::CapabilitySet;
use crate::controller::parameters::{self, METADATA};
use crate::controller::{Config, Controller, Result};
use crate::csi::capability::{own_fs, unsupported};
use crate::csi::validate::{Invalid, invalid};
use crate::storage::VolumeRecord;

/// Prefix of the keys that Kubernetes' provisioner adds to every volume's context.
const PROVISIONER: &str = "storage.kubernetes.io/";

impl Controller {
    pub fn validate_volume_capabilities(
        &self,
        req: csi::ValidateVolumeCapabilitiesRequest,
    ) -> Result<csi::ValidateVolumeCapabilitiesResponse> {
        let record = self.volume("volume_id", &req.volume_id)?;
        complete(&req.volume_capabilities)?;
        let message = differs(&req, &record, &self.config);
        let confirmed = message.is_none().then_some(Confirmed {
            volume_context: req.volume_context,
            volume_capabilities: req.volume_capabilities,
            parameters: req.parameters,
            mutable_parameters: req.mutable_parameters,
        });
        Ok(csi::ValidateVolumeCapabilitiesResponse {
            confirmed,
            message: message.unwrap_or_default(),
        })
    }
}

/// Checks that required fields are set: a missing one is the caller's error. An unknown or
/// unsupported capability is not an error: it is only not confirmed.
fn complete(capabilities: &[csi::VolumeCapability]) -> std::result::Result<(), Invalid> {
    const FIELD: &str = "volume_capabilities";
    if capabilities.is_empty() {
        return Err(invalid(FIELD, "is required"));
    }
    for (i, capability) in capabilities.iter().enumerate() {
        if capability.access_type.is_none() {
            return Err(invalid(format!("{FIELD}[{i}].access_type"), "is required"));
        }
        let mode = capability.access_mode.as_ref().map_or(0, |m| m.mode);
        if mode == Mode::Unknown as i32 {
            return Err(invalid(format!("{FIELD}[{i}].access_mode"), "is required"));
        }
    }
    Ok(())
}

/// The first difference between a volume and the request, in words.
fn differs(
    req: &csi::ValidateVolumeCapabilitiesRequest,
    record: &VolumeRecord,
    config: &Config,
) -> Option<String> {
    let rules = &config.capabilities;
    let requested =
        match CapabilitySet::read("volume_capabilities", &req.volume_capabilities, rules) {
            Ok(requested) => requested.on_volume_with(own_fs(record)),
            Err(e) => return Some(e.to_string()),
        };
    if let Err(e) = requested.check_mount_options("volume_capabilities") {
        return Some(e.to_string());
    }
    if let Some(why) = requested
        .into_all()
        .iter()
        .find_map(|c| unsupported(record, c))
    {
        return Some(format!("volume_capabilities: {why}"));
    }
    if let Some(key) = foreign_key(&req.volume_context, record) {
        return Some(format!("volume_context: the volume has no {key:?}"));
    }
    if !req.parameters.is_empty() && !parameters::same(&req.parameters, &record.parameters) {
        return Some("parameters: the volume was made with others".to_owned());
    }
    let changes = match parameters::mutable(&req.mutable_parameters, &config.mutable_parameters) {
        Ok(changes) => changes,
        Err(e) => return Some(e.to_string()),
    };
    match changes.modify(&record.settings) {
        Ok(settings) if settings == record.settings => None,
        Ok(_) => Some("mutable_parameters: the volume has others now".to_owned()),
        Err(e) => Some(e.to_string()),
    }
}

/// A key of a context that the driver has not set. It sets one for a shared volume, and none for all
/// others.
fn foreign_key<'a>(
    context: &'a BTreeMap<String, String>,
    record: &VolumeRecord,
) -> Option<&'a String> {
    let shared = record.is_shared().then_some((REACH, REACH_KERNEL));
    context
        .iter()
        .filter(|(key, value)| Some((key.as_str(), value.as_str())) != shared)
        .map(|(key, _)| key)
        .find(|key| !key.starts_with(PROVISIONER) && !key.starts_with(METADATA))
}
