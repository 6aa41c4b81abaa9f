//! Watches that miss changes: their resource version is no longer known when they resume.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use hostloop_test::cluster::Cluster;
use hostloop_test::fleet::patience::in_time;
use hostloop_test::fleet::{Binding, Fleet};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};

use crate::{alone, claims, cluster, ends, part_of, spec, up};

/// Compacts etcd's history and restarts the API server, which empties its watch cache.
async fn forget(fleet: &Fleet, cluster: &'static Cluster) {
    let listed = fleet.claims.list(&ListParams::default()).await;
    let listed = listed.expect("claims can be listed");
    let version = listed.metadata.resource_version;
    let version = version.expect("a list has a version");
    let etcd = etcd(cluster);
    let answer = tokio::task::spawn_blocking(move || compact(&etcd, &version)).await;
    let answer = answer.expect("etcd can be asked");
    let compacted = answer.starts_with("HTTP/1.1 200");
    assert!(compacted, "etcd does not compact: {answer}");
    part_of(cluster, Cluster::kill, "apiserver").await;
    part_of(cluster, Cluster::start, "apiserver").await;
}

/// The address of etcd: its port follows the API server's.
fn etcd(cluster: &Cluster) -> String {
    let server = "jsonpath={.clusters[0].cluster.server}";
    let server = cluster.kubectl(&["config", "view", "-o", server]);
    let (_, port) = server.rsplit_once(':').expect("the server has a port");
    let port: u16 = port.parse().expect("a port is a number");
    format!("127.0.0.1:{}", port + 1)
}

fn compact(etcd: &str, version: &str) -> String {
    let body = format!("{{\"revision\":\"{version}\"}}");
    let length = body.len();
    let request = format!(
        "POST /v3/kv/compaction HTTP/1.1\r\nHost: {etcd}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(etcd).expect("etcd is there");
    let sent = stream.write_all(request.as_bytes());
    sent.expect("a request can be sent");
    std::io::read_to_string(stream).expect("an answer is text")
}

/// Nodes that were away while claims came and went, and cannot resume their watches.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_missed_is_found() {
    let _turn = alone().await;
    let count = claims() / 3;
    let fleet = up(spec("gaps", 4)).await;
    fleet.storm(Binding::Wait, 0..count).await;
    fleet.bound(count, crate::patience()).await;
    let cluster = cluster().await;
    let (away, there) = fleet.members.split_at(2);
    away.iter().for_each(|member| member.pause());
    // Claims of all nodes are deleted and created; two of the nodes miss that.
    let mut gone = 0;
    for claim in fleet.all_claims().await.iter().step_by(3) {
        let name = claim.name_any();
        let deleted = fleet.claims.delete(&name, &DeleteParams::default()).await;
        deleted.expect("a claim can be deleted");
        gone += 1;
    }
    fleet.storm(Binding::Wait, count..2 * count).await;
    fleet.storm(Binding::Immediate, 0..10).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    forget(&fleet, cluster).await;
    away.iter().for_each(|member| member.resume());
    fleet.bound(2 * count - gone + 10, crate::patience()).await;
    for member in away.iter().chain(there) {
        in_time("deleted volumes", crate::patience(), async || match member
            .driver
            .count("DeleteVolume")
        {
            0 => Err(format!("{} deleted nothing", member.node)),
            _ => Ok(()),
        })
        .await;
    }
    ends(fleet, 2 * count - gone + 10).await;
}
