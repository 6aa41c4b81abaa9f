//! Requests to the API server, from its audit log.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

/// One answered request, or a watch that has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The requesting user, such as `system:serviceaccount:hostloop:hostloop`.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// The plural, with the subresource: `persistentvolumeclaims/status`. A request for no object
    /// has its path: `/readyz`.
    pub resource: String,
    /// The object's namespace, if it has one.
    pub namespace: String,
    /// The object's name, where the request names one.
    pub name: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// What was said where it was refused.
    pub message: String,
}

/// The requests up to a point of time, in the order of their answers.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    requests: Vec<(String, Request)>,
}

impl Request {
    /// Reads a line of the audit log, unless it is half written.
    pub fn parse(line: &str) -> Option<Request> {
        parse(line).map(|(_, request)| request)
    }
}

/// A request with its ID.
fn parse(line: &str) -> Option<(String, Request)> {
    let line: Value = serde_json::from_str(line).ok()?;
    let field = |pointer: &str| {
        let text = line.pointer(pointer).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let resource = match (
        field("/objectRef/resource"),
        field("/objectRef/subresource"),
    ) {
        (resource, _) if resource.is_empty() => field("/requestURI")
            .split('?')
            .next()
            .unwrap_or_default()
            .to_owned(),
        (resource, sub) if sub.is_empty() => resource,
        (resource, sub) => format!("{resource}/{sub}"),
    };
    let code = line.pointer("/responseStatus/code").and_then(Value::as_u64);
    let request = Request {
        user: field("/user/username"),
        verb: field("/verb"),
        resource,
        namespace: field("/objectRef/namespace"),
        name: field("/objectRef/name"),
        code: code
            .and_then(|code| u16::try_from(code).ok())
            .unwrap_or_default(),
        message: field("/responseStatus/message"),
    };
    Some((field("/auditID"), request))
}

impl Audit {
    pub(super) fn read(log: &Path) -> Audit {
        let log = std::fs::read(log).unwrap_or_default();
        Audit::parse(&String::from_utf8_lossy(&log))
    }

    /// A watch has a line when it begins and one when it ends: the first counts.
    fn parse(log: &str) -> Audit {
        let mut seen = BTreeSet::new();
        // The last line may be half written.
        let requests = log.lines().filter_map(parse);
        Audit {
            requests: requests.filter(|(id, _)| seen.insert(id.clone())).collect(),
        }
    }

    /// The requests that came after an earlier look.
    pub fn since(&self, earlier: &Audit) -> Audit {
        let old: BTreeSet<&str> = earlier.requests.iter().map(|(id, _)| id.as_str()).collect();
        let new = self
            .requests
            .iter()
            .filter(|(id, _)| !old.contains(id.as_str()));
        Audit {
            requests: new.cloned().collect(),
        }
    }

    /// The requests of a user. A name that ends with a colon (`system:serviceaccount:hostloop:`)
    /// stands for all users with that prefix, an empty one for all users.
    pub fn of(&self, user: &str) -> Vec<&Request> {
        let group = user.is_empty() || user.ends_with(':');
        let is_of = |name: &str| {
            if group {
                name.starts_with(user)
            } else {
                name == user
            }
        };
        let all = self.requests.iter().map(|(_, request)| request);
        all.filter(|request| is_of(&request.user)).collect()
    }

    /// The requests of [`Audit::of`] that were rejected for a missing right. In a namespace that is
    /// being deleted, all creations are rejected, including events. An API server that has just
    /// started does not know its roles yet: a request that a role allows at other times does not
    /// count.
    pub fn forbidden(&self, user: &str) -> Vec<&Request> {
        let all = self.of(user);
        let what = |r: &Request| (r.verb.clone(), r.resource.clone(), r.namespace.clone());
        let done = all.iter().filter(|r| (200..300).contains(&r.code));
        let done: BTreeSet<_> = done.map(|r| what(r)).collect();
        let by_roles = |r: &Request| r.message.contains(" cannot ") && done.contains(&what(r));
        let by_policy = |r: &Request| r.message.contains("ValidatingAdmissionPolicy");
        let ending = |r: &Request| r.message.contains("because it is being terminated");
        all.into_iter()
            .filter(|r| (r.code == 403 || by_policy(r)) && !ending(r) && !by_roles(r))
            .collect()
    }

    /// How many requests of [`Audit::of`] there were, by verb and resource.
    pub fn counts(&self, user: &str) -> BTreeMap<(&str, &str), usize> {
        let mut counts = BTreeMap::new();
        for request in self.of(user) {
            *counts
                .entry((request.verb.as_str(), request.resource.as_str()))
                .or_default() += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"
{"auditID":"1","stage":"ResponseComplete","requestURI":"/readyz?verbose","verb":"get","user":{"username":"admin"},"responseStatus":{"code":200}}
{"auditID":"2","stage":"ResponseStarted","requestURI":"/x","verb":"watch","user":{"username":"sa:a"},"objectRef":{"resource":"pods"},"responseStatus":{"code":200}}
{"auditID":"3","stage":"ResponseComplete","requestURI":"/x","verb":"patch","user":{"username":"sa:a"},"objectRef":{"resource":"pods","subresource":"status","namespace":"n","name":"p"},"responseStatus":{"code":403}}
{"auditID":"2","stage":"ResponseComplete","requestURI":"/x","verb":"watch","user":{"username":"sa:a"},"objectRef":{"resource":"pods"},"responseStatus":{"code":200}}
{"auditID":"4","stage":"Resp"#;

    #[test]
    fn requests_are_read_once_each() {
        let audit = Audit::parse(LOG);
        assert_eq!(audit.of("admin")[0].resource, "/readyz");
        assert!(audit.of("adm").is_empty());
        let counts = audit.counts("sa:");
        assert_eq!(counts[&("watch", "pods")], 1);
        assert_eq!(counts[&("patch", "pods/status")], 1);
        let refused = audit.forbidden("");
        assert_eq!(refused.len(), 1);
        assert_eq!((&*refused[0].namespace, &*refused[0].name), ("n", "p"));
    }

    #[test]
    fn roles_that_are_not_known_yet_refuse_nothing() {
        let line = |id: u8, code: u16, message: &str| {
            format!(
                r#"{{"auditID":"{id}","requestURI":"/x","verb":"watch","user":{{"username":"a"}},
                "objectRef":{{"resource":"pods"}},"responseStatus":{{"code":{code},"message":"{message}"}}}}"#
            )
            .replace('\n', "")
        };
        let refused = line(
            1,
            403,
            r#"pods is forbidden: User \"a\" cannot watch resource"#,
        );
        let denied = line(2, 403, "pods is forbidden: a policy denied the request");
        let count = |lines: &[&str]| Audit::parse(&lines.join("\n")).forbidden("a").len();
        assert_eq!(count(&[&refused, &denied]), 2);
        assert_eq!(count(&[&refused, &denied, &line(3, 200, "")]), 1);
    }

    #[test]
    fn what_was_seen_before_is_left_out() {
        let (first, _) = LOG.split_at(LOG.find("\"auditID\":\"3\"").expect("it is there") - 1);
        let later = Audit::parse(LOG).since(&Audit::parse(first));
        assert_eq!(later.of("").len(), 1);
    }
}
