//! What pods want of kubelet.

use std::collections::BTreeMap;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use serde_json::Value;

use crate::users::bytes;

use super::secrets::Secrets;

/// A volume that a pod wants.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) pod: Pod,
    /// The name of the PersistentVolume, or of the inline volume in its pod.
    pub(super) name: String,
    pub(super) handle: String,
    pub(super) block: bool,
    pub(super) read_only: bool,
    pub(super) inline: bool,
    pub(super) fs: String,
    pub(super) mode: Mode,
    pub(super) mount_flags: Vec<String>,
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) claim: String,
    pub(super) secrets: Secrets,
    /// The size that NodeExpandVolume is called with, if it is due.
    pub(super) grows_to: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    pub(super) account: String,
}

impl Pod {
    pub(super) fn info(&self, ephemeral: &str) -> [(String, String); 5] {
        [
            ("pod.name", self.name.as_str()),
            ("pod.namespace", &self.namespace),
            ("pod.uid", &self.uid),
            ("serviceAccount.name", &self.account),
            ("ephemeral", ephemeral),
        ]
        .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()))
    }
}

impl Wanted {
    /// Identifies it: the UID of its pod and its handle.
    pub(super) fn key(&self) -> (String, String) {
        (self.pod.uid.clone(), self.handle.clone())
    }

    pub(super) fn capability(&self) -> csi::VolumeCapability {
        let access_type = if self.block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.fs.clone(),
                mount_flags: self.mount_flags.clone(),
                volume_mount_group: String::new(),
            })
        };
        csi::VolumeCapability {
            access_mode: Some(AccessMode {
                mode: self.mode.into(),
            }),
            access_type: Some(access_type),
        }
    }
}

/// An inline volume of a pod. Kubelet's handle is a hash of the pod's UID and the volume's name.
pub(super) fn inline(pod: &Pod, volume: &Value) -> Wanted {
    let name = volume["name"].as_str().unwrap_or_default();
    let mut digits = String::new();
    for part in 0..4 {
        let bytes = pod.uid.bytes().chain(name.bytes()).chain([part]);
        let hash = bytes.fold(u64::from(part) + 7, |state, byte| {
            crate::dice::mix(state ^ u64::from(byte)).wrapping_add(0x9e37_79b9)
        });
        digits.push_str(&format!("{hash:016x}"));
    }
    let given = volume["csi"]["volumeAttributes"]
        .as_object()
        .into_iter()
        .flatten();
    let given = given.map(|(key, value)| (key.clone(), value.as_str().unwrap_or("").to_owned()));
    let mut attributes: BTreeMap<String, String> = given.collect();
    attributes.extend(pod.info("true"));
    Wanted {
        pod: pod.clone(),
        name: name.to_owned(),
        handle: format!("csi-{digits}"),
        block: false,
        read_only: false,
        inline: true,
        fs: String::new(),
        mode: Mode::SingleNodeWriter,
        mount_flags: Vec::new(),
        attributes,
        claim: String::new(),
        secrets: Secrets::default(),
        grows_to: None,
    }
}

/// The size to which kubelet grows a volume of `volume` bytes, by the status of its claim. It is what
/// the resizer has noted, which the driver may have rounded up. A resizer that notes nothing is an
/// old one.
pub(super) fn grows_to(volume: u64, status: &Value) -> Option<u64> {
    let state = status["allocatedResourceStatuses"]["storage"].as_str();
    let noted = &status["allocatedResources"]["storage"];
    let size = match state {
        None if noted.is_null() => volume,
        Some("NodeResizePending" | "NodeResizeInProgress") => bytes(noted),
        _ => return None,
    };
    (bytes(&status["capacity"]["storage"]) < volume).then_some(size)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::nothing_is_due(json!({"capacity": {"storage": "8192"}}), None)]
    #[case::of_an_old_resizer(json!({"capacity": {"storage": "4096"}}), Some(8192))]
    #[case::rounded_up(json!({"capacity": {"storage": "4096"}, "allocatedResources": {"storage": "5000"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"}}), Some(5000))]
    #[case::begun(json!({"capacity": {"storage": "4096"}, "allocatedResources": {"storage": "5000"},
        "allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}}), Some(5000))]
    #[case::done(json!({"capacity": {"storage": "5000"}, "allocatedResources": {"storage": "5000"}}),
        None)]
    #[case::refused(json!({"capacity": {"storage": "4096"}, "allocatedResources": {"storage": "5000"},
        "allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}), None)]
    fn kubelet_grows_what_the_resizer_has_noted(
        #[case] status: Value,
        #[case] expected: Option<u64>,
    ) {
        assert_eq!(grows_to(8192, &status), expected);
    }
}
