use super::*;
use crate::kernel::FsType::{Ext4, Xfs};
use crate::storage::{Access, AccessMode};
use crate::testkit::{code, on};
use tonic::Code::{AlreadyExists, FailedPrecondition};

fn block(mode: AccessMode) -> Capability {
    let access = Access::Block;
    Capability { access, mode }
}

fn ext4(mode: AccessMode) -> Capability {
    let access = on(Ext4);
    Capability { access, mode }
}

fn flagged(flags: &[&str], mode: AccessMode) -> Capability {
    let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    Capability {
        access: Access::Mount {
            fs: Ext4,
            flags,
            group: None,
        },
        mode,
    }
}

/// The specification's table for a second NodePublishVolume, mode by mode.
#[test]
fn a_second_publication_follows_the_table() {
    let bind = Ok(NodePublish::Bind);
    for (mode, second) in [
        (AccessMode::SingleNodeWriter, Err(FailedPrecondition)),
        (AccessMode::SingleNodeReaderOnly, Err(FailedPrecondition)),
        (AccessMode::SingleNodeSingleWriter, Err(FailedPrecondition)),
        (AccessMode::SingleNodeMultiWriter, bind),
        (AccessMode::MultiNodeReaderOnly, bind),
        (AccessMode::MultiNodeSingleWriter, bind),
        (AccessMode::MultiNodeMultiWriter, bind),
    ] {
        let ro = mode.is_read_only();
        for staged in [ext4(mode), block(mode)] {
            for (here, elsewhere, expected) in [
                (None, false, bind),
                (None, true, second),
                (Some(ro), false, Ok(NodePublish::Done)),
                (Some(ro), true, Ok(NodePublish::Done)),
                (Some(!ro), false, Err(AlreadyExists)),
            ] {
                let published = Published { here, elsewhere };
                let got = code(decide(&staged, &staged, ro, published));
                assert_eq!(got, expected, "{mode:?} {published:?}");
            }
        }
    }
}

#[test]
fn another_use_than_staged_is_refused() {
    use AccessMode::*;
    let xfs = Capability {
        access: on(Xfs),
        mode: SingleNodeWriter,
    };
    let with = |flags: &[&str]| flagged(flags, SingleNodeWriter);
    let label = |flag: &str| with(&["noatime", flag]);
    let table = [
        (ext4(SingleNodeWriter), block(SingleNodeWriter), false),
        (block(SingleNodeWriter), ext4(SingleNodeWriter), false),
        (ext4(SingleNodeWriter), xfs, false),
        (ext4(SingleNodeWriter), with(&["noatime"]), true),
        (
            with(&["noatime,context=\"a:c1,c2\""]),
            label("context=\"a:c1,c2\""),
            true,
        ),
        (
            label("context=\"a:c1,c2\""),
            label("context=\"a:c1,c3\""),
            false,
        ),
        (label("context=\"a:c1,c2\""), with(&["noatime"]), false),
        (with(&["noatime"]), label("fscontext=a"), false),
        (ext4(SingleNodeWriter), ext4(SingleNodeMultiWriter), false),
        (
            ext4(SingleNodeSingleWriter),
            ext4(MultiNodeMultiWriter),
            false,
        ),
        (ext4(MultiNodeMultiWriter), ext4(MultiNodeReaderOnly), true),
        (
            ext4(SingleNodeMultiWriter),
            ext4(MultiNodeMultiWriter),
            true,
        ),
    ];
    for (staged, requested, fits) in table {
        let says = |here| {
            let elsewhere = false;
            code(decide(
                &staged,
                &requested,
                false,
                Published { here, elsewhere },
            ))
        };
        let expected = if fits {
            (Ok(NodePublish::Bind), Ok(NodePublish::Done))
        } else {
            (Err(FailedPrecondition), Err(AlreadyExists))
        };
        assert_eq!(
            (says(None), says(Some(false))),
            expected,
            "{staged:?} {requested:?}"
        );
    }
}

#[test]
fn a_new_flag_ro_holds_for_what_is_published_later() {
    let (done, exists) = (Ok(NodePublish::Done), Err(AlreadyExists));
    // flags when it was staged, flags now, readonly → the answer if it is there writable, read-only
    for (staged, requested, readonly, writable, read_only) in [
        ("", "", false, done, exists),
        ("", "", true, exists, done),
        ("", "noatime", false, done, exists),
        ("", "noatime", true, exists, done),
        ("", "ro", false, done, done),
        ("", "ro", true, exists, done),
        ("ro", "", false, exists, done),
        ("ro", "ro", true, exists, done),
    ] {
        let says = |here| {
            let published = Published {
                here: Some(here),
                elsewhere: false,
            };
            let with = |flag| flagged(&[flag], AccessMode::SingleNodeMultiWriter);
            code(decide(&with(staged), &with(requested), readonly, published))
        };
        let what = format!("{staged:?} {requested:?} {readonly}");
        assert_eq!((says(false), says(true)), (writable, read_only), "{what}");
    }
}
