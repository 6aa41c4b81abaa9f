//! Which secrets processes ask the API server for, and when they last did.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use parking_lot::Mutex;

use crate::shim;

/// The latest requests for secrets, by actor and path. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct SecretReads(Arc<Mutex<BTreeMap<String, Duration>>>);

impl SecretReads {
    /// Notes a request, if it asks for a secret. What becomes of it does not matter.
    pub(crate) fn note(&self, actor: &str, method: &Method, path: &str) {
        if *method == Method::GET && path.contains("/secrets/") {
            self.0.lock().insert(key(actor, path), shim::now());
        }
    }

    /// When an actor last asked for the secret at a path.
    pub(crate) fn last(&self, actor: &str, path: &str) -> Option<Duration> {
        self.0.lock().get(&key(actor, path)).copied()
    }
}

fn key(actor: &str, path: &str) -> String {
    format!("{actor} {path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_secrets_are_noted_by_actor() {
        let reads = SecretReads::default();
        let path = "/api/v1/namespaces/u/secrets/c1";
        reads.note("node", &Method::DELETE, path);
        reads.note("node", &Method::GET, "/api/v1/namespaces/u/pods/c1");
        assert_eq!(reads.last("node", path), None);
        reads.note("node", &Method::GET, path);
        assert!(reads.last("node", path).is_some());
        assert_eq!(reads.last("node-2", path), None);
    }
}
