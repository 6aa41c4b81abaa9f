//! Server-side apply. It takes lists as a whole.

use serde_json::{Value, json};

use super::Answer;
use super::failure::Failure;
use super::kinds::Kind;
use super::path::Target;
use super::request::RecordedRequest;
use super::store::Store;

impl Store {
    /// Applies a configuration to an object, or creates the object.
    pub(super) fn apply(
        &mut self,
        kind: &Kind,
        target: &Target,
        request: &RecordedRequest,
    ) -> Answer {
        let config = &request.body;
        let manager = request.query.get("fieldManager").expect("a manager");
        let applied = (
            target.key(target.name.as_deref().unwrap_or_default()),
            manager.clone(),
        );
        let old = self.objects.get(&applied.0).cloned();
        let last = self.applied.get(&applied).cloned().unwrap_or_default();
        let mut new = old.as_deref().cloned().unwrap_or_default();
        let conflict = merge(&mut new, &last, config, "");
        let is_forced = request
            .query
            .get("force")
            .is_some_and(|force| force == "true");
        if let Some(path) = conflict.filter(|_| !is_forced) {
            let why = format!("Apply failed with 1 conflict: conflict with \"other\": {path}");
            return Err(Failure::new(409, "Conflict", why));
        }
        remove_left_out(&mut new, &last, config);
        let mut managers = new["metadata"]["managedFields"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if managers.iter().all(|one| one["manager"] != **manager) {
            managers.push(json!({"manager": manager, "operation": "Apply"}));
        }
        new["metadata"]["managedFields"] = json!(managers);
        let answer = match old {
            Some(old) => self.update(kind, target, &old, new, true)?,
            None => self.create(kind, target, new)?,
        };
        self.applied.insert(applied, config.clone());
        Ok(answer)
    }
}

/// Sets the fields of a configuration. Returns a field that another manager has set to another
/// value.
fn merge(object: &mut Value, last: &Value, config: &Value, path: &str) -> Option<String> {
    if let (Some(fields), Some(config)) = (object.as_object_mut(), config.as_object()) {
        let conflicts = config.iter().filter_map(|(field, value)| {
            let path = format!("{path}.{field}");
            merge(
                fields.entry(field).or_insert(Value::Null),
                &last[field],
                value,
                &path,
            )
        });
        return conflicts.reduce(|first, _| first);
    }
    let is_of_another = object != config && !object.is_null() && object != last;
    *object = config.clone();
    is_of_another.then(|| path.to_owned())
}

/// Removes fields that the last configuration has set and this one leaves out.
fn remove_left_out(object: &mut Value, last: &Value, config: &Value) {
    let (Some(fields), Some(last)) = (object.as_object_mut(), last.as_object()) else {
        return;
    };
    for (field, last) in last {
        let Some(value) = fields.get_mut(field) else {
            continue;
        };
        remove_left_out(value, last, &config[field]);
        if config[field].is_null() && (value == last || *value == json!({})) {
            fields.remove(field);
        }
    }
}
