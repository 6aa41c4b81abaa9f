//! The check of one cut: it becomes a claim, and the person's Job decides.

use std::time::Duration;

use futures::AsyncReadExt;
use hostloop_api_objects::snapshots::{VolumeSnapshot, VolumeSnapshotContent};
use hostloop_report::cuts::TakenCut;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{ListParams, LogParams};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::check_template::CheckTemplate;
use super::cut_node::CutNode;
use super::cut_objects::{CutObjects, ExplorationId, KEPT};
use super::explored_claim::ExploredClaim;
use super::job_end::{JobEnd, container_with_reason, has_begun, job_end};
use crate::api::{self, ApiError, Call, Kind, timely};
use crate::cluster::Cluster;
use crate::events;
use crate::persist::{create, delete, is_gone, persist};
use crate::volume_objects::bound_volume;
use crate::waiting::PAUSE;

/// The number of lines of a log that are shown.
const LINES: i64 = 20;
/// The largest part of a log that is read.
const MAX_LOG: u64 = 64 << 10;

/// What the check of a cut has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CutResult {
    Passed,
    /// The check says no. The cut is kept.
    Failed(CutReason),
    /// The check has not begun, so nothing is known. The cut is kept.
    Unknown(CutReason),
}

/// Why a cut has not passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CutReason {
    pub(super) why: String,
    /// The last lines of the check.
    pub(super) log: Vec<String>,
}

/// Why a cut could not be checked.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("Job {0} was deleted by others")]
    JobGone(String),
    #[error("{what} is still being deleted after {} s", .timeout.as_secs())]
    Stays { what: String, timeout: Duration },
    /// The node does not keep the cut.
    #[error("it is not kept: {0}")]
    NotKept(String),
}

/// Checks the cuts of one exploration.
pub(super) struct CutChecker<'a, N> {
    pub(super) cluster: &'a Cluster,
    pub(super) node: &'a N,
    pub(super) claim: &'a ExploredClaim,
    pub(super) template: &'a CheckTemplate,
    pub(super) exploration: &'a ExplorationId,
    /// How long each step may take.
    pub(super) timeout: Duration,
}

impl<N: CutNode> CutChecker<'_, N> {
    /// Checks a cut. Of one that passes, nothing is left; of another one, its snapshot.
    pub(super) async fn check(&self, cut: &TakenCut) -> Result<CutResult, CheckError> {
        let objects = CutObjects {
            claim: self.claim,
            driver: &self.cluster.driver_name,
            node: self.node.node_name(),
            exploration: self.exploration,
            cut,
        };
        let name = objects.name();
        let namespace = &self.claim.namespace;
        let job = self
            .template
            .job(&name, namespace, self.exploration, cut.number);
        let contents: Api<VolumeSnapshotContent> = self.cluster.all();
        create(&contents, &objects.content(), self.timeout).await?;
        create(
            &self.cluster.own::<VolumeSnapshot>(),
            &objects.snapshot(),
            self.timeout,
        )
        .await?;
        create(
            &self.cluster.own::<PersistentVolumeClaim>(),
            &objects.claim(),
            self.timeout,
        )
        .await?;
        create(&self.cluster.own::<Job>(), &job, self.timeout).await?;
        let result = self.result(&name).await?;
        if result == CutResult::Passed {
            self.remove_claim(&name).await?;
            self.remove::<VolumeSnapshot>(&self.cluster.own(), &name)
                .await?;
            // The controller deletes it with its snapshot, if it was bound.
            self.remove(&contents, &name).await?;
        } else {
            self.keep(cut, &name).await?;
            self.remove_claim(&name).await?;
        }
        Ok(result)
    }

    /// Waits until the Job has ended.
    async fn result(&self, name: &str) -> Result<CutResult, CheckError> {
        let jobs: Api<Job> = self.cluster.own();
        let started = Instant::now();
        loop {
            let is_late = started.elapsed() >= self.timeout;
            let job = persist(self.timeout, async || api::get(&jobs, name).await).await?;
            let Some(job) = job else {
                return Err(CheckError::JobGone(name.to_owned()));
            };
            match job_end(&job) {
                Some(JobEnd::Passed) => return Ok(CutResult::Passed),
                Some(JobEnd::Failed(why)) => {
                    let pods = self.pods(name).await?;
                    let log = self.log(&pods).await;
                    return Ok(CutResult::Failed(CutReason { why, log }));
                }
                None if is_late => return self.late(name).await,
                None => sleep(PAUSE).await,
            }
        }
    }

    /// What is known of a check that has not ended in time.
    async fn late(&self, name: &str) -> Result<CutResult, CheckError> {
        let seconds = self.timeout.as_secs();
        let pods = self.pods(name).await?;
        if has_begun(&pods) {
            let why = format!("the check has not ended within {seconds} s");
            let log = self.log(&pods).await;
            return Ok(CutResult::Failed(CutReason { why, log }));
        }
        let mut why = format!("the check has not begun within {seconds} s");
        if let Some(warning) = self.warning(name).await {
            why = format!("{why}; {warning}");
        }
        let log = Vec::new();
        Ok(CutResult::Unknown(CutReason { why, log }))
    }

    async fn pods(&self, name: &str) -> Result<Vec<Pod>, ApiError> {
        let labels = format!("batch.kubernetes.io/job-name={name}");
        let of_job = ListParams::default().labels(&labels);
        let pods: Api<Pod> = self.cluster.own();
        persist(self.timeout, async || {
            api::list(&pods, of_job.clone()).await
        })
        .await
    }

    /// The last warning about the objects of a cut. Pods have its name and some more.
    async fn warning(&self, name: &str) -> Option<String> {
        let warnings = events::warnings(self.cluster, &self.claim.namespace).await;
        events::last_about(&warnings, |about| about.starts_with(name))
    }

    /// The last lines of the container that says why a check failed, or why there are none.
    async fn log(&self, pods: &[Pod]) -> Vec<String> {
        let Some((pod, container)) = container_with_reason(pods) else {
            return vec!["(no container has a log)".to_owned()];
        };
        match self.read_log(&pod, &container).await {
            Ok(text) => last_lines(&text),
            Err(error) => vec![format!("(the log can't be read: {error})")],
        }
    }

    async fn read_log(&self, pod: &str, container: &str) -> Result<String, ApiError> {
        let params = LogParams {
            container: Some(container.to_owned()),
            tail_lines: Some(LINES),
            ..LogParams::default()
        };
        let pods: Api<Pod> = self.cluster.own();
        let call = Call::new("get", "pods/log", Some(&self.claim.namespace), pod);
        let read = async {
            let stream = pods.log_stream(pod, &params).await?;
            let mut text = Vec::new();
            let mut stream = stream.take(MAX_LOG);
            let read = stream.read_to_end(&mut text).await;
            read.map_err(kube::Error::ReadEvents)?;
            Ok::<String, kube::Error>(String::from_utf8_lossy(&text).into_owned())
        };
        timely(call, read).await
    }

    /// Keeps the snapshot of a cut, and marks its objects so that no clean-up deletes them.
    async fn keep(&self, cut: &TakenCut, name: &str) -> Result<(), CheckError> {
        let kept = self.node.keep(&cut.snapshot).await;
        kept.map_err(|error| CheckError::NotKept(error.to_string()))?;
        self.mark::<VolumeSnapshotContent>(&self.cluster.all(), name)
            .await?;
        self.mark::<VolumeSnapshot>(&self.cluster.own(), name).await
    }

    async fn mark<K: Kind>(&self, api: &Api<K>, name: &str) -> Result<(), CheckError> {
        let mark = json!({"metadata": {"labels": {KEPT: "true"}}});
        Ok(persist(self.timeout, async || {
            api::merge(api, name, &mark, false).await
        })
        .await?)
    }

    /// Deletes Job and claim, and waits until they and the volume are gone.
    async fn remove_claim(&self, name: &str) -> Result<(), CheckError> {
        let claims: Api<PersistentVolumeClaim> = self.cluster.own();
        let claim = persist(self.timeout, async || api::get(&claims, name).await).await?;
        let volume = claim.as_ref().and_then(bound_volume).map(str::to_owned);
        // The claim waits for the pods of the Job.
        delete(&self.cluster.own::<Job>(), name, self.timeout).await?;
        self.remove(&claims, name).await?;
        if let Some(volume) = volume {
            let volumes: Api<PersistentVolume> = self.cluster.all();
            self.wait_until_gone(&volumes, &volume).await?;
        }
        Ok(())
    }

    /// Deletes an object, and waits until it is gone.
    async fn remove<K: Kind>(&self, api: &Api<K>, name: &str) -> Result<(), CheckError> {
        delete(api, name, self.timeout).await?;
        self.wait_until_gone(api, name).await
    }

    async fn wait_until_gone<K: Kind>(&self, api: &Api<K>, name: &str) -> Result<(), CheckError> {
        if is_gone(api, name, self.timeout).await? {
            return Ok(());
        }
        Err(CheckError::Stays {
            what: format!("{} {name}", K::kind(&())),
            timeout: self.timeout,
        })
    }
}

/// The last lines of a text.
fn last_lines(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.trim_end().split('\n').collect();
    let first = lines.len().saturating_sub(LINES as usize);
    lines[first..]
        .iter()
        .map(|line| (*line).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_a_log() {
        assert_eq!(last_lines("a\nb\n\n"), ["a", "b"]);
        let long: Vec<String> = (0..30).map(|number| number.to_string()).collect();
        assert_eq!(last_lines(&long.join("\n")), long[10..]);
    }
}
