//! Why a request failed, in terms of the person's rights and connection.

use std::fmt;

use super::DEADLINE;

/// A request, as errors name it: verb, resource, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The verb of RBAC, such as `list`.
    pub verb: &'static str,
    /// The plural with its group, such as `daemonsets.apps`.
    pub resource: String,
    /// The namespace and the name, as far as the request has them.
    pub target: String,
}

impl Call {
    /// A request for the objects of a resource, or for one.
    pub fn new(verb: &'static str, plural: &str, group: &str, namespace: &str, name: &str) -> Self {
        let resource = match group {
            "" => plural.to_owned(),
            group => format!("{plural}.{group}"),
        };
        let target = match (namespace, name) {
            ("", name) => name.to_owned(),
            (namespace, "") => format!("in namespace {namespace}"),
            (namespace, name) => format!("{namespace}/{name}"),
        };
        Call { verb, resource, target }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        match self.target.as_str() {
            "" => Ok(()),
            target => write!(f, " {target}"),
        }
    }
}

/// Parts of the API server's messages about missing rights: to do something, and to grant rights.
const MISSING_RIGHT: [&str; 2] = [" cannot ", "is attempting to grant"];

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The person lacks a right.
    #[error(
        "{call}: your account lacks the right to {} {}: {message}; ask an administrator for it, or \
         choose another --context",
        .call.verb,
        .call.resource
    )]
    Forbidden {
        /// Which request.
        call: Call,
        /// The API server's message.
        message: String,
    },
    /// The API server does not know who the person is.
    #[error("{call}: the API server does not accept your credentials: log in again ({message})")]
    Unauthorized {
        /// Which request.
        call: Call,
        /// The API server's message.
        message: String,
    },
    /// The object does not exist, or the API server does not serve its kind.
    #[error("{call}: not found")]
    NotFound {
        /// Which request.
        call: Call,
    },
    /// Another field manager owns a field of the object.
    #[error("{call}: {message}")]
    Conflict {
        /// Which request.
        call: Call,
        /// The API server's message.
        message: String,
    },
    /// The API server rejects the request.
    #[error("{call}: the API server rejects it: {message}")]
    Rejected {
        /// Which request.
        call: Call,
        /// The API server's message.
        message: String,
    },
    /// No answer within the deadline.
    #[error("{call}: the API server did not answer within {} s", DEADLINE.as_secs())]
    Timeout {
        /// Which request.
        call: Call,
    },
    /// No connection, or an answer that can't be read.
    #[error("{call}: no answer from the API server: {}; is the cluster running?", causes(.source))]
    Failed {
        /// Which request.
        call: Call,
        /// The client's error.
        #[source]
        source: Box<kube::Error>,
    },
}

impl ApiError {
    /// The client's error as one of these.
    pub fn new(call: Call, error: kube::Error) -> Self {
        let kube::Error::Api(status) = &error else {
            return ApiError::Failed { call, source: Box::new(error) };
        };
        let (code, message) = (status.code, status.message.clone());
        match code {
            401 => ApiError::Unauthorized { call, message },
            // Admission and a namespace that ends answer 403, too.
            403 if MISSING_RIGHT.iter().any(|words| message.contains(words)) => {
                ApiError::Forbidden { call, message }
            }
            404 => ApiError::NotFound { call },
            409 => ApiError::Conflict { call, message },
            400..500 => ApiError::Rejected { call, message },
            _ => ApiError::Failed { call, source: Box::new(error) },
        }
    }

    /// True if a retry may succeed: no answer, or a server error.
    pub fn is_transient(&self) -> bool {
        matches!(self, ApiError::Timeout { .. } | ApiError::Failed { .. })
    }
}

/// The error and its causes, each once. The client's own messages omit the causes.
fn causes(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("{} (HTTP {})", status.message, status.code);
    }
    let first: &dyn std::error::Error = error;
    let chain = std::iter::successors(Some(first), |error| error.source());
    let mut said: Vec<String> = Vec::new();
    for cause in chain.map(ToString::to_string) {
        if !said.iter().any(|earlier| earlier.contains(&cause)) {
            said.push(cause);
        }
    }
    said.join(": ")
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    const CANNOT: &str = "User \"u\" cannot list resource";
    const ENDS: &str = "unable to create new content in namespace n because it is being terminated";

    fn answer(code: u16, message: &str) -> ApiError {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        let call = Call::new("list", "daemonsets", "apps", "hostloop", "");
        ApiError::new(call, kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn errors_say_what_to_do() {
        for (code, message, contains, is_transient) in [
            (403, CANNOT, "your account lacks the right to list daemonsets.apps: User", false),
            (403, "u is attempting to grant RBAC permissions", "lacks the right to", false),
            (403, ENDS, "the API server rejects it: unable to create", false),
            (401, "why", "does not accept your credentials: log in again (why)", false),
            (404, "why", "list daemonsets.apps in namespace hostloop: not found", false),
            (409, "why", "list daemonsets.apps in namespace hostloop: why", false),
            (422, "why", "the API server rejects it: why", false),
            (503, "why", "no answer from the API server: why (HTTP 503)", true),
        ] {
            let error = answer(code, message);
            assert!(error.to_string().contains(contains), "{code}: {error}");
            assert_eq!(error.is_transient(), is_transient, "{code}");
        }
    }

    #[test]
    fn calls_by_what_they_name() {
        for (namespace, name, said) in [
            ("", "", "get pods"),
            ("", "a", "get pods a"),
            ("n", "", "get pods in namespace n"),
            ("n", "a", "get pods n/a"),
        ] {
            assert_eq!(Call::new("get", "pods", "", namespace, name).to_string(), said);
        }
    }
}
