use futures::FutureExt;
use hostloop_proto::registration::InfoRequest;
use hostloop_proto::registration::registration_client::RegistrationClient;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, timeout};
use tonic::transport::Endpoint;
use tonic::transport::server::Connected;

use super::*;
use crate::registrar::tests::service;

#[tokio::test]
async fn calls_are_answered_beside_connections_without_one() {
    const MOST: usize = 8;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = builder().add_service(service());
    tokio::spawn(server.serve_with_incoming(connections(listener, MOST)));
    let mut flood = Vec::new();
    // Each call has a connection of its own, like kubelet's.
    for number in 0..200 {
        flood.push(UnixStream::connect(&path).await.unwrap());
        if number % 50 == 0 {
            let to = path.clone();
            let connector = tower::service_fn(move |_| {
                let to = to.clone();
                async move { UnixStream::connect(to).await.map(TokioIo::new) }
            });
            let endpoint = Endpoint::from_static("http://unix");
            let channel = endpoint.connect_with_connector(connector).await.unwrap();
            let called = RegistrationClient::new(channel)
                .get_info(InfoRequest {})
                .await;
            assert_eq!(
                called.unwrap().into_inner().name,
                "hostloop.csi.dev",
                "beside {number}"
            );
        }
    }
    let bounded = async {
        while flood.iter().filter(|stream| is_open(stream)).count() > MOST {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), bounded).await.unwrap();
}

/// True if the server has not closed the connection. It greets each at once.
fn is_open(stream: &UnixStream) -> bool {
    loop {
        match stream.try_read(&mut [0; 64]) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_greet_is_cut_off() {
    for (sent, is_cut_off) in [(0, true), (PREFACE - 1, true), (PREFACE, false)] {
        let (mut client, server) = duplex(64);
        let slot = ConnectionSlots::new(1).admit(None).await.unwrap();
        let mut admitted = Admitted::new(server, slot);
        client.write_all(&[b'x'; PREFACE][..sent]).await.unwrap();
        let begin = Instant::now();
        let read = timeout(2 * GREETING, admitted.read_exact(&mut [0; PREFACE + 1])).await;
        assert_eq!(read.is_ok(), is_cut_off, "{sent} bytes");
        assert_eq!(begin.elapsed() == GREETING, is_cut_off, "{sent} bytes");
        assert_eq!(admitted.filter.slot.is_kept(), !is_cut_off, "{sent} bytes");
    }
}

/// On a port, a client may greet that is allowed nothing.
#[tokio::test]
async fn a_stream_keeps_a_connection_of_a_network_and_a_greeting_does_not() {
    let slots = ConnectionSlots::new(1);
    let (mut client, server) = duplex(64);
    let slot = slots.admit(None).await.unwrap();
    let mut admitted = Admitted::of_network(server, slot, None, false);
    client.write_all(&[b'x'; PREFACE]).await.unwrap();
    admitted.read_exact(&mut [0; PREFACE]).await.unwrap();
    let calls = admitted.connect_info();
    let (one, other) = (calls.keep(), calls.keep());
    assert!(slots.admit(None).await.is_none(), "two streams");
    drop(one);
    assert!(slots.admit(None).await.is_none(), "a stream");
    drop(other);
    let mut newcomer = Box::pin(slots.admit(None));
    assert!(newcomer.as_mut().now_or_never().is_none());
    // Also a client that takes nothing gives way: HTTP/2 does not read until it could write.
    for found in [
        admitted.write_all(b"x").await,
        admitted.flush().await,
        admitted.read_u8().await.map(drop),
    ] {
        let error = found.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }
    drop(admitted);
    assert!(newcomer.await.is_some());
    // A stream that ends later finds no connection.
    drop(calls.keep());
}
