//! Translates a PersistentVolume into CSI terms, for all controllers that make calls for existing
//! volumes.

use std::collections::BTreeSet;

use hostloop_proto::calls::code_name;
use hostloop_proto::csi::{VolumeCapability, volume_capability};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, NodeSelectorTerm, ObjectReference, PersistentVolume,
    PersistentVolumeSpec,
};
use tonic::Status;
use volume_capability::access_mode::Mode;
use volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

pub(crate) use hostloop_api_objects::shared_volumes::is_shared;

use super::volume_mode;

/// Access modes that have no equivalent in CSI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessModesError {
    #[error("the access mode ReadWriteOncePod cannot be combined with others")]
    OncePodAndOthers,
    #[error("CSI has no access mode for ReadOnlyMany and ReadWriteOnce together: name one of them")]
    ReadersAndWriter,
    #[error("no known access mode in {0:?}")]
    Unknown(Vec<String>),
}

/// The CSI source of a volume.
pub(crate) fn csi(volume: &PersistentVolume) -> Option<&CSIPersistentVolumeSource> {
    volume.spec.as_ref()?.csi.as_ref()
}

/// The volume handle; `None` if the volume belongs to another driver.
pub(crate) fn handle<'v>(volume: &'v PersistentVolume, driver: &str) -> Option<&'v str> {
    let csi = csi(volume)?;
    (csi.driver == driver).then_some(&*csi.volume_handle)
}

/// The volume mode. Without one, a volume has the default.
pub(crate) fn volume_mode(volume: &PersistentVolume) -> &str {
    let mode = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_mode.as_deref());
    mode.unwrap_or(volume_mode::FILESYSTEM)
}

pub(crate) fn phase(volume: &PersistentVolume) -> Option<&str> {
    volume.status.as_ref()?.phase.as_deref()
}

/// The terms of a volume's node affinity.
pub(crate) fn node_terms(volume: &PersistentVolume) -> Option<&[NodeSelectorTerm]> {
    let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?;
    Some(&affinity.required.as_ref()?.node_selector_terms)
}

/// The values in a volume's node affinity: the names of nodes, if its driver made the volume for them.
pub(crate) fn affine_values(volume: &PersistentVolume) -> impl Iterator<Item = &str> {
    let terms = node_terms(volume).unwrap_or_default().iter();
    terms
        .flat_map(|term| term.match_expressions.iter().flatten())
        .flat_map(|requirement| requirement.values.iter().flatten())
        .map(String::as_str)
}

/// The claim that a volume names.
pub(crate) fn claim(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// The UID of the claim that a volume names.
pub(crate) fn claim_uid(volume: &PersistentVolume) -> Option<&str> {
    claim(volume)?.uid.as_deref()
}

/// Combines all access modes of a volume into one CSI mode. `multi_writer` is the driver's
/// capability SINGLE_NODE_MULTI_WRITER.
pub(crate) fn access_mode(modes: &[String], multi_writer: bool) -> Result<Mode, AccessModesError> {
    let set: BTreeSet<&str> = modes.iter().map(String::as_str).collect();
    if set.contains("ReadWriteOncePod") {
        return match (set.len(), multi_writer) {
            (1, true) => Ok(Mode::SingleNodeSingleWriter),
            (1, false) => Ok(Mode::SingleNodeWriter),
            _ => Err(AccessModesError::OncePodAndOthers),
        };
    }
    if set.contains("ReadWriteMany") {
        return Ok(Mode::MultiNodeMultiWriter);
    }
    match (
        set.contains("ReadOnlyMany"),
        set.contains("ReadWriteOnce"),
        multi_writer,
    ) {
        (true, true, _) => Err(AccessModesError::ReadersAndWriter),
        (true, false, _) => Ok(Mode::MultiNodeReaderOnly),
        (false, true, true) => Ok(Mode::SingleNodeMultiWriter),
        (false, true, false) => Ok(Mode::SingleNodeWriter),
        (false, false, _) => Err(AccessModesError::Unknown(modes.to_vec())),
    }
}

/// The CSI capability of a volume. `default_fstype` applies to filesystem volumes that name no
/// type.
pub(crate) fn capability(
    spec: &PersistentVolumeSpec,
    multi_writer: bool,
    default_fstype: &str,
) -> Result<VolumeCapability, AccessModesError> {
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let mode = access_mode(modes, multi_writer)?;
    let access_type = if spec.volume_mode.as_deref() == Some(volume_mode::BLOCK) {
        AccessType::Block(BlockVolume {})
    } else {
        let fs_type = spec.csi.as_ref().and_then(|csi| csi.fs_type.as_deref());
        AccessType::Mount(MountVolume {
            fs_type: fs_type
                .filter(|fs_type| !fs_type.is_empty())
                .unwrap_or(default_fstype)
                .to_owned(),
            mount_flags: spec.mount_options.clone().unwrap_or_default(),
            volume_mount_group: String::new(),
        })
    };
    Ok(VolumeCapability {
        access_mode: Some(AccessMode { mode: mode as i32 }),
        access_type: Some(access_type),
    })
}

/// Formats a failed call as Go programs do in events and statuses.
pub(crate) fn rpc_error(status: &Status) -> String {
    let code = code_name(status.code());
    let message = status.message();
    format!("rpc error: code = {code} desc = {message}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn handles_of_the_driver() {
        let volume = json!({"spec": {"csi": {"driver": "d", "volumeHandle": "h"}}});
        let volume = serde_json::from_value(volume).expect("a volume");
        assert_eq!(handle(&volume, "d"), Some("h"));
        assert_eq!(handle(&volume, "other"), None);
        assert_eq!(handle(&PersistentVolume::default(), "d"), None);
    }

    #[test]
    fn access_modes_in_one() {
        use AccessModesError::*;
        for (modes, plain, multi_writer) in [
            (
                "ReadWriteOnce",
                Ok(Mode::SingleNodeWriter),
                Ok(Mode::SingleNodeMultiWriter),
            ),
            (
                "ReadWriteOncePod",
                Ok(Mode::SingleNodeWriter),
                Ok(Mode::SingleNodeSingleWriter),
            ),
            (
                "ReadOnlyMany",
                Ok(Mode::MultiNodeReaderOnly),
                Ok(Mode::MultiNodeReaderOnly),
            ),
            (
                "ReadWriteMany",
                Ok(Mode::MultiNodeMultiWriter),
                Ok(Mode::MultiNodeMultiWriter),
            ),
            (
                "ReadWriteMany ReadOnlyMany ReadWriteOnce",
                Ok(Mode::MultiNodeMultiWriter),
                Ok(Mode::MultiNodeMultiWriter),
            ),
            (
                "ReadOnlyMany ReadWriteOnce",
                Err(ReadersAndWriter),
                Err(ReadersAndWriter),
            ),
            (
                "ReadWriteOncePod ReadWriteMany",
                Err(OncePodAndOthers),
                Err(OncePodAndOthers),
            ),
            (
                "Other",
                Err(Unknown(vec!["Other".to_owned()])),
                Err(Unknown(vec!["Other".to_owned()])),
            ),
        ] {
            let list: Vec<String> = modes.split(' ').map(str::to_owned).collect();
            assert_eq!(access_mode(&list, false), plain, "{modes}");
            assert_eq!(access_mode(&list, true), multi_writer, "{modes}");
        }
        assert_eq!(access_mode(&[], false), Err(Unknown(Vec::new())));
    }

    #[test]
    fn capabilities() {
        let spec = |value| serde_json::from_value::<PersistentVolumeSpec>(value).unwrap();
        let block = spec(json!({"accessModes": ["ReadWriteOnce"], "volumeMode": "Block"}));
        let block = capability(&block, false, "ext4").unwrap().access_type;
        assert_eq!(block, Some(AccessType::Block(BlockVolume {})));
        for (fs_type, default, expected) in
            [("xfs", "ext4", "xfs"), ("", "ext4", "ext4"), ("", "", "")]
        {
            let spec = spec(json!({
                "accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"],
                "csi": {"driver": "d", "volumeHandle": "h", "fsType": fs_type},
            }));
            let mount = capability(&spec, false, default).unwrap().access_type;
            let expected = MountVolume {
                fs_type: expected.to_owned(),
                mount_flags: vec!["noatime".to_owned()],
                volume_mount_group: String::new(),
            };
            assert_eq!(mount, Some(AccessType::Mount(expected)));
        }
    }

    #[test]
    fn errors_as_go_says_them() {
        let status = Status::cancelled("no more");
        let said = rpc_error(&status);
        assert_eq!(said, "rpc error: code = Canceled desc = no more");
    }
}
