//! The SnapshotMetadataService object. Backup tools find the service there.

use hostloop_api_objects::snapshot_metadata::{
    SnapshotMetadataService, SnapshotMetadataServiceSpec,
};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

/// A write of the object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ObjectStep {
    Keep,
    Create(Box<SnapshotMetadataService>),
    /// A merge patch.
    Update(Value),
}

/// Decides how the object becomes right. An administrator may choose another audience: it
/// is set only when the object is made.
pub(super) fn decide(
    present: Option<&SnapshotMetadataService>,
    driver: &str,
    address: &str,
    authority: &str,
) -> ObjectStep {
    let ca_cert = ByteString(authority.as_bytes().to_vec());
    let Some(present) = present else {
        let spec = SnapshotMetadataServiceSpec {
            address: address.to_owned(),
            audience: driver.to_owned(),
            ca_cert,
        };
        let mut object = SnapshotMetadataService::new(driver, spec);
        let label = ("app.kubernetes.io/name".to_owned(), "hostloop".to_owned());
        object.metadata.labels = Some([label].into());
        return ObjectStep::Create(Box::new(object));
    };
    if present.spec.address == address && present.spec.ca_cert == ca_cert {
        return ObjectStep::Keep;
    }
    ObjectStep::Update(json!({
        "metadata": {"resourceVersion": present.metadata.resource_version},
        "spec": {"address": address, "caCert": ca_cert},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_is_kept_right() {
        let ObjectStep::Create(made) = decide(None, "d", "s:1", "pem") else {
            panic!("it is not made");
        };
        let json = serde_json::to_value(&made).unwrap();
        assert_eq!(
            json["spec"],
            json!({"address": "s:1", "audience": "d", "caCert": "cGVt"})
        );
        assert_eq!(json["metadata"]["name"], "d");
        assert_eq!(
            decide(Some(made.as_ref()), "d", "s:1", "pem"),
            ObjectStep::Keep
        );

        let mut of_a_person = *made;
        of_a_person.spec.audience = "backup".to_owned();
        of_a_person.metadata.resource_version = Some("7".to_owned());
        let step = decide(Some(&of_a_person), "d", "s:1", "pem");
        assert_eq!(step, ObjectStep::Keep);
        for (address, authority, written) in [("s:2", "pem", "cGVt"), ("s:1", "new", "bmV3")] {
            let patch = json!({
                "metadata": {"resourceVersion": "7"},
                "spec": {"address": address, "caCert": written},
            });
            assert_eq!(
                decide(Some(&of_a_person), "d", address, authority),
                ObjectStep::Update(patch)
            );
        }
    }
}
