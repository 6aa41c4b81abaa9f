//! Descriptors of the program: many connections without a request, and few files that it may open.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hostloop_proto::csi;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::events::live;
use super::program::Program;
use super::rig::mountable;
use crate::testkit::PATIENCE;
use crate::tools::{command, own_address, script};

/// Connects from an address of this machine.
async fn connect_from(from: [u8; 4], to: SocketAddr) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    socket.connect(to).await.unwrap()
}

fn is_healthy(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return false;
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = String::new();
    let asked = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.ends_with("ok")
}

/// Waits until the program is healthy. On a busy machine, the request of a connection can come so late
/// that the program closes it.
fn until_healthy(program: &Program, address: SocketAddr) {
    let begun = Instant::now();
    while !is_healthy(address) {
        assert!(begun.elapsed() < PATIENCE, "{}", program.log("log"));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn open_files(program: &Program) -> usize {
    fs::read_dir(format!("/proc/{}/fd", program.pid()))
        .unwrap()
        .count()
}

/// The processor time of the program so far, in ticks.
fn ticks(program: &Program) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", program.pid())).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let times = fields.split(' ').skip(11).take(2);
    times.map(|time| time.parse::<u64>().unwrap()).sum()
}

async fn create(program: &Program, name: &str) {
    let mut client = csi::controller_client::ControllerClient::new(program.channel().await);
    let request = csi::CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![mountable()],
        ..Default::default()
    };
    client.create_volume(request).await.unwrap();
}

/// Makes prlimit start the program, with these limits of open files.
fn limit(started: &mut Command, files: &str, log: &Path) {
    let stderr = File::options().append(true).open(log).unwrap();
    let mut limited = command("prlimit");
    limited
        .arg(format!("--nofile={files}"))
        .arg(started.get_program())
        .args(started.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr);
    *started = limited;
}

/// The limits of open files, soft and hard.
fn limits(program: &Program) -> Vec<String> {
    let limits = fs::read_to_string(format!("/proc/{}/limits", program.pid())).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let words = files.split_whitespace().skip(3).take(2);
    words.map(str::to_owned).collect()
}

/// Connects again and again, to the endpoint and to the CSI socket, and sends nothing.
async fn flood(
    program: &Program,
    address: SocketAddr,
) -> (Vec<tokio::net::TcpStream>, Vec<UnixStream>) {
    let (mut tcp, mut unix) = (Vec::new(), Vec::new());
    for number in 0..2000 {
        tcp.push(connect_from([127, 0, 0, 2], address).await);
        if number % 2 == 0 {
            unix.push(UnixStream::connect(program.socket()).unwrap());
        }
    }
    (tcp, unix)
}

/// Waits until the program has no more than this many files open.
fn until_open_files_are(program: &Program, most: usize) {
    let begun = Instant::now();
    while open_files(program) > most {
        assert!(
            begun.elapsed() < PATIENCE,
            "{} files are open",
            open_files(program)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_requests_take_no_descriptors_of_volumes() {
    let mut program = Program::new();
    let address = own_address();
    // A mkfs that says how many files it may open.
    let tools = program.path("tools");
    fs::create_dir(&tools).unwrap();
    let said = program.path("said");
    let text = format!(
        "#!/bin/sh\nulimit -Sn >>{}\nexec /sbin/mkfs.ext4 \"$@\"\n",
        said.display()
    );
    script(&tools.join("mkfs.ext4"), &text);
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let log = program.path("log");
    program.start_with(&["--http-endpoint", &address.to_string()], |started| {
        limit(started, "1024:8192", &log);
        started.env("PATH", &path);
    });
    assert_eq!(limits(&program), ["8192", "8192"]);
    assert!(
        program.log("log").contains("limit=8192 from=1024"),
        "{}",
        program.log("log")
    );

    let before = open_files(&program);
    let flood = flood(&program, address).await;
    create(&program, "beside").await;
    until_healthy(&program, address);
    // 32 of the endpoint, and those of the CSI socket.
    until_open_files_are(&program, before + 1024 + 64);
    assert_eq!(
        fs::read_to_string(said).unwrap().lines().next(),
        Some("1024")
    );
    drop(flood);
    program.stop();
}

/// Where the system allows no more than 1,024 files, connections to the CSI socket get 256 of them.
#[tokio::test(flavor = "multi_thread")]
async fn under_a_low_hard_limit_connections_keep_no_volume_from_its_pod() {
    let mut program = Program::new();
    let address = own_address();
    let log = program.path("log");
    program.start_with(&["--http-endpoint", &address.to_string()], |started| {
        limit(started, "1024:1024", &log);
    });
    assert_eq!(limits(&program), ["1024", "1024"]);
    let before = open_files(&program);
    let flood = flood(&program, address).await;
    live(&program).await;
    until_healthy(&program, address);
    until_open_files_are(&program, before + 256 + 64);
    let log = program.log("log");
    assert!(!log.contains("can't accept connections"), "{log}");
    drop(flood);
    program.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_free_descriptor_it_waits_for_one() {
    let mut program = Program::new();
    let address = own_address();
    program.start(&["--http-endpoint", &address.to_string()]);
    create(&program, "before").await;
    let few = open_files(&program) as u64 + 4;
    let pid = Pid::from_raw(program.pid().try_into().unwrap());
    // Without CAP_SYS_RESOURCE, the hard limit can't be raised again.
    let few = Rlimit {
        current: Some(few),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    let former = prlimit(pid, Resource::Nofile, few).unwrap();
    let flood: Vec<_> = (0..50)
        .map(|_| UnixStream::connect(program.socket()).unwrap())
        .collect();
    let mut more = Vec::new();
    for _ in 0..50 {
        more.push(connect_from([127, 0, 0, 2], address).await);
    }
    let begun = Instant::now();
    while !program.log("log").contains("can't accept connections") {
        assert!(begun.elapsed() < PATIENCE, "{}", program.log("log"));
        std::thread::sleep(Duration::from_millis(20));
    }
    let (begun, before) = (Instant::now(), ticks(&program));
    std::thread::sleep(Duration::from_secs(3));
    let took = (ticks(&program) - before) as f64 / 100.0;
    let share = took / begun.elapsed().as_secs_f64();
    assert!(share < 0.3, "it takes {share} of a processor");
    drop((flood, more));
    until_healthy(&program, address);
    prlimit(pid, Resource::Nofile, former).unwrap();
    program.stop();
}
