//! Finds the source of a copied volume.

use super::create_request::RequestedSource;
use crate::controller::capability_set::CapabilitySet;
use crate::controller::{Controller, Result};
use crate::csi::capability::carried_fs;
use crate::csi::identity::ALLOW_VOLUME_MODE_CHANGE;
use crate::csi::validate::{Invalid, invalid};
use crate::storage::{Format, LocatedSource, VolumeHandle, VolumeRecord};

/// Checks that a copy of a source in this state of formatting supports these capabilities ("Source
/// incompatible or not supported"). `is_raw` is true if users may have written a filesystem of
/// their own to it.
///
/// The kernel trusts a filesystem that it mounts, so the bytes of a block device are mounted only
/// if an administrator said so.
pub(super) fn serves(
    format: Format,
    is_raw: bool,
    requested: &CapabilitySet,
    allow_volume_mode_change: bool,
) -> std::result::Result<(), Invalid> {
    match (carried_fs(format), requested.fs()) {
        (_, Some(requested)) if is_raw && !allow_volume_mode_change => Err(invalid(
            "volume_content_source",
            format!(
                "is of a block device, and its users can write any {requested} to it: request a block \
                 device, or have an administrator allow a filesystem, by the class parameter \
                 {ALLOW_VOLUME_MODE_CHANGE}: \"true\", or for hostloop's provisioner by the \
                 VolumeSnapshotContent's annotation \
                 snapshot.storage.kubernetes.io/allow-volume-mode-change: \"true\""
            ),
        )),
        (Some(has), Some(requested)) if has != requested => Err(invalid(
            "volume_content_source",
            format!("carries {has}, and the new volume is to be {requested}"),
        )),
        _ => Ok(()),
    }
}

/// True for the bytes of a block device, by their format and by the volume that has or had them.
///
/// A volume with a mount capability can be `Raw`, too: an administrator allowed it, and it has not
/// been mounted yet.
fn is_raw(format: Format, volume: Option<&VolumeRecord>) -> bool {
    format == Format::Raw
        && !volume.is_some_and(|volume| volume.capabilities.iter().any(|c| c.access.fs().is_some()))
}

impl Controller {
    pub(super) fn locate_source(&self, named: RequestedSource) -> Result<LocatedSource> {
        Ok(match named {
            RequestedSource::Snapshot(id) => LocatedSource::Snapshot(self.pools.snapshot(&id)?),
            RequestedSource::Volume(handle) => LocatedSource::Volume(self.pools.volume(&handle)?),
        })
    }

    /// True if users may have written a filesystem of their own to a source, as to a block device.
    pub(super) fn is_raw(&self, source: &LocatedSource) -> bool {
        match source {
            LocatedSource::Snapshot(snapshot) => {
                let volume = self.pools.volume(&VolumeHandle::Id(snapshot.source)).ok();
                is_raw(snapshot.format, volume.as_deref())
            }
            LocatedSource::Volume(volume) => is_raw(volume.format, Some(&**volume)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::tests::bench::{block, mount};
    use crate::controller::tests::config;
    use crate::kernel::FsType;
    use crate::storage::PoolId;
    use crate::testkit::{mounted, raw, record_of};

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
        for (format, requested, fs, fits) in table {
            let requested = wanted(requested).on_volume_with(carried_fs(format));
            assert_eq!(requested.fs(), fs, "{format:?} {requested:?}");
            assert_eq!(
                serves(format, false, &requested, false).is_ok(),
                fits,
                "{format:?} {requested:?}"
            );
        }
    }

    #[test]
    fn the_bytes_of_a_block_device_are_mounted_by_an_administrators_word_alone() {
        for (raw, requested, allowed, fits) in [
            (true, Some("ext4"), false, false),
            (true, Some(""), false, false),
            (true, Some("xfs"), true, true),
            (true, None, false, true),
            (false, Some("ext4"), false, true),
        ] {
            let what = format!("{raw} {requested:?} {allowed}");
            let served = serves(Format::Raw, raw, &wanted(requested), allowed);
            assert_eq!(served.is_ok(), fits, "{what}");
            if let Err(refused) = served {
                assert_eq!(refused.field, "volume_content_source");
                assert!(refused.why.contains("allowVolumeModeChange"), "{refused}");
            }
        }
    }

    #[test]
    fn what_users_may_have_written_raw() {
        let volume = |capability| VolumeRecord {
            capabilities: [capability].into(),
            ..record_of(PoolId::generate(), "a")
        };
        let (block, mount) = (volume(raw()), volume(mounted()));
        for (format, volume, expected) in [
            (Format::Raw, Some(&block), true),
            // A snapshot outlives its volume.
            (Format::Raw, None, true),
            // An administrator allowed it.
            (Format::Raw, Some(&mount), false),
            (Format::Done(FsType::Xfs), Some(&mount), false),
            (Format::Done(FsType::Xfs), None, false),
            (Format::None, Some(&mount), false),
            (Format::Formatting(FsType::Xfs), Some(&mount), false),
        ] {
            let what = format!("{format:?} {:?}", volume.map(|volume| &volume.capabilities));
            assert_eq!(is_raw(format, volume), expected, "{what}");
        }
    }
}
