//! Decides whether CreateVolume formats a new volume, and makes its filesystem. No user and no loop
//! device has the image yet. NodeStageVolume formats what this leaves without a filesystem
//! (`node/format_at_stage.rs`).

use std::fs::File;
use std::path::Path;

use crate::kernel::{FsType, Kernel, MkfsSpec};
use crate::storage::{Format, NewVolume, Result, VolumeId, trial_mount};

impl NewVolume {
    /// The volume's state of formatting once CreateVolume is done, as a copy of a source in this
    /// state if it has one. CreateVolume makes the filesystem, except for an inline volume: there,
    /// `Done` means that a pod had the volume.
    pub fn format(&self, source: Option<Format>) -> Format {
        match (self.fs(), source) {
            // The content of a raw block volume belongs to its user, whatever its source.
            (None, _) => Format::Raw,
            (Some(_), Some(format)) => format,
            (Some(_), None) if self.inline.is_some() => Format::None,
            (Some(fs), None) => Format::Done(fs),
        }
    }
}

/// Makes the filesystem in the image of a new volume; `path` is the image's, for messages. Mounts it
/// once if its class has options for mkfs: the kernel may lack what they ask for.
pub(super) fn make(
    kernel: &dyn Kernel,
    image: &File,
    path: &Path,
    new: &NewVolume,
    id: VolumeId,
    fs: FsType,
) -> Result<()> {
    kernel.mkfs(&MkfsSpec {
        device: path,
        image: Some(image),
        fs,
        options: &new.mkfs_options,
        discard: false,
        uuid: None,
        force: false,
    })?;
    if new.mkfs_options.is_empty() {
        return Ok(());
    }
    trial_mount::try_mount(kernel, image, id, fs)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::storage::Capability;
    use crate::testkit::{mounted, new, raw};

    const FS: FsType = FsType::Ext4;

    #[rstest]
    #[case::new_filesystem(&[mounted()], None, Format::Done(FS))]
    #[case::new_block(&[raw()], None, Format::Raw)]
    #[case::never_staged(&[mounted()], Some(Format::None), Format::None)]
    #[case::half_formatted(&[mounted()], Some(Format::Formatting(FS)), Format::Formatting(FS))]
    #[case::formatted(&[mounted()], Some(Format::Done(FS)), Format::Done(FS))]
    #[case::of_raw_bytes(&[mounted()], Some(Format::Raw), Format::Raw)]
    #[case::filesystem_as_block(&[raw()], Some(Format::Done(FS)), Format::Raw)]
    #[case::blank_as_block(&[raw()], Some(Format::None), Format::Raw)]
    fn formats(
        #[case] capabilities: &[Capability],
        #[case] source: Option<Format>,
        #[case] want: Format,
    ) {
        let new = NewVolume {
            capabilities: capabilities.to_vec(),
            ..new("x")
        };
        assert_eq!(new.format(source), want);
    }

    #[test]
    fn an_inline_volume_gets_its_filesystem_when_it_is_published() {
        let inline = NewVolume {
            inline: Some("csi-1".to_owned()),
            ..new("x")
        };
        assert_eq!(inline.format(None), Format::None);
    }
}
