//! A volume lies in the pool that its class names. There is one pool, so no volume is of a class that
//! names another.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::machine::limits::POOL;
use crate::model::view::{name, text};
use crate::trace;

/// Checks all PersistentVolumes.
pub(super) fn are_theirs(cluster: &Cluster, volumes: &[Arc<Value>]) {
    let classes = cluster.api.shared("storageclasses");
    for wrong in misplaced(&classes, volumes) {
        trace::violation(wrong);
    }
}

/// The volumes of classes that name another pool. A class that is younger than a volume is another one
/// than the volume was made with.
fn misplaced(classes: &[Arc<Value>], volumes: &[Arc<Value>]) -> Vec<String> {
    let others = classes.iter().filter_map(|class| {
        let pool = text(class, "/parameters/pool");
        (!["", POOL].contains(&pool)).then(|| (name(class), (pool, made(class))))
    });
    let others: BTreeMap<&str, (&str, &str)> = others.collect();
    let mut wrong = Vec::new();
    for volume in volumes {
        let class = text(volume, "/spec/storageClassName");
        if let Some((pool, since)) = others.get(class)
            && *since < made(volume)
        {
            let name = name(volume);
            wrong.push(format!(
                "in another pool: volume {name} is in {POOL}, and its class {class} names {pool}"
            ));
        }
    }
    wrong
}

/// When an object was made. Times have whole seconds.
fn made(object: &Value) -> &str {
    text(object, "/metadata/creationTimestamp")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const BEFORE: &str = "2026-01-01T00:00:01Z";
    const NOW: &str = "2026-01-01T00:00:02Z";
    const AFTER: &str = "2026-01-01T00:00:03Z";

    #[rstest]
    #[case::no_pool(json!({}), BEFORE, 0)]
    #[case::the_only_pool(json!({"pool": "pool"}), BEFORE, 0)]
    #[case::another_pool(json!({"pool": "nowhere"}), BEFORE, 1)]
    #[case::another_class(json!({"pool": "nowhere"}), AFTER, 0)]
    fn volumes_in_another_pool(
        #[case] parameters: Value,
        #[case] since: &str,
        #[case] expected: usize,
    ) {
        let class = json!({"metadata": {"name": "a", "creationTimestamp": since},
            "parameters": parameters});
        let volume = |class: &str| {
            Arc::new(json!({"metadata": {"name": "v", "creationTimestamp": NOW},
                "spec": {"storageClassName": class}}))
        };
        let wrong = misplaced(&[Arc::new(class)], &[volume("a"), volume("b")]);
        assert_eq!(wrong.len(), expected, "{wrong:?}");
    }
}
