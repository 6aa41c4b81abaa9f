use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::event::{Event, Kind};
use crate::read::{self, Said};

/// A ring that is served on a socket.
struct Served {
    ring: &'static Ring,
    socket: PathBuf,
    _dir: TempDir,
}

impl Served {
    fn new(limit: usize, readers: usize) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("events.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let ring: &'static Ring = Box::leak(Box::new(Ring::new(limit)));
        let process = Process {
            process: "node".to_owned(),
            node: Some("n1".to_owned()),
            version: "1".to_owned(),
        };
        tokio::spawn(accept(listener, ring, process, readers));
        Served {
            ring,
            socket,
            _dir: dir,
        }
    }

    fn push(&self, about: &str) {
        self.ring
            .push(Event::new(Kind::Call, "Probe", "".into(), about.into()));
    }

    async fn read(&self, request: Request) -> read::Stream {
        read::open(&self.socket, &request).await.unwrap()
    }
}

fn from(from: u64, follow: bool) -> Request {
    Request {
        from,
        follow,
        ..Request::default()
    }
}

/// The next event: its number and its subject.
async fn event(stream: &mut read::Stream) -> (u64, String) {
    loop {
        match stream.next().await.unwrap().expect("the stream lives") {
            Said::Event { seq, json } => {
                return (seq, json["about"].as_str().unwrap_or_default().to_owned());
            }
            Said::Nothing => {}
        }
    }
}

#[tokio::test]
async fn a_reader_gets_what_is_there_and_then_what_comes() {
    let served = Served::new(1 << 20, 4);
    served.push("a");
    served.push("b");
    let mut once = served.read(from(0, false)).await;
    assert_eq!(once.header.events, FORMAT);
    assert_eq!(
        (once.header.from, once.header.process.node.as_deref()),
        (0, Some("n1"))
    );
    assert_eq!(event(&mut once).await, (0, "a".to_owned()));
    assert_eq!(event(&mut once).await, (1, "b".to_owned()));
    assert_eq!(once.next().await.unwrap(), None);

    let mut followed = served.read(from(1, true)).await;
    assert_eq!(event(&mut followed).await, (1, "b".to_owned()));
    for number in 0..1000 {
        served.push(&number.to_string());
    }
    for number in 0..1000 {
        assert_eq!(event(&mut followed).await, (2 + number, number.to_string()));
    }
}

#[tokio::test]
async fn numbers_of_an_earlier_process_are_not_used() {
    let served = Served::new(1 << 20, 4);
    served.push("a");
    for (boot, first) in [(served.ring.boot(), 1), ("", 1), ("another", 0)] {
        let request = Request {
            from: 1,
            boot: boot.to_owned(),
            follow: false,
        };
        assert_eq!(served.read(request).await.header.from, first, "{boot:?}");
    }
}

#[tokio::test]
async fn a_slow_reader_misses_events_and_blocks_no_one() {
    let served = Served::new(64 << 10, 4);
    let mut slow = served.read(from(0, true)).await;
    for number in 0..20_000 {
        served.push(&number.to_string());
        if number % 500 == 0 {
            tokio::task::yield_now().await;
        }
    }
    served.push("last");
    let (mut last, mut lost) = (None, 0);
    loop {
        let (seq, about) = event(&mut slow).await;
        let expected = last.map_or(0, |last: u64| last + 1);
        assert!(seq >= expected, "numbers only grow");
        lost += seq - expected;
        last = Some(seq);
        if about == "last" {
            break;
        }
    }
    assert_eq!(last, Some(20_000));
    assert!(lost > 0, "the ring is smaller than what was sent");
}

#[tokio::test]
async fn readers_are_limited_and_give_their_place_back() {
    let served = Served::new(1 << 20, 1);
    let first = served.read(from(0, true)).await;
    let refused = read::open(&served.socket, &from(0, true))
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("1 readers follow"),
        "{refused}"
    );
    drop(first);
    let end = Instant::now() + Duration::from_secs(300);
    while read::open(&served.socket, &from(0, true)).await.is_err() {
        assert!(Instant::now() < end, "the place was not given back");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_is_no_request_gets_no_event() {
    let served = Served::new(1 << 20, 4);
    served.push("a");
    for request in [
        "\n".to_owned(),
        "GET / HTTP/1.1\r\n".to_owned(),
        "x".repeat(10_000),
    ] {
        let mut stream = UnixStream::connect(&served.socket).await.unwrap();
        // The server may close while this writes.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(
            answer.is_empty(),
            "{request:.20}: {}",
            String::from_utf8_lossy(&answer)
        );
    }
}

#[tokio::test]
async fn a_request_beyond_the_limit_is_not_served() {
    let served = Served::new(1 << 20, 4);
    for (bytes, is_served) in [(MAX_REQUEST / 2, true), (MAX_REQUEST, false)] {
        // The other fields come in addition.
        let request = Request {
            boot: "x".repeat(bytes as usize),
            ..from(0, false)
        };
        let answer = read::open(&served.socket, &request).await;
        assert_eq!(answer.is_ok(), is_served, "{bytes}");
    }
}

/// The time is that of the paused clock, in which only the limit passes.
#[tokio::test(start_paused = true)]
async fn a_reader_without_a_request_loses_its_place() {
    let served = Served::new(1 << 20, 1);
    let mut silent = UnixStream::connect(&served.socket).await.unwrap();
    let (begun, mut answer) = (Instant::now(), Vec::new());
    silent.read_to_end(&mut answer).await.unwrap();
    assert!(answer.is_empty(), "{answer:?}");
    assert!(
        begun.elapsed() < 2 * REQUEST,
        "it kept others out for {:?}",
        begun.elapsed()
    );
    served.read(from(0, false)).await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_nothing_loses_its_place() {
    let served = Served::new(16 << 20, 1);
    // More than the socket holds.
    for _ in 0..20_000 {
        served.push(&"x".repeat(200));
    }
    let mut stalled = UnixStream::connect(&served.socket).await.unwrap();
    let request = line(&from(0, true)).unwrap();
    stalled.write_all(&request).await.unwrap();
    let (begun, mut refused) = (Instant::now(), 0);
    while read::open(&served.socket, &from(0, false)).await.is_err() {
        refused += 1;
        assert!(begun.elapsed() < 4 * PATIENCE, "its place was not taken");
        sleep(Duration::from_secs(1)).await;
    }
    assert!(refused > 0, "the only place was free at once");
}
