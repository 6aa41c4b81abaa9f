//! Objects of any kind, as JSON.

pub(crate) use hostloop_test::front::fields::{handle as handle_of, name};
use hostloop_test::front::objects::Place;
use kube::api::DeleteParams;
use serde_json::Value;

use crate::world::{World, check};

/// A field by its JSON pointer, as text; empty if it does not exist.
pub(crate) fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    let field = value.pointer(pointer).and_then(Value::as_str);
    field.unwrap_or_default()
}

/// Panics if a field, by its JSON pointer, is not this text.
pub(crate) fn assert_text(value: &Value, pointer: &str, expected: &str) {
    assert_eq!(text(value, pointer), expected, "{pointer} of {value}");
}

/// The restarts of a pod's first container, once it has started.
pub(crate) fn restarts(pod: &Value) -> Option<u64> {
    let count = pod.pointer("/status/containerStatuses/0/restartCount");
    count.and_then(Value::as_u64)
}

/// Requests as the administrator. `namespace` is empty for cluster-wide kinds.
impl World {
    /// The object with this name, if it exists.
    pub(crate) fn find(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.wait(self.objects.get(&Place::of(kind, namespace, name)))
    }

    /// [`World::find`], but a missing object fails the test.
    pub(crate) fn get(&self, kind: &str, namespace: &str, name: &str) -> Value {
        let found = self.find(kind, namespace, name);
        found.unwrap_or_else(|| panic!("there is no {kind} {name}"))
    }

    /// All objects of a kind, in a namespace or everywhere.
    pub(crate) fn list(&self, kind: &str, namespace: &str) -> Vec<Value> {
        self.wait(self.objects.list(kind, namespace))
    }

    /// Creates an object with its own kind, name and namespace.
    pub(crate) fn create(&self, object: Value) -> Value {
        self.wait(self.objects.create(object))
    }

    /// Changes an object by a merge patch.
    pub(crate) fn patch(&self, kind: &str, namespace: &str, name: &str, patch: Value) {
        self.wait(self.objects.merge(&Place::of(kind, namespace, name), patch));
    }

    /// Deletes an object, without waiting. A missing object is not an error.
    pub(crate) fn delete(&self, kind: &str, namespace: &str, name: &str) {
        self.wait(self.objects.delete(&Place::of(kind, namespace, name)));
    }

    /// [`World::delete`] of a pod without a grace period: its object disappears at once.
    pub(crate) fn force_delete(&self, namespace: &str, pod: &str) {
        let now = DeleteParams::default().grace_period(0);
        self.wait(
            self.objects
                .delete_with(&Place::of("Pod", namespace, pod), &now),
        );
    }

    /// Waits until an object meets a condition, and returns it.
    pub(crate) fn until_is(
        &self,
        what: &str,
        (kind, namespace, name): (&str, &str, &str),
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        self.until(&format!("{kind} {name}, {what}"), || {
            let object = self.get(kind, namespace, name);
            let events = || match namespace {
                "" => String::new(),
                _ => self.events(namespace),
            };
            check(is(&object), || {
                format!("{}; {}", object["status"], events())
            })?;
            Ok(object)
        })
    }

    pub(crate) fn events(&self, namespace: &str) -> String {
        let events = self.list("Event", namespace);
        let line = |e: &Value| {
            let object = text(e, "/involvedObject/name");
            format!("{object}: {}: {}", text(e, "/reason"), text(e, "/message"))
        };
        events.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Waits until the object is gone.
    pub(crate) fn gone(&self, kind: &str, namespace: &str, name: &str) {
        self.until(&format!("the end of {kind} {name}"), || {
            match self.find(kind, namespace, name) {
                None => Ok(()),
                Some(object) => Err(object.to_string()),
            }
        });
    }

    /// Deletes an object, and waits until it is gone.
    pub(crate) fn remove(&self, kind: &str, namespace: &str, name: &str) {
        self.delete(kind, namespace, name);
        self.gone(kind, namespace, name);
    }
}
