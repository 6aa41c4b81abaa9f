use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::registrar::tests::driver::{Driver, State};

const SOON: Duration = Duration::from_secs(300);

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        body.to_owned(),
    )
}

/// An endpoint for a driver, with a probe timeout in milliseconds.
async fn endpoint(
    driver: &Driver,
    timeout: u64,
    checks: Checks,
) -> (SocketAddr, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let liveness = Liveness::new(Some(driver.serve()), Duration::from_millis(timeout), checks);
    tokio::spawn(serve(listener, liveness, stop.clone()));
    (address, stop)
}

#[tokio::test]
async fn the_answer_is_the_drivers_of_now() {
    let driver = Driver::new(State::Unset);
    let (patient, _stop) = endpoint(&driver, 300_000, Checks::default()).await;
    let (hasty, _stop) = endpoint(&driver, 2_000, Checks::default()).await;
    let cases = [
        (State::Unset, 200, "ok"),
        (State::Ready, 200, "ok"),
        (State::NotReady, 500, "the driver is not ready"),
        (State::Broken, 500, "the disk is away"),
        (State::Hanging, 500, "Probe: "),
        (State::Ready, 200, "ok"),
    ];
    for (i, (state, status, text)) in (1..).zip(cases) {
        driver.set(state);
        let address = if matches!(state, State::Hanging) {
            hasty
        } else {
            patient
        };
        let (found, body) = get(address, "/healthz").await;
        assert_eq!(found, status, "{state:?}: {body}");
        assert!(body.contains(text), "{state:?}: {body}");
        assert_eq!(*driver.probes.lock(), i, "{state:?}");
    }
    assert_eq!(get(patient, "/").await.0, 404);
}

#[tokio::test]
async fn checks_fail_it_with_all_there_is_to_say() {
    let driver = Driver::new(State::Ready);
    let checks = Checks::default();
    let (address, _stop) = endpoint(&driver, 300_000, checks.clone()).await;
    let stale = Arc::new(AtomicBool::new(false));
    let watch = stale.clone();
    // Checks can be added while the endpoint is served.
    checks.add("registrar", || Ok(()));
    checks.add("watch of claims", move || {
        if watch.load(Ordering::Relaxed) {
            Err("stale for 10 min".to_owned())
        } else {
            Ok(())
        }
    });
    assert_eq!(get(address, "/healthz").await, (200, "ok".to_owned()));
    stale.store(true, Ordering::Relaxed);
    driver.set(State::NotReady);
    let expected = "watch of claims: stale for 10 min\nthe driver is not ready";
    assert_eq!(get(address, "/healthz").await, (500, expected.to_owned()));
    assert_eq!(format!("{checks:?}"), r#"{"registrar", "watch of claims"}"#);
}

#[tokio::test(start_paused = true)]
async fn who_asks_meanwhile_joins_the_probe_that_runs() {
    let driver = Driver::new(State::Hanging);
    let liveness = Liveness::new(
        Some(driver.serve()),
        Duration::from_millis(500),
        Checks::default(),
    );
    let answers = futures::future::join_all((0..100).map(|_| liveness.look())).await;
    for answer in answers {
        assert!(answer.unwrap_err().contains("Probe: "));
    }
    assert_eq!(*driver.probes.lock(), 1);
    // That probe has ended: the next request starts a new one.
    driver.set(State::Ready);
    assert_eq!(liveness.look().await, Ok(()));
    assert_eq!(*driver.probes.lock(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_takes_nothing_from_the_others() {
    let driver = Driver::new(State::Hanging);
    let liveness = Liveness::new(
        Some(driver.serve()),
        Duration::from_millis(300),
        Checks::default(),
    );
    let impatient = tokio::time::timeout(Duration::from_millis(10), liveness.look());
    let (gave_up, answered) = tokio::join!(impatient, liveness.look());
    assert!(gave_up.is_err() && answered.is_err());
    assert_eq!(*driver.probes.lock(), 1);
    // A probe is cancelled with its last waiter.
    let alone = tokio::time::timeout(Duration::from_millis(10), liveness.look());
    assert!(alone.await.is_err());
    driver.set(State::Ready);
    assert_eq!(liveness.look().await, Ok(()));
}

#[tokio::test]
async fn an_idle_connection_does_not_delay_the_stop() {
    let driver = Driver::new(State::Ready);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _idle = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let stop = CancellationToken::new();
    let liveness = Liveness::new(Some(driver.serve()), SOON, Checks::default());
    let served = tokio::spawn(serve(listener, liveness, stop.clone()));
    tokio::task::yield_now().await;
    stop.cancel();
    tokio::time::timeout(SOON, served).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_address_in_use_is_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = Options {
        address: taken.local_addr().unwrap(),
        probe_timeout: SOON,
    };
    let driver = Driver::new(State::Ready);
    let ended = run(
        options,
        Some(driver.serve()),
        Checks::default(),
        CancellationToken::new(),
    )
    .await;
    assert!(
        ended
            .unwrap_err()
            .to_string()
            .starts_with("listening on 127.0.0.1:")
    );
}
