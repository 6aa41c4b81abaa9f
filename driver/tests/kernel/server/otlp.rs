//! The program's spans, as a collector receives them.

use hostloop_collector::{Answer, Collector, Received, attribute};
use hostloop_report::hex;

use super::events::{LIFE, UID, live};
use super::program::Program;

/// The calls of a volume's life that have arrived.
fn calls(received: &Received) -> usize {
    received
        .spans
        .iter()
        .filter(|span| span.name.starts_with("csi.v1."))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_life_of_a_volume_is_one_trace() {
    let collector = Collector::start().unwrap();
    let mut program = Program::new();
    program.start(&["--otlp-endpoint", &collector.url()]);
    live(&program).await;
    let received = collector
        .until(|received| calls(received) >= LIFE.len())
        .await
        .unwrap();

    let spans = &received.spans;
    assert!(
        spans
            .iter()
            .all(|span| hex(&span.trace_id) == UID.replace('-', "")),
        "{spans:#?}"
    );
    let mut ended: Vec<_> = spans
        .iter()
        .filter(|span| span.name.starts_with("csi.v1."))
        .collect();
    ended.sort_by_key(|span| span.start_time_unix_nano);
    for (call, (name, steps)) in ended.iter().zip(LIFE) {
        let text = |key: &str| attribute(&call.attributes, key).unwrap_or_default();
        assert!(
            call.name.ends_with(&format!("/{name}")),
            "{} {name}",
            call.name
        );
        assert_eq!(
            (text("rpc.method"), text("rpc.response.status_code")),
            (call.name.clone(), "OK".into())
        );
        assert_eq!(
            (call.parent_span_id.len(), &call.status),
            (0, &None),
            "{name}"
        );
        let inside = spans
            .iter()
            .filter(|span| span.parent_span_id == call.span_id);
        let mut inside: Vec<_> = inside.collect();
        assert!(
            inside
                .iter()
                .all(|step| step.start_time_unix_nano >= call.start_time_unix_nano),
            "{inside:#?}"
        );
        inside.sort_by_key(|step| step.start_time_unix_nano);
        inside.retain(|step| steps.contains(&step.name.as_str()));
        let mut names: Vec<_> = inside.iter().map(|step| step.name.as_str()).collect();
        names.dedup();
        assert_eq!(names, steps, "{name}");
    }
    let volume = attribute(&ended[0].attributes, "csi.response.volume_id");
    assert!(volume.is_some());
    assert_eq!(
        attribute(&ended[1].attributes, "csi.request.volume_id"),
        volume
    );
    for (key, value) in [
        ("service.name", "hostloop"),
        ("k8s.node.name", "n1"),
        ("hostloop.process", "node"),
    ] {
        assert_eq!(attribute(&received.resource, key).as_deref(), Some(value));
    }
    program.stop();
}

/// The driver serves and stops as usual while the collector does not answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_delays_no_call() {
    let collector = Collector::start().unwrap();
    collector.answer(Answer::After(std::time::Duration::from_secs(3600)));
    let mut program = Program::new();
    program.start(&["--otlp-endpoint", &collector.url()]);
    live(&program).await;
    collector
        .until(|received| received.requests > 0)
        .await
        .unwrap();
    let events = program.events(&[]);
    assert!(events.contains("DeleteVolume"), "{events}");
    program.stop();
    assert_eq!(calls(&collector.received()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_flag_nothing_is_sent() {
    let collector = Collector::start().unwrap();
    let mut program = Program::new();
    // Other programs export with this variable alone.
    program.start_with(&[], |command| {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url());
    });
    live(&program).await;
    program.stop();
    assert_eq!(collector.received().requests, 0);
}
