use rstest::rstest;

use super::*;
use crate::controller::tests::bench::{map, pairs};

const THICK: Option<Provisioning> = Some(Provisioning::Thick);
const THIN: Option<Provisioning> = Some(Provisioning::Thin);

fn changes(
    provisioning: Option<Provisioning>,
    discard: Option<bool>,
    direct_io: Option<bool>,
    read_ahead_kib: Option<u32>,
) -> SettingsChange {
    SettingsChange {
        provisioning,
        discard,
        direct_io,
        read_ahead_kib,
        limits: LimitsChange::default(),
    }
}

fn settings(
    provisioning: Option<Provisioning>,
    discard: bool,
    direct_io: bool,
    read_ahead_kib: Option<u32>,
) -> Settings {
    Settings {
        provisioning: provisioning.unwrap_or_default(),
        discard,
        direct_io,
        read_ahead_kib,
    }
}

#[test]
fn classes_are_read() {
    let none = Class::default();
    let pool = |name: &str| Class {
        pool: Some(name.to_owned()),
        ..Class::default()
    };
    let with = |provisioning, discard, direct_io, read_ahead_kib| Class {
        changes: changes(provisioning, discard, direct_io, read_ahead_kib),
        ..Class::default()
    };
    for (text, expected) in [
        ("", none.clone()),
        ("pool=fast", pool("fast")),
        ("kind=fast", pool("fast")),
        ("kind=fast pool=fast", pool("fast")),
        ("csi.storage.k8s.io/pvc/name=x", none),
        ("provisioning=thick", with(THICK, None, None, None)),
        (
            "provisioning=thin discard=false",
            with(THIN, Some(false), None, None),
        ),
        ("directIO=false", with(None, None, Some(false), None)),
        ("readAheadKiB=4096", with(None, None, None, Some(4096))),
        (
            "allowVolumeModeChange=true",
            Class {
                allow_volume_mode_change: true,
                ..Class::default()
            },
        ),
        ("allowVolumeModeChange=false", Class::default()),
        ("reach=node", Class::default()),
        (
            "reach=kernel",
            Class {
                reach: Reach::Kernel,
                ..Class::default()
            },
        ),
        (
            "fault=gone,for=5m",
            Class {
                fault: ClaimFault::parse("gone,for=5m").ok(),
                ..Class::default()
            },
        ),
    ] {
        assert_eq!(
            class(&pairs(text), UnknownKeys::Rejected),
            Ok(expected),
            "{text}"
        );
    }
    let mkfs = class(
        &map(&[("mkfsOptions", "-m 0 -L 'a b'")]),
        UnknownKeys::Rejected,
    )
    .unwrap();
    assert_eq!(mkfs.mkfs_options, ["-m", "0", "-L", "a b"]);
}

#[rstest]
#[case::neither("provisioning=thick", Ok(None))]
#[case::by_pool("pool=fast", Ok(Some("fast")))]
#[case::by_kind("kind=fast", Ok(Some("fast")))]
#[case::by_both("kind=fast pool=fast", Ok(Some("fast")))]
#[case::beside_an_unknown_key("Pool=slow kind=fast", Ok(Some("fast")))]
#[case::no_name("pool=", Err("pool"))]
#[case::no_kind("kind= pool=fast", Err("kind"))]
#[case::two_pools("kind=slow pool=fast", Err("pool"))]
fn a_class_names_its_pool(#[case] text: &str, #[case] expected: Result<Option<&str>, &str>) {
    let parameters = pairs(text);
    let found = pool(&parameters).map_err(|e| e.field);
    assert_eq!(
        found,
        expected.map_err(|key| format!("parameters[{key:?}]"))
    );
}

#[test]
fn an_invalid_class_parameter_is_named() {
    for text in [
        "fstype=ext4",
        "=",
        "Pool=fast",
        "pool=",
        "kind=slow pool=fast",
        "provisioning=",
        "provisioning=Thick",
        "discard=yes",
        "directIO=1",
        "allowVolumeModeChange=True",
        "allowvolumemodechange=true",
        "readAheadKiB=-1",
        "readAheadKiB=+1",
        "readAheadKiB=1048577",
        "readAheadKiB=",
        "mkfsOptions='",
        "reach=",
        "reach=Kernel",
        "fault=",
        "fault=none",
        "fault=gone,for=25h",
        "csi.storage.k8s.io=not-the-prefix",
    ] {
        let refused = class(&pairs(text), UnknownKeys::Rejected).unwrap_err();
        let last = text.split(' ').next_back().unwrap();
        let key = last.split_once('=').unwrap().0;
        assert_eq!(refused.field, format!("parameters[{key:?}]"));
    }
    let long = format!("csi.storage.k8s.io/pvc/name={}", "x".repeat(4097));
    let refused = class(&pairs(&long), UnknownKeys::Rejected).unwrap_err();
    assert_eq!(refused.field, "parameters");
}

#[test]
fn mutable_parameters_are_read() {
    let discard = changes(None, Some(true), None, None);
    let none = SettingsChange::default();
    let table: [(&str, &[&str], Result<SettingsChange, &str>); 9] = [
        ("discard=true", &[], Ok(discard)),
        ("discard=true", &["discard", "other"], Ok(discard)),
        ("csi.storage.k8s.io/pv/name=x", &["discard"], Ok(none)),
        // The administrator lists a name that the driver does not know: it is accepted.
        ("other=x", &["discard", "other"], Ok(none)),
        ("other=x", &[], Err("other")),
        ("pool=fast", &[], Err("pool")),
        ("mkfsOptions=-m", &[], Err("mkfsOptions")),
        ("directIO=true", &["discard"], Err("directIO")),
        ("discard=x", &["discard"], Err("discard")),
    ];
    for (text, accepted, expected) in table {
        let accepted: Vec<String> = accepted.iter().map(|a| a.to_string()).collect();
        let got = mutable(&pairs(text), &accepted).map_err(|e| e.field);
        let expected = expected.map_err(|key| format!("mutable_parameters[{key:?}]"));
        assert_eq!(got, expected, "{text} {accepted:?}");
    }
}

#[test]
fn new_volumes_have_settings() {
    let table = [
        ("", None, Some(settings(THIN, true, true, None))),
        ("", THICK, Some(settings(THICK, false, true, None))),
        (
            "provisioning=thin",
            THICK,
            Some(settings(THIN, true, true, None)),
        ),
        (
            "provisioning=thick",
            None,
            Some(settings(THICK, false, true, None)),
        ),
        (
            "provisioning=thick discard=false",
            None,
            Some(settings(THICK, false, true, None)),
        ),
        ("provisioning=thick discard=true", None, None),
        ("discard=true", THICK, None),
        (
            "discard=false directIO=false readAheadKiB=0",
            None,
            Some(settings(THIN, false, false, Some(0))),
        ),
    ];
    for (text, inherited, expected) in table {
        let changes = mutable(&pairs(text), &[]).unwrap();
        assert_eq!(
            changes.create(inherited).ok(),
            expected,
            "{text} {inherited:?}"
        );
    }
}

#[test]
fn settings_are_modified() {
    let thin = settings(THIN, true, true, Some(64));
    let thick = settings(THICK, false, true, Some(64));
    let table = [
        (&thin, "", Some(thin.clone())),
        (&thin, "provisioning=thick", Some(thick.clone())),
        (&thin, "provisioning=thick discard=true", None),
        (&thick, "discard=true", None),
        (
            &thick,
            "provisioning=thin",
            Some(settings(THIN, false, true, Some(64))),
        ),
        (&thick, "provisioning=thin discard=true", Some(thin.clone())),
        (
            &thin,
            "directIO=false readAheadKiB=128",
            Some(settings(THIN, true, false, Some(128))),
        ),
    ];
    for (now, text, expected) in table {
        let changes = mutable(&pairs(text), &[]).unwrap();
        assert_eq!(changes.modify(now).ok(), expected, "{now:?} {text}");
    }
}

#[test]
fn the_first_changes_win() {
    let first = changes(THICK, None, Some(false), None);
    let second = changes(THIN, Some(false), Some(true), Some(1));
    let both = changes(THICK, Some(false), Some(false), Some(1));
    assert_eq!(first.or(second), both);
}

#[test]
fn maps_are_compared_without_the_keys_of_provisioners() {
    let a = pairs("pool=a csi.storage.k8s.io/pvc/name=x");
    for (other, expected) in [
        ("pool=a csi.storage.k8s.io/pvc/name=y", true),
        ("pool=a", true),
        ("pool=b", false),
        ("", false),
    ] {
        assert_eq!(same(&a, &pairs(other)), expected, "{other}");
    }
}

#[test]
fn parameters_of_snapshots_without_effect_are_few() {
    for (text, expected) in [
        ("csi.storage.k8s.io/volumesnapshot/name=x", Ok(())),
        ("deletionPolicy=Retain", Ok(())),
        ("ignoreFailedRead=true", Ok(())),
        ("ignoreFailedRead=false", Ok(())),
        ("keepDeletedBases=0", Ok(())),
        ("keepDeletedBases=8", Ok(())),
        (
            "keepDeletedBases=9",
            Err(r#"parameters["keepDeletedBases"]"#),
        ),
        (
            "keepDeletedBases=+1",
            Err(r#"parameters["keepDeletedBases"]"#),
        ),
        (
            "keepDeletedBases=",
            Err(r#"parameters["keepDeletedBases"]"#),
        ),
        (
            "ignoreFailedRead=1",
            Err(r#"parameters["ignoreFailedRead"]"#),
        ),
        ("deletionPolicy=Delete a=b", Err(r#"parameters["a"]"#)),
        ("a=b", Err(r#"parameters["a"]"#)),
    ] {
        let got = snapshot(&pairs(text), UnknownKeys::Rejected)
            .map(drop)
            .map_err(|e| e.field);
        assert_eq!(got, expected.map_err(str::to_owned), "{text}");
    }
}

#[rstest]
#[case::unknown("type=pd-standard", Some("type"))]
#[case::known_too("a=b pool=fast z=1", Some("a z"))]
#[case::metadata("csi.storage.k8s.io/pvc/name=x", Some(""))]
#[case::none("", Some(""))]
#[case::invalid_value("type=x provisioning=Thick", None)]
fn unknown_class_parameters_are_ignored_on_request(
    #[case] text: &str,
    #[case] ignored: Option<&str>,
) {
    let read = class(&pairs(text), UnknownKeys::Ignored).ok();
    let found = read.map(|class| class.ignored.join(" "));
    assert_eq!(found.as_deref(), ignored);
}

#[test]
fn unknown_snapshot_parameters_are_ignored_on_request() {
    for (text, expected) in [
        ("a=b", Ok(())),
        ("ignoreFailedRead=true a=b", Ok(())),
        (
            "ignoreFailedRead=maybe",
            Err(r#"parameters["ignoreFailedRead"]"#),
        ),
    ] {
        let got = snapshot(&pairs(text), UnknownKeys::Ignored)
            .map(drop)
            .map_err(|e| e.field);
        assert_eq!(got, expected.map_err(str::to_owned), "{text}");
    }
}

#[rstest]
#[case::absent("", Ok(Consistency::Frozen), true)]
#[case::frozen("consistency=frozen", Ok(Consistency::Frozen), true)]
#[case::powercut("consistency=powercut", Ok(Consistency::Powercut), true)]
#[case::beside_another(
    "consistency=powercut ignoreFailedRead=true",
    Ok(Consistency::Powercut),
    true
)]
#[case::with_bases("keepDeletedBases=2", Ok(Consistency::Frozen), false)]
#[case::empty("consistency=", Err("is neither frozen nor powercut"), false)]
#[case::another_word("consistency=crash", Err("is neither frozen nor powercut"), false)]
#[case::upper_case("consistency=Powercut", Err("is neither frozen nor powercut"), false)]
#[case::another_key("Consistency=powercut", Err("is not a parameter of snapshots"), false)]
fn snapshots_and_groups_are_frozen_or_power_cuts(
    #[case] text: &str,
    #[case] expected: Result<Consistency, &str>,
    #[case] fits_groups: bool,
) {
    let parameters = pairs(text);
    let read = snapshot(&parameters, UnknownKeys::Rejected).map_err(|e| e.why);
    assert_eq!(read, expected.map_err(str::to_owned));
    let of_group = group(&parameters, UnknownKeys::Rejected);
    assert_eq!(of_group.is_ok(), fits_groups, "{of_group:?}");
    assert!(!fits_groups || of_group.ok() == expected.ok());
    let has_effect = |key| [CONSISTENCY, KEEP_DELETED_BASES].contains(&key);
    assert!(ignored(&parameters).all(|(key, _)| !has_effect(key)));
    // `--ignore-unknown-parameters` is for keys: a mistyped value would take another snapshot.
    if parameters.contains_key(CONSISTENCY) {
        let lenient = snapshot(&parameters, UnknownKeys::Ignored);
        assert_eq!(lenient.is_ok(), expected.is_ok());
    }
}
