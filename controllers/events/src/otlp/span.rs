//! Turns events into spans. Names of attributes follow OpenTelemetry's semantic conventions; those
//! of CSI and hostloop begin with `csi.` and `hostloop.`.

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};

use super::attribute::attribute;
use super::ids::{Number, span_id, trace_id};
use crate::event::{Event, Kind, State};

/// The span of an event, or `None` if the event is a beginning: its end is another event.
pub(super) fn span(boot: &str, seq: u64, event: &Event) -> Option<Span> {
    let us = match event.kind {
        Kind::Call | Kind::Phase | Kind::Work => event.us?,
        // These happen at one time, if they have no duration.
        Kind::Queue | Kind::Lease => event.us.unwrap_or_default(),
    };
    let (own, parent) = match event.kind {
        Kind::Call | Kind::Phase | Kind::Work => (event.id, event.parent),
        // The queue's events have the ID of the work that they belong to.
        Kind::Queue | Kind::Lease => (None, event.id),
    };
    let own = span_id(boot, own.map_or(Number::Seq(seq), Number::Id));
    let parent = parent.map(|id| span_id(boot, Number::Id(id)));
    let kind = match event.kind {
        Kind::Call => SpanKind::Server,
        Kind::Phase | Kind::Work | Kind::Queue | Kind::Lease => SpanKind::Internal,
    };
    Some(Span {
        trace_id: trace_id(&event.trace, &own).to_vec(),
        span_id: own.to_vec(),
        parent_span_id: parent.map(Vec::from).unwrap_or_default(),
        name: name(event),
        kind: kind.into(),
        start_time_unix_nano: event.t.saturating_mul(1000),
        end_time_unix_nano: event.t.saturating_add(us).saturating_mul(1000),
        attributes: attributes(event),
        status: failed(event).then(|| Status {
            code: StatusCode::Error.into(),
            message: event.error.as_deref().unwrap_or_default().to_owned(),
        }),
        ..Span::default()
    })
}

fn name(event: &Event) -> String {
    match event.kind {
        Kind::Call => format!("{}/{}", service(event.name), event.name),
        Kind::Phase | Kind::Work => event.name.to_owned(),
        Kind::Queue => match event.state {
            Some(state) => format!("{} {}", event.name, state.name()),
            None => event.name.to_owned(),
        },
        Kind::Lease => format!("lease {}", event.name),
    }
}

/// The service of an RPC that changes something. Other RPCs have no events.
fn service(rpc: &str) -> &'static str {
    match rpc {
        _ if rpc.starts_with("Node") => "csi.v1.Node",
        _ if rpc.contains("VolumeGroupSnapshot") => "csi.v1.GroupController",
        _ => "csi.v1.Controller",
    }
}

/// True if something went wrong. Each code other than OK counts. The conventions leave out codes
/// that mean a mistake of the caller, but here a claim waits either way.
fn failed(event: &Event) -> bool {
    let code = event.code.is_some_and(|code| code != "OK");
    code || event.error.is_some() || event.state == Some(State::Failed)
}

fn attributes(event: &Event) -> Vec<KeyValue> {
    let mut attributes = vec![attribute("hostloop.kind", event.kind.name())];
    attributes.extend(text("hostloop.trace", Some(&event.trace)));
    attributes.extend(text("hostloop.about", Some(&event.about)));
    attributes.extend(text("hostloop.state", event.state.map(State::name)));
    if event.kind == Kind::Call {
        let error = event.code.filter(|code| *code != "OK");
        attributes.extend(text("rpc.system.name", Some("grpc")));
        attributes.extend(text("rpc.method", Some(&name(event))));
        attributes.extend(text("rpc.response.status_code", event.code));
        attributes.extend(text("error.type", error));
    }
    attributes.extend(event.next.map(|us| attribute("hostloop.next_us", &us)));
    for (message, fields) in [("request", &event.request), ("response", &event.answer)] {
        let fields = fields.iter();
        attributes
            .extend(fields.map(|(name, field)| attribute(format!("csi.{message}.{name}"), field)));
    }
    attributes
}

/// An attribute with a text, unless it is empty.
fn text(key: &str, text: Option<&str>) -> Option<KeyValue> {
    let text = text.filter(|text| !text.is_empty())?;
    Some(attribute(key, text))
}

#[cfg(test)]
mod tests;
