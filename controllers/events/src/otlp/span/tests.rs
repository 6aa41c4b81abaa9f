use std::time::Duration;

use hostloop_collector::attribute as text;
use prost::Message;
use prost_types::FileDescriptorSet;

use super::*;
use crate::event::{Field, Fields};

const UID: &str = "2d1f8a7e-0c3b-4a55-9d1e-0123456789ab";
const BOOT: &str = "boot";

fn event(kind: Kind, name: &'static str) -> Event {
    Event {
        t: 5,
        ..Event::new(kind, name, UID.into(), "vol-1".into())
    }
}

fn id(id: u64) -> Vec<u8> {
    span_id(BOOT, Number::Id(id)).to_vec()
}

fn seq(seq: u64) -> Vec<u8> {
    span_id(BOOT, Number::Seq(seq)).to_vec()
}

/// What a case expects: name, kind, own ID, parent's ID, end in microseconds, and the message if it
/// failed.
type Expected = (
    &'static str,
    SpanKind,
    Vec<u8>,
    Vec<u8>,
    u64,
    Option<&'static str>,
);

#[test]
fn each_event_and_its_span() {
    use SpanKind::{Internal, Server};
    let call = || Event {
        id: Some(1),
        ..event(Kind::Call, "NodeStageVolume")
    };
    let ended = |code: &'static str, error: Option<&str>| Event {
        us: Some(9),
        code: Some(code),
        error: error.map(Into::into),
        ..call()
    };
    let spanned = |error: Option<&'static str>| {
        let name = "csi.v1.Node/NodeStageVolume";
        Some((name, Server, id(1), vec![], 14, error))
    };
    let step = || Event {
        id: Some(2),
        parent: Some(1),
        us: Some(7),
        ..event(Kind::Phase, "mkfs")
    };
    let work = || Event {
        id: Some(3),
        ..event(Kind::Work, "provisioner")
    };
    let queue = |state| Event {
        id: Some(3),
        state: Some(state),
        ..event(Kind::Queue, "resizer")
    };
    let cases: [(&str, Event, Option<Expected>); 14] = [
        ("a call begins", call(), None),
        ("a call ends", ended("OK", None), spanned(None)),
        (
            "a call fails",
            ended("ABORTED", Some("why")),
            spanned(Some("why")),
        ),
        (
            "a call fails without a message",
            ended("RESOURCE_EXHAUSTED", None),
            spanned(Some("")),
        ),
        (
            "a step",
            step(),
            Some(("mkfs", Internal, id(2), id(1), 12, None)),
        ),
        (
            "a step fails",
            Event {
                error: Some("no space".into()),
                ..step()
            },
            Some(("mkfs", Internal, id(2), id(1), 12, Some("no space"))),
        ),
        (
            "a step without an ID",
            Event { id: None, ..step() },
            Some(("mkfs", Internal, seq(40), id(1), 12, None)),
        ),
        (
            "work goes on",
            Event {
                state: Some(State::Working),
                ..work()
            },
            None,
        ),
        (
            "work is done",
            Event {
                us: Some(1),
                state: Some(State::Done),
                ..work()
            },
            Some(("provisioner", Internal, id(3), vec![], 6, None)),
        ),
        (
            "work failed",
            Event {
                us: Some(1),
                state: Some(State::Failed),
                ..work()
            },
            Some(("provisioner", Internal, id(3), vec![], 6, Some(""))),
        ),
        (
            "an object waited for a worker",
            Event {
                us: Some(6000),
                ..queue(State::Queued)
            },
            Some(("resizer queued", Internal, seq(40), id(3), 6005, None)),
        ),
        (
            "an object comes back later",
            Event {
                next: Some(1_000_000),
                ..queue(State::BackingOff)
            },
            Some(("resizer backing off", Internal, seq(40), id(3), 5, None)),
        ),
        (
            "a lease",
            event(Kind::Lease, "acquired"),
            Some(("lease acquired", Internal, seq(40), vec![], 5, None)),
        ),
        (
            "at the end of time",
            Event {
                t: u64::MAX,
                us: Some(u64::MAX),
                ..step()
            },
            Some(("mkfs", Internal, id(2), id(1), u64::MAX / 1000, None)),
        ),
    ];
    for (case, event, expected) in cases {
        let Some(span) = span(BOOT, 40, &event) else {
            assert_eq!(None, expected, "{case}");
            continue;
        };
        let status = span.status.as_ref();
        assert!(
            status.is_none_or(|status| status.code == i32::from(StatusCode::Error)),
            "{case}"
        );
        let found = (
            span.name.as_str(),
            span.kind(),
            span.span_id.clone(),
            span.parent_span_id.clone(),
            span.end_time_unix_nano / 1000,
            status.map(|status| status.message.as_str()),
        );
        assert_eq!(Some(found), expected, "{case}");
        assert_eq!(span.trace_id, trace_id(UID, &[0; 8]), "{case}");
        assert_eq!(
            span.start_time_unix_nano,
            event.t.saturating_mul(1000),
            "{case}"
        );
    }
}

#[test]
fn attributes_of_a_call_and_of_a_controller() {
    let volumes = vec!["vol-1".to_owned(), "vol-2".to_owned()];
    let call = Event {
        us: Some(1),
        code: Some("NOT_FOUND"),
        request: Fields::of([
            ("volume_id", Field::from("vol-1")),
            ("required_bytes", Field::from(4096)),
            ("readonly", Field::from(true)),
        ]),
        answer: Fields::of([("source_volume_ids", Field::from(&volumes))]),
        ..event(Kind::Call, "CreateVolumeGroupSnapshot")
    };
    let queue = Event {
        state: Some(State::BackingOff),
        next: Some(1500),
        about: "".into(),
        ..event(Kind::Queue, "provisioner")
    };
    for (event, expected) in [
        (
            call,
            &[
                ("hostloop.kind", "call"),
                ("hostloop.trace", UID),
                ("hostloop.about", "vol-1"),
                ("rpc.system.name", "grpc"),
                (
                    "rpc.method",
                    "csi.v1.GroupController/CreateVolumeGroupSnapshot",
                ),
                ("rpc.response.status_code", "NOT_FOUND"),
                ("error.type", "NOT_FOUND"),
                ("csi.request.volume_id", "vol-1"),
                ("csi.request.required_bytes", "4096"),
                ("csi.request.readonly", "true"),
                ("csi.response.source_volume_ids", "vol-1,vol-2"),
            ][..],
        ),
        (
            queue,
            &[
                ("hostloop.kind", "queue"),
                ("hostloop.trace", UID),
                ("hostloop.state", "backing off"),
                ("hostloop.next_us", "1500"),
            ],
        ),
    ] {
        let found = attributes(&event);
        let keys = found.iter().map(|attribute| attribute.key.as_str());
        let found: Vec<_> = keys.map(|key| (key, text(&found, key).unwrap())).collect();
        let found: Vec<_> = found
            .iter()
            .map(|(key, value)| (*key, value.as_str()))
            .collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn a_call_and_its_steps_stay_together() {
    let call = Event {
        us: Some(1),
        id: Some(1),
        ..event(Kind::Call, "DeleteVolume")
    };
    let step = Event {
        us: Some(1),
        id: Some(2),
        parent: Some(1),
        ..event(Kind::Phase, "trash")
    };
    let nameless = |event: Event| Event {
        trace: "".into(),
        ..event
    };
    let [call, step] = [call, step].map(|event| span(BOOT, 0, &event).unwrap());
    assert_eq!(
        (step.parent_span_id, step.trace_id),
        (call.span_id, call.trace_id)
    );
    // Spans without a name of their own don't meet in one trace.
    let alone = |number| {
        let event = event(Kind::Call, "DeleteVolume");
        span(
            BOOT,
            0,
            &nameless(Event {
                us: Some(1),
                id: Some(number),
                ..event
            }),
        )
        .unwrap()
    };
    assert_ne!(alone(1).trace_id, alone(2).trace_id);
}

/// Every RPC of the services that can change something is in the service that the protocol says.
#[test]
fn services_are_those_of_the_protocol() {
    let files = FileDescriptorSet::decode(hostloop_proto::FILE_DESCRIPTOR_SET).unwrap();
    let csi = files
        .file
        .iter()
        .find(|file| file.package() == "csi.v1")
        .unwrap();
    let mut rpcs = 0;
    for service in &csi.service {
        if ["Identity", "SnapshotMetadata"].contains(&service.name()) {
            continue;
        }
        for rpc in service
            .method
            .iter()
            .filter(|rpc| !rpc.name().ends_with("Capabilities"))
        {
            let expected = format!("csi.v1.{}", service.name());
            assert_eq!(super::service(rpc.name()), expected, "{}", rpc.name());
            rpcs += 1;
        }
    }
    assert!(rpcs > 20, "{rpcs} RPCs");
}

#[test]
fn what_the_ring_records_becomes_spans() {
    let trace = "00000000-0000-4000-8000-0000000005ba";
    let call = crate::Call::begin("NodeStageVolume", trace, None, Fields::default());
    let staged: Result<(), &str> = call.enter(|| crate::phase("mount", || Err("busy")));
    call.end(
        "INTERNAL",
        staged.unwrap_err(),
        Duration::from_millis(3),
        Fields::default(),
    );
    let batch = crate::RING.since(0, usize::MAX);
    let spans = (batch.first..)
        .zip(&batch.events)
        .filter(|(_, event)| &*event.trace == trace);
    let spans: Vec<_> = spans
        .filter_map(|(seq, event)| span(BOOT, seq, event))
        .collect();
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["mount", "csi.v1.Node/NodeStageVolume"]);
    assert_eq!(spans[0].parent_span_id, spans[1].span_id);
    assert!(
        spans
            .iter()
            .all(|span| span.status.as_ref().is_some_and(|s| s.message == "busy"))
    );
}
