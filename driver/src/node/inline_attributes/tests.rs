use super::*;

use crate::testkit::{MI, map};

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
    assert_eq!(choose_pool(&open, None), Ok("first"));
    assert_eq!(choose_pool(&open, Some("second")), Ok("second"));
    for requested in ["third", "", "First"] {
        let refused = choose_pool(&open, Some(requested)).unwrap_err();
        assert_eq!(refused.field, "volume_context[\"pool\"]");
        assert!(refused.why.ends_with("first, second"), "{refused}");
    }
}
