//! Deletes the objects of the live check, and waits until their volumes are gone.

use std::time::Instant;

use hostloop_api_objects::snapshots::VolumeSnapshot;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::DeleteParams;

use super::objects::TestObject;
use super::{LivePlan, seconds, wait};
use crate::Cluster;
use crate::api::{self, ApiError, Call, Kind, Namespaced, timely};
use crate::progress_line::ProgressLine;

/// Deletes everything, and says so. The error is what is left.
pub(super) async fn clean_up(
    cluster: &Cluster,
    plan: &LivePlan,
    made: &[TestObject],
    progress: &mut ProgressLine,
) -> Result<String, String> {
    progress.show("deleting what the check has made");
    let cleaner = Cleaner {
        cluster,
        plan,
        began: Instant::now(),
    };
    // A volume is known only while its claim exists.
    let mut volumes = Vec::new();
    for claim in [TestObject::Claim, TestObject::Restored] {
        volumes.extend(cleaner.volume(&claim.name(plan)).await);
    }
    let mut problems = Vec::new();
    for object in TestObject::ALL
        .into_iter()
        .filter(|object| made.contains(object))
    {
        problems.extend(cleaner.delete(object).await.err());
    }
    if !problems.is_empty() {
        return Err(problems.join("; "));
    }
    cleaner.gone(&volumes).await?;
    Ok(format!(
        "All of it was deleted, and no volume is left ({})",
        seconds(cleaner.began)
    ))
}

struct Cleaner<'a> {
    cluster: &'a Cluster,
    plan: &'a LivePlan,
    began: Instant,
}

impl Cleaner<'_> {
    fn api<K: Namespaced>(&self) -> Api<K> {
        self.cluster.namespaced(Some(&self.plan.namespace))
    }

    /// The name of a claim's volume, if the claim has one.
    async fn volume(&self, claim: &str) -> Option<String> {
        let claim = api::get(&self.api::<PersistentVolumeClaim>(), claim)
            .await
            .ok()??;
        claim.spec?.volume_name
    }

    async fn delete(&self, object: TestObject) -> Result<(), String> {
        let name = object.name(self.plan);
        match object {
            TestObject::Claim | TestObject::Restored => {
                self.delete_kind::<PersistentVolumeClaim>(&name).await
            }
            TestObject::Snapshot => self.delete_kind::<VolumeSnapshot>(&name).await,
            TestObject::Pod(_) => self.delete_kind::<Pod>(&name).await,
        }
    }

    /// Deletes an object and waits until it does not exist.
    async fn delete_kind<K: Namespaced>(&self, name: &str) -> Result<(), String> {
        let api: Api<K> = self.api();
        let call = Call::of("delete", &api, name);
        match timely(call, api.delete(name, &DeleteParams::default())).await {
            Ok(_) => {}
            Err(ApiError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
        match self.ends(&api, name).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("{} {name} is still being deleted", K::kind(&()))),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Waits until the volumes do not exist. Without the right to see them, it assumes that.
    async fn gone(&self, volumes: &[String]) -> Result<(), String> {
        let api: Api<PersistentVolume> = self.cluster.all();
        for name in volumes {
            match self.ends(&api, name).await {
                Ok(true) | Err(ApiError::Forbidden { .. }) => {}
                Ok(false) => return Err(format!("PersistentVolume {name} still exists")),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// Waits until an object does not exist. False if it still exists at the deadline.
    async fn ends<K: Kind>(&self, api: &Api<K>, name: &str) -> Result<bool, ApiError> {
        while api::get(api, name).await?.is_some() {
            if self.began.elapsed() >= self.plan.timeout {
                return Ok(false);
            }
            tokio::time::sleep(wait::PAUSE).await;
        }
        Ok(true)
    }
}
