//! Node labels of PersistentVolumes, VolumeAttachments and VolumeSnapshotContents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use tokio::time::Instant;

use super::Labelling;
use crate::api::pv;
use crate::api::scope::{MANAGED_BY, NODE_LABEL, node_label};
use crate::cache::Store;
use crate::placement::placement_context::is_labelled;
use crate::placement::source_location::SourceLocation;
use crate::queue::Outcome;
use crate::snapshots::content::{Content, SINGLE};
use crate::snapshotter::status_of_failure;

/// How long a content may have no known node before it is reported.
const PATIENCE: Duration = Duration::from_secs(60);

/// A content on which no node works.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unlocated {
    /// Since when this is known.
    Since(Instant),
    Reported,
}

/// The node to label a volume with: the one node it is on. `None` if the label is right already.
fn of_volume(volume: &PersistentVolume, driver: &str, node: Option<&str>) -> Option<String> {
    let node = node?;
    pv::handle(volume, driver)?;
    (!is_labelled(volume.labels(), node)).then(|| node.to_owned())
}

/// The node to label an attachment with: the one that has its volume, if that is shared and `owner` is
/// known, or else its own. `None` if the label is right already.
fn of_attachment(
    attachment: &VolumeAttachment,
    driver: &str,
    owner: Option<String>,
) -> Option<String> {
    let spec = &attachment.spec;
    let node = owner.unwrap_or_else(|| spec.node_name.clone());
    let is_right = is_labelled(attachment.labels(), &node);
    (spec.attacher == driver && !is_right).then_some(node)
}

/// True if an attachment may lack its label, as far as it shows itself. Only its volume shows whether
/// it is to have its own node's.
pub(super) fn may_lack_label(attachment: &VolumeAttachment, driver: &str) -> bool {
    of_attachment(attachment, driver, None).is_some()
}

/// The `managed-by` label for a content on one node. `None` if the content has any.
pub(super) fn of_content(
    labels: &BTreeMap<String, String>,
    location: &SourceLocation,
) -> Option<String> {
    let node = location.node()?;
    (!labels.contains_key(MANAGED_BY)).then(|| node_label(node))
}

impl Labelling {
    /// Labels a PersistentVolume, by its name.
    pub(in crate::placement) async fn volume_label(&self, name: &str) -> Outcome {
        let watch = self.shared.context.caches.volumes();
        let Some(volume) = watch.get(name) else {
            return Outcome::Done;
        };
        match self.is_deleted_as_foreign(&volume).await {
            Ok(true) => return Outcome::Done,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(volume = name, %error, "cannot delete a foreign claim's volume");
                return Outcome::Failed;
            }
        }
        let driver = &self.shared.context.driver.name;
        let node = self.shared.volume_node(&volume);
        match of_volume(&volume, driver, node.as_deref()) {
            None => Outcome::Done,
            Some(node) => {
                let value = node_label(&node);
                self.shared
                    .label(&watch, &*volume, NODE_LABEL, &value)
                    .await
            }
        }
    }

    /// The volume of an attachment, if all nodes of a kernel can use it.
    pub(super) fn shared_volume_of(
        &self,
        attachment: &VolumeAttachment,
    ) -> Option<Arc<PersistentVolume>> {
        let name = attachment.spec.source.persistent_volume_name.as_deref()?;
        self.shared_volumes.first(name)
    }

    /// True if an attachment names a volume that does not exist.
    fn has_lost_volume(&self, attachment: &VolumeAttachment) -> bool {
        let volumes = self.shared.context.caches.volumes();
        let name = attachment.spec.source.persistent_volume_name.as_deref();
        name.is_some_and(|name| volumes.get(name).is_none())
    }

    /// Labels a VolumeAttachment, by its name.
    pub(in crate::placement) async fn attachment_label(&self, name: &str) -> Outcome {
        let watch = self.shared.context.caches.attachments();
        let Some(attachment) = watch.get(name) else {
            return Outcome::Done;
        };
        // It is that of the node with the volume, if that was a shared one.
        if attachment.labels().contains_key(NODE_LABEL) && self.has_lost_volume(&attachment) {
            return Outcome::Done;
        }
        let driver = &self.shared.context.driver.name;
        let owner = match self.shared_volume_of(&attachment) {
            None => None,
            Some(volume) => {
                let Some(owner) = self.shared.volume_node(&volume) else {
                    // It may be known later, and no other node can attach the volume.
                    return Outcome::Done;
                };
                Some(owner)
            }
        };
        match of_attachment(&attachment, driver, owner) {
            None => Outcome::Done,
            Some(node) => {
                let value = node_label(&node);
                self.shared
                    .label(&watch, &*attachment, NODE_LABEL, &value)
                    .await
            }
        }
    }

    /// Labels a VolumeSnapshotContent, by its name.
    pub(in crate::placement) async fn content_label(&self, name: &str) -> Outcome {
        let watch = self.shared.context.caches.contents();
        let Some(content) = watch.get(name) else {
            self.unlocated
                .lock()
                .remove(&(SINGLE.word, name.to_owned()));
            return Outcome::Done;
        };
        if content.spec.driver != self.shared.context.driver.name {
            return Outcome::Done;
        }
        let location = self.shared.content_location(&content);
        match of_content(content.labels(), &location) {
            Some(label) => {
                self.shared
                    .label(&watch, &*content, MANAGED_BY, &label)
                    .await
            }
            None => self.report_unlocated(&watch, &content, &location).await,
        }
    }

    /// Reports once that no node works on a content, and why, after a while: its node may have just
    /// started, and its volume may have just been bound.
    pub(super) async fn report_unlocated<K: Content>(
        &self,
        watch: &Store<K>,
        content: &K,
        location: &SourceLocation,
    ) -> Outcome {
        let key = (K::KEYS.word, content.name_any());
        let view = content.view();
        let waits = content.is_deleting() || !view.is_ready();
        let why = match location {
            SourceLocation::Gone(why) | SourceLocation::Unknown(why) if waits => why,
            _ => {
                self.unlocated.lock().remove(&key);
                return Outcome::Done;
            }
        };
        let now = Instant::now();
        let known = *self
            .unlocated
            .lock()
            .entry(key.clone())
            .or_insert(Unlocated::Since(now));
        match known {
            Unlocated::Reported if view.is_ready() || view.error.is_some() => {
                return Outcome::Done;
            }
            // The API server went back to a backup from before the report.
            Unlocated::Reported => {}
            Unlocated::Since(since) => {
                let left = PATIENCE.saturating_sub(now.saturating_duration_since(since));
                if !left.is_zero() {
                    return Outcome::RequeueAfter(left);
                }
            }
        }
        let message = format!("no node works on this content: {why}");
        // The status of a snapshot that is ready tells what becomes of it if the node comes back.
        let outcome = if view.is_ready() || view.error.is_some() {
            self.shared
                .context
                .events
                .warning(content, K::KEYS.failed, message);
            Outcome::Done
        } else {
            self.report(watch, content, message).await
        };
        if outcome == Outcome::Done {
            self.unlocated.lock().insert(key, Unlocated::Reported);
        }
        outcome
    }

    /// Writes an error to a content's status, and emits an event if the error is new.
    pub(super) async fn report<K: Content>(
        &self,
        watch: &Store<K>,
        content: &K,
        message: String,
    ) -> Outcome {
        let Some(status) = status_of_failure(content.view().error, &message, Timestamp::now())
        else {
            return Outcome::Done;
        };
        if !self.shared.context.leader.leads() {
            return Outcome::Done;
        }
        match self
            .shared
            .kube
            .merge_status_unchanged(content, status)
            .await
        {
            Ok(written) => {
                self.shared
                    .context
                    .events
                    .warning(content, K::KEYS.failed, message);
                watch.apply_write(written);
                Outcome::Done
            }
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => {
                let name = content.name_any();
                tracing::warn!(content = name, %error, "cannot write a content's status");
                Outcome::Failed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn volumes_that_lack_their_label() {
        let volume = |driver: &str, label: Value| -> PersistentVolume {
            crate::testing::read(json!({
                "metadata": {"name": "v", "labels": {NODE_LABEL: label}},
                "spec": {"csi": {"driver": driver, "volumeHandle": "h"}},
            }))
        };
        let long = "n".repeat(80);
        for (what, driver, label, node, expected) in [
            ("none", "d", Value::Null, Some("n1"), Some("n1")),
            ("wrong", "d", json!("n2"), Some("n1"), Some("n1")),
            ("right", "d", json!("n1"), Some("n1"), None),
            ("nowhere", "d", Value::Null, None, None),
            ("kept", "d", json!("n2"), None, None),
            ("another's", "e", Value::Null, Some("n1"), None),
            ("long", "d", json!(node_label(&long)), Some(&long), None),
        ] {
            let label = match label {
                Value::Null => json!(""),
                label => label,
            };
            let found = of_volume(&volume(driver, label), "d", node);
            assert_eq!(found.as_deref(), expected, "{what}");
        }
    }

    #[test]
    fn contents_nobody_manages() {
        let labels = |node: &str| BTreeMap::from([(MANAGED_BY.to_owned(), node.to_owned())]);
        let on = |node: &str| SourceLocation::Node(node.to_owned());
        let none = BTreeMap::new();
        let long = "n".repeat(80);
        let hashed = node_label(&long);
        for (labels, location, expected) in [
            (none.clone(), on("n1"), Some("n1")),
            (labels("n1"), on("n1"), None),
            (labels("n2"), on("n1"), None),
            (none.clone(), SourceLocation::Anywhere, None),
            (none.clone(), SourceLocation::Unknown(String::new()), None),
            (none.clone(), on(&long), Some(hashed.as_str())),
        ] {
            assert_eq!(
                of_content(&labels, &location).as_deref(),
                expected,
                "{location:?}"
            );
        }
    }
}
