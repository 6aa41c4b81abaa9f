//! Connections to the ports of the driver's pods.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::tenant::Tenant;

/// Kubelet's time limit of a probe, and after how many failures it restarts the container.
const PROBE: Duration = Duration::from_secs(5);
const FAILURES: u32 = 6;

/// Connections without a request.
pub(crate) async fn half_open(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let connections = connect(&tenant.addresses, count).await?;
    let probed = probed(tenant).await;
    drop(connections);
    probed
}

/// Requests without an end: one byte of a header after the other.
pub(crate) async fn slow_headers(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let mut connections = connect(&tenant.addresses, count).await?;
    let dripping = async {
        for connection in &mut connections {
            let _ = connection
                .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ")
                .await;
        }
        loop {
            sleep(Duration::from_secs(1)).await;
            for connection in &mut connections {
                let _ = connection.try_write(b"x");
            }
        }
    };
    tokio::select! {
        probed = probed(tenant) => probed,
        () = dripping => Ok(()),
    }
}

/// Requests for the metrics, again and again.
pub(crate) async fn requests(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let asking = join_all((0..count).map(|n| async move {
        let address = tenant.addresses[n % tenant.addresses.len()];
        loop {
            let _ = timeout(PROBE, ask(address, "/metrics")).await;
            sleep(Duration::from_secs(1)).await;
        }
    }));
    tokio::select! {
        probed = probed(tenant) => probed,
        _ = asking => Ok(()),
    }
}

/// Opens connections to all addresses in turn, and leaves out those that are refused.
async fn connect(addresses: &[SocketAddr], count: usize) -> Result<Vec<TcpStream>, String> {
    let one = |n: usize| timeout(PROBE, TcpStream::connect(addresses[n % addresses.len()]));
    let mut opened = Vec::new();
    for first in (0..count).step_by(100) {
        let some = join_all((first..count.min(first + 100)).map(one)).await;
        opened.extend(some.into_iter().flatten().flatten());
    }
    if opened.is_empty() {
        Err("no connection was accepted".to_owned())
    } else {
        Ok(opened)
    }
}

/// Probes each pod like kubelet while connections are held. As many failures in a row as make
/// kubelet restart a container are wrong.
async fn probed(tenant: &Tenant<'_>) -> Result<(), String> {
    let end = Instant::now() + tenant.hold;
    let health = tenant
        .addresses
        .iter()
        .filter(|address| address.port() == 9808);
    let probes = join_all(health.map(|address| async move {
        let mut failures = 0;
        loop {
            match timeout(PROBE, ask(*address, "/healthz")).await {
                Ok(Ok(answer)) if answer == "HTTP/1.1 200" => failures = 0,
                failed => {
                    failures += 1;
                    if failures == FAILURES {
                        return Err(format!("{address} fails kubelet's probe: {failed:?}"));
                    }
                }
            }
            if Instant::now() > end && failures == 0 {
                return Ok(());
            }
            sleep(Duration::from_millis(500)).await;
        }
    }));
    probes.await.into_iter().collect()
}

/// Asks for a path, and returns how the answer begins.
async fn ask(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut answer = vec![0; 12];
    connection.read_exact(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
