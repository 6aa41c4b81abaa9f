//! Takes the steps of a pass: writes capacity objects, and reports refused classes.

use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use super::decide::{Marks, Step};
use super::pass::Pass;
use crate::client::{ApiError, EventKind, unless_gone};
use crate::csi::Failure;

/// The reason of the event for a class with parameters that the driver refuses.
const REFUSED: &str = "CapacityUnknown";

impl Pass {
    /// Takes a step.
    pub(super) async fn apply(&self, step: Step, marks: &Marks) -> Result<(), ApiError> {
        match step {
            Step::Create(item, room) => {
                let object = self.writer.object(&item, room, &self.namespace, marks);
                let made = self.kube.create(&object).await?;
                self.objects.apply_write(made);
            }
            Step::Update(object, room) => {
                let patch = marks.patch(&object, room);
                // The watch reports a deletion, which queues another pass.
                let written = unless_gone(self.kube.merge(object.as_ref(), patch).await)?;
                written
                    .into_iter()
                    .for_each(|written| self.objects.apply_write(written));
            }
            Step::Delete(object) => self.kube.delete(object.as_ref()).await?,
        }
        Ok(())
    }

    /// Emits one event for all nodes about a class that the driver refuses. Otherwise pods would
    /// only report that no node has room.
    pub(super) fn complain(&self, class: &StorageClass, failure: &Failure) {
        let uid = class.uid().unwrap_or_default();
        let message = failure.status.message().to_owned();
        let mut refused = self.refused.lock();
        if refused.get(&uid) == Some(&message) {
            return;
        }
        tracing::warn!(
            class = %class.name_any(), %failure,
            "the driver refuses the parameters of a class"
        );
        let said = format!(
            "the CSI driver refuses the parameters of this StorageClass, so there is no room for \
             its volumes anywhere: {message}"
        );
        self.context
            .events
            .once(class, EventKind::Warning, REFUSED, said);
        refused.insert(uid, message);
    }
}
