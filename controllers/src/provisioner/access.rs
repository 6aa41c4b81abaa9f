//! Translates a claim's access modes and volume mode to CSI terms.

use hostloop_proto::csi::VolumeCapability;
use hostloop_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use crate::api::pv;

/// An access mode without an equivalent in CSI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AccessError {
    #[error("spec.accessModes is empty: name at least one, such as ReadWriteOnce")]
    None,
    #[error(
        "spec.accessModes has {0:?}: it must be ReadWriteOnce, ReadWriteOncePod, ReadOnlyMany or \
         ReadWriteMany"
    )]
    Unknown(String),
}

/// How a pod sees the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VolumeMode {
    /// As a block device.
    Block,
    /// As a directory.
    Filesystem {
        /// The filesystem type; if empty, the driver chooses.
        fs_type: String,
        /// The mount options.
        flags: Vec<String>,
    },
}

/// Returns one volume capability for each access mode.
pub(crate) fn capabilities(
    modes: &[String],
    shape: &VolumeMode,
    has_writer_modes: bool,
) -> Result<Vec<VolumeCapability>, AccessError> {
    if modes.is_empty() {
        return Err(AccessError::None);
    }
    let access_type = match shape {
        VolumeMode::Block => AccessType::Block(BlockVolume {}),
        VolumeMode::Filesystem { fs_type, flags } => AccessType::Mount(MountVolume {
            fs_type: fs_type.clone(),
            mount_flags: flags.clone(),
            ..MountVolume::default()
        }),
    };
    modes
        .iter()
        .map(|name| {
            let mode = pv::access_mode(std::slice::from_ref(name), has_writer_modes);
            let mode = mode.map_err(|_| AccessError::Unknown(name.clone()))?;
            Ok(VolumeCapability {
                access_mode: Some(AccessMode { mode: mode.into() }),
                access_type: Some(access_type.clone()),
            })
        })
        .collect()
}
