use std::net::{Ipv4Addr, SocketAddr};

use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use super::*;

const REQUEST: &[u8] = b"GET /small HTTP/1.1\r\nHost: here\r\n\r\n";
const ANSWER: Duration = Duration::from_secs(5);
/// What a test waits for at most.
const SOON: Duration = Duration::from_secs(300);

fn router() -> Router {
    let lasting = async |axum::Extension(lasting): axum::Extension<Lasting>| {
        lasting.begin();
        vec![b'x'; 1 << 20]
    };
    Router::new()
        .route("/small", get(async || "ok"))
        .route("/large", get(async || vec![b'x'; 1 << 20]))
        .route("/lasting", get(lasting))
}

/// The client's end of a served connection.
async fn connection() -> DuplexStream {
    let (client, server) = duplex(1024);
    let slot = ConnectionSlots::new(1).admit(None).await.unwrap();
    tokio::spawn(serve_one(server, slot, router(), ANSWER));
    client
}

/// All that the server sends.
async fn rest(client: &mut DuplexStream) -> String {
    let mut answer = Vec::new();
    let _cut_off = client.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_slowly_is_not_waited_for() {
    let mut client = connection().await;
    let begin = Instant::now();
    let mut sent = 0;
    // Each byte in good time, and never the end.
    while client.write_all(b"G").await.is_ok() && sent < 100 {
        sent += 1;
        sleep(HEAD / 10).await;
    }
    assert!(
        sent <= 11,
        "{sent} bytes were taken in {:?}",
        begin.elapsed()
    );
    // The same without a byte.
    let mut silent = connection().await;
    let begin = Instant::now();
    rest(&mut silent).await;
    assert!(begin.elapsed() <= HEAD, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_head_or_a_body_is_not_read_without_end() {
    let field = format!("X: {}\r\n", "x".repeat(1000));
    let fields = |count: usize| {
        [
            REQUEST[..REQUEST.len() - 2].to_vec(),
            field.repeat(count).into(),
        ]
    };
    let many = [
        &REQUEST[..REQUEST.len() - 2],
        "X: x\r\n".repeat(1000).as_bytes(),
    ]
    .concat();
    let body = b"POST /small HTTP/1.1\r\nHost: here\r\nContent-Length: 99999999999\r\n\r\n";
    for (case, bytes, status) in [
        ("a long head", fields(10_000).concat(), "431"),
        ("many fields", many, "431"),
        ("a body", [&body[..], &[b'x'; 10 << 20]].concat(), "405"),
    ] {
        let mut client = connection().await;
        let mut taken = 0;
        for piece in bytes.chunks(512) {
            if client.write_all(piece).await.is_err() {
                break;
            }
            taken += piece.len();
        }
        assert!(taken <= 4 * MAX_HEAD, "{case}: {taken} bytes were read");
        let answer = rest(&mut client).await;
        assert!(answer.contains(status), "{case}: {answer}");
    }
}

#[tokio::test]
async fn a_connection_has_one_request() {
    let mut client = connection().await;
    client.write_all(&REQUEST.repeat(10)).await.unwrap();
    let answer = rest(&mut client).await;
    assert_eq!(answer.matches("200 OK").count(), 1, "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn who_does_not_take_the_answer_is_cut_off() {
    for (path, is_cut_off) in [("/large", true), ("/lasting", false)] {
        let mut client = connection().await;
        let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        sleep(2 * (HEAD + ANSWER)).await;
        let answer = rest(&mut client).await;
        assert_eq!(
            answer.len() < 1 << 20,
            is_cut_off,
            "{path}: {}",
            answer.len()
        );
    }
}

/// Connects from an address of this machine.
async fn connect(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    socket.connect(to).await.unwrap()
}

async fn ask(from: [u8; 4], to: SocketAddr) -> String {
    let mut stream = connect(from, to).await;
    stream.write_all(REQUEST).await.unwrap();
    let mut answer = String::new();
    timeout(SOON, stream.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    answer
}

/// How many of these connections the server has not closed.
fn open(streams: &[TcpStream]) -> usize {
    streams.iter().filter(|stream| is_open(stream)).count()
}

fn is_open(stream: &TcpStream) -> bool {
    let read = stream.try_read(&mut [0; 16]);
    read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[tokio::test]
async fn a_probe_is_answered_beside_2000_connections_without_a_request() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    )
    .unwrap();
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
    let limits = Limits {
        connections: PUBLIC_CONNECTIONS,
        answer: ANSWER,
    };
    let stop = CancellationToken::new();
    let served = tokio::spawn(serve(
        listener,
        router(),
        limits,
        stop.clone().cancelled_owned(),
    ));
    // The probe connects before the flood, and sends its request after it.
    let mut slow = connect([127, 0, 0, 1], address).await;
    let mut flood = Vec::new();
    for number in 0..2000 {
        flood.push(connect([127, 0, 0, 2], address).await);
        if number % 500 == 0 {
            let answer = ask([127, 0, 0, 1], address).await;
            assert!(answer.ends_with("ok"), "beside {number}: {answer}");
        }
    }
    slow.write_all(REQUEST).await.unwrap();
    let mut answer = String::new();
    timeout(SOON, slow.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(answer.ends_with("ok"), "{answer}");
    let bounded = async {
        while open(&flood) > PUBLIC_CONNECTIONS {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, bounded)
        .await
        .unwrap_or_else(|_| panic!("{} stay open", open(&flood)));
    // Requests without readers of their answers don't help either.
    for stream in &flood {
        let _closed = stream.try_write(b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n");
    }
    assert!(ask([127, 0, 0, 1], address).await.ends_with("ok"));
    stop.cancel();
    timeout(SOON, served).await.unwrap().unwrap();
}
