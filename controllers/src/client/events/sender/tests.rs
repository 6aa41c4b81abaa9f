use super::*;
use crate::api::message;
use crate::client::events::Events;
use crate::client::events::pacing::{HELD, INTERVAL, QUIET};
use crate::testing::{FakeApi, Fault};

fn about(name: &str) -> ObjectReference {
    ObjectReference {
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: Some("ns".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(format!("uid-{name}")),
        ..ObjectReference::default()
    }
}

/// Emits events and sends them to the API server. Returns the number of lost ones.
async fn send(api: &FakeApi, stop: CancellationToken, emit: impl FnOnce(&Events)) -> u64 {
    let metrics = Arc::new(Metrics::default());
    let (events, backlog) = Events::queued(metrics.clone());
    emit(&events);
    drop(events);
    let sender = Sender::new(api.client(), "d", "n", metrics.clone());
    sender.run(backlog, stop).await;
    metrics.lost_events()
}

#[tokio::test]
async fn a_repeated_event_is_counted() {
    let api = FakeApi::default();
    let lost = send(&api, CancellationToken::new(), |events| {
        for (name, message) in [("a", "full"), ("a", "full"), ("a", "other"), ("b", "full")] {
            let reason = "ProvisioningFailed";
            events.emit(about(name), EventKind::Warning, reason, message.to_owned());
        }
    });
    assert_eq!(lost.await, 0);
    let happened = api.happened();
    for (number, (request, count)) in [
        ("POST ns/events ", 1),
        ("PATCH ns/events/a.00001 ", 2),
        ("POST ns/events ", 1),
        ("POST ns/events ", 1),
    ]
    .into_iter()
    .enumerate()
    {
        let found = &happened[number];
        let count = format!("\"count\":{count}");
        assert!(
            found.starts_with(request) && found.contains(&count),
            "{found}"
        );
    }
    assert_eq!(happened.len(), 4);
    let event = api.get("events/a.00001").expect("an event");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["involvedObject"]["uid"], "uid-a");
}

#[tokio::test]
async fn a_shared_event_is_created_once() {
    let api = FakeApi::default();
    for node in 0..3 {
        let claim = claim();
        let lost = send(&api, CancellationToken::new(), |events| {
            events.once(
                &claim,
                EventKind::Warning,
                "Refused",
                "no such pool".to_owned(),
            );
            events.once(
                &claim,
                EventKind::Warning,
                "Refused",
                format!("other {}", node / 2),
            );
            events.once(
                &claim,
                EventKind::Normal,
                "AllPodsOnOneNode",
                "n1".to_owned(),
            );
        });
        assert_eq!(lost.await, 0);
    }
    let happened = api.happened();
    let names = happened.iter().filter_map(|line| line.split(' ').nth(1));
    let names: std::collections::BTreeSet<&str> = names.collect();
    assert_eq!((happened.len(), names.len()), (9, 4), "{names:?}");
}

fn claim() -> k8s_openapi::api::core::v1::PersistentVolumeClaim {
    crate::testing::read(json!({"metadata": {"name": "c", "namespace": "ns"}}))
}

fn emit(events: &Events, kind: EventKind) {
    events.emit(about("c"), kind, "Reason", String::new());
}

#[tokio::test(start_paused = true)]
async fn normal_events_wait_until_the_work_rests_and_warnings_do_not() {
    let (events, mut backlog) = Events::queued(Arc::default());
    let begun = Instant::now();
    let working = events.clone();
    let busy = tokio::spawn(async move {
        for _ in 0..400 {
            emit(&working, EventKind::Normal);
            tokio::time::sleep(QUIET / 2).await;
        }
    });
    tokio::time::sleep(QUIET / 4).await;
    emit(&events, EventKind::Warning);
    let next = backlog.next().await.map(|event| event.kind);
    assert_eq!(
        (next, begun.elapsed()),
        (Some(EventKind::Warning), QUIET / 4)
    );
    let next = backlog.next().await.map(|event| event.kind);
    assert_eq!((next, begun.elapsed()), (Some(EventKind::Normal), HELD));
    busy.abort();
    while backlog.take().is_some() {}
    emit(&events, EventKind::Normal);
    let emitted = Instant::now();
    backlog.next().await;
    assert_eq!(emitted.elapsed(), QUIET);
}

#[tokio::test(start_paused = true)]
async fn work_that_waits_is_reported_at_once_and_holds_nothing_back() {
    let (events, mut backlog) = Events::queued(Arc::default());
    let claim = claim();
    let begun = Instant::now();
    emit(&events, EventKind::Normal);
    for _ in 0..2 {
        events.waits(&claim, "Waits", String::new());
        let next = backlog.next().await.map(|event| (event.kind, event.reason));
        assert_eq!(next, Some((EventKind::Normal, "Waits".to_owned())));
        tokio::time::sleep(QUIET / 2).await;
    }
    let next = backlog.next().await.map(|event| event.reason);
    assert_eq!((next.as_deref(), begun.elapsed()), (Some("Reason"), QUIET));
}

#[tokio::test(start_paused = true)]
async fn normal_events_come_at_one_rate_and_behind_warnings() {
    let (events, mut backlog) = Events::queued(Arc::default());
    use EventKind::{Normal, Warning};
    for kind in [Normal, Normal, Warning, Normal, Warning] {
        emit(&events, kind);
    }
    let begun = Instant::now();
    for (kind, after) in [
        (Warning, Duration::ZERO),
        (Warning, Duration::ZERO),
        (Normal, QUIET),
        (Normal, QUIET + INTERVAL),
        (Normal, QUIET + 2 * INTERVAL),
    ] {
        let next = backlog.next().await.map(|event| event.kind);
        assert_eq!((next, begun.elapsed()), (Some(kind), after));
    }
    drop(events);
    assert!(backlog.next().await.is_none());
}

#[tokio::test]
async fn what_overflows_is_counted() {
    let metrics = Arc::new(Metrics::default());
    let (events, backlog) = Events::queued(metrics.clone());
    for kind in [EventKind::Normal, EventKind::Warning] {
        for _ in 0..crate::client::events::WAITING + 3 {
            emit(&events, kind);
        }
    }
    assert_eq!(backlog.len(), 2 * crate::client::events::WAITING);
    assert_eq!(metrics.lost_events(), 6);
}

#[tokio::test(start_paused = true)]
async fn waiting_events_are_sent_at_the_stop_within_a_deadline() {
    for (each, expected) in [
        (Duration::from_millis(10), 40..=40),
        (HURRY / 10, 10..=11),
        (2 * HURRY, 1..=1),
    ] {
        let api = FakeApi::default();
        api.fault(&[], "events", None, Fault::Delay(each));
        let stop = CancellationToken::new();
        let began = Instant::now();
        let sent = send(&api, stop.clone(), |events| {
            for number in 0..40 {
                let about = about(&number.to_string());
                events.emit(about, EventKind::Normal, "Bound", String::new());
            }
        });
        tokio::join!(sent, async {
            tokio::time::sleep(QUIET / 2).await;
            stop.cancel();
        });
        let sent = api.happened().len();
        assert!(expected.contains(&sent), "{sent} of {expected:?}");
        assert!(began.elapsed() <= QUIET / 2 + HURRY);
    }
}

/// An outage of the API server, or a slow disk beneath it, loses no event.
#[tokio::test(start_paused = true)]
async fn an_event_without_an_answer_is_sent_again() {
    for (times, lost_after) in [(3, false), (1000, true)] {
        let api = FakeApi::default();
        api.fault(&[], "events", Some(times), Fault::Delay(2 * DEADLINE));
        let lost = send(&api, CancellationToken::new(), |events| {
            emit(events, EventKind::Warning);
        });
        assert_eq!(lost.await, u64::from(lost_after), "{times}");
        let created = api.get("events/c.00001").is_some();
        assert!(created || lost_after, "{times}");
    }
}

/// An event that the API server does not accept is lost, unless it may accept it later.
#[tokio::test(start_paused = true)]
async fn an_event_for_a_busy_server_is_sent_again() {
    for (code, expected) in [(429, 0), (500, 0), (503, 0), (403, 1)] {
        let api = FakeApi::default();
        api.fault(&[], "events", Some(3), Fault::Refuse(code));
        let lost = send(&api, CancellationToken::new(), |events| {
            emit(events, EventKind::Warning);
        });
        assert_eq!(lost.await, expected, "{code}");
    }
}

/// What waits in the queue is cut already, and so is what the sender remembers.
#[tokio::test]
async fn a_long_message_does_not_wait() {
    let (events, mut waiting) = Events::collected(Arc::default());
    let about = ObjectReference::default();
    events.emit(about, EventKind::Warning, "Failed", "x".repeat(200_000));
    let event = waiting.recv().await.expect("an event");
    assert_eq!(event.message.len(), message::MAX_EVENT);
}
