use std::result::Result;

use tonic::Code;

use super::*;
use crate::testkit::code;

fn fs(fs: FsType) -> Probe {
    Probe::Filesystem {
        fs,
        uuid: String::new(),
    }
}

fn unknown() -> Probe {
    Probe::Unknown { offset: 0 }
}

fn unfinished() -> Probe {
    Probe::Unfinished {
        fs: FsType::Xfs,
        uuid: String::new(),
    }
}

const KEEP: Result<FormatStep, Code> = Ok(FormatStep::Keep);
const MAKE: Result<FormatStep, Code> = Ok(FormatStep::Make { force: false });
const FORCE: Result<FormatStep, Code> = Ok(FormatStep::Make { force: true });
const REFUSE: Result<FormatStep, Code> = Err(Code::FailedPrecondition);
const LOST: Result<FormatStep, Code> = Err(Code::DataLoss);

#[test]
fn formats_only_what_is_known_to_be_blank_or_ours() {
    use Format as F;
    use FsType::{Ext4, Xfs};
    let other = Probe::Other("LVM2_member".to_owned());
    let table = [
        (F::None, Probe::Blank, Ext4, MAKE),
        (F::None, unknown(), Ext4, REFUSE),
        (F::None, unfinished(), Xfs, REFUSE),
        (F::Formatting(Ext4), unknown(), Ext4, FORCE),
        (F::Formatting(Xfs), unfinished(), Xfs, FORCE),
        (F::Done(Xfs), unknown(), Xfs, LOST),
        (F::Done(Xfs), unfinished(), Xfs, LOST),
        (F::Raw, unknown(), Ext4, REFUSE),
        (F::Raw, unfinished(), Xfs, REFUSE),
        (F::None, fs(Ext4), Ext4, REFUSE),
        (F::None, fs(Xfs), Ext4, REFUSE),
        (F::None, other.clone(), Ext4, REFUSE),
        (F::None, Probe::Ambivalent, Ext4, REFUSE),
        (F::Formatting(Ext4), Probe::Blank, Ext4, FORCE),
        (F::Formatting(Ext4), fs(Ext4), Ext4, FORCE),
        (F::Formatting(Ext4), fs(Ext4), Xfs, FORCE),
        (F::Formatting(Xfs), Probe::Ambivalent, Ext4, FORCE),
        (F::Formatting(Xfs), other.clone(), Xfs, FORCE),
        (F::Done(Ext4), Probe::Blank, Ext4, LOST),
        (F::Done(Ext4), Probe::Blank, Xfs, LOST),
        (F::Done(Ext4), fs(Ext4), Ext4, KEEP),
        (F::Done(Ext4), fs(Ext4), Xfs, REFUSE),
        (F::Done(Ext4), fs(Xfs), Xfs, REFUSE),
        (F::Done(Ext4), fs(Xfs), Ext4, REFUSE),
        (F::Done(Ext4), other.clone(), Ext4, REFUSE),
        (F::Done(Ext4), Probe::Ambivalent, Ext4, REFUSE),
        (F::Raw, Probe::Blank, Ext4, REFUSE),
        (F::Raw, fs(Ext4), Ext4, KEEP),
        (F::Raw, fs(Xfs), Ext4, REFUSE),
        (F::Raw, other, Ext4, REFUSE),
        (F::Raw, Probe::Ambivalent, Ext4, REFUSE),
    ];
    for (format, found, requested, expected) in table {
        let got = code(decide(format, &found, requested));
        assert_eq!(
            got, expected,
            "{format:?}, {found:?}, asked for {requested}"
        );
    }
}

#[test]
fn a_refusal_names_what_is_there_and_what_was_asked_for() {
    let error = decide(Format::Done(FsType::Xfs), &fs(FsType::Xfs), FsType::Ext4)
        .expect_err("another filesystem is refused")
        .to_string();
    assert!(error.contains("xfs") && error.contains("ext4"), "{error}");
}
