//! Objects with times that can't be read.
//!
//! The API server takes times that clients can't read, and writes the year 10000 with five digits. A
//! user of a namespace can put such a time in a field manager or in an event.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// An object from an answer. Times that can't be read are left out, so that one object does not
/// hide the others of a list.
#[derive(Clone, Debug)]
pub(crate) struct Readable<K>(pub(crate) K);

impl<K: Resource> Resource for Readable<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(kind: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(kind)
    }

    fn group(kind: &Self::DynamicType) -> Cow<'_, str> {
        K::group(kind)
    }

    fn version(kind: &Self::DynamicType) -> Cow<'_, str> {
        K::version(kind)
    }

    fn plural(kind: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Readable<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        let read = K::deserialize(&object).or_else(|_| {
            drop_unreadable_times(&mut object);
            serde_json::from_value(object)
        });
        read.map(Readable).map_err(D::Error::custom)
    }
}

fn drop_unreadable_times(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(drop_unreadable_times),
        Value::Object(members) => {
            members.retain(|_, value| !is_unreadable_time(value));
            members.values_mut().for_each(drop_unreadable_times);
        }
        _ => {}
    }
}

/// True for a text that begins as a time does, `YEAR-MM-DDTHH:MM:SS`, and is none.
fn is_unreadable_time(value: &Value) -> bool {
    let Some(text) = value.as_str() else {
        return false;
    };
    let Some((date, time)) = text.split_once('T') else {
        return false;
    };
    let clock = time.get(..8).unwrap_or_default();
    has_three_numbers(date, '-')
        && has_three_numbers(clock, ':')
        && text.parse::<Timestamp>().is_err()
}

fn has_three_numbers(text: &str, separator: char) -> bool {
    text.chars().all(|c| c.is_ascii_digit() || c == separator)
        && text
            .split(separator)
            .filter(|number| !number.is_empty())
            .count()
            == 3
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Event;
    use serde_json::json;

    use super::*;

    #[test]
    fn times_that_cannot_be_read() {
        for (text, expected) in [
            ("2026-01-01T00:00:00Z", false),
            ("2026-01-01T00:00:00.000000Z", false),
            ("9999-12-31T12:00:00Z", true),
            ("10000-01-01T00:59:59Z", true),
            ("-001-12-31T23:00:00Z", true),
            ("2026-01-01T00:00:00+99:99", true),
            ("Takes its time", false),
            ("1-2-3T", false),
            ("", false),
        ] {
            assert_eq!(is_unreadable_time(&json!(text)), expected, "{text}");
        }
    }

    #[test]
    fn an_object_without_its_unreadable_times() {
        let object = json!({
            "metadata": {"name": "e", "managedFields": [{"time": "10000-01-01T00:59:59Z"}]},
            "involvedObject": {}, "message": "x", "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": "9999-12-31T12:00:00Z",
        });
        assert!(serde_json::from_value::<Event>(object.clone()).is_err());
        let Readable::<Event>(event) = serde_json::from_value(object).unwrap();
        assert_eq!(event.message.as_deref(), Some("x"));
        assert!(event.first_timestamp.is_some() && event.last_timestamp.is_none());
        assert!(serde_json::from_value::<Readable<Event>>(json!({"metadata": 1})).is_err());
    }
}
