//! The data of deleted snapshots goes soon. A controller that has missed a deletion finds it when it
//! looks at everything again, which it seldom does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, DRIVER};
use crate::model::view::{annotation, is_deleting, items, name, text, uid};
use crate::oracle::content_kinds::{ContentKind, KINDS};
use crate::oracle::objects::{Objects, state};
use crate::{shim, trace};

/// How long a content may stay. Hostloop looks at all contents again every 15 minutes.
const SOON: Duration = Duration::from_secs(300);

/// What the oracle remembers of contents that are to go.
#[derive(Default)]
pub(super) struct Overdue {
    /// Since when, by UID.
    since: BTreeMap<String, Duration>,
}

impl Overdue {
    /// Checks that no content stays for long, unless an event says why. Only in a calm world has each
    /// process time for it.
    pub(super) fn check(&mut self, cluster: &Cluster) {
        if cluster.only_node().is_none() {
            return;
        }
        let mut due = Vec::new();
        for kind in &KINDS {
            let contents = cluster.api.shared(kind.plural).into_iter();
            due.extend(contents.filter(|content| is_to_go(kind, content)));
        }
        for content in self.contents(&due, shim::now()) {
            let objects = Objects::of(cluster);
            if objects.reasons(content).is_empty() {
                trace::violation(format!(
                    "not deleted soon: content {}, and nothing says why: {}; {}",
                    name(content),
                    state(content),
                    objects.history(content)
                ));
            }
        }
    }

    /// The contents that were to go for too long by now.
    fn contents<'a>(&mut self, due: &'a [Arc<Value>], now: Duration) -> Vec<&'a Value> {
        let mut since = BTreeMap::new();
        let mut overdue = Vec::new();
        for content in due {
            let first = self.since.get(uid(content)).copied().unwrap_or(now);
            if now > first + SOON {
                overdue.push(&**content);
            }
            since.insert(uid(content).to_owned(), first);
        }
        self.since = since;
        overdue
    }
}

/// True if nothing but hostloop keeps a content that was made for volumes. While the snapshot is
/// being taken, it stays.
fn is_to_go(kind: &ContentKind, content: &Value) -> bool {
    let source = &content["spec"]["source"];
    let is_made_of_volumes =
        source["volumeHandle"].is_string() || items(source, "/volumeHandles").next().is_some();
    text(content, "/spec/driver") == DRIVER
        && is_made_of_volumes
        && is_deleting(content)
        && annotation(content, kind.being_deleted).is_some()
        && annotation(content, kind.being_created).is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contents_that_hostloop_alone_keeps() {
        for (kind, source) in KINDS.iter().zip([
            json!({"volumeHandle": "v"}),
            json!({"volumeHandles": ["v", "w"]}),
        ]) {
            let deleted = json!({kind.being_deleted: "yes"});
            let both = json!({kind.being_deleted: "yes", kind.being_created: "yes"});
            let given = json!({"snapshotHandle": "s"});
            for (driver, source, deletion, annotations, expected) in [
                (DRIVER, &source, json!("now"), &deleted, true),
                (DRIVER, &source, Value::Null, &deleted, false),
                (DRIVER, &source, json!("now"), &Value::Null, false),
                (DRIVER, &source, json!("now"), &both, false),
                (DRIVER, &given, json!("now"), &deleted, false),
                ("other", &source, json!("now"), &deleted, false),
            ] {
                let content = json!({"metadata": {"name": "c", "deletionTimestamp": deletion,
                        "annotations": annotations},
                    "spec": {"driver": driver, "source": source}});
                assert_eq!(is_to_go(kind, &content), expected, "{content}");
            }
        }
    }

    #[test]
    fn a_content_is_overdue_after_some_time_at_a_stretch() {
        let content = Arc::new(json!({"metadata": {"name": "c", "uid": "1"}}));
        let due = [content];
        let mut overdue = Overdue::default();
        for (seconds, is_due, expected) in [
            (0, true, 0),
            (300, true, 0),
            (301, true, 1),
            (302, false, 0),
            (400, true, 0),
            (700, true, 0),
            (701, true, 1),
        ] {
            let due = if is_due { &due[..] } else { &[] };
            let found = overdue.contents(due, Duration::from_secs(seconds));
            assert_eq!(found.len(), expected, "{seconds}");
        }
    }
}
