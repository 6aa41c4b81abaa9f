//! An API server in memory, as far as the client's tests need one.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::Cluster;
use super::manifests::ObjectKey;

/// The kinds that every server has: version, kind, plural, and whether it has namespaces.
const KINDS: [(&str, &str, &str, bool); 24] = [
    ("v1", "Namespace", "namespaces", false),
    ("v1", "Node", "nodes", false),
    ("v1", "Pod", "pods", true),
    ("v1", "PersistentVolume", "persistentvolumes", false),
    ("v1", "ServiceAccount", "serviceaccounts", true),
    ("apps/v1", "DaemonSet", "daemonsets", true),
    ("apps/v1", "Deployment", "deployments", true),
    ("storage.k8s.io/v1", "StorageClass", "storageclasses", false),
    ("storage.k8s.io/v1", "CSIDriver", "csidrivers", false),
    ("storage.k8s.io/v1", "CSINode", "csinodes", false),
    ("storage.k8s.io/v1", "VolumeAttributesClass", "volumeattributesclasses", false),
    ("rbac.authorization.k8s.io/v1", "Role", "roles", true),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", true),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", false),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", false),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", true),
    ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", "flowschemas", false),
    ("coordination.k8s.io/v1", "Lease", "leases", true),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        false,
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        false,
    ),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", false),
    ("v1", "Event", "events", true),
    ("v1", "PersistentVolumeClaim", "persistentvolumeclaims", true),
    ("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments", false),
];

#[derive(Default)]
struct State {
    objects: BTreeMap<ObjectKey, Value>,
    /// The next `resourceVersion`.
    version: u64,
    /// The writes: `PATCH Role hostloop/hostloop`.
    writes: Vec<String>,
    /// Verbs and plurals that the person lacks.
    forbidden: Vec<(&'static str, &'static str)>,
    minor: u32,
}

/// The server. Clones share it.
#[derive(Clone, Default)]
pub(super) struct FakeServer(Arc<Mutex<State>>);

impl FakeServer {
    /// A server of the version 1.`minor`.
    pub(super) fn new(minor: u32) -> Self {
        let server = FakeServer::default();
        server.lock().minor = minor;
        server
    }

    /// Puts an object in, as if another client had written it.
    pub(super) fn put(&self, object: Value) {
        self.lock().put(object);
    }

    /// All objects of a kind.
    pub(super) fn all(&self, kind: &str) -> Vec<Value> {
        let state = self.lock();
        let of_kind = state.objects.iter().filter(|(key, _)| key.kind == kind);
        of_kind.map(|(_, object)| object.clone()).collect()
    }

    /// The writes since the last look.
    pub(super) fn writes(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().writes)
    }

    /// Takes a right from the person.
    pub(super) fn forbid(&self, verb: &'static str, plural: &'static str) {
        self.lock().forbidden.push((verb, plural));
    }

    /// A cluster of this server.
    pub(super) fn cluster(&self) -> Cluster {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.expect("a body");
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let query = head.uri.query().unwrap_or_default().to_owned();
                let (code, answer) =
                    server.lock().answer(head.method.as_str(), head.uri.path(), &query, body);
                let answer = serde_json::to_vec(&answer).expect("JSON");
                let response = Response::builder().status(code).body(Body::from(answer));
                Ok::<_, Infallible>(response.expect("a response"))
            }
        });
        Cluster {
            client: Client::new(service, "default"),
            context: Some("test".to_owned()),
            namespace: "default".to_owned(),
            system_namespace: "hostloop".to_owned(),
            driver_name: "hostloop.csi.dev".to_owned(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("the server")
    }
}

fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": message, "metadata": {}});
    (code, status)
}

impl State {
    /// The kinds that are served: version, kind, plural, and whether it has namespaces.
    fn kinds(&self) -> Vec<(String, String, String, bool)> {
        let known = KINDS.iter().map(|(version, kind, plural, namespaced)| {
            ((*version).to_owned(), (*kind).to_owned(), (*plural).to_owned(), *namespaced)
        });
        let definitions =
            self.objects.iter().filter(|(key, _)| key.kind == "CustomResourceDefinition");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let defined = definitions.flat_map(|(_, object)| {
            let spec = &object["spec"];
            let versions = spec["versions"].as_array().into_iter().flatten();
            versions.map(move |version| {
                let version = format!("{}/{}", text(&spec["group"]), text(&version["name"]));
                let names = &spec["names"];
                let namespaced = spec["scope"] == "Namespaced";
                (version, text(&names["kind"]), text(&names["plural"]), namespaced)
            })
        });
        known.chain(defined).collect()
    }

    fn put(&mut self, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let uid = json!(format!("uid-{}", self.version));
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = uid;
        }
        if object["kind"] == "CustomResourceDefinition" {
            object["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
        }
        self.objects.insert(ObjectKey::of(&object), object.clone());
        object
    }

    fn answer(&mut self, method: &str, path: &str, query: &str, body: Value) -> (u16, Value) {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        if parts == ["version"] {
            let minor = self.minor;
            return (
                200,
                json!({"major": "1", "minor": minor.to_string(), "buildDate": "",
                "gitVersion": format!("v1.{minor}.0"), "compiler": "", "gitCommit": "",
                "gitTreeState": "", "goVersion": "", "platform": ""}),
            );
        }
        let (version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ((*version).to_owned(), rest),
            ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
            _ => return failure(404, "NotFound", path),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let kinds = self.kinds();
        let Some((plural, name)) = rest.split_first() else {
            return discovery(&kinds, &version);
        };
        let found = kinds.iter().find(|kind| kind.0 == version && kind.2 == *plural);
        let Some((_, kind, ..)) = found else {
            return failure(404, "NotFound", path);
        };
        let key = ObjectKey {
            version,
            kind: kind.clone(),
            namespace: namespace.to_owned(),
            name: name.first().copied().unwrap_or_default().to_owned(),
        };
        let verb = match (method, name.is_empty()) {
            ("GET", true) => "list",
            ("GET", false) => "get",
            ("PATCH", _) => "patch",
            _ => "delete",
        };
        if self.forbidden.contains(&(verb, *plural)) {
            return failure(403, "Forbidden", &format!("User \"u\" cannot {verb} {plural}"));
        }
        match verb {
            "list" => self.list(&key, query),
            "get" => match self.objects.get(&key) {
                Some(object) => (200, object.clone()),
                None => failure(404, "NotFound", path),
            },
            "patch" => self.apply(&key, query.contains("force=true"), body),
            _ => {
                self.writes.push(format!("DELETE {key}"));
                match self.objects.remove(&key) {
                    Some(object) => (200, object),
                    None => failure(404, "NotFound", path),
                }
            }
        }
    }

    fn list(&self, key: &ObjectKey, query: &str) -> (u16, Value) {
        let label = query.split('&').find_map(|part| part.strip_prefix("labelSelector="));
        let label = label.map(|text| text.replace("%2F", "/").replace("%3D", "="));
        let has_label = |object: &Value| match label.as_ref().and_then(|text| text.split_once('='))
        {
            Some((label, value)) => object["metadata"]["labels"][label] == value,
            None => true,
        };
        let is_in = |one: &ObjectKey| {
            (&one.version, &one.kind) == (&key.version, &key.kind)
                && (key.namespace.is_empty() || one.namespace == key.namespace)
        };
        let found = self.objects.iter().filter(|(one, object)| is_in(one) && has_label(object));
        // As from a real one, items have no kind.
        let items = found.map(|(_, object)| {
            let mut item = object.clone();
            for field in ["apiVersion", "kind"] {
                item.as_object_mut().expect("an object").remove(field);
            }
            item
        });
        let items: Vec<Value> = items.collect();
        (
            200,
            json!({"apiVersion": key.version, "kind": format!("{}List", key.kind),
            "metadata": {}, "items": items}),
        )
    }

    fn apply(&mut self, key: &ObjectKey, force: bool, mut body: Value) -> (u16, Value) {
        self.writes.push(format!("PATCH {key}"));
        let server_made = ["uid", "resourceVersion", "managedFields"];
        body["metadata"]["managedFields"] = json!([{"manager": super::api::MANAGER}]);
        let Some(before) = self.objects.get(key).cloned() else {
            return (201, self.put(body));
        };
        if !force && before["metadata"]["managedFields"].is_null() {
            return failure(409, "Conflict", "conflict with \"other\": .spec");
        }
        let plain = |object: &Value| {
            let mut object = object.clone();
            let metadata = object["metadata"].as_object_mut().expect("metadata");
            server_made.iter().for_each(|field| _ = metadata.remove(*field));
            object.as_object_mut().expect("an object").remove("status");
            object
        };
        match plain(&before) == plain(&body) {
            true => (200, before),
            false => {
                body["metadata"]["uid"] = before["metadata"]["uid"].clone();
                (200, self.put(body))
            }
        }
    }
}

fn discovery(kinds: &[(String, String, String, bool)], version: &str) -> (u16, Value) {
    let of_version = kinds.iter().filter(|kind| kind.0 == version);
    let resources: Vec<Value> = of_version
        .map(|(_, kind, plural, namespaced)| {
            json!({"name": plural, "kind": kind, "namespaced": namespaced, "singularName": "",
                "verbs": ["get", "list", "patch", "delete"]})
        })
        .collect();
    match resources.is_empty() {
        true => failure(404, "NotFound", version),
        false => (
            200,
            json!({"kind": "APIResourceList", "groupVersion": version,
            "resources": resources}),
        ),
    }
}
