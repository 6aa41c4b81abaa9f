use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::*;
use crate::grpc::metrics::Calls;
use crate::grpc::permits::Permits;
use crate::rpc_faults::Outcome;

fn report() -> Report {
    let calls = Arc::new(Calls::new("test"));
    let method = "/csi.v1.SnapshotMetadata/GetMetadataDelta";
    Report::begin(&calls, method, "", Interest::Question)
}

async fn start<P>(stall: Duration, produce: P) -> Answers<u32>
where
    P: FnOnce(&mut dyn FnMut(u32) -> bool) -> controller::Result<()> + Send + 'static,
{
    let turn = Permits::new(1, "streams").acquire("").await.unwrap();
    produce_on_thread(produce, report(), turn, stall)
}

/// The messages of a stream, and the code it ended with.
async fn drain(answers: Answers<u32>) -> (Vec<u32>, Code) {
    let mut seen = Vec::new();
    let mut answers = answers;
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(answer) => seen.push(answer),
            Err(status) => return (seen, status.code()),
        }
    }
    (seen, Code::Ok)
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_comes_in_order() {
    let answers = start(STALL, |emit| {
        assert!((0..100).all(&mut *emit));
        Ok(())
    });
    assert_eq!(drain(answers.await).await, ((0..100).collect(), Code::Ok));
}

fn fault(outcome: Outcome, delay_after: Duration) -> Fault {
    Fault {
        rule: "r".into(),
        delay_before: Duration::from_secs(1),
        delay_after,
        outcome,
        stop: CancellationToken::new(),
    }
}

fn lost() -> Outcome {
    Outcome::Lost {
        code: Code::Unavailable,
        message: "lost".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_lost_as_a_whole_and_done() {
    let (done, is_done) = tokio::sync::oneshot::channel();
    let mut answers = start(STALL, |emit| {
        assert!((0..100).all(&mut *emit));
        done.send(()).unwrap();
        Ok(())
    })
    .await;
    let fault = fault(lost(), Duration::from_millis(20));
    let seen = hide(&fault, &mut answers).await.unwrap_err();
    assert_eq!((seen.code(), seen.message()), (Code::Unavailable, "lost"));
    is_done.await.unwrap();
    assert_eq!(drain(answers).await, (Vec::new(), Code::Ok));
}

/// A thread that read ahead meanwhile would take its stream for a stalled one.
#[tokio::test(start_paused = true)]
async fn a_delayed_stream_has_both_waits_before_it() {
    let delay = 2 * STALL;
    for (outcome, expected) in [
        (Outcome::Answered, Duration::from_secs(1) + delay),
        (lost(), Duration::from_secs(1)),
    ] {
        let started = tokio::time::Instant::now();
        before_stream(&fault(outcome, delay)).await.unwrap();
        let took = started.elapsed();
        assert_eq!(took.as_secs(), expected.as_secs());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_comes_last_even_when_the_channel_is_full() {
    let answers = start(STALL, |emit| {
        assert!((0..AHEAD as u32).all(&mut *emit));
        Err(controller::Error::NotFound("snapshot x".into()))
    })
    .await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(
        drain(answers).await,
        ((0..AHEAD as u32).collect(), Code::NotFound)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_has_gone_stops_it() {
    let (stopped, has_stopped) = tokio::sync::oneshot::channel();
    let mut answers = start(STALL, move |emit| {
        let sent = (0..).take_while(|n| emit(*n)).count();
        stopped.send(sent).unwrap();
        Ok(())
    })
    .await;
    assert_eq!(answers.next().await.unwrap().unwrap(), 0);
    drop(answers);
    let sent = has_stopped.await.unwrap();
    assert!(sent <= AHEAD + 1, "{sent} messages sent");
}

/// A comparison of equal content sends nothing. It would keep its turn, and the disk, from others.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_has_gone_stops_what_sends_nothing() {
    let (stopped, has_stopped) = tokio::sync::oneshot::channel();
    let answers = start(STALL, move |_| {
        let file = tempfile::tempfile().unwrap();
        while crate::kernel::wanted::check(&file).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        stopped.send(()).unwrap();
        Ok(())
    })
    .await;
    drop(answers);
    let stopped = tokio::time::timeout(crate::testkit::PATIENCE, has_stopped).await;
    stopped.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_takes_nothing_gets_deadline_exceeded() {
    let (stopped, has_stopped) = tokio::sync::oneshot::channel();
    let answers = start(Duration::from_millis(20), move |emit| {
        assert!(!(0..).all(&mut *emit));
        stopped.send(()).unwrap();
        Ok(())
    })
    .await;
    has_stopped.await.unwrap();
    let (seen, code) = drain(answers).await;
    assert_eq!(seen.len(), AHEAD);
    assert_eq!(
        code,
        Code::DeadlineExceeded,
        "a cut stream must not look complete"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_internal() {
    let answers = start(STALL, |emit| {
        emit(1);
        panic!("a bug")
    });
    assert_eq!(drain(answers.await).await, (vec![1], Code::Internal));
}
