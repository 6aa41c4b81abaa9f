use hostloop_proto::csi::volume_capability::access_mode::Mode;

use super::*;
use crate::controller::tests::config;
use crate::csi::capability::{self, compatible};
use crate::kernel::FsType;
use crate::testkit::{block_as as block, mount_as as mount, with_flags};

fn read(values: &[csi::VolumeCapability]) -> Result<CapabilitySet, Invalid> {
    CapabilitySet::read("caps", values, &config().capabilities)
}

const WRITER: Mode = Mode::SingleNodeWriter;
const READER: Mode = Mode::MultiNodeReaderOnly;

fn noatime(mode: Mode) -> csi::VolumeCapability {
    with_flags(mount("", mode), &["noatime"])
}

#[test]
fn the_capabilities_of_a_request_are_of_one_kind() {
    use FsType::{Ext4, Xfs};
    let table = [
        (vec![], Ok(None)),
        (vec![block(WRITER)], Ok(None)),
        (vec![block(WRITER), block(READER)], Ok(None)),
        (vec![mount("", WRITER)], Ok(Some(Ext4))),
        (vec![mount("xfs", WRITER)], Ok(Some(Xfs))),
        // A capability without a filesystem means that of the others, in any order.
        (vec![mount("", WRITER), mount("xfs", READER)], Ok(Some(Xfs))),
        (vec![mount("xfs", READER), mount("", WRITER)], Ok(Some(Xfs))),
        (
            vec![mount("xfs", WRITER), mount("ext4", READER)],
            Err("caps"),
        ),
        (vec![mount("", WRITER), block(WRITER)], Err("caps")),
        (vec![block(WRITER), mount("", WRITER)], Err("caps")),
        (
            vec![block(WRITER), mount("ntfs", WRITER)],
            Err("caps[1].mount.fs_type"),
        ),
        (
            vec![csi::VolumeCapability::default()],
            Err("caps[0].access_type"),
        ),
        (vec![block(Mode::Unknown)], Err("caps[0].access_mode.mode")),
    ];
    for (values, expected) in table {
        let got = read(&values);
        let got = got
            .as_ref()
            .map(CapabilitySet::fs)
            .map_err(|e| e.field.as_str());
        assert_eq!(got, expected, "{values:?}");
    }
}

#[test]
fn every_capability_gets_the_filesystem_that_one_names() {
    let requested = read(&[mount("", WRITER), mount("xfs", READER)]).unwrap();
    let all: Vec<_> = requested.into_all().iter().map(|c| c.access.fs()).collect();
    assert_eq!(all, [Some(FsType::Xfs); 2]);
}

#[test]
fn a_volumes_filesystem_replaces_the_default() {
    let unnamed = || read(&[mount("", WRITER)]).unwrap();
    let named = || read(&[mount("ext4", WRITER)]).unwrap();
    let raw = || read(&[block(WRITER)]).unwrap();
    let xfs = Some(FsType::Xfs);
    assert_eq!(unnamed().on_volume_with(xfs).fs(), xfs);
    assert_eq!(unnamed().on_volume_with(None).fs(), Some(FsType::Ext4));
    assert_eq!(named().on_volume_with(xfs).fs(), Some(FsType::Ext4));
    assert_eq!(raw().on_volume_with(xfs).fs(), None);
}

#[test]
fn sets_are_compared_in_any_order() {
    let a = || mount("", WRITER);
    let b = || mount("", READER);
    let made = read(&[a(), b()]).unwrap().into_all();
    for (requested, same) in [
        (vec![a(), b()], true),
        (vec![b(), a()], true),
        (vec![b(), a(), a()], true),
        (vec![a()], false),
        (vec![a(), noatime(READER)], false),
        (vec![block(WRITER)], false),
    ] {
        assert_eq!(read(&requested).unwrap().are(&made), same, "{requested:?}");
    }
}

#[test]
fn a_publication_serves_a_compatible_capability() {
    let capability = |value: csi::VolumeCapability| {
        capability::capability("c", Some(&value), &config().capabilities).unwrap()
    };
    let many = Mode::SingleNodeMultiWriter;
    let table = [
        (mount("", WRITER), mount("ext4", WRITER), true),
        (mount("", WRITER), mount("xfs", WRITER), false),
        (mount("", WRITER), block(WRITER), false),
        // Users change the mountOptions of a volume in use.
        (mount("", WRITER), noatime(WRITER), true),
        (block(WRITER), block(WRITER), true),
        (block(WRITER), block(READER), false),
        (mount("", many), mount("", READER), true),
        (
            mount("", READER),
            mount("", Mode::MultiNodeMultiWriter),
            true,
        ),
        (mount("", many), mount("", WRITER), false),
    ];
    for (published, requested, expected) in table {
        let got = compatible(
            &capability(published.clone()),
            &capability(requested.clone()),
        );
        assert_eq!(got, expected, "{published:?} {requested:?}");
    }
}
