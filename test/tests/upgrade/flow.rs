//! Claims that are made all the time, some with a pod, some deleted at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{self, wait_for};
use hostloop_test::front::objects::{self, Objects, Place};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::site::{SPACE, Site};

/// The class of claims that are bound without a pod.
pub(crate) const NOW: &str = "upgrade-now";

/// The time between two claims.
const PACE: Duration = Duration::from_millis(250);

/// Making claims, in the background.
pub(crate) struct Flow {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Made>,
}

/// The names of what was made.
#[derive(Default)]
struct Made {
    claims: Vec<String>,
    pods: Vec<String>,
    deleted: usize,
}

/// How many of the claims and pods came to their end.
pub(crate) struct Counts {
    /// Claims that are bound.
    pub(crate) bound: usize,
    /// Pods that have written to their volume and ended.
    pub(crate) ran: usize,
    /// Claims that were deleted shortly after they were made.
    pub(crate) deleted: usize,
}

impl Flow {
    /// Starts to make claims with names that begin with this word.
    pub(crate) fn start(site: &Site, word: &str) -> Flow {
        let stop = Arc::new(AtomicBool::new(false));
        let word = format!("flow-{word}");
        let task = tokio::spawn(make(site.objects.clone(), word, stop.clone()));
        Flow { stop, task }
    }

    /// Makes no more claims, and waits until each one is bound and each pod has run.
    pub(crate) async fn end(self, site: &Site) -> Counts {
        self.stop.store(true, Ordering::Relaxed);
        let made = self.task.await.expect("claims and pods can be made");
        for claim in &made.claims {
            site.until_phase("PersistentVolumeClaim", claim, "Bound")
                .await;
        }
        for pod in &made.pods {
            site.until_phase("Pod", pod, "Succeeded").await;
        }
        let (bound, ran) = (made.claims.len(), made.pods.len());
        assert!(
            bound > 0 && ran > 0 && made.deleted > 0,
            "the change was too quick"
        );
        Counts {
            bound,
            ran,
            deleted: made.deleted,
        }
    }
}

async fn make(objects: Objects, word: String, stop: Arc<AtomicBool>) -> Made {
    let mut made = Made::default();
    for n in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("{word}-{n}");
        let (class, size) = if n % 8 == 1 {
            ("hostloop-xfs", "512Mi")
        } else {
            (NOW, "64Mi")
        };
        objects
            .create(objects::claim(SPACE, &name, class, size, json!({})))
            .await;
        if n % 8 == 1 {
            let write = format!("echo {n} > /{name}/file && sync /{name}/file");
            let once = json!({"restartPolicy": "Never"});
            let claims: (&[&str], _) = (&[&name], &[] as &[&str]);
            let pod = cluster::pod(SPACE, &name, &["sh", "-c", &write], claims, once);
            objects.create(pod).await;
            made.pods.push(name.clone());
        }
        tokio::time::sleep(PACE).await;
        // Some of these are bound by then, some are not.
        if n % 8 == 5 {
            objects
                .delete(&Place::of("PersistentVolumeClaim", SPACE, &name))
                .await;
            made.deleted += 1;
        } else {
            made.claims.push(name);
        }
    }
    made
}

impl Site {
    /// Waits until an object has this phase.
    pub(crate) async fn until_phase(&self, kind: &str, name: &str, phase: &str) {
        wait_for(&format!("{kind} {name}: {phase}"), PATIENCE, async || {
            let object = self.get(kind, name).await;
            if object["status"]["phase"] == phase {
                return Ok(());
            }
            let events = self.objects.events(&Place::of(kind, SPACE, name)).await;
            Err(format!("{}; {events:?}", object["status"]))
        })
        .await;
    }
}
