//! What a volume is copied from.

use super::super::capability::Wanted;
use super::super::{Controller, Result};
use super::create_request::Named;
use crate::csi::validate::{Invalid, invalid};
use crate::kernel::FsType;
use crate::storage::{Format, Provisioning, Source};

/// A source that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) source: Source,
    /// Its size.
    pub(super) bytes: u64,
    /// How far it was formatted.
    pub(super) format: Format,
    /// What a copy is if nobody says otherwise.
    pub(super) provisioning: Provisioning,
}

impl Origin {
    /// The filesystem it carries, as far as that is known.
    pub(super) fn fs(&self) -> Option<FsType> {
        match self.format {
            Format::Done(fs) => Some(fs),
            // One that was never handed out carries nothing that anybody would miss; of a raw
            // one, staging finds out.
            Format::None | Format::Formatting(_) | Format::Raw => None,
        }
    }

    /// Whether a copy can be used so ("Source incompatible or not supported").
    pub(super) fn serves(&self, wanted: &Wanted) -> std::result::Result<(), Invalid> {
        match (self.fs(), wanted.fs()) {
            (Some(has), Some(asked)) if has != asked => Err(invalid(
                "volume_content_source",
                format!("carries {has}, and the new volume is to be {asked}"),
            )),
            _ => Ok(()),
        }
    }
}

impl Controller {
    /// Finds a source.
    pub(super) fn origin(&self, named: Named) -> Result<Origin> {
        match named {
            Named::Snapshot(id) => {
                let snapshot = self.pools.snapshot(&id)?;
                Ok(Origin {
                    source: Source::Snapshot(id),
                    bytes: snapshot.size_bytes,
                    format: snapshot.format,
                    provisioning: snapshot.provisioning,
                })
            }
            Named::Volume(handle) => {
                let volume = self.pools.volume(&handle)?;
                Ok(Origin {
                    source: Source::Volume(volume.id),
                    bytes: volume.capacity_bytes,
                    format: volume.format,
                    provisioning: volume.settings.provisioning,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hostloop_proto::csi::volume_capability::{
        AccessMode, AccessType, BlockVolume, MountVolume,
    };

    use super::super::super::tests::config;
    use super::*;
    use crate::storage::PoolId;

    fn wanted(fs: Option<&str>) -> Wanted {
        let access = match fs {
            None => AccessType::Block(BlockVolume {}),
            Some(fs) => AccessType::Mount(MountVolume {
                fs_type: fs.to_owned(),
                ..MountVolume::default()
            }),
        };
        let capability = hostloop_proto::csi::VolumeCapability {
            access_mode: Some(AccessMode { mode: 1 }),
            access_type: Some(access),
        };
        Wanted::read("f", &[capability], &config().capabilities).unwrap()
    }

    #[test]
    fn a_copy_has_its_sources_filesystem() {
        use FsType::{Ext4, Xfs};
        let table = [
            (Format::Done(Xfs), Some("xfs"), Some(Xfs), true),
            (Format::Done(Xfs), Some("ext4"), Some(Ext4), false),
            // Who names none gets what there is.
            (Format::Done(Xfs), Some(""), Some(Xfs), true),
            (Format::Done(Xfs), None, None, true),
            (Format::None, Some("xfs"), Some(Xfs), true),
            (Format::None, Some(""), Some(Ext4), true),
            (Format::Formatting(Xfs), Some("ext4"), Some(Ext4), true),
            (Format::Raw, Some("xfs"), Some(Xfs), true),
            (Format::Raw, None, None, true),
        ];
        let pool = PoolId::generate();
        for (format, asked, fs, fits) in table {
            let origin = Origin {
                source: Source::Volume(crate::storage::VolumeId::generate(pool)),
                bytes: 0,
                format,
                provisioning: Provisioning::Thin,
            };
            let wanted = wanted(asked).on_volume_with(origin.fs());
            assert_eq!(wanted.fs(), fs, "{format:?} {asked:?}");
            assert_eq!(origin.serves(&wanted).is_ok(), fits, "{format:?} {asked:?}");
        }
    }
}
