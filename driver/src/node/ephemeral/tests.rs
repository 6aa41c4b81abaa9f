use super::*;

use crate::testkit::{MI, mounted};

#[test]
fn inline_volumes_are_thin() {
    let new = new_volume("csi-x", &Parameters::new(), &mounted(), MI).unwrap();
    assert_eq!(new.settings.provisioning, storage::Provisioning::Thin);
    assert_eq!(new.inline.as_deref(), Some("csi-x"));
    assert_eq!((new.mkfs_options.len(), new.parameters.len()), (0, 0));
}

/// All else in the context is of the pod's author, or secret.
#[test]
fn the_record_has_the_namespace_of_the_pod_and_nothing_else_of_the_context() {
    let context = [
        (POD_NAMESPACE, "a"),
        ("csi.storage.k8s.io/pvc/namespace", "b"),
        ("csi.storage.k8s.io/serviceAccount.tokens", "{}"),
        ("size", "1Mi"),
    ];
    let context = context.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let new = new_volume("csi-x", &Parameters::from(context), &mounted(), MI).unwrap();
    let expected = Parameters::from([(POD_NAMESPACE.to_owned(), "a".to_owned())]);
    assert_eq!(new.parameters, expected);
    assert_eq!(namespace_of(&new.parameters), "a");
}
