//! Attributes of spans and resources.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};

use crate::event::Field;

/// A value that an attribute can have.
pub(super) trait Attribute {
    fn value(&self) -> Value;
}

impl Attribute for str {
    fn value(&self) -> Value {
        Value::StringValue(self.to_owned())
    }
}

impl Attribute for u64 {
    fn value(&self) -> Value {
        Value::IntValue(i64::try_from(*self).unwrap_or(i64::MAX))
    }
}

impl Attribute for Field {
    fn value(&self) -> Value {
        match self {
            Field::Text(text) => text.value(),
            Field::Number(number) => number.value(),
            Field::Flag(flag) => Value::BoolValue(*flag),
            Field::List(list) => {
                let values = list.iter().map(|text| AnyValue {
                    value: Some(text.value()),
                });
                Value::ArrayValue(ArrayValue {
                    values: values.collect(),
                })
            }
        }
    }
}

pub(super) fn attribute(key: impl Into<String>, value: &(impl Attribute + ?Sized)) -> KeyValue {
    let value = Some(AnyValue {
        value: Some(value.value()),
    });
    KeyValue {
        key: key.into(),
        value,
        ..KeyValue::default()
    }
}
