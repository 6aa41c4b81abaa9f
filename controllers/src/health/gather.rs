//! Gathers the health of volumes and storage: asks the driver.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures::StreamExt;
use hostloop_proto::csi;
use tonic::Code;

use super::Watcher;
use super::decide::{Facts, HealthProblem, Volume};
use crate::controller::Context;
use crate::controller::owner::Ownership;
use crate::controller::workers::WORKERS;
use crate::csi::driver::ControllerCapability;
use crate::csi::{Csi, ListError, list};

/// Page size of ControllerListVolumeHealth.
const PAGE: i32 = 500;

/// The driver's volumes that are bound.
pub(super) struct BoundVolumes {
    /// Those that this process may have.
    pub(super) all: Vec<Volume>,
    /// The UIDs of those that no other process has.
    pub(super) own: BTreeSet<String>,
}

impl Watcher {
    /// Gathers the problems of these volumes. `abnormal` has the UIDs of those that had a problem.
    pub(super) async fn gather(&self, volumes: Vec<Volume>, abnormal: &BTreeSet<String>) -> Facts {
        let found = if self.lists {
            match self.list(&volumes).await {
                Ok(mut found) => {
                    self.confirm(&volumes, abnormal, &mut found).await;
                    found
                }
                // The list fails if one of several pools is missing. ControllerGetVolumeHealth may
                // still answer for each volume.
                Err(failure) => {
                    tracing::warn!(%failure, "the health list failed: asking for each volume");
                    self.get(&volumes).await
                }
            }
        } else {
            self.get(&volumes).await
        };
        Facts { volumes, found }
    }

    /// The problems of all volumes, from ControllerListVolumeHealth.
    async fn list(
        &self,
        volumes: &[Volume],
    ) -> Result<HashMap<String, Vec<HealthProblem>>, ListError> {
        // Volumes that the driver does not list are healthy.
        let mut found: HashMap<String, Vec<HealthProblem>> = volumes
            .iter()
            .map(|volume| (volume.handle.clone(), Vec::new()))
            .collect();
        let (csi, timeout) = (&self.context.driver.csi, self.timeout());
        let entries = list::all(
            "ControllerListVolumeHealth",
            timeout,
            |starting_token| async move {
                let request = csi::ControllerListVolumeHealthRequest {
                    max_entries: PAGE,
                    starting_token,
                    ..csi::ControllerListVolumeHealthRequest::default()
                };
                let page = csi.controller_list_volume_health(request, timeout).await?;
                Ok((page.entries, page.next_token))
            },
        );
        for entry in entries.await? {
            if let Some(problems) = found.get_mut(&entry.volume_id) {
                problems.extend(entry.health_statuses.into_iter().map(HealthProblem::from));
            }
        }
        Ok(found)
    }

    /// Asks again for each volume that had a problem and is not listed any more: it is healthy, or
    /// the driver does not know it.
    async fn confirm(
        &self,
        volumes: &[Volume],
        abnormal: &BTreeSet<String>,
        found: &mut HashMap<String, Vec<HealthProblem>>,
    ) {
        if !self
            .context
            .driver
            .can(ControllerCapability::GetVolumeHealth)
        {
            return;
        }
        let had_one = volumes.iter().filter(|it| abnormal.contains(&it.uid));
        let not_listed: BTreeSet<String> = had_one
            .filter(|it| found.get(&it.handle).is_some_and(Vec::is_empty))
            .map(|it| it.handle.clone())
            .collect();
        for handle in &not_listed {
            found.remove(handle);
        }
        found.extend(self.get_each(not_listed).await);
    }

    /// The problems of each volume for which ControllerGetVolumeHealth succeeded.
    async fn get(&self, volumes: &[Volume]) -> HashMap<String, Vec<HealthProblem>> {
        let handles = volumes.iter().map(|volume| volume.handle.clone());
        self.get_each(handles.collect()).await
    }

    async fn get_each(&self, handles: BTreeSet<String>) -> HashMap<String, Vec<HealthProblem>> {
        let workers = self.context.common.workers(WORKERS).max(1);
        let (csi, timeout) = (self.context.driver.csi.clone(), self.timeout());
        futures::stream::iter(handles)
            .map(move |handle| get_one(csi.clone(), timeout, handle))
            .buffer_unordered(workers)
            .filter_map(std::future::ready)
            .collect()
            .await
    }

    /// Gathers the problems of the storage below the volumes; `None` if the call failed.
    pub(super) async fn gather_storage(&self) -> Option<Vec<HealthProblem>> {
        let request = csi::NodeGetStorageHealthRequest::default();
        let csi = &self.context.driver.csi;
        match csi.node_get_storage_health(request, self.timeout()).await {
            Ok(answer) => {
                let found = answer.backend_health.into_iter().map(HealthProblem::from);
                Some(found.collect())
            }
            Err(failure) => {
                tracing::warn!(%failure, "cannot read the storage's health");
                None
            }
        }
    }
}

/// The problems of one volume; `None` if the call failed.
async fn get_one(
    csi: Csi,
    timeout: Duration,
    handle: String,
) -> Option<(String, Vec<HealthProblem>)> {
    let request = csi::ControllerGetVolumeHealthRequest {
        volume_id: handle.clone(),
        ..csi::ControllerGetVolumeHealthRequest::default()
    };
    match csi.controller_get_volume_health(request, timeout).await {
        Ok(answer) => {
            let statuses = answer.volume_health.unwrap_or_default().health_statuses;
            Some((
                handle,
                statuses.into_iter().map(HealthProblem::from).collect(),
            ))
        }
        Err(failure) if failure.code() == Code::NotFound => {
            Some((handle, vec![HealthProblem::volume_not_found()]))
        }
        Err(failure) => {
            tracing::warn!(volume = handle, %failure, "cannot read a volume's health");
            None
        }
    }
}

impl BoundVolumes {
    /// The driver's volumes that are bound and within the scope.
    pub(super) fn of(context: &Context) -> BoundVolumes {
        let mut volumes = BoundVolumes {
            all: Vec::new(),
            own: BTreeSet::new(),
        };
        for volume in context.caches.volumes().each() {
            let Some(bound) = Volume::bound(&volume, &context.driver.name) else {
                continue;
            };
            match context.owner(&volume) {
                Ownership::Remote => continue,
                Ownership::Local => {
                    volumes.own.insert(bound.uid.clone());
                }
                Ownership::Unknown => {}
            }
            volumes.all.push(bound);
        }
        volumes
    }
}
