//! Repeats CreateVolume for a volume that an earlier call may have made.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::runtime::queue::Outcome;

use super::Provisioner;
use super::decide::Plan;
use super::error::{Problem, State};
use crate::api::pvc;

impl Provisioner {
    /// Repeats CreateVolume for a volume that an earlier call may have made. Only the topology
    /// stays the same: the claim, its class and its secrets may have been corrected since. If the
    /// claim is gone or now belongs to another process, the call is still needed: its answer names
    /// the volume to delete.
    pub(super) async fn retry(&self, uid: &str, last: Arc<Plan>) -> Outcome {
        let (driver, standing) = (&self.context.driver.name, self.standing());
        let now = self.claims.get(uid).pop();
        let wanted =
            now.filter(|claim| pvc::is_for(claim, driver) && pvc::is_here(claim, standing));
        let claim = wanted.as_ref().unwrap_or(&last.draft.claim);
        let plan = self.replan(claim, &last, wanted.is_some()).await;
        match (plan, &wanted) {
            (Ok(Some(plan)), _) => self.make(Arc::new(plan), true).await,
            (Ok(None), _) | (Err(_), None) => self.make(last, true).await,
            (Err(problem), Some(claim)) => {
                self.tell_failure(claim, last.source(), &problem);
                match problem.state() {
                    State::Reschedule => self.reschedule(claim).await,
                    _ => Outcome::Failed,
                }
            }
        }
    }

    /// Plans from the current objects. `None` if the class now belongs to another driver, or waits
    /// for a selected node.
    async fn replan(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        last: &Plan,
        wanted: bool,
    ) -> Result<Option<Plan>, Problem> {
        let class = self.class_of(claim).await?;
        if !pvc::is_due(claim, &class, self.standing()) {
            return Ok(None);
        }
        let (plan, guarded) = self.plan(claim, &class, Some(last)).await?;
        if wanted {
            self.guard(guarded).await?;
        }
        Ok(Some(plan))
    }
}
