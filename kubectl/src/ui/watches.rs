//! Watches of objects, with the person's rights.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use kube::api::{Api, DynamicObject};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::Value;

use super::Out;
use super::kinds::{OwnNames, Scope, ShownKind};
use crate::api::{ApiError, Call, Readable, resource};
use crate::cluster::Cluster;
use crate::volume_objects::title;

/// The pause before a kind that is missing or forbidden is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// Why a watch ended.
enum End {
    /// The person may not list or watch.
    Forbidden(ApiError),
    /// The API server has no such kind.
    NotServed,
}

/// Watches a kind until the task is dropped. Without the right for all namespaces, it watches that
/// of the person.
pub(super) async fn watch(cluster: Cluster, kind: ShownKind, out: Out) {
    let mut watch = Watch::new(&cluster, kind, out);
    let namespaces = match kind.scope {
        Scope::Cluster => vec![None],
        Scope::Namespaces => vec![None, Some(cluster.namespace.clone())],
        Scope::System => vec![Some(cluster.system_namespace.clone())],
    };
    loop {
        for namespace in &namespaces {
            match watch.run(&cluster, namespace).await {
                End::Forbidden(error) => {
                    watch
                        .out
                        .problems
                        .found(&watch.about(namespace), &error.to_string());
                }
                End::NotServed => {
                    watch.out.problems.solved(&watch.about(namespace));
                    break;
                }
            }
        }
        watch.out.verdict_facts.settle(kind.kind, false);
        tokio::time::sleep(RETRY).await;
    }
}

struct Watch {
    kind: ShownKind,
    names: OwnNames,
    out: Out,
    /// The objects that may be shown by key, each with its version.
    known: BTreeMap<String, String>,
}

impl Watch {
    fn new(cluster: &Cluster, kind: ShownKind, out: Out) -> Watch {
        let names = OwnNames {
            driver: cluster.driver_name.clone(),
            system_namespace: cluster.system_namespace.clone(),
        };
        Watch {
            kind,
            names,
            out,
            known: BTreeMap::new(),
        }
    }

    fn about(&self, namespace: &Option<String>) -> String {
        match namespace {
            Some(namespace) => format!("watching {} in namespace {namespace}", self.resource()),
            None => format!("watching {}", self.resource()),
        }
    }

    /// The plural with its group.
    fn resource(&self) -> String {
        resource(self.kind.plural, self.kind.group)
    }

    /// Watches in a namespace, or in all.
    async fn run(&mut self, cluster: &Cluster, namespace: &Option<String>) -> End {
        let ShownKind {
            group,
            version,
            kind,
            plural,
            ..
        } = self.kind;
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        let client = cluster.client.clone();
        let api: Api<Readable<DynamicObject>> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let mut events = watcher(api, watcher::Config::default())
            .default_backoff()
            .boxed();
        // Objects of the list that the watcher reads first, or again after a failure.
        let mut listed = BTreeSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    self.out.problems.solved(&self.about(namespace));
                    self.take(event, &mut listed);
                }
                Err(error) => {
                    if let Some(end) = self.failed(error, namespace) {
                        return end;
                    }
                }
            }
        }
        End::NotServed
    }

    /// Reports a failed watch. The watcher repeats it, if that helps.
    fn failed(&mut self, error: watcher::Error, namespace: &Option<String>) -> Option<End> {
        let (verb, error) = match error {
            watcher::Error::InitialListFailed(error) => ("list", error),
            watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
                ("watch", error)
            }
            // The API server's usual end of a watch is not a problem: the next list follows.
            watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => return None,
        };
        let call = Call::new(verb, &self.resource(), namespace.as_deref(), "");
        match ApiError::new(call, error) {
            error @ ApiError::Forbidden { .. } => Some(End::Forbidden(error)),
            ApiError::NotFound { .. } | ApiError::NotServed(_) => Some(End::NotServed),
            error => {
                self.out
                    .problems
                    .found(&self.about(namespace), &error.to_string());
                self.out.verdict_facts.settle(self.kind.kind, false);
                None
            }
        }
    }

    fn take(
        &mut self,
        event: watcher::Event<Readable<DynamicObject>>,
        listed: &mut BTreeSet<String>,
    ) {
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(Readable(object)) => {
                listed.insert(title(&object.metadata));
                self.set(&object);
            }
            watcher::Event::InitDone => {
                let gone = self.known.keys().filter(|key| !listed.contains(*key));
                for key in gone.cloned().collect::<Vec<_>>() {
                    self.delete(&key);
                }
                self.out.verdict_facts.settle(self.kind.kind, true);
            }
            watcher::Event::Apply(Readable(object)) => self.set(&object),
            watcher::Event::Delete(Readable(object)) => self.delete(&title(&object.metadata)),
        }
    }

    fn set(&mut self, object: &DynamicObject) {
        let key = title(&object.metadata);
        let version = object.metadata.resource_version.clone().unwrap_or_default();
        if self.known.get(&key) == Some(&version) {
            return;
        }
        let value = serde_json::to_value(object).unwrap_or(Value::Null);
        match (self.kind.show)(&value, &self.names) {
            Some(shown) => {
                let concern = self.kind.concern(&value, &self.names);
                self.out.concerns.set(self.kind.kind, &key, shown, concern);
                self.known.insert(key, version);
            }
            None => self.delete(&key),
        }
    }

    fn delete(&mut self, key: &str) {
        if self.known.remove(key).is_some() {
            self.out.concerns.delete(self.kind.kind, key);
        }
    }
}

#[cfg(test)]
mod tests {
    use hostloop_fake_api::FakeApi;
    use serde_json::json;

    use super::*;
    use crate::test_objects::cluster_of;
    use crate::ui::history::History;

    /// The operations, keys and texts of the messages.
    fn messages(history: &History) -> Vec<String> {
        let texts = history.all().texts;
        let messages = texts.iter().map(|text| {
            let json: Value = serde_json::from_str(text).unwrap();
            let word = |field: &str| json[field].as_str().unwrap_or_default().to_owned();
            format!(
                "{}{} {}",
                word("op"),
                word("type").replace("object", ""),
                word("key")
            )
        });
        messages.collect()
    }

    fn object(name: &str, version: u32) -> DynamicObject {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "demo",
            "resourceVersion": version.to_string()}}))
        .unwrap()
    }

    #[tokio::test]
    async fn a_new_list_reports_only_what_differs() {
        let out = Out::new();
        let mut watch = Watch::new(
            &cluster_of(&FakeApi::default()),
            // Every node concerns hostloop.
            *crate::ui::kinds::KINDS
                .iter()
                .find(|kind| kind.kind == "Node")
                .unwrap(),
            out.clone(),
        );
        let mut listed = BTreeSet::new();
        let list = |objects: Vec<DynamicObject>| {
            let applies = objects
                .into_iter()
                .map(Readable)
                .map(watcher::Event::InitApply);
            [watcher::Event::Init]
                .into_iter()
                .chain(applies)
                .chain([watcher::Event::InitDone])
        };
        let first = list(vec![object("a", 1), object("b", 1), object("c", 1)]);
        let second = list(vec![object("a", 1), object("b", 2)]);
        let change = watcher::Event::Delete(Readable(object("a", 3)));
        for event in first.chain(second).chain([change]) {
            watch.take(event, &mut listed);
        }
        assert_eq!(
            messages(&out.history),
            [
                "set demo/a",
                "set demo/b",
                "set demo/c",
                "set demo/b",
                "delete demo/c",
                "delete demo/a"
            ]
        );
    }
}
