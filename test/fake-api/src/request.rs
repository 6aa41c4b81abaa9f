//! Requests as the server received them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::path::Target;

/// A request as the server received it.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordedRequest {
    /// `GET`, `POST`, …; empty for a note.
    pub(super) method: String,
    /// The path of the request, or the text of a note. The path of a watch ends with `?watch`.
    pub(super) path: String,
    /// The path and the parameters after it, as sent.
    pub(super) uri: String,
    /// The parameters after the path.
    pub(super) query: BTreeMap<String, String>,
    /// The body, or null.
    pub(super) body: Value,
    /// The content type of the body.
    pub(super) content: String,
    /// True if the client accepts a list of metadata instead of objects.
    pub(super) metadata: bool,
}

impl RecordedRequest {
    /// The path without its group and version, as `ns/kind/name`. A create has the name from its
    /// body.
    pub(super) fn short(&self) -> String {
        let Some(target) = Target::of(&self.path) else {
            return self.path.clone();
        };
        let created = self.body["metadata"]["name"]
            .as_str()
            .filter(|_| self.method == "POST");
        let name = target.name.or(created.map(str::to_owned));
        let parts = [
            target.namespace,
            Some(target.plural),
            name,
            target.subresource,
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("/")
    }

    pub(super) fn is_watch(&self) -> bool {
        self.path.ends_with("?watch")
    }

    /// The list with its selectors: `pods fieldSelector=a=b`, or `metadata of pods`.
    pub(super) fn list(&self) -> Option<String> {
        let target = Target::of(&self.path)?;
        if self.method != "GET" || self.is_watch() || target.name.is_some() {
            return None;
        }
        let selectors = ["labelSelector", "fieldSelector"];
        let given = selectors.iter().filter_map(|selector| {
            let value = self.query.get(*selector)?;
            Some(format!(" {selector}={value}"))
        });
        let part = if self.metadata { "metadata of " } else { "" };
        Some(format!(
            "{part}{}{}",
            target.plural,
            given.collect::<String>()
        ))
    }

    /// The request as `GET path` or `PATCH path <body>`, or the note.
    pub(super) fn line(self) -> String {
        match self.method.as_str() {
            "" => self.path,
            "GET" => format!("GET {}", self.short()),
            method => format!("{method} {} {}", self.short(), unbound(self.body)),
        }
    }

    /// The write as `name`, `name/status` or `create ns/kind`.
    pub(super) fn write(&self) -> String {
        if self.method == "POST" {
            return format!("create {}", self.short());
        }
        let target = Target::of(&self.path);
        let target = target.expect("the path of an object");
        let name = target.name.unwrap_or_default();
        let status = if target.subresource.is_some() {
            "/status"
        } else {
            ""
        };
        format!("{name}{status}")
    }
}

/// Removes UID and version from a body.
fn unbound(mut body: Value) -> Value {
    if let Some(Value::Object(metadata)) = body.get_mut("metadata") {
        metadata.remove("uid");
        metadata.remove("resourceVersion");
        if metadata.is_empty()
            && let Some(body) = body.as_object_mut()
        {
            body.remove("metadata");
        }
    }
    body
}
