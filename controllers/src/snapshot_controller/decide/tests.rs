//! What tests of both kinds share.

use std::sync::Arc;

use serde_json::Value;

use super::*;

pub(crate) const DELETED: &str = "2026-01-01T00:00:00Z";

pub(crate) fn of<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value).unwrap())
}

/// An object with some changes.
pub(crate) fn with(mut object: Value, changes: &Value) -> Value {
    json_patch::merge(&mut object, changes);
    object
}

/// Checks the next step, in short; `own` shortens steps of the kind's own.
#[track_caller]
pub(crate) fn expect<K: Kind>(
    facts: &Facts<K>,
    expected: &str,
    own: impl FnOnce(K::OwnStep) -> String,
) {
    let step = match decide(facts) {
        Step::Done => "done".to_owned(),
        Step::Wait(_) => "wait".to_owned(),
        Step::BlockDeletion(why) => format!("block deletion: {why}"),
        Step::SetClass(class) => format!("class {class}"),
        Step::Finalizers(list) => {
            let short = list.iter().map(|name| name.split('/').nth(1).unwrap());
            let short: Vec<_> = short.collect();
            format!("finalizers {}: {}", list.len(), short.join(" "))
        }
        Step::Create(content) => {
            let content = serde_json::to_value(content).unwrap();
            format!("create of {}", content["spec"]["source"])
        }
        Step::Bind(class) => format!("bind {}", class.unwrap_or_default()),
        Step::Status(change) => format!("status {}", change.patch),
        Step::Mark => "mark".to_owned(),
        Step::DeleteContent => "delete content".to_owned(),
        Step::Fail(failure) => {
            let ready = if failure.unready {
                ""
            } else {
                " (still ready)"
            };
            format!("{}{ready}: {}", failure.reason, failure.message)
        }
        Step::Own(step) => own(step),
    };
    assert!(step.contains(expected), "{step}\nnot {expected}");
}
