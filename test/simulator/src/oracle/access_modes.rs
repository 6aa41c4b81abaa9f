//! What is said of access modes is true: only a ReadWriteOncePod volume is for one pod alone. The pods
//! of a node share all others.

use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{name, uid};
use crate::oracle::advice::{claims, is_stuck};
use crate::oracle::objects::{Objects, is_for_one_pod, state, volume_of};
use crate::trace;

/// Words of a refusal for the access mode of a volume.
const OF_MODES: &str = "access mode";

/// Checks what kubelets say of pods that do not run.
pub(super) fn are_true(cluster: &Cluster, objects: &Objects) {
    for pod in objects.pods.iter().filter(|pod| is_stuck(pod)) {
        let claims = claims(objects, pod).flatten();
        let volumes: Vec<Arc<Value>> = claims
            .filter_map(|claim| volume_of(cluster, claim))
            .collect();
        for said in cluster.complaints(uid(pod)) {
            if is_false(&said, &volumes) {
                trace::violation(format!(
                    "not shared: pod {} may use its volumes beside others: {said}; {}",
                    name(pod),
                    state(pod)
                ));
            }
        }
    }
}

/// True if a pod with these volumes is refused for an access mode that none of them has.
fn is_false(said: &str, volumes: &[Arc<Value>]) -> bool {
    said.contains(OF_MODES) && !volumes.iter().any(|volume| is_for_one_pod(volume))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const ONE: &str = "code = FailedPrecondition desc = published at another path, and its access \
                       mode allows only one";

    #[rstest]
    #[case::of_one_pod(&["ReadWriteOncePod"], ONE, false)]
    #[case::one_of_two(&["ReadWriteOnce", "ReadWriteOncePod"], ONE, false)]
    #[case::of_one_node(&["ReadWriteOnce"], ONE, true)]
    #[case::of_readers(&["ReadOnlyMany"], ONE, true)]
    #[case::of_something_else(&["ReadWriteOnce"], "code = Internal desc = I/O error", false)]
    fn refusals_for_an_access_mode(
        #[case] modes: &[&str],
        #[case] said: &str,
        #[case] expected: bool,
    ) {
        let volumes: Vec<Arc<Value>> = modes
            .iter()
            .map(|mode| Arc::new(json!({"spec": {"accessModes": [mode]}})))
            .collect();
        assert_eq!(is_false(said, &volumes), expected);
    }
}
