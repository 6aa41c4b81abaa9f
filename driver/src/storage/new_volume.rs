//! What the pool must know of a volume before it exists.

use std::collections::BTreeMap;

use super::{Capability, Format, Settings, Source};

/// Properties of a new volume, as in [`VolumeRecord`](super::VolumeRecord). The pool adds ID, time
/// and format state.
#[derive(Clone, Debug)]
pub struct NewVolume {
    pub name: String,
    /// Size in bytes, a multiple of 4096, already checked against range and filesystem.
    pub capacity_bytes: u64,
    /// The requested size, as in the record.
    pub requested_bytes: Option<u64>,
    pub capabilities: Vec<Capability>,
    pub parameters: BTreeMap<String, String>,
    pub mutable_parameters: BTreeMap<String, String>,
    pub settings: Settings,
    pub mkfs_options: Vec<String>,
    /// The copy source, which is at most as large as the new volume.
    pub source: Option<Source>,
    /// Kubelet's volume handle if the volume is an inline volume.
    pub inline: Option<String>,
}

impl NewVolume {
    /// The volume's state of formatting once CreateVolume is done, as a copy of a source in this
    /// state if it has one. CreateVolume makes the filesystem, except for an inline volume: there,
    /// `Done` means that a pod had the volume.
    pub fn format(&self, source: Option<Format>) -> Format {
        match (self.capabilities.iter().find_map(|c| c.access.fs()), source) {
            // The content of a raw block volume belongs to its user, whatever its source.
            (None, _) => Format::Raw,
            (Some(_), Some(format)) => format,
            (Some(_), None) if self.inline.is_some() => Format::None,
            (Some(fs), None) => Format::Done(fs),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::kernel::FsType;
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
