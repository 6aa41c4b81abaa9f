//! Keys of objects that belong to a namespace, although their names do not contain it.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;

use super::EventKey;
use crate::api::pv;
use crate::cache::Store;
use crate::queue::QueueKey;
use crate::snapshots::content::Content;

/// The name or UID of an object, and the namespace that its work is for. Keys of one name are equal:
/// the namespace may change, or be unknown to the one who adds the key.
#[derive(Clone, Debug)]
pub struct ObjectKey {
    name: Arc<str>,
    namespace: Arc<str>,
}

impl ObjectKey {
    /// The key of this name, and of no namespace if that is not known.
    pub fn new(namespace: Option<&str>, name: &str) -> Self {
        ObjectKey {
            name: name.into(),
            namespace: namespace.unwrap_or_default().into(),
        }
    }

    /// The UID of a claim.
    pub(crate) fn of_claim(claim: &PersistentVolumeClaim) -> Option<Self> {
        let uid = claim.metadata.uid.as_deref()?;
        Some(ObjectKey::new(claim.metadata.namespace.as_deref(), uid))
    }

    /// The name of a volume, which belongs to the namespace of its claim.
    pub(crate) fn of_volume(volume: &PersistentVolume) -> Self {
        let claim = pv::claim(volume);
        ObjectKey::new(
            claim.and_then(|claim| claim.namespace.as_deref()),
            &volume.name_any(),
        )
    }

    /// The name of an attachment, which belongs to the namespace of its volume's claim. Watches of
    /// attachments may read volumes, because no watch of volumes reads attachments.
    pub(crate) fn of_attachment(
        attachment: &VolumeAttachment,
        volumes: &Store<PersistentVolume>,
    ) -> Self {
        let volume = ObjectKey::of_attached_volume(attachment, volumes);
        ObjectKey::new(
            volume.as_ref().map(QueueKey::namespace),
            &attachment.name_any(),
        )
    }

    /// The name of the volume that an attachment names.
    pub(crate) fn of_attached_volume(
        attachment: &VolumeAttachment,
        volumes: &Store<PersistentVolume>,
    ) -> Option<Self> {
        let name = attachment.spec.source.persistent_volume_name.as_deref()?;
        let volume = volumes.get(name);
        Some(volume.map_or_else(
            || ObjectKey::new(None, name),
            |it| ObjectKey::of_volume(&it),
        ))
    }

    /// The name of a content, which belongs to the namespace of its snapshot or group.
    pub(crate) fn of_content(content: &impl Content) -> Self {
        let user = content.view().user;
        ObjectKey::new(user.namespace.as_deref(), &content.name_any())
    }

    /// The name or UID.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl PartialEq for ObjectKey {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for ObjectKey {}

impl Hash for ObjectKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl Borrow<str> for ObjectKey {
    fn borrow(&self) -> &str {
        &self.name
    }
}

impl QueueKey for ObjectKey {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl EventKey for ObjectKey {
    fn text(&self) -> String {
        self.name.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;
    use crate::snapshots::{VolumeGroupSnapshotContent, VolumeSnapshotContent};
    use crate::testing::read;

    #[test]
    fn namespaces_of_objects() {
        let claim = json!({"metadata": {"name": "c", "namespace": "team", "uid": "u"}});
        let volume = |of| {
            let spec = json!({"claimRef": of});
            ObjectKey::of_volume(&read(json!({"metadata": {"name": "v"}, "spec": spec})))
        };
        let content = json!({"metadata": {"name": "s"}, "spec": {
            "driver": "d", "deletionPolicy": "Delete", "source": {},
            "volumeSnapshotRef": {"namespace": "team", "name": "snap"}}});
        let group = json!({"metadata": {"name": "g"}, "spec": {
            "driver": "d", "deletionPolicy": "Delete", "source": {},
            "volumeGroupSnapshotRef": {"namespace": "team", "name": "all"}}});
        for (key, name, namespace) in [
            (
                ObjectKey::of_claim(&read(claim)).expect("a UID"),
                "u",
                "team",
            ),
            (
                volume(json!({"namespace": "team", "name": "c"})),
                "v",
                "team",
            ),
            (volume(json!(null)), "v", ""),
            (
                ObjectKey::of_content(&read::<VolumeSnapshotContent>(content)),
                "s",
                "team",
            ),
            (
                ObjectKey::of_content(&read::<VolumeGroupSnapshotContent>(group)),
                "g",
                "team",
            ),
        ] {
            assert_eq!((key.name(), key.namespace()), (name, namespace));
        }
    }

    #[test]
    fn a_key_is_found_by_its_name() {
        let known = HashSet::from([ObjectKey::new(None, "v")]);
        assert!(known.contains(&ObjectKey::new(Some("team"), "v")));
        assert!(known.contains("v"));
        assert!(!known.contains("team"));
    }
}
