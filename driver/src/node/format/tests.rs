use super::*;

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

#[derive(Debug, PartialEq)]
enum Says {
    Keep,
    Make,
    Force,
    Refuses,
    DataLoss,
}

fn says(format: Format, found: &Probe, asked: FsType) -> Says {
    match decide(format, found, asked) {
        Ok(FormatStep::Keep) => Says::Keep,
        Ok(FormatStep::Make { force: false }) => Says::Make,
        Ok(FormatStep::Make { force: true }) => Says::Force,
        Err(Error::FailedPrecondition(_)) => Says::Refuses,
        Err(Error::DataLoss(_)) => Says::DataLoss,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn formats_only_what_is_known_to_be_blank_or_ours() {
    use Format as F;
    use FsType::{Ext4, Xfs};
    let other = Probe::Other("LVM2_member".to_owned());
    let table = [
        (F::None, Probe::Blank, Ext4, Says::Make),
        (F::None, unknown(), Ext4, Says::Refuses),
        (F::None, unfinished(), Xfs, Says::Refuses),
        (F::Formatting(Ext4), unknown(), Ext4, Says::Force),
        (F::Formatting(Xfs), unfinished(), Xfs, Says::Force),
        (F::Done(Xfs), unknown(), Xfs, Says::DataLoss),
        (F::Done(Xfs), unfinished(), Xfs, Says::DataLoss),
        (F::Raw, unknown(), Ext4, Says::Refuses),
        (F::Raw, unfinished(), Xfs, Says::Refuses),
        (F::None, fs(Ext4), Ext4, Says::Refuses),
        (F::None, fs(Xfs), Ext4, Says::Refuses),
        (F::None, other.clone(), Ext4, Says::Refuses),
        (F::None, Probe::Ambivalent, Ext4, Says::Refuses),
        (F::Formatting(Ext4), Probe::Blank, Ext4, Says::Force),
        (F::Formatting(Ext4), fs(Ext4), Ext4, Says::Force),
        (F::Formatting(Ext4), fs(Ext4), Xfs, Says::Force),
        (F::Formatting(Xfs), Probe::Ambivalent, Ext4, Says::Force),
        (F::Formatting(Xfs), other.clone(), Xfs, Says::Force),
        (F::Done(Ext4), Probe::Blank, Ext4, Says::DataLoss),
        (F::Done(Ext4), Probe::Blank, Xfs, Says::DataLoss),
        (F::Done(Ext4), fs(Ext4), Ext4, Says::Keep),
        (F::Done(Ext4), fs(Ext4), Xfs, Says::Refuses),
        (F::Done(Ext4), fs(Xfs), Xfs, Says::Refuses),
        (F::Done(Ext4), fs(Xfs), Ext4, Says::Refuses),
        (F::Done(Ext4), other.clone(), Ext4, Says::Refuses),
        (F::Done(Ext4), Probe::Ambivalent, Ext4, Says::Refuses),
        (F::Raw, Probe::Blank, Ext4, Says::Refuses),
        (F::Raw, fs(Ext4), Ext4, Says::Keep),
        (F::Raw, fs(Xfs), Ext4, Says::Refuses),
        (F::Raw, other, Ext4, Says::Refuses),
        (F::Raw, Probe::Ambivalent, Ext4, Says::Refuses),
    ];
    for (format, found, asked, expected) in table {
        let got = says(format, &found, asked);
        assert_eq!(got, expected, "{format:?}, {found:?}, asked for {asked}");
    }
}

#[test]
fn a_refusal_names_what_is_there_and_what_was_asked_for() {
    let error = decide(Format::Done(FsType::Xfs), &fs(FsType::Xfs), FsType::Ext4)
        .expect_err("another filesystem is refused")
        .to_string();
    assert!(error.contains("xfs") && error.contains("ext4"), "{error}");
}
