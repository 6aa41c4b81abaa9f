//! Tracks which claims are used by pods. A cluster has many pods, so they are watched only after
//! the driver reports that it can't expand a volume in use.

use std::collections::BTreeSet;

use super::ClaimKey;
use crate::api::pod::Pod;
use crate::cache::{Change, Index, Store};

/// Pods, indexed by the claims they use.
pub(super) struct PodsByClaim(Index<Pod>);

impl PodsByClaim {
    /// Creates the index over a watch that has synced. `left` receives claims that a pod has
    /// stopped using; another pod may still use them.
    pub(super) fn of(
        watch: &Store<Pod>,
        left: impl Fn(BTreeSet<ClaimKey>) + Send + Sync + 'static,
    ) -> Self {
        watch.on_change(move |change| match change {
            Change::Applied {
                old: Some(old),
                new,
            } => {
                let still = claims(new);
                let gone: BTreeSet<ClaimKey> = claims(old).difference(&still).cloned().collect();
                if !gone.is_empty() {
                    left(gone);
                }
            }
            Change::Applied { old: None, .. } => {}
            Change::Deleted(old) => left(claims(old)),
        });
        PodsByClaim(watch.index(|pod: &Pod| claims(pod).iter().map(text).collect()))
    }

    /// True if any pod uses this claim.
    pub(super) fn any(&self, key: &ClaimKey) -> bool {
        !self.0.get(&text(key)).is_empty()
    }
}

fn text(key: &ClaimKey) -> String {
    format!("{}/{}", key.0, key.1)
}

/// The claims of a pod; none if the pod has ended.
fn claims(pod: &Pod) -> BTreeSet<ClaimKey> {
    if matches!(pod.status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        return BTreeSet::new();
    }
    pod.claims().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    fn pod(version: u32, phase: &str) -> Pod {
        crate::testing::read(json!({
            "metadata": {"name": "p", "namespace": "ns", "resourceVersion": version.to_string()},
            "spec": {"containers": [], "volumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "b", "ephemeral": {}},
                {"name": "c", "emptyDir": {}},
            ]},
            "status": {"phase": phase},
        }))
    }

    #[test]
    fn pods_use_claims_until_they_end() {
        let key = |name: &str| ("ns".to_owned(), name.to_owned());
        let watch = Store::new();
        watch.apply_write(pod(1, "Running"));
        let left = Arc::new(Mutex::new(Vec::new()));
        let list = left.clone();
        let users = PodsByClaim::of(&watch, move |keys| list.lock().extend(keys));
        assert!(users.any(&key("data")) && users.any(&key("p-b")) && !users.any(&key("p-c")));
        watch.apply_write(pod(2, "Running"));
        assert!(left.lock().is_empty());
        watch.apply_write(pod(3, "Succeeded"));
        assert!(!users.any(&key("data")) && !users.any(&key("p-b")));
        assert_eq!(*left.lock(), [key("data"), key("p-b")]);
    }
}
