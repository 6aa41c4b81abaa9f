use super::*;
use crate::kernel::FsType;
use crate::storage::{Access, AccessMode};

fn mount(fs: FsType, flags: &[&str], mode: AccessMode) -> Capability {
    let flags = flags.iter().map(|f| (*f).to_owned()).collect();
    Capability {
        access: Access::Mount {
            fs,
            flags,
            group: None,
        },
        mode,
    }
}

fn block(mode: AccessMode) -> Capability {
    Capability {
        access: Access::Block,
        mode,
    }
}

#[derive(Debug, PartialEq)]
enum Says {
    Bind,
    Done,
    AlreadyExists,
    FailedPrecondition,
}

fn says(staged: &Capability, asked: &Capability, ro: bool, published: Published) -> Says {
    match decide(staged, asked, ro, published) {
        Ok(Publish::Bind) => Says::Bind,
        Ok(Publish::Done) => Says::Done,
        Err(Error::AlreadyExists(_)) => Says::AlreadyExists,
        Err(Error::FailedPrecondition(_)) => Says::FailedPrecondition,
        Err(other) => panic!("{other}"),
    }
}

const MODES: [AccessMode; 7] = [
    AccessMode::SingleNodeWriter,
    AccessMode::SingleNodeReaderOnly,
    AccessMode::MultiNodeReaderOnly,
    AccessMode::MultiNodeSingleWriter,
    AccessMode::MultiNodeMultiWriter,
    AccessMode::SingleNodeSingleWriter,
    AccessMode::SingleNodeMultiWriter,
];

/// The specification's table for a second NodePublishVolume, mode by mode.
#[test]
fn a_second_publication_follows_the_table() {
    for mode in MODES {
        for staged in [mount(FsType::Ext4, &[], mode), block(mode)] {
            let ro = mode.is_read_only();
            let same = |here, elsewhere| says(&staged, &staged, ro, Published { here, elsewhere });
            assert_eq!(same(None, false), Says::Bind, "{mode:?}");
            assert_eq!(same(Some(ro), false), Says::Done, "{mode:?}");
            assert_eq!(same(Some(ro), true), Says::Done, "{mode:?}");
            assert_eq!(same(Some(!ro), false), Says::AlreadyExists, "{mode:?}");
            let second = match mode {
                AccessMode::SingleNodeWriter
                | AccessMode::SingleNodeSingleWriter
                | AccessMode::SingleNodeReaderOnly => Says::FailedPrecondition,
                _ => Says::Bind,
            };
            assert_eq!(same(None, true), second, "{mode:?}");
        }
    }
}

#[test]
fn another_use_than_staged_is_refused() {
    use AccessMode::*;
    let ext4 = |mode| mount(FsType::Ext4, &[], mode);
    let table = [
        (ext4(SingleNodeWriter), block(SingleNodeWriter), false),
        (block(SingleNodeWriter), ext4(SingleNodeWriter), false),
        (
            ext4(SingleNodeWriter),
            mount(FsType::Xfs, &[], SingleNodeWriter),
            false,
        ),
        (
            ext4(SingleNodeWriter),
            mount(FsType::Ext4, &["noatime"], SingleNodeWriter),
            false,
        ),
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
    for (staged, asked, fits) in table {
        let new = says(&staged, &asked, false, Published::default());
        let again = says(
            &staged,
            &asked,
            false,
            Published {
                here: Some(false),
                elsewhere: false,
            },
        );
        let expected = match fits {
            true => (Says::Bind, Says::Done),
            false => (Says::FailedPrecondition, Says::AlreadyExists),
        };
        assert_eq!((new, again), expected, "{staged:?} {asked:?}");
    }
}
