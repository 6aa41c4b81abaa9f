use super::*;
use crate::controller::tests::record;
use crate::storage::{Access, AccessMode, Capability};
use crate::testkit::{THIN, pairs, stage_at};

const DISCARDS: Settings = Settings {
    discard: true,
    ..THIN
};
const THICK: Settings = Settings {
    provisioning: Provisioning::Thick,
    ..THIN
};

/// The record of a volume that is staged with this access.
fn staged(access: Option<Access>) -> VolumeRecord {
    let mode = AccessMode::SingleNodeWriter;
    let stage = access.map(|access| stage_at("/stage", Capability { access, mode }, Some(0)));
    VolumeRecord {
        settings: DISCARDS,
        stage,
        ..record()
    }
}

fn mounted(flags: &[&str]) -> Option<Access> {
    Some(Access::Mount {
        fs: FsType::Ext4,
        flags: flags.iter().map(|f| f.to_string()).collect(),
        group: None,
    })
}

#[test]
fn a_mount_discards_as_its_flags_or_the_settings_say() {
    let table = [
        (mounted(&[]), DISCARDS, Some(true)),
        (mounted(&[]), THIN, Some(false)),
        (mounted(&[]), THICK, Some(false)),
        // The user's mount flags decide, except for a thick volume.
        (mounted(&["discard"]), THIN, None),
        (mounted(&["nodiscard"]), DISCARDS, None),
        (mounted(&["discard=async"]), THIN, None),
        (mounted(&["noatime,nodiscard"]), DISCARDS, None),
        (mounted(&["discard"]), THICK, Some(false)),
        (mounted(&["noatime"]), DISCARDS, Some(true)),
        (Some(Access::Block), DISCARDS, None),
        (None, DISCARDS, None),
    ];
    for (access, settings, expected) in table {
        let record = staged(access.clone());
        let got = mount_discards(&settings, &record);
        assert_eq!(got, expected, "{access:?} {settings:?}");
    }
}

#[test]
fn only_requested_settings_of_a_volume_in_use_change() {
    let record = staged(mounted(&[]));
    for (text, direct_io, read_ahead_kib, discard) in [
        ("", None, None, None),
        ("directIO=false", Some(false), None, None),
        ("readAheadKiB=8", None, Some(8), None),
        ("discard=false", None, None, Some(false)),
        ("provisioning=thick", None, None, Some(false)),
    ] {
        let changes = parameters::mutable(&pairs(text), &[]).unwrap();
        let settings = changes.modify(&record.settings).unwrap();
        let expected = Live {
            direct_io,
            read_ahead_kib,
            discard,
        };
        assert_eq!(live(&changes, &settings, &record), expected, "{text}");
    }
}
