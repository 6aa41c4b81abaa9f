use std::collections::BTreeMap;

use super::*;
use crate::storage::{AccessMode, Capability, Format, PoolId, Stage, VolumeId};

const THIN: Provisioning = Provisioning::Thin;
const THICK: Provisioning = Provisioning::Thick;

fn settings(provisioning: Provisioning, discard: bool) -> Settings {
    Settings {
        provisioning,
        discard,
        direct_io: true,
        read_ahead_kib: None,
    }
}

fn record(access: Option<Access>) -> VolumeRecord {
    let stage = access.map(|access| Stage {
        path: "/stage".into(),
        capability: Capability {
            access,
            mode: AccessMode::SingleNodeWriter,
        },
        minor: Some(0),
        read_only_loops: BTreeMap::new(),
    });
    VolumeRecord {
        schema: 1,
        id: VolumeId::generate(PoolId::generate()),
        name: "v".to_owned(),
        capacity_bytes: 4096,
        capabilities: Vec::new(),
        parameters: BTreeMap::new(),
        mutable_parameters: BTreeMap::new(),
        settings: settings(THIN, true),
        mkfs_options: Vec::new(),
        source: None,
        created_ns: 0,
        format: Format::Done(FsType::Ext4),
        fresh: false,
        publications: BTreeMap::new(),
        stage,
        freeze: None,
        inline: None,
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
fn whether_a_mount_discards() {
    let table = [
        (mounted(&[]), settings(THIN, true), Some(true)),
        (mounted(&[]), settings(THIN, false), Some(false)),
        (mounted(&[]), settings(THICK, false), Some(false)),
        // The user's mount flags say it, but of a thick volume.
        (mounted(&["discard"]), settings(THIN, false), None),
        (mounted(&["nodiscard"]), settings(THIN, true), None),
        (mounted(&["discard=async"]), settings(THIN, false), None),
        (mounted(&["discard"]), settings(THICK, false), Some(false)),
        (mounted(&["noatime"]), settings(THIN, true), Some(true)),
        (Some(Access::Block), settings(THIN, true), None),
        (None, settings(THIN, true), None),
    ];
    for (access, settings, expected) in table {
        let record = record(access.clone());
        let got = mount_discards(&settings, &record);
        assert_eq!(got, expected, "{access:?} {settings:?}");
    }
}

#[test]
fn only_what_is_said_is_changed() {
    let record = record(mounted(&[]));
    let none = Changes::default();
    let nothing = Live {
        direct_io: None,
        read_ahead_kib: None,
        discard: None,
    };
    let table = [
        (none, nothing),
        (
            Changes {
                direct_io: Some(false),
                ..none
            },
            Live {
                direct_io: Some(false),
                ..nothing
            },
        ),
        (
            Changes {
                read_ahead_kib: Some(8),
                ..none
            },
            Live {
                read_ahead_kib: Some(8),
                ..nothing
            },
        ),
        (
            Changes {
                discard: Some(false),
                ..none
            },
            Live {
                discard: Some(false),
                ..nothing
            },
        ),
        (
            Changes {
                provisioning: Some(THICK),
                ..none
            },
            Live {
                discard: Some(false),
                ..nothing
            },
        ),
    ];
    for (changes, expected) in table {
        let settings = changes.modify(&record.settings).unwrap();
        assert_eq!(live(&changes, &settings, &record), expected, "{changes:?}");
    }
}
