//! `--live`: a claim is made, written, snapshotted, restored, read and deleted.
//!
//! All objects have one generated name, so they are deleted without having been listed. They are
//! deleted after a failure and after Ctrl-C, too.

use std::cell::RefCell;
use std::time::Instant;

use hostloop_api_objects::snapshots::VolumeSnapshot;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::Api;
use serde_json::Value;

use super::line::Line;
use crate::Cluster;
use crate::api::{self, Namespaced};
use crate::platform::interrupted;
use crate::progress_line::ProgressLine;
use crate::waiting::{Waiting, pod_ended, snapshot_ready};

mod clean_up;
mod objects;
mod plan;

pub(super) use plan::{LiveOptions, LivePlan, plan};

use objects::{Task, TestObject};

/// Runs the plan, and passes each line on as soon as it is known.
pub(super) async fn run(
    cluster: &Cluster,
    plan: &LivePlan,
    progress: &mut ProgressLine,
    said: &mut impl FnMut(Line),
) {
    let run = Run {
        cluster,
        plan,
        made: RefCell::default(),
    };
    let steps = tokio::select! {
        steps = run.steps(progress, said) => steps,
        signal = interrupted() => Err(Line::failed(
            format!("The live check was stopped by {signal}"),
            "Run it again when nothing else has to be done.",
        )),
    };
    progress.clear();
    if let Err(line) = steps {
        said(line);
    }
    let made = run.made.take();
    if made.is_empty() {
        return;
    }
    let cleaned = tokio::select! {
        cleaned = clean_up::clean_up(cluster, plan, &made, progress) => cleaned,
        signal = interrupted() => Err(format!("stopped by {signal}")),
    };
    progress.clear();
    said(match cleaned {
        Ok(text) => Line::ok(text),
        Err(why) => Line::failed(
            format!("Not everything was deleted: {why}"),
            format!(
                "Delete the rest: kubectl -n {} delete pods,pvc,volumesnapshots -l {}={}",
                plan.namespace,
                objects::LABEL,
                plan.name
            ),
        ),
    });
}

struct Run<'a> {
    cluster: &'a Cluster,
    plan: &'a LivePlan,
    /// What exists, or may exist.
    made: RefCell<Vec<TestObject>>,
}

impl Run<'_> {
    async fn steps(
        &self,
        progress: &mut ProgressLine,
        said: &mut impl FnMut(Line),
    ) -> Result<(), Line> {
        let LivePlan {
            name,
            namespace,
            class,
            ..
        } = self.plan;
        let began = Instant::now();
        self.create::<PersistentVolumeClaim>(TestObject::Claim, &self.plan.claim())
            .await?;
        let node = self.pod(Task::Write, name, progress).await?;
        progress.clear();
        said(Line::ok(format!(
            "Claim {namespace}/{name} of class {class} got a volume on {node}, and a pod wrote to \
             it ({})",
            seconds(began)
        )));
        let read = match &self.plan.snapshot_class {
            None => name.clone(),
            Some(snapshot_class) => {
                let began = Instant::now();
                self.snapshot(snapshot_class, progress).await?;
                progress.clear();
                said(Line::ok(format!(
                    "A snapshot was taken ({})",
                    seconds(began)
                )));
                let restored = self.plan.restored_claim();
                self.create::<PersistentVolumeClaim>(TestObject::Restored, &restored)
                    .await?;
                TestObject::Restored.name(self.plan)
            }
        };
        let began = Instant::now();
        self.pod(Task::Verify, &read, progress).await?;
        progress.clear();
        said(Line::ok(match self.plan.snapshot_class {
            Some(_) => format!(
                "A volume restored from it has the data ({})",
                seconds(began)
            ),
            None => format!("Another pod read the data ({})", seconds(began)),
        }));
        Ok(())
    }

    /// Runs a pod until it has ended, and returns its node.
    async fn pod(
        &self,
        task: Task,
        claim: &str,
        progress: &mut ProgressLine,
    ) -> Result<String, Line> {
        let name = TestObject::Pod(task).name(self.plan);
        self.create::<Pod>(TestObject::Pod(task), &self.plan.pod(task, claim))
            .await?;
        let waiting = self.waiting(&name, &format!("for pod {name} to {}", task.word()));
        let pods: Api<Pod> = self.api();
        let ended = waiting.until(&pods, progress, pod_ended).await;
        ended.map_err(|why| self.failed(&format!("Pod {name} did not {}", task.word()), &why))
    }

    async fn snapshot(&self, class: &str, progress: &mut ProgressLine) -> Result<(), Line> {
        let LivePlan { name, .. } = self.plan;
        self.create::<VolumeSnapshot>(TestObject::Snapshot, &self.plan.snapshot(class))
            .await?;
        let waiting = self.waiting(name, &format!("for snapshot {name} to be ready"));
        let snapshots: Api<VolumeSnapshot> = self.api();
        let ready = waiting.until(&snapshots, progress, snapshot_ready).await;
        ready.map_err(|why| self.failed(&format!("Snapshot {name} did not become ready"), &why))
    }

    fn waiting<'a>(&'a self, name: &'a str, what: &str) -> Waiting<'a> {
        Waiting {
            cluster: self.cluster,
            namespace: &self.plan.namespace,
            name,
            what: what.to_owned(),
            timeout: self.plan.timeout,
            // The events of the claim say why a pod does not start.
            related: [TestObject::Claim, TestObject::Restored]
                .map(|object| object.name(self.plan))
                .to_vec(),
        }
    }

    fn failed(&self, what: &str, why: &str) -> Line {
        Line::failed(
            format!("{what}: {why}"),
            format!(
                "Look at the lines above, and at the log of the node's pod: kubectl -n {} logs \
                 daemonset/hostloop",
                self.cluster.system_namespace
            ),
        )
    }

    async fn create<K: Namespaced>(&self, object: TestObject, content: &Value) -> Result<(), Line> {
        // After a request without an answer the object may exist.
        self.made.borrow_mut().push(object);
        let created = api::create(&self.api::<K>(), content, false).await;
        let Err(error) = created else { return Ok(()) };
        if !error.is_transient() {
            self.made.borrow_mut().retain(|made| *made != object);
        }
        let (what, name) = (K::kind(&()), object.name(self.plan));
        Err(Line::failed(
            format!("{what} {name} was not created: {error}"),
            "The live check needs rights to create and delete pods, claims and snapshots. Choose \
             another namespace with -n.",
        ))
    }

    fn api<K: Namespaced>(&self) -> Api<K> {
        self.cluster.namespaced(Some(&self.plan.namespace))
    }
}

/// The time since a moment, as in `3.2 s`.
fn seconds(since: Instant) -> String {
    format!("{:.1} s", since.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests;
