use super::*;

use crate::testkit::{MI, mounted};

#[test]
fn inline_volumes_are_thin() {
    let new = new_volume("csi-x", &mounted(), MI).unwrap();
    assert_eq!(new.settings.provisioning, storage::Provisioning::Thin);
    assert_eq!(new.inline.as_deref(), Some("csi-x"));
    assert_eq!((new.mkfs_options.len(), new.parameters.len()), (0, 0));
}
