//! Gathers the facts about an expansion.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::decide::Facts;
use crate::client::ApiError;
use crate::resizer::recover::is_wanted;
use crate::resizer::{ClaimKey, Resizer, too_early};

impl Resizer {
    /// Gathers the facts about a claim; `None` if its volume is not this process's. If the claim
    /// requests more than it has, a volume that the cache lacks is read from the API server.
    pub(super) async fn gather_expansion(
        &self,
        key: &ClaimKey,
        claim: Arc<PersistentVolumeClaim>,
    ) -> Result<Option<Facts>, ApiError> {
        let live = is_wanted(&claim);
        let Some(volume) = self.volume_of(&claim, live).await? else {
            return Ok(None);
        };
        let memory = self.recall(key);
        Ok(Some(Facts {
            claim,
            volume,
            final_error: memory.final_error,
            in_use: memory.in_use,
            wait: too_early(memory.expand_after),
        }))
    }
}
