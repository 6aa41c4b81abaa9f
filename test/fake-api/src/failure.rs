//! Failures of requests, as the API server reports them.

use serde_json::{Value, json};

use super::path::{Key, Target};
use super::request::RecordedRequest;

/// An error as the API server reports it.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: u16,
    reason: &'static str,
    message: String,
    details: Value,
}

impl Failure {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Failure {
        let message = message.into();
        Failure {
            code,
            reason,
            message,
            details: Value::Null,
        }
    }

    /// The failure that a test requested.
    pub(super) fn scripted(code: u16, request: &RecordedRequest) -> Failure {
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => return Failure::forbidden(request, "u"),
            404 => "NotFound",
            409 => "Conflict",
            410 => "Expired",
            422 => "Invalid",
            429 => "TooManyRequests",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "InternalError",
        };
        Failure::new(code, reason, "refused")
    }

    /// The failure of a request for which a user lacks the right.
    pub(super) fn forbidden(request: &RecordedRequest, user: &str) -> Failure {
        let Some(target) = Target::of(&request.path) else {
            let message = format!(
                "forbidden: User {user:?} cannot get path {:?}",
                request.path
            );
            return Failure::new(403, "Forbidden", message);
        };
        let verb = match (request.method.as_str(), target.subresource.as_deref()) {
            // The exec of a pod is a GET.
            ("POST", _) | (_, Some("exec")) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", _) => "delete",
            _ if request.is_watch() => "watch",
            _ if target.name.is_none() => "list",
            _ => "get",
        };
        let plural = &target.plural;
        let subresource = target
            .subresource
            .map(|part| format!("/{part}"))
            .unwrap_or_default();
        let object = target
            .name
            .map(|name| format!(" {name:?}"))
            .unwrap_or_default();
        let group = target
            .version
            .split_once('/')
            .map_or("", |(group, _)| group);
        let dot = if group.is_empty() { "" } else { "." };
        let place = match &target.namespace {
            Some(namespace) => format!("in the namespace {namespace:?}"),
            None => "at the cluster scope".to_owned(),
        };
        let message = format!(
            "{plural}{dot}{group}{object} is forbidden: User {user:?} cannot {verb} resource \
             \"{plural}{subresource}\" in API group {group:?} {place}"
        );
        Failure::new(403, "Forbidden", message)
    }

    pub(super) fn no_resource() -> Failure {
        Failure::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        )
    }

    pub(super) fn not_found(key: &Key) -> Failure {
        Failure::new(
            404,
            "NotFound",
            format!("{} {:?} not found", key.plural, key.name),
        )
    }

    pub(super) fn conflict(key: &Key, why: &str) -> Failure {
        let object = format!("{} {:?}", key.plural, key.name);
        let message = format!("Operation cannot be fulfilled on {object}: {why}");
        Failure::new(409, "Conflict", message)
    }

    pub(super) fn invalid(key: &Key, why: &str) -> Failure {
        let message = format!("{} {:?} is invalid: {why}", key.plural, key.name);
        Failure::new(422, "Invalid", message)
    }

    /// The failure of a request for a version that is no longer known.
    pub(super) fn expired(version: u64, oldest: u64) -> Failure {
        Failure::new(
            410,
            "Expired",
            format!("too old resource version: {version} ({oldest})"),
        )
    }

    /// The failure of a create in a namespace that is being deleted.
    pub(super) fn terminating(key: &Key, namespace: &str) -> Failure {
        let message = format!(
            "{} {:?} is forbidden: unable to create new content in namespace {namespace} because \
             it is being terminated",
            key.plural, key.name
        );
        let cause = json!({"reason": "NamespaceTerminating", "field": "metadata.namespace",
            "message": format!("namespace {namespace} is being terminated")});
        let details = json!({"name": &*key.name, "kind": &*key.plural, "causes": [cause]});
        Failure {
            details,
            ..Failure::new(403, "Forbidden", message)
        }
    }

    pub(super) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}
