use std::sync::Arc;

use hostloop_collector::{Answer, Collector, Received, attribute};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::subscriber::DefaultGuard;

use super::*;
use crate::event::{Event, Kind};
use crate::otlp::{Dropped, Environment};
use crate::serve::Process;

/// An exporter of a ring, and its collector.
struct Rig {
    ring: Arc<Ring>,
    dropped: Dropped,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
    log: Arc<Mutex<Vec<u8>>>,
    _log: DefaultGuard,
}

/// The time limit of what does not hang.
const PATIENCE: Duration = Duration::from_secs(300);

const QUICK: Pace = Pace {
    pause: Duration::from_millis(5),
    request: PATIENCE,
    first_retry: Duration::from_millis(10),
    last_retry: Duration::from_millis(40),
    warning: Duration::ZERO,
    end: PATIENCE,
};

impl Rig {
    /// Call it on a runtime with one thread: the log is that of this thread.
    fn new(collector: &Collector, limit: usize, pace: Pace) -> Rig {
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Lines(log.clone());
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || lines.clone())
            .finish();
        let _log = tracing::subscriber::set_default(subscriber);

        let process = Process {
            process: "node".into(),
            node: None,
            version: "1".into(),
        };
        let environment = Environment::read(|name| {
            (name == "OTEL_EXPORTER_OTLP_HEADERS").then(|| "authorization=token".to_owned())
        });
        let address = collector.url().parse().unwrap();
        let exporter = Exporter::new(&address, &environment, &process).unwrap();
        let dropped = exporter.dropped();
        let ring = Arc::new(Ring::new(limit));
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn({
            let ring = ring.clone();
            async move {
                let stopped = async { drop(stopped.await) };
                Follower::new(exporter, &ring, pace)
                    .run_until(stopped)
                    .await;
            }
        });
        Rig {
            ring,
            dropped,
            stop,
            running,
            log,
            _log,
        }
    }

    fn push(&self, about: &str) {
        let mut event = Event::new(Kind::Call, "DeleteVolume", "trace".into(), about.into());
        event.id = Some(self.ring.next_id());
        self.ring.push(event.clone());
        event.us = Some(1);
        self.ring.push(event);
    }

    /// The messages of the log, without time and fields of other lines.
    fn log(&self, message: &str) -> Vec<String> {
        let log = self.log.lock();
        let text = String::from_utf8_lossy(&log);
        text.lines()
            .filter(|line| line.contains(message))
            .map(str::to_owned)
            .collect()
    }

    /// Waits for these numbers of lines that the export failed and that it goes on.
    async fn logged(&self, not: usize, again: usize) {
        let seen = || (self.log(NOT).len(), self.log(AGAIN).len());
        eventually(|| seen() == (not, again)).await;
    }

    async fn end(self) {
        let _ = self.stop.send(());
        self.running.await.unwrap();
    }
}

/// Waits until this is so.
async fn eventually(is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "it is not so after {PATIENCE:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[derive(Clone)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn abouts(received: &Received) -> Vec<String> {
    let about = |span: &Span| attribute(&span.attributes, "hostloop.about").unwrap();
    received.spans.iter().map(about).collect()
}

fn numbers(numbers: std::ops::Range<u64>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

const NOT: &str = "spans are not exported";
const AGAIN: &str = "spans are exported again";

#[tokio::test]
async fn the_collector_gets_each_event_once() {
    let collector = Collector::start().unwrap();
    let rig = Rig::new(&collector, 1 << 20, QUICK);
    for number in 0..500 {
        rig.push(&number.to_string());
    }
    let received = collector
        .until(|received| received.spans.len() >= 500)
        .await
        .unwrap();
    assert_eq!(abouts(&received), numbers(0..500));
    assert!(received.requests < 20, "{} requests", received.requests);
    assert_eq!(received.headers.get("authorization").unwrap(), "token");
    assert_eq!(
        attribute(&received.resource, "service.name").as_deref(),
        Some("hostloop")
    );
    // The last events, when the process stops.
    rig.push("last");
    let dropped = rig.dropped.clone();
    rig.end().await;
    assert_eq!(abouts(&collector.received()).last().unwrap(), "last");
    assert_eq!(dropped.count(), 0);
}

#[tokio::test]
async fn a_collector_that_comes_back_gets_what_the_ring_still_has() {
    let mut collector = Collector::start().unwrap();
    collector.stop();
    let rig = Rig::new(&collector, 1 << 20, QUICK);
    for number in 0..10 {
        rig.push(&number.to_string());
        sleep(Duration::from_millis(10)).await;
    }
    rig.logged(1, 0).await;
    collector.resume().unwrap();
    let received = collector
        .until(|received| received.spans.len() >= 10)
        .await
        .unwrap();
    assert_eq!(abouts(&received), numbers(0..10));

    rig.logged(1, 1).await;

    // It goes while there is a connection.
    collector.stop();
    rig.push("10");
    rig.logged(2, 1).await;
    collector.resume().unwrap();
    let received = collector
        .until(|received| received.spans.len() >= 11)
        .await
        .unwrap();
    assert_eq!(abouts(&received), numbers(0..11));
    rig.logged(2, 2).await;
    assert_eq!(rig.dropped.count(), 0);
    let not = rig.log(NOT);
    assert!(not[0].contains("Connection refused"), "{not:?}");
    rig.end().await;
}

#[tokio::test]
async fn events_of_a_long_outage_are_dropped_and_counted() {
    let mut collector = Collector::start().unwrap();
    collector.stop();
    let rig = Rig::new(&collector, 64 << 10, QUICK);
    for number in 0..5000 {
        rig.push(&number.to_string());
        if number % 500 == 0 {
            sleep(Duration::from_millis(20)).await;
        }
    }
    rig.logged(1, 0).await;
    collector.resume().unwrap();
    let last = |received: &Received| abouts(received).last().is_some_and(|about| about == "4999");
    let received = collector.until(last).await.unwrap();
    // Each call has two events, and the first one may be gone alone.
    let lost = 10_000 - rig.dropped.count() as usize;
    assert!(
        received.spans.len().abs_diff(lost / 2) <= 1,
        "{} of {lost}",
        received.spans.len()
    );
    assert!(
        rig.dropped.count() > 1000,
        "the ring is smaller than what was sent"
    );
    rig.logged(1, 1).await;
    let again = rig.log(AGAIN);
    assert!(
        again[0].contains(&format!("dropped={}", rig.dropped.count())),
        "{again:?}"
    );
    rig.end().await;
}

#[tokio::test]
async fn a_slow_collector_delays_no_caller() {
    let collector = Collector::start().unwrap();
    collector.answer(Answer::After(2 * PATIENCE));
    let pace = Pace {
        request: Duration::from_millis(300),
        ..QUICK
    };
    let rig = Rig::new(&collector, 64 << 10, pace);
    rig.push("first");
    collector
        .until(|received| received.requests >= 1)
        .await
        .unwrap();
    let started = Instant::now();
    for number in 0..5000 {
        rig.push(&number.to_string());
    }
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    // A request without an answer ends, and the same events come again.
    collector
        .until(|received| received.requests >= 3)
        .await
        .unwrap();
    rig.logged(1, 0).await;
    assert!(
        rig.log(NOT)[0].contains("no answer in time"),
        "{:?}",
        rig.log(NOT)
    );
    assert!(rig.dropped.count() > 0);
    collector.answer(Answer::Accept);
    let last = |received: &Received| abouts(received).last().is_some_and(|about| about == "4999");
    collector.until(last).await.unwrap();
    rig.end().await;
}

#[tokio::test]
async fn refused_spans_are_dropped_and_the_next_ones_come() {
    let refusals = [
        (
            Answer::Fail(Status::invalid_argument("bad span")),
            "bad span",
            0,
        ),
        (
            Answer::Fail(Status::unauthenticated("who are you")),
            "who are you",
            0,
        ),
        (
            Answer::Fail(Status::resource_exhausted("too large")),
            "too large",
            0,
        ),
        // Taken by the collector that says so.
        (Answer::Reject(1), "as the test says", 1),
    ];
    for (answer, reason, taken) in refusals {
        let collector = Collector::start().unwrap();
        collector.answer(answer);
        let rig = Rig::new(&collector, 1 << 20, QUICK);
        rig.push("refused");
        eventually(|| rig.dropped.count() == 1).await;
        collector.answer(Answer::Accept);
        rig.push("next");
        let next = |received: &Received| abouts(received).last().is_some_and(|last| last == "next");
        let received = collector.until(next).await.unwrap();
        assert_eq!(
            (rig.dropped.count(), received.spans.len()),
            (1, 1 + taken),
            "{reason}"
        );
        assert!(rig.log(NOT)[0].contains(reason), "{:?}", rig.log(NOT));
        rig.end().await;
    }
}

#[tokio::test]
async fn a_failing_collector_does_not_fill_the_log() {
    let collector = Collector::start().unwrap();
    let pace = Pace {
        warning: Duration::from_secs(60),
        ..QUICK
    };
    let rig = Rig::new(&collector, 1 << 20, pace);
    for round in 0..5 {
        for (answer, about) in [
            (
                Answer::Fail(Status::internal("broken")),
                format!("{round} fails"),
            ),
            (Answer::Accept, format!("{round} comes")),
        ] {
            collector.answer(answer);
            let requests = collector.received().requests;
            rig.push(&about);
            collector
                .until(|received| received.requests > requests)
                .await
                .unwrap();
            eventually(|| rig.dropped.count() == round + 1).await;
        }
    }
    rig.logged(1, 1).await;
    assert_eq!(
        (
            rig.log(NOT).len(),
            rig.log(AGAIN).len(),
            rig.dropped.count()
        ),
        (1, 1, 5)
    );
    rig.end().await;
}

#[tokio::test]
async fn the_end_waits_for_no_collector_that_is_away() {
    let mut collector = Collector::start().unwrap();
    collector.stop();
    let pace = Pace {
        first_retry: 2 * PATIENCE,
        end: 2 * PATIENCE,
        ..QUICK
    };
    let rig = Rig::new(&collector, 1 << 20, pace);
    rig.push("1");
    rig.logged(1, 0).await;
    let started = Instant::now();
    rig.end().await;
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
}

#[test]
fn which_failures_may_pass() {
    for (status, passes) in [
        (Status::unavailable(""), true),
        (Status::deadline_exceeded(""), true),
        (Status::cancelled(""), true),
        (Status::aborted(""), true),
        (Status::data_loss(""), true),
        (Status::resource_exhausted(""), false),
        (
            Status::with_details(Code::ResourceExhausted, "", b"later".as_slice().into()),
            true,
        ),
        (Status::invalid_argument(""), false),
        (Status::unimplemented(""), false),
        (Status::unauthenticated(""), false),
        (Status::internal(""), false),
        (Status::unknown(""), false),
    ] {
        assert_eq!(may_pass(&status), passes, "{status:?}");
    }
}
