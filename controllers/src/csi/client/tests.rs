use std::sync::atomic::{AtomicUsize, Ordering};

use csi::controller_server::ControllerServer;
use futures::FutureExt;
use hostloop_memory_driver::Handlers;
use tokio::io::DuplexStream;
use tokio::sync::{Notify, Semaphore};
use tokio_stream::StreamExt;
use tonic::transport::Server;

use super::*;
use crate::csi::{CallKind, ErrorClass, class};
use crate::testing::connect;

const SOON: Duration = Duration::from_secs(300);

/// A driver that behaves as the volume name says.
fn driver() -> Handlers {
    let driver = Handlers::default();
    driver.on_async(|request: csi::CreateVolumeRequest| {
        async move {
            match request.name.as_str() {
                "hang" => std::future::pending().await,
                "full" => Err(Status::resource_exhausted("full")),
                "unknown" => Err(Status::unknown("who knows")),
                "panic" => panic!("a bug"),
                _ => Ok(csi::CreateVolumeResponse::default()),
            }
        }
        .boxed()
    });
    driver
}

async fn create(csi: &Csi, name: &str) -> Result<csi::CreateVolumeResponse, Failure> {
    let request = csi::CreateVolumeRequest {
        name: name.to_owned(),
        ..Default::default()
    };
    csi.create_volume(request, SOON).await
}

#[tokio::test(start_paused = true)]
async fn answers_come_through_memory() {
    let csi = connect(&driver());
    create(&csi, "fine").await.unwrap();
    let full = create(&csi, "full").await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert!(full.to_string().starts_with("CreateVolume: "), "{full}");
    // An UNKNOWN from the driver itself is an answer.
    assert_eq!(
        create(&csi, "unknown").await.unwrap_err().code(),
        Code::Unknown
    );
    let off = csi
        .get_capacity(Default::default(), SOON)
        .await
        .unwrap_err();
    assert_eq!(off.code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_panic_of_a_service_fails_the_call() {
    let csi = connect(&driver());
    let lost = create(&csi, "panic").await.unwrap_err();
    assert_eq!(
        (lost.code(), lost.status.message()),
        (Code::Unavailable, PANICKED)
    );
    create(&csi, "fine").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_at_its_deadline() {
    let csi = connect(&driver());
    let begun = tokio::time::Instant::now();
    let late = create(&csi, "hang").await.unwrap_err();
    assert_eq!(
        class(CallKind::CreateVolume { movable: true }, &late),
        ErrorClass::InBackground
    );
    assert!(begun.elapsed() >= SOON && begun.elapsed() < 2 * SOON);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_never_opens_ends_at_the_deadline() {
    let csi = Csi::over(std::future::pending::<io::Result<DuplexStream>>);
    let late = create(&csi, "x").await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_server_that_ends_in_a_call_leaves_it_in_progress() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("csi.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    // The server runs in a separate runtime. Its shutdown closes all connections, like the end of a
    // process. That comes once a call hangs.
    let hangs = Arc::new(Notify::new());
    let handlers = Handlers::default();
    let begun = hangs.clone();
    handlers.on_async(move |request: csi::CreateVolumeRequest| {
        let begun = begun.clone();
        async move {
            if request.name == "hang" {
                begun.notify_one();
                std::future::pending::<()>().await;
            }
            Ok(csi::CreateVolumeResponse::default())
        }
        .boxed()
    });
    let serving = std::thread::spawn(move || {
        let listener = listener.into_std().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            let connections = tokio_stream::wrappers::UnixListenerStream::new(listener);
            let server = Server::builder()
                .add_service(ControllerServer::new(handlers))
                .serve_with_incoming(connections);
            tokio::select! {
                ended = server => panic!("{ended:?}"),
                () = hangs.notified() => {}
            }
        });
    });
    let csi = Csi::at_socket(&path);
    create(&csi, "fine").await.unwrap();
    let lost = create(&csi, "hang").await.unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable, "{lost:?}");
    serving.join().unwrap();

    // The same client reaches the driver again once it serves.
    std::fs::remove_file(&path).unwrap();
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let connections = tokio_stream::wrappers::UnixListenerStream::new(listener);
        Server::builder()
            .add_service(ControllerServer::new(driver()))
            .serve_with_incoming(connections)
            .await
            .unwrap();
    });
    create(&csi, "fine").await.unwrap();
}

#[tokio::test]
async fn a_socket_that_is_not_there_is_unavailable() {
    let gone = create(&Csi::at_socket("/nowhere/csi.sock"), "x")
        .await
        .unwrap_err();
    assert_eq!(gone.code(), Code::Unavailable, "{gone:?}");
}

/// A driver that counts its calls, behind connections that open when the gate lets them.
struct Gated {
    gate: Arc<Semaphore>,
    calls: Arc<AtomicUsize>,
    csi: Csi,
}

fn gated(leader: &Leadership) -> Gated {
    let (gate, calls) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let handlers = Handlers::default();
    let counted = calls.clone();
    handlers.on(move |_: csi::CreateVolumeRequest| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(csi::CreateVolumeResponse::default())
    });
    let entry = gate.clone();
    let open = move || {
        let (entry, handlers) = (entry.clone(), handlers.clone());
        async move {
            entry
                .acquire_owned()
                .await
                .map_err(io::Error::other)?
                .forget();
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let one = tokio_stream::once(Ok::<_, io::Error>(theirs));
            let server = Server::builder().add_service(ControllerServer::new(handlers));
            tokio::spawn(server.serve_with_incoming(one.chain(tokio_stream::pending())));
            Ok(ours)
        }
    };
    Gated {
        gate,
        calls,
        csi: Csi::fenced_over(open, leader),
    }
}

/// A process may be paused after it checked its lead, while the request waits in this process.
#[tokio::test(start_paused = true)]
async fn nothing_leaves_after_the_lead_has_ended() {
    let (until, leader) = Leadership::elected();
    let lead = || until.send_replace(Some(Instant::now() + SOON / 2));

    // The connection is open when the lead ends.
    lead();
    let open = gated(&leader);
    open.gate.add_permits(1);
    create(&open.csi, "led").await.unwrap();
    tokio::time::sleep(SOON).await;
    let refused = create(&open.csi, "late").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert_eq!(open.calls.load(Ordering::Relaxed), 1);

    // The request waits for the connection when the lead ends.
    lead();
    let waits = gated(&leader);
    let (begun, ()) = tokio::join!(create(&waits.csi, "begun in time"), async {
        assert!(leader.leads());
        tokio::time::sleep(SOON * 3 / 4).await;
        waits.gate.add_permits(1);
    });
    assert_eq!(begun.unwrap_err().code(), Code::Unavailable);
    assert_eq!(waits.calls.load(Ordering::Relaxed), 0);

    // The next lead works, over a new connection.
    lead();
    waits.gate.add_permits(1);
    create(&waits.csi, "led again").await.unwrap();
    assert_eq!(waits.calls.load(Ordering::Relaxed), 1);
}
