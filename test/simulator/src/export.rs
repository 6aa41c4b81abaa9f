//! Exports a history, so that a real cluster can do the same: what users sent, and the state of the
//! cluster after each step and a quiet time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hostloop_fidelity::{
    Call, ClusterState, Export, FoundObjects, KINDS, Names, QUIET, RecordDirectory, ReplayedStep,
};
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::ServiceExt;
use tower::util::BoxCloneService;

use crate::cluster::{self, Cluster, NAMESPACE};
use crate::door::Doors;
use crate::history::History;
use crate::oracle::Oracle;
use crate::{effects, shim, trace, users};

/// How long the processes find their caches and capacities.
const START: Duration = Duration::from_secs(60);

/// The image and the command of containers. Each node of a cluster for tests has the image.
const IMAGE: &str = "busybox:1";
const COMMAND: [&str; 2] = ["sleep", "1000000"];
/// What begins the names of annotations that only the simulator's own rules read.
const OWN: &str = "simulator/";

/// How an actor reaches the API server.
type Door = BoxCloneService<Request<Body>, Response<Body>, kube::Error>;

/// Does a history, with a quiet time after each step.
pub(crate) async fn export(history: &History, dir: &Path) -> (Export, u64) {
    shim::follow();
    effects::begin();
    let mut cluster = Cluster::start(history, dir);
    let mut oracle = Oracle::default();
    let sent_calls = SentCalls::default();
    let client = sent_calls.client(&cluster.doors);
    cluster.pass(START).await;
    let pool = RecordDirectory::at(&cluster.machines[0].pool());
    let mut steps = Vec::new();
    for step in &history.steps {
        let names = Names::of(&found(&cluster, &pool));
        let sentence = step.action.to_string();
        trace::line("user", &sentence);
        // All new pods go to the only node. The code of a refusal is recorded.
        let _ = users::act(&client, &step.action, None).await;
        cluster.pass(QUIET).await;
        oracle.safety(&cluster);
        cluster.check_running();
        let calls = sent_calls.take().into_iter().map(|call| Call {
            path: names.readable_path(&call.path),
            ..call
        });
        steps.push(ReplayedStep {
            sentence,
            calls: calls.collect(),
            state: ClusterState::of(&found(&cluster, &pool)),
        });
    }
    let export = Export {
        seed: history.seed,
        setup: setup(),
        steps,
    };
    (export, cluster.doors.requests())
}

/// What an administrator makes before.
fn setup() -> Vec<Value> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": NAMESPACE}});
    [namespace].into_iter().chain(cluster::classes()).collect()
}

fn found(cluster: &Cluster, pool: &RecordDirectory) -> FoundObjects {
    let mut found = FoundObjects::new(pool.records());
    for (kind, plural) in KINDS {
        found.add(kind, cluster.api.all(plural));
    }
    found
}

/// Writes down what a user sends. Clones share it.
#[derive(Clone, Default)]
struct SentCalls(Arc<Mutex<Vec<Call>>>);

impl SentCalls {
    /// The client of a user.
    fn client(&self, doors: &Doors) -> Client {
        let (sent_calls, door) = (self.clone(), doors.over("user", &doors.connect("user")));
        let service: Door = BoxCloneService::new(tower::service_fn(move |request| {
            let (sent_calls, door) = (sent_calls.clone(), door.clone());
            async move { sent_calls.pass(door, request).await }
        }));
        Client::new(service, "default")
    }

    async fn pass(self, door: Door, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        if request.method() == Method::GET {
            return door.oneshot(request).await;
        }
        let (head, body) = request.into_parts();
        let bytes = body.collect_bytes().await?;
        let mut body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        make_real(&mut body);
        let (method, path) = (head.method.to_string(), head.uri.path().to_owned());
        let sent = Body::from(body.to_string().into_bytes());
        let answer = door.oneshot(Request::from_parts(head, sent)).await?;
        self.0.lock().push(Call {
            method,
            path,
            body,
            code: answer.status().as_u16(),
        });
        Ok(answer)
    }

    /// The writes since the last look.
    fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Makes of an object one that a real cluster can run: containers have an image and a command that
/// there are, and each volume has a place of its own.
fn make_real(object: &mut Value) {
    if let Some(annotations) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.retain(|key, _| !key.starts_with(OWN));
    }
    if object["kind"] != "Pod" {
        return;
    }
    let spec = &mut object["spec"];
    spec["terminationGracePeriodSeconds"] = json!(1);
    let containers = spec["containers"].as_array_mut();
    for container in containers.into_iter().flatten() {
        container["image"] = json!(IMAGE);
        container["command"] = json!(COMMAND);
        for (list, field, folder) in [
            ("volumeMounts", "mountPath", ""),
            ("volumeDevices", "devicePath", "/dev"),
        ] {
            for one in container[list].as_array_mut().into_iter().flatten() {
                let name = one["name"].as_str().unwrap_or_default();
                let place = format!("{folder}/{name}");
                one[field] = json!(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_can_run_on_a_real_cluster() {
        let mut pod = json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{
            "image": "i",
            "volumeMounts": [{"name": "v0", "mountPath": "/v"}, {"name": "v1", "mountPath": "/v"}],
            "volumeDevices": [{"name": "v2", "devicePath": "/dev/v"}]}]}});
        make_real(&mut pod);
        let mounts =
            json!([{"name": "v0", "mountPath": "/v0"}, {"name": "v1", "mountPath": "/v1"}]);
        let container = json!({"image": IMAGE, "command": COMMAND, "volumeMounts": mounts,
            "volumeDevices": [{"name": "v2", "devicePath": "/dev/v2"}]});
        let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [container]});
        assert_eq!(pod["spec"], spec);
    }

    #[test]
    fn notes_of_the_simulator_stay_here() {
        let mut claim = json!({"kind": "PersistentVolumeClaim",
            "metadata": {"annotations": {"simulator/requested": "1Gi", "other": "yes"}}});
        make_real(&mut claim);
        assert_eq!(claim["metadata"], json!({"annotations": {"other": "yes"}}));
    }
}
