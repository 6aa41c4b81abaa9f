//! Waits until every node can be used, with a line for each change.

use std::collections::BTreeMap;
use std::time::Duration;

use hostloop_terminal::color::{GOOD, QUIET, WARNING, paint};
use hostloop_terminal::terminal;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use tokio::time::{Instant, sleep};

use super::progress::{PodState, Progress, RolloutObjects};
use super::survey::Survey;
use super::{Error, NAMESPACE};
use crate::Cluster;
use crate::api::{self, ApiError, Call, timely};
use crate::distribution::Distribution;
use crate::events;
use crate::pod_logs::pods;

/// The time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Kubelet registers a driver within a second or two of its start.
const LATE_REGISTRATION: Duration = Duration::from_secs(20);

/// Why a driver that runs is not registered.
const UNREGISTERED: &str = "kubelet does not register the driver: it has another root directory \
                            (install with --kubelet-dir), or see its log";

/// The name under which lines and errors have the controller's pod.
const CONTROLLER: &str = "controller";

/// Waits until all nodes are ready, or the time is over.
pub(super) async fn until_ready(
    cluster: &Cluster,
    survey: &Survey,
    timeout: Duration,
) -> Result<(), Error> {
    let started = Instant::now();
    let mut said: BTreeMap<String, SaidState> = BTreeMap::new();
    loop {
        let progress = match look(cluster).await {
            Ok(look) => Progress::of(&look, &cluster.driver_name),
            Err(error) if error.is_transient() && started.elapsed() < timeout => {
                terminal::warn(&paint(WARNING, &format!("! {error}")));
                sleep(INTERVAL).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for (name, state) in states(&progress) {
            let now = Instant::now();
            match said.get_mut(name).filter(|said| said.state == *state) {
                Some(said) if said.is_late(now) => {
                    said.is_complete = true;
                    terminal::print(&[format!("  {UNREGISTERED}")])?;
                }
                Some(_) => {}
                None => {
                    terminal::print(&lines(name, state, survey.distribution, started.elapsed()))?;
                    said.insert(name.to_owned(), SaidState::new(state, now));
                }
            }
        }
        if progress.is_done() {
            return Ok(());
        }
        if started.elapsed() >= timeout {
            return Err(Error::NotReady(reasons(&progress, timeout, cluster).await?));
        }
        sleep(INTERVAL).await;
    }
}

/// A state that a line was printed about.
struct SaidState {
    state: PodState,
    since: Instant,
    /// Nothing more will be said of it.
    is_complete: bool,
}

impl SaidState {
    fn new(state: &PodState, since: Instant) -> SaidState {
        SaidState {
            state: state.clone(),
            since,
            is_complete: *state != PodState::Registering,
        }
    }

    /// True if the state lasts for so long that a person should know why.
    fn is_late(&self, now: Instant) -> bool {
        !self.is_complete && now.duration_since(self.since) >= LATE_REGISTRATION
    }
}

/// The states of the nodes, then the controller's.
fn states(progress: &Progress) -> impl Iterator<Item = (&str, &PodState)> {
    let nodes = progress
        .nodes
        .iter()
        .map(|(node, state)| (node.as_str(), state));
    nodes.chain(progress.controller.iter().map(|state| (CONTROLLER, state)))
}

/// What is said of a new state.
fn lines(name: &str, state: &PodState, distribution: Distribution, after: Duration) -> Vec<String> {
    let (mark, text) = match state {
        PodState::Old => (paint(QUIET, "·"), "the earlier version runs".to_owned()),
        PodState::Starting => (paint(QUIET, "·"), "starting".to_owned()),
        PodState::Registering => (paint(QUIET, "·"), "running, not yet registered".to_owned()),
        PodState::Ready => {
            let seconds = after.as_secs();
            (paint(GOOD, "✓"), format!("ready after {seconds} s"))
        }
        PodState::Waiting(why) | PodState::Failing { why, .. } => {
            (paint(WARNING, "!"), why.clone())
        }
    };
    let hint = match state {
        PodState::Waiting(why) => hint(why, distribution),
        PodState::Failing { pod, .. } => Some(format!(
            "its whole log: kubectl --namespace {NAMESPACE} logs {pod} --previous"
        )),
        _ => None,
    };
    let mut lines = vec![format!("{mark} {name}: {text}")];
    lines.extend(hint.map(|hint| format!("  {hint}")));
    lines
}

/// What the person can do about a pod that waits.
fn hint(why: &str, distribution: Distribution) -> Option<String> {
    let no_image = ["ErrImageNeverPull", "ImagePullBackOff", "ErrImagePull"];
    if no_image.iter().any(|word| why.contains(word)) {
        return Some(if distribution.has_load_command() {
            "load the image while this waits: kubectl hostloop load ARCHIVE".to_owned()
        } else {
            format!(
                "load the image on each node while this waits: {} <ARCHIVE; or install with \
                 --image from a registry",
                distribution.import_command()
            )
        });
    }
    if why.contains("hostPath type check failed") {
        return Some(
            "the directory is elsewhere on this node: install with --kubelet-dir".to_owned(),
        );
    }
    None
}

/// Why each pod that is not ready is not, with the pod's last warning.
async fn reasons(
    progress: &Progress,
    timeout: Duration,
    cluster: &Cluster,
) -> Result<Vec<String>, ApiError> {
    let seconds = timeout.as_secs();
    let mut reasons = Vec::new();
    if progress.nodes.len() < progress.expected || progress.controller.is_none() {
        let made = progress.nodes.len();
        reasons.push(match last_warning(cluster, "").await? {
            Some(warning) => format!("pods are missing: {warning}"),
            None => format!(
                "after {seconds} s, {made} of {} nodes have a pod",
                progress.expected
            ),
        });
    }
    let pods = pods(cluster).await?;
    for (name, state) in states(progress).filter(|(_, state)| **state != PodState::Ready) {
        let said = match state {
            PodState::Waiting(why) | PodState::Failing { why, .. } => why.clone(),
            PodState::Old => "the earlier version's pod did not end".to_owned(),
            PodState::Registering => UNREGISTERED.to_owned(),
            PodState::Starting | PodState::Ready => {
                let pod = pods
                    .iter()
                    .find(|pod| match name {
                        CONTROLLER => pod.name_any().starts_with("hostloop-controller-"),
                        node => pod
                            .spec
                            .as_ref()
                            .is_some_and(|s| s.node_name.as_deref() == Some(node)),
                    })
                    .map(|pod| pod.name_any())
                    .unwrap_or_default();
                let warning = last_warning(cluster, &pod).await?;
                warning.unwrap_or_else(|| "its pod does not get ready".to_owned())
            }
        };
        reasons.push(format!("{name} is not ready after {seconds} s: {said}"));
    }
    Ok(reasons)
}

/// The last warning about a pod, or about what makes the pods if the name is empty.
async fn last_warning(cluster: &Cluster, pod: &str) -> Result<Option<String>, ApiError> {
    let warnings = ListParams::default().fields("type=Warning");
    let events: Vec<Event> = api::list(&cluster.system(), warnings).await?;
    let last = events
        .iter()
        .filter(|event| {
            let object = &event.involved_object;
            match pod {
                "" => object.kind.as_deref() != Some("Pod"),
                pod => object.name.as_deref() == Some(pod),
            }
        })
        .max_by_key(|event| events::at_ns(event));
    Ok(last.map(events::text))
}

async fn look(cluster: &Cluster) -> Result<RolloutObjects, ApiError> {
    let daemon_sets: Api<DaemonSet> = cluster.system();
    let call = Call::of("get", &daemon_sets, "hostloop");
    let daemon_set = timely(call, daemon_sets.get("hostloop")).await?;
    let controllers: Api<Deployment> = cluster.system();
    let call = Call::of("get", &controllers, "hostloop-controller");
    let controller = timely(call, controllers.get("hostloop-controller")).await?;
    let csi_nodes = api::list_all(&cluster.all()).await?;
    Ok(RolloutObjects {
        daemon_set,
        controller,
        pods: pods(cluster).await?,
        csi_nodes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_registration_is_explained_once() {
        let since = Instant::now();
        let late = since + LATE_REGISTRATION;
        let mut said = SaidState::new(&PodState::Registering, since);
        assert!(!said.is_late(since) && said.is_late(late));
        said.is_complete = true;
        assert!(!said.is_late(late));
        assert!(!SaidState::new(&PodState::Starting, since).is_late(late));
    }

    #[test]
    fn a_pod_that_fails_is_named() {
        let state = PodState::Failing {
            pod: "hostloop-x".to_owned(),
            why: "CrashLoopBackOff: no disk".to_owned(),
        };
        let lines = lines("n1", &state, Distribution::Kind, Duration::ZERO);
        assert!(
            lines[0].ends_with("n1: CrashLoopBackOff: no disk"),
            "{lines:?}"
        );
        assert!(
            lines[1].ends_with("logs hostloop-x --previous"),
            "{lines:?}"
        );
    }

    #[test]
    fn hints_by_the_reason() {
        let image = "ErrImageNeverPull: no image";
        for (why, distribution, contains) in [
            (image, Distribution::Kind, Some("kubectl hostloop load")),
            (
                image,
                Distribution::K3s,
                Some("k3s ctr images import - <ARCHIVE"),
            ),
            (
                "ImagePullBackOff: x",
                Distribution::Minikube,
                Some("kubectl hostloop load"),
            ),
            (
                "hostPath type check failed: /k",
                Distribution::Kind,
                Some("--kubelet-dir"),
            ),
            ("0/1 nodes are available", Distribution::Kind, None),
        ] {
            let hint = hint(why, distribution);
            assert_eq!(hint.is_some(), contains.is_some(), "{why}: {hint:?}");
            assert!(
                hint.unwrap_or_default()
                    .contains(contains.unwrap_or_default()),
                "{why}"
            );
        }
    }

    #[test]
    fn a_line_for_each_state() {
        for (state, said) in [
            (PodState::Old, vec!["n: the earlier version runs"]),
            (PodState::Starting, vec!["n: starting"]),
            (
                PodState::Registering,
                vec!["n: running, not yet registered"],
            ),
            (PodState::Ready, vec!["n: ready after 7 s"]),
            (
                PodState::Waiting("ErrImagePull".to_owned()),
                vec!["n: ErrImagePull", "  load the image"],
            ),
        ] {
            let lines = lines("n", &state, Distribution::Kind, Duration::from_secs(7));
            assert_eq!(lines.len(), said.len(), "{lines:?}");
            for (line, said) in lines.iter().zip(said) {
                assert!(line.contains(said), "{line}");
            }
        }
    }
}
