//! Why a request failed, in terms of the person's rights and connection.

use std::fmt;

use hostloop_report::error_chain;
use kube::{Api, Resource};

use super::DEADLINE;

/// A request, as errors name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The verb of RBAC, such as `list`.
    verb: Box<str>,
    /// The plural with its group, such as `daemonsets.apps`; with a subresource, `pods/exec`.
    resource: Box<str>,
    /// `None` for the whole cluster.
    namespace: Option<Box<str>>,
    /// Empty for a request that names no object.
    name: Box<str>,
}

impl Call {
    /// A request for the objects of a resource, or for one.
    pub fn new(verb: &str, resource: &str, namespace: Option<&str>, name: &str) -> Self {
        Call {
            verb: verb.into(),
            resource: resource.into(),
            namespace: namespace.map(Into::into),
            name: name.into(),
        }
    }

    /// A request for objects of a kind, in the namespace of `api`.
    pub fn of<K: Resource<DynamicType = ()>>(verb: &str, api: &Api<K>, name: &str) -> Self {
        let resource = resource(&K::plural(&()), &K::group(&()));
        Call::new(verb, &resource, api.namespace(), name)
    }

    /// The right that the request needs.
    pub fn right(&self) -> String {
        let Call { verb, resource, .. } = self;
        match &self.namespace {
            Some(namespace) => format!("{verb} {resource} in namespace {namespace}"),
            None => format!("{verb} {resource} in the whole cluster"),
        }
    }

    /// The error of a request for a kind that the API server lacks.
    pub fn not_served(&self) -> ApiError {
        ApiError::NotServed(self.resource.to_string())
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        match (&self.namespace, &*self.name) {
            (None, "") => Ok(()),
            (None, name) => write!(f, " {name}"),
            (Some(namespace), "") => write!(f, " in namespace {namespace}"),
            (Some(namespace), name) => write!(f, " {namespace}/{name}"),
        }
    }
}

/// A plural with its group, as `volumesnapshots.snapshot.storage.k8s.io`.
pub(crate) fn resource(plural: &str, group: &str) -> String {
    match group {
        "" => plural.to_owned(),
        group => format!("{plural}.{group}"),
    }
}

/// A part of the API server's message about a role with more rights than the person has.
const GRANT: &str = "is attempting to grant";

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The person lacks a right.
    #[error(
        "you may not {}{}; ask for this right, or choose another --context",
        .call.right(),
        grant(.message)
    )]
    Forbidden { call: Call, message: String },
    /// The API server does not know who the person is.
    #[error("{call}: the API server does not accept your credentials: log in again ({message})")]
    Unauthorized { call: Call, message: String },
    /// The object does not exist.
    #[error("{call}: not found")]
    NotFound { call: Call },
    /// The API server does not serve the kind.
    #[error("the API server does not serve {0}")]
    NotServed(String),
    /// Another field manager owns a field of the object.
    #[error("{call}: {message}")]
    Conflict { call: Call, message: String },
    /// The API server rejects the request.
    #[error("{call}: the API server rejects it: {message}")]
    Rejected { call: Call, message: String },
    /// No answer within the deadline.
    #[error("{call}: the API server did not answer within {} s", DEADLINE.as_secs())]
    Timeout { call: Call },
    /// No connection, a server error, or an answer that can't be read.
    #[error("{call}: {message}")]
    Failed {
        call: Call,
        /// The API server's message, or the client's.
        message: String,
    },
}

impl ApiError {
    /// The client's error as one of these.
    pub fn new(mut call: Call, error: kube::Error) -> Self {
        let status = match error {
            kube::Error::Api(status) => status,
            error => {
                return ApiError::Failed {
                    call,
                    message: failure(&error),
                };
            }
        };
        let (code, message) = (status.code, status.message);
        match code {
            401 => ApiError::Unauthorized { call, message },
            403 if message.contains(GRANT) => ApiError::Forbidden { call, message },
            // Admission and a namespace that ends answer 403, too.
            403 => match refused(&message) {
                // The API server checks the account in the kubeconfig's `as` before the call.
                Some((IMPERSONATE, account)) if *account != *call.resource => ApiError::Forbidden {
                    call: Call::new(IMPERSONATE, account, None, ""),
                    message,
                },
                Some((verb, _)) => {
                    call.verb = verb.into();
                    ApiError::Forbidden { call, message }
                }
                // Kubernetes 1.35 and newer give no reason if only `create` of pods/exec is
                // missing.
                None if message.trim_end().ends_with("is forbidden:") => {
                    ApiError::Forbidden { call, message }
                }
                None => ApiError::Rejected { call, message },
            },
            404 => ApiError::NotFound { call },
            409 => ApiError::Conflict { call, message },
            400..500 => ApiError::Rejected { call, message },
            _ => ApiError::Failed {
                call,
                message: format!("{message} (HTTP {code})"),
            },
        }
    }

    /// True if a retry may succeed, and the request may have been carried out: no answer, or a
    /// server error.
    pub fn is_transient(&self) -> bool {
        matches!(self, ApiError::Timeout { .. } | ApiError::Failed { .. })
    }

    /// True if requests for other kinds may succeed.
    pub fn is_about_one_kind(&self) -> bool {
        matches!(self, ApiError::Forbidden { .. } | ApiError::NotServed(_))
    }
}

/// The verb that the API server refused, and of what, from its message: `… cannot get resource
/// "pods/exec" …`, or `… cannot get path "/version"`. For some requests it checks another verb than
/// their method suggests, depending on its version.
fn refused(message: &str) -> Option<(&str, &str)> {
    let (_, rest) = message.split_once(" cannot ")?;
    let (verb, rest) = rest.split_once(' ')?;
    let (kind, rest) = rest.split_once(" \"")?;
    let (what, _) = rest.split_once('"')?;
    // Kubernetes 1.37 names a narrower verb, such as `impersonate-on:serviceaccount:create`, and
    // the resource of the call.
    let refusal = match verb.strip_prefix("impersonate-on:") {
        Some(on) if on.starts_with("serviceaccount:") => (IMPERSONATE, "serviceaccounts"),
        Some(on) if on.starts_with("user-info:") => (IMPERSONATE, "users"),
        Some(_) => (IMPERSONATE, "nodes"),
        None => (verb, what),
    };
    ["resource", "path"].contains(&kind).then_some(refusal)
}

const IMPERSONATE: &str = "impersonate";

/// The part of the message that names the rights in a role, which the call does not.
fn grant(message: &str) -> String {
    if message.contains(GRANT) {
        format!(": {message}")
    } else {
        String::new()
    }
}

/// What a failure of the client says.
fn failure(error: &kube::Error) -> String {
    let causes = error_chain(error);
    match error {
        kube::Error::HyperError(_) | kube::Error::Service(_) => {
            // The words of a connection through a proxy.
            let question = if causes.contains("tunnel error") {
                "does the proxy let you through?"
            } else {
                "is the cluster running?"
            };
            format!("no answer from the API server: {causes}; {question}")
        }
        _ => causes,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use kube::core::Status;

    use super::*;

    const CANNOT: &str = "User \"u\" cannot list resource \"daemonsets\" in API group \"apps\"";
    const GRANTS: &str = "user \"u\" is attempting to grant RBAC permissions not currently held: x";
    const AS: &str = "users \"a\" is forbidden: User \"u\" cannot impersonate resource \"users\" in API group \"\"";
    const ENDS: &str = "unable to create new content in namespace n because it is being terminated";

    fn answer(code: u16, message: &str) -> ApiError {
        let status = Status {
            code,
            message: message.to_owned(),
            ..Status::default()
        };
        let call = Call::new("list", "daemonsets.apps", Some("hostloop"), "");
        ApiError::new(call, kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn errors_say_what_to_do() {
        for (code, message, contains, is_transient) in [
            (
                403,
                CANNOT,
                "you may not list daemonsets.apps in namespace hostloop; ask for",
                false,
            ),
            (
                403,
                GRANTS,
                "in namespace hostloop: user \"u\" is attempting to grant RBAC",
                false,
            ),
            (
                403,
                "pods \"p\" is forbidden: ",
                "you may not list daemonsets.apps in namespace",
                false,
            ),
            (
                403,
                AS,
                "you may not impersonate users in the whole cluster; ask for",
                false,
            ),
            (
                403,
                ENDS,
                "the API server rejects it: unable to create",
                false,
            ),
            (
                401,
                "why",
                "does not accept your credentials: log in again (why)",
                false,
            ),
            (
                404,
                "why",
                "list daemonsets.apps in namespace hostloop: not found",
                false,
            ),
            (
                409,
                "why",
                "list daemonsets.apps in namespace hostloop: why",
                false,
            ),
            (422, "why", "the API server rejects it: why", false),
            (
                503,
                "why",
                "list daemonsets.apps in namespace hostloop: why (HTTP 503)",
                true,
            ),
        ] {
            let error = answer(code, message);
            assert!(error.to_string().contains(contains), "{code}: {error}");
            assert_eq!(error.is_transient(), is_transient, "{code}");
        }
    }

    #[test]
    fn without_a_connection_the_cause_is_shown() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let call = Call::new("list", "nodes", None, "");
        let error = ApiError::new(call, kube::Error::Service(Box::new(refused)));
        assert!(error.is_transient());
        let said = error.to_string();
        assert!(
            said.starts_with("list nodes: no answer from the API server: "),
            "{said}"
        );
        assert!(
            said.ends_with("connection refused; is the cluster running?"),
            "{said}"
        );
    }

    #[test]
    fn verbs_of_refusals() {
        for (message, refusal) in [
            (
                r#"pods "a" is forbidden: User "u" cannot get resource "pods/exec" in API group """#,
                Some(("get", "pods/exec")),
            ),
            (
                r#"User "u" cannot create resource "pods/exec""#,
                Some(("create", "pods/exec")),
            ),
            (
                r#"forbidden: User "u" cannot get path "/version""#,
                Some(("get", "/version")),
            ),
            (
                r#"User "u" cannot impersonate-on:serviceaccount:create resource "pods""#,
                Some(("impersonate", "serviceaccounts")),
            ),
            ("User \"u\" cannot do that", None),
            ("quota exceeded", None),
            ("", None),
        ] {
            assert_eq!(refused(message), refusal, "{message}");
        }
    }

    #[test]
    fn calls_and_rights_by_what_they_name() {
        for (namespace, name, said, right) in [
            (None, "", "get pods", "get pods in the whole cluster"),
            (None, "a", "get pods a", "get pods in the whole cluster"),
            (
                Some("n"),
                "",
                "get pods in namespace n",
                "get pods in namespace n",
            ),
            (Some("n"), "a", "get pods n/a", "get pods in namespace n"),
        ] {
            let call = Call::new("get", "pods", namespace, name);
            assert_eq!(
                (call.to_string(), call.right()),
                (said.to_owned(), right.to_owned())
            );
        }
    }
}
