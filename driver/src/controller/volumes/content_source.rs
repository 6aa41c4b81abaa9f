//! Finds the source of a copied volume.

use super::super::capability::CapabilitySet;
use super::super::{Controller, Result};
use super::create_request::SourceRef;
use crate::csi::capability::carried_fs;
use crate::csi::validate::{Invalid, invalid};
use crate::kernel::FsType;
use crate::storage::{Format, Provisioning, Source};

/// An existing source.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContentSource {
    pub(super) source: Source,
    /// The source's size, in bytes.
    pub(super) bytes: u64,
    /// The format state of the source.
    pub(super) format: Format,
    /// The default provisioning of a copy.
    pub(super) provisioning: Provisioning,
}

impl ContentSource {
    /// The filesystem of the source, if it is known.
    pub(super) fn fs(&self) -> Option<FsType> {
        carried_fs(self.format)
    }

    /// Checks that a copy supports these capabilities ("Source incompatible or not supported").
    pub(super) fn serves(&self, wanted: &CapabilitySet) -> std::result::Result<(), Invalid> {
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
    pub(super) fn content_source(&self, named: SourceRef) -> Result<ContentSource> {
        match named {
            SourceRef::Snapshot(id) => {
                let snapshot = self.pools.snapshot(&id)?;
                Ok(ContentSource {
                    source: Source::Snapshot(id),
                    bytes: snapshot.size_bytes,
                    format: snapshot.format,
                    provisioning: snapshot.provisioning,
                })
            }
            SourceRef::Volume(handle) => {
                let volume = self.pools.volume(&handle)?;
                Ok(ContentSource {
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
    use super::super::super::tests::bench::{block, mount};
    use super::super::super::tests::config;
    use super::*;
    use crate::storage::{PoolId, VolumeId};

    /// Reads a capability with this filesystem, or of a block device.
    fn wanted(fs: Option<&str>) -> CapabilitySet {
        let capability = fs.map_or_else(block, mount);
        CapabilitySet::read("f", &[capability], &config().capabilities).unwrap()
    }

    #[test]
    fn a_copy_has_its_sources_filesystem() {
        use FsType::{Ext4, Xfs};
        let table = [
            (Format::Done(Xfs), Some("xfs"), Some(Xfs), true),
            (Format::Done(Xfs), Some("ext4"), Some(Ext4), false),
            // A request without a filesystem gets the source's.
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
            let source = ContentSource {
                source: Source::Volume(VolumeId::generate(pool)),
                bytes: 0,
                format,
                provisioning: Provisioning::Thin,
            };
            let wanted = wanted(asked).on_volume_with(source.fs());
            assert_eq!(wanted.fs(), fs, "{format:?} {asked:?}");
            assert_eq!(source.serves(&wanted).is_ok(), fits, "{format:?} {asked:?}");
        }
    }
}
