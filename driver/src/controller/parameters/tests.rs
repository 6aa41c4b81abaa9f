use super::*;

fn map(entries: &[(&str, &str)]) -> Parameters {
    let entry = |(k, v): &(&str, &str)| (k.to_string(), v.to_string());
    entries.iter().map(entry).collect()
}

const THICK: Option<Provisioning> = Some(Provisioning::Thick);
const THIN: Option<Provisioning> = Some(Provisioning::Thin);

fn changes(
    provisioning: Option<Provisioning>,
    discard: Option<bool>,
    direct_io: Option<bool>,
    read_ahead_kib: Option<u32>,
) -> Changes {
    Changes {
        provisioning,
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
    let with = |changes| Class {
        changes,
        ..Class::default()
    };
    let table: [(&[(&str, &str)], Class); 10] = [
        (&[], none.clone()),
        (&[("pool", "fast")], pool("fast")),
        (&[("kind", "fast")], pool("fast")),
        (&[("kind", "fast"), ("pool", "fast")], pool("fast")),
        (&[("csi.storage.k8s.io/pvc/name", "x")], none),
        (
            &[("provisioning", "thick")],
            with(changes(THICK, None, None, None)),
        ),
        (
            &[("provisioning", "thin"), ("discard", "false")],
            with(changes(THIN, Some(false), None, None)),
        ),
        (
            &[("directIO", "false")],
            with(changes(None, None, Some(false), None)),
        ),
        (
            &[("readAheadKiB", "4096")],
            with(changes(None, None, None, Some(4096))),
        ),
        (
            &[("mkfsOptions", "-m 0 -L 'a b'")],
            Class {
                mkfs_options: ["-m", "0", "-L", "a b"].map(str::to_owned).to_vec(),
                ..Class::default()
            },
        ),
    ];
    for (entries, expected) in table {
        assert_eq!(class(&map(entries)), Ok(expected), "{entries:?}");
    }
}

#[test]
fn what_a_class_may_not_say_is_named() {
    let table: [&[(&str, &str)]; 15] = [
        &[("fstype", "ext4")],
        &[("", "")],
        &[("Pool", "fast")],
        &[("pool", "")],
        &[("kind", "slow"), ("pool", "fast")],
        &[("provisioning", "")],
        &[("provisioning", "Thick")],
        &[("discard", "yes")],
        &[("directIO", "1")],
        &[("readAheadKiB", "-1")],
        &[("readAheadKiB", "+1")],
        &[("readAheadKiB", "1048577")],
        &[("readAheadKiB", "")],
        &[("mkfsOptions", "-L '")],
        &[("csi.storage.k8s.io", "not the prefix")],
    ];
    for entries in table {
        let refused = class(&map(entries)).unwrap_err();
        let key = entries.last().unwrap().0;
        assert_eq!(refused.field, format!("parameters[{key:?}]"));
    }
    let long = "x".repeat(4097);
    let refused = class(&map(&[("csi.storage.k8s.io/pvc/name", &long)])).unwrap_err();
    assert_eq!(refused.field, "parameters");
}

#[test]
fn mutable_parameters_are_read() {
    let of = |entries: &[(&str, &str)], accepted: &[&str]| {
        let accepted: Vec<String> = accepted.iter().map(|a| a.to_string()).collect();
        mutable(&map(entries), &accepted)
    };
    let discard = changes(None, Some(true), None, None);
    assert_eq!(of(&[("discard", "true")], &[]), Ok(discard));
    assert_eq!(
        of(&[("discard", "true")], &["discard", "other"]),
        Ok(discard)
    );
    assert_eq!(
        of(&[("csi.storage.k8s.io/pv/name", "x")], &["discard"]),
        Ok(Changes::default())
    );
    // The administrator lists a name that the driver does not know: it is accepted.
    assert_eq!(
        of(&[("other", "x")], &["discard", "other"]),
        Ok(Changes::default())
    );
    for (entries, accepted) in [
        (&[("other", "x")][..], &[][..]),
        (&[("pool", "fast")], &[]),
        (&[("mkfsOptions", "-m 0")], &[]),
        (&[("directIO", "true")], &["discard"]),
        (&[("discard", "x")], &["discard"]),
    ] {
        let refused = of(entries, accepted).unwrap_err();
        assert_eq!(
            refused.field,
            format!("mutable_parameters[{:?}]", entries[0].0)
        );
    }
}

#[test]
fn new_volumes_have_settings() {
    let settings =
        |provisioning: Option<Provisioning>, discard, direct_io, read_ahead_kib| Settings {
            provisioning: provisioning.unwrap_or_default(),
            discard,
            direct_io,
            read_ahead_kib,
        };
    let table = [
        (
            changes(None, None, None, None),
            None,
            Some(settings(THIN, true, true, None)),
        ),
        (
            changes(None, None, None, None),
            THICK,
            Some(settings(THICK, false, true, None)),
        ),
        (
            changes(THIN, None, None, None),
            THICK,
            Some(settings(THIN, true, true, None)),
        ),
        (
            changes(THICK, None, None, None),
            None,
            Some(settings(THICK, false, true, None)),
        ),
        (
            changes(THICK, Some(false), None, None),
            None,
            Some(settings(THICK, false, true, None)),
        ),
        (changes(THICK, Some(true), None, None), None, None),
        (changes(None, Some(true), None, None), THICK, None),
        (
            changes(None, Some(false), Some(false), Some(0)),
            None,
            Some(settings(THIN, false, false, Some(0))),
        ),
    ];
    for (changes, inherited, expected) in table {
        assert_eq!(
            changes.create(inherited).ok(),
            expected,
            "{changes:?} {inherited:?}"
        );
    }
}

#[test]
fn settings_are_modified() {
    let thin = Settings {
        provisioning: Provisioning::Thin,
        discard: true,
        direct_io: true,
        read_ahead_kib: Some(64),
    };
    let thick = Settings {
        provisioning: Provisioning::Thick,
        discard: false,
        ..thin.clone()
    };
    let table = [
        (&thin, changes(None, None, None, None), Some(thin.clone())),
        (&thin, changes(THICK, None, None, None), Some(thick.clone())),
        (&thin, changes(THICK, Some(true), None, None), None),
        (&thick, changes(None, Some(true), None, None), None),
        (
            &thick,
            changes(THIN, None, None, None),
            Some(Settings {
                discard: false,
                ..thin.clone()
            }),
        ),
        (
            &thick,
            changes(THIN, Some(true), None, None),
            Some(thin.clone()),
        ),
        (
            &thin,
            changes(None, None, Some(false), Some(128)),
            Some(Settings {
                direct_io: false,
                read_ahead_kib: Some(128),
                ..thin.clone()
            }),
        ),
    ];
    for (now, changes, expected) in table {
        assert_eq!(changes.modify(now).ok(), expected, "{now:?} {changes:?}");
    }
}

#[test]
fn what_comes_first_wins() {
    let first = changes(THICK, None, Some(false), None);
    let second = changes(THIN, Some(false), Some(true), Some(1));
    assert_eq!(
        first.or(second),
        changes(THICK, Some(false), Some(false), Some(1))
    );
}

#[test]
fn maps_are_compared_without_what_provisioners_add() {
    let a = map(&[("pool", "a"), ("csi.storage.k8s.io/pvc/name", "x")]);
    let b = map(&[("pool", "a"), ("csi.storage.k8s.io/pvc/name", "y")]);
    assert!(same(&a, &b));
    assert!(same(&a, &map(&[("pool", "a")])));
    assert!(!same(&a, &map(&[("pool", "b")])));
    assert!(!same(&a, &map(&[])));
}

#[test]
fn snapshots_have_no_parameters() {
    assert_eq!(
        none(&map(&[("csi.storage.k8s.io/volumesnapshot/name", "x")])),
        Ok(())
    );
    assert_eq!(none(&map(&[("deletionPolicy", "Retain")])), Ok(()));
    assert!(none(&map(&[("deletionPolicy", "Delete"), ("a", "b")])).is_err());
    assert!(
        none(&map(&[("a", "b")]))
            .unwrap_err()
            .field
            .contains("\"a\"")
    );
}
