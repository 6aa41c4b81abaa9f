use super::*;

use crate::testkit::{MI, code, map, mounted};

#[test]
fn size_pool_and_what_kubelet_adds_are_attributes() {
    let read = attributes(&map(&[
        ("size", "64Mi"),
        ("pool", "scratch"),
        ("csi.storage.k8s.io/pod.name", "p"),
        ("csi.storage.k8s.io/ephemeral", "true"),
        ("csi.storage.k8s.io/serviceAccount.tokens", "{}"),
    ]));
    let expected = Attributes {
        size: Some(64 * MI),
        pool: Some("scratch".to_owned()),
    };
    assert_eq!(read, Ok(expected));
    assert_eq!(attributes(&map(&[])), Ok(Attributes::default()));
}

#[test]
fn nothing_else_is_an_attribute() {
    let table = [
        ("size", "much"),
        ("size", "-1"),
        ("size", "-0.5"),
        ("size", "500m"),
        ("size", "1e-3"),
        ("size", "8Ei"),
        ("size", ""),
        ("sise", "1Gi"),
        ("Size", "1Gi"),
        ("mkfsOptions", "-d etc"),
        ("mkfsOptions", ""),
        ("mountOptions", "suid"),
        ("provisioning", "thick"),
        ("provisioning", "thin"),
        ("discard", "true"),
        ("directIO", "false"),
        ("readAheadKiB", "4096"),
        ("kind", "default"),
        ("fsType", "ext4"),
        ("csi.storage.k8s.io", "not the prefix"),
        ("", ""),
    ];
    for (key, value) in table {
        let refused = attributes(&map(&[("size", "1Gi"), (key, value)])).unwrap_err();
        assert_eq!(refused.field, format!("volume_context[{key:?}]"), "{value}");
    }
}

#[test]
fn only_a_pool_that_is_open_is_chosen() {
    let open = ["first", "second"].map(str::to_owned);
    assert_eq!(choose(&open, None), Ok("first"));
    assert_eq!(choose(&open, Some("second")), Ok("second"));
    for requested in ["third", "", "First"] {
        let refused = choose(&open, Some(requested)).unwrap_err();
        assert_eq!(refused.field, "volume_context[\"pool\"]");
        assert!(refused.why.ends_with("first, second"), "{refused}");
    }
}

#[test]
fn the_size_is_what_is_asked_for_within_the_limits() {
    let limits = |size| InlineLimits {
        size,
        ..InlineLimits::default()
    };
    let table = [
        (None, FsType::Ext4, 1024 * MI, Some(1024 * MI)),
        (None, FsType::Ext4, 64 * MI, Some(64 * MI)),
        (None, FsType::Ext4, 4096 * MI, Some(1024 * MI)),
        (Some(64 * MI), FsType::Ext4, 64 * MI, Some(64 * MI)),
        (Some(64 * MI + 1), FsType::Ext4, 64 * MI, None),
        (Some(MI + 1), FsType::Ext4, 64 * MI, Some(MI + 4096)),
        (Some(5000), FsType::Ext4, 64 * MI, Some(MI)),
        // The filesystem's minimum applies.
        (Some(64 * MI), FsType::Xfs, 300 * MI, Some(300 * MI)),
        (Some(64 * MI), FsType::Xfs, 299 * MI, None),
        (None, FsType::Xfs, 64 * MI, None),
    ];
    for (requested, fs, most, expected) in table {
        let got = code(size(requested, fs, &limits(most)));
        let expected = expected.ok_or(tonic::Code::OutOfRange);
        assert_eq!(got, expected, "{requested:?} {fs} {most}");
    }
    refused!(
        size(Some(u64::MAX), FsType::Ext4, &limits(u64::MAX)),
        Error::Invalid(_)
    );
}

#[test]
fn inline_volumes_are_thin() {
    let new = new_volume("csi-x", &mounted(), MI).unwrap();
    assert_eq!(new.settings.provisioning, storage::Provisioning::Thin);
    assert_eq!(new.inline.as_deref(), Some("csi-x"));
    assert_eq!((new.mkfs_options.len(), new.parameters.len()), (0, 0));
}
