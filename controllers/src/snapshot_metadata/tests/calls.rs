//! Calls of backup tools, and what becomes of each.

use std::net::{Ipv4Addr, SocketAddr};

use hostloop_proto::snapshot_metadata::{
    GetMetadataAllocatedRequest, GetMetadataAllocatedResponse,
};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tonic::{Code, Streaming};

use super::site::{
    BASE, EXPIRED, FOR_OTHERS, LOST, SIZE, STRANGER, Site, Tool, allocated, cluster, delta,
    read_allocated, read_delta, soon, until,
};
use crate::snapshot_metadata::metrics::Method;
use crate::snapshot_metadata::metrics::tests::count;
use crate::snapshot_metadata::upkeep::now;
use crate::snapshot_metadata::{Metrics, Options, run};
use crate::testing::{DRIVER, parse};
use crate::tls::certificates::{Authority, Identity, RENEWED_AFTER};

/// A change of a request that is right.
type Change = fn(&mut GetMetadataAllocatedRequest);

#[tokio::test]
async fn a_backup_tool_reads_what_is_allocated_and_what_changed() {
    let site = Site::open(now()).await;
    site.settle().await;
    let mut tool = site.tool().await;
    let whole = read_allocated(&mut tool, allocated("target")).await;
    assert_eq!(whole, Ok(vec![(0, 4096), (8192, 4096)]));
    let mut resumed = allocated("target");
    resumed.starting_offset = 4096;
    assert_eq!(
        read_allocated(&mut tool, resumed).await,
        Ok(vec![(8192, 4096)])
    );
    let changed = read_delta(&mut tool, delta(BASE)).await;
    assert_eq!(changed, Ok(vec![(8192, 4096)]));
}

#[tokio::test]
async fn each_refusal_has_its_code() {
    let site = Site::open(now()).await;
    let unready = json!({"status": {"readyToUse": false}});
    let borrowed = json!({"spec": {"volumeSnapshotRef": {"uid": "1"}}});
    let alien = json!({"spec": {"driver": "csi.other"}});
    let nodeless =
        json!({"metadata": {"labels": {"snapshot.storage.kubernetes.io/managed-by": "n9"}}});
    let snapshots = [
        ("unready", "snap-p1-5", unready, Code::Unavailable),
        ("borrowed", "snap-p1-6", borrowed, Code::Unavailable),
        ("alien", "snap-p1-7", alien, Code::InvalidArgument),
        ("lost", LOST, json!({}), Code::NotFound),
        ("poolless", "snap-p9-8", json!({}), Code::Unavailable),
        ("nodeless", "snap-p1-9", nodeless, Code::Unavailable),
    ];
    for (name, handle, change, _) in &snapshots {
        site.snapshot(name, handle, change.clone());
    }
    site.snapshot_in("other", "theirs", "snap-p1-10", json!({}));
    let cases: [(&str, Change, Code); 10] = [
        (
            "no token",
            |r| r.security_token.clear(),
            Code::InvalidArgument,
        ),
        (
            "no namespace",
            |r| r.namespace.clear(),
            Code::InvalidArgument,
        ),
        (
            "no snapshot",
            |r| r.snapshot_name.clear(),
            Code::InvalidArgument,
        ),
        (
            "a guessed token",
            |r| "guess".clone_into(&mut r.security_token),
            Code::Unauthenticated,
        ),
        (
            "an expired token",
            |r| EXPIRED.clone_into(&mut r.security_token),
            Code::Unauthenticated,
        ),
        (
            "another audience",
            |r| FOR_OTHERS.clone_into(&mut r.security_token),
            Code::Unauthenticated,
        ),
        (
            "no right",
            |r| STRANGER.clone_into(&mut r.security_token),
            Code::PermissionDenied,
        ),
        (
            "another namespace",
            |r| "other".clone_into(&mut r.namespace),
            Code::PermissionDenied,
        ),
        (
            "another namespace's snapshot",
            |r| {
                "other".clone_into(&mut r.namespace);
                "theirs".clone_into(&mut r.snapshot_name);
            },
            Code::PermissionDenied,
        ),
        (
            "behind the end",
            |r| r.starting_offset = SIZE,
            Code::OutOfRange,
        ),
    ];
    let mut tool = site.tool().await;
    for (what, change, code) in cases {
        let mut request = allocated("target");
        change(&mut request);
        let refused = read_allocated(&mut tool, request).await;
        assert_eq!(refused, Err(code), "{what}");
    }
    let snapshots = snapshots.map(|(name, _, _, code)| (name, code));
    for (snapshot, code) in [("none", Code::NotFound)].into_iter().chain(snapshots) {
        let refused = read_allocated(&mut tool, allocated(snapshot)).await;
        assert_eq!(refused, Err(code), "{snapshot}");
    }
    let right = read_allocated(&mut tool, allocated("target")).await;
    assert!(right.is_ok(), "{right:?}");
    let metrics = &site.leader.metrics;
    for (code, expected) in [("Unauthenticated", 3), ("NotFound", 2), ("OutOfRange", 1)] {
        let counted = count(metrics, DRIVER, Method::Allocated, code);
        assert_eq!(counted, expected, "{code}");
    }

    // Without the object, no audience is known.
    site.api
        .take(&format!("/snapshotmetadataservices/{DRIVER}"));
    let unknown = read_allocated(&mut tool, allocated("target")).await;
    assert_eq!(unknown, Err(Code::Internal));
}

#[tokio::test]
async fn a_base_is_of_the_namespace_and_of_the_volume() {
    let site = Site::open(now()).await;
    let of_another_volume = json!({"spec": {"source": {"volumeHandle": "vol-p1-1"}}});
    // A backup tool's own content of another namespace's snapshot, by its handle alone.
    let by_hand = json!({"spec": {"source": {
        "volumeHandle": Value::Null, "snapshotHandle": "snap-p1-6",
    }}});
    site.snapshot("deleted", "snap-p1-5", json!({}));
    site.snapshot("lost", LOST, json!({}));
    site.snapshot("other-volume", "snap-p1-7", of_another_volume);
    site.snapshot("by-hand", "snap-p1-6", by_hand);
    site.snapshot_in("other", "shared", "snap-p1-6", json!({}));
    site.snapshot_in("other", "theirs", "snap-p1-8", json!({}));
    site.settle().await;
    site.delete("deleted");
    site.delete("lost");
    site.settle().await;
    let mut tool = site.tool().await;
    for (what, base, code) in [
        ("its own", BASE, Ok(())),
        ("the target itself", "snap-p1-4", Ok(())),
        ("its own by hand", "snap-p1-6", Ok(())),
        ("its own, with its objects deleted", "snap-p1-5", Ok(())),
        (
            "its own, which the driver deleted",
            LOST,
            Err(Code::NotFound),
        ),
        (
            "another namespace's",
            "snap-p1-8",
            Err(Code::PermissionDenied),
        ),
        ("a guess", "snap-p1-99", Err(Code::PermissionDenied)),
        ("another volume's", "snap-p1-7", Err(Code::InvalidArgument)),
    ] {
        let found = read_delta(&mut tool, delta(base)).await;
        assert_eq!(found.map(drop), code, "{what}");
    }
    let mut nameless = delta(BASE);
    nameless.base_snapshot_id.clear();
    let refused = read_delta(&mut tool, nameless).await;
    assert_eq!(refused, Err(Code::InvalidArgument));
}

#[tokio::test]
async fn the_node_is_there_and_is_the_one() {
    let site = Site::open(now()).await;
    let mut tool = site.tool().await;
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let closed_at = closed.local_addr().unwrap();
    drop(closed);
    let other = Identity::self_signed(now()).unwrap().fingerprint();
    for (what, address, fingerprint, code) in [
        (
            "no process answers",
            closed_at,
            site.fingerprint,
            Err(Code::Unavailable),
        ),
        ("another answers", site.node, other, Err(Code::Unavailable)),
        ("it answers", site.node, site.fingerprint, Ok(())),
    ] {
        site.announce(address, fingerprint).await;
        let found = read_allocated(&mut tool, allocated("target")).await;
        assert_eq!(found.map(drop), code, "{what}");
    }
    site.api.take("/csistoragecapacities/n1");
    let capacities = &site.leader.capacities;
    until("no capacity", || capacities.all().is_empty()).await;
    let gone = read_allocated(&mut tool, allocated("target")).await;
    assert_eq!(gone, Err(Code::Unavailable));
}

#[tokio::test]
async fn who_trusts_another_authority_gets_no_connection() {
    let site = Site::open(now()).await;
    let other = Authority::new(now()).unwrap();
    assert!(site.connect(other.pem().to_owned()).await.is_err());
    assert!(site.connect(site.published()).await.is_ok());
}

/// Begins to read a stream without an end.
async fn endless(tool: &mut Tool) -> Streaming<GetMetadataAllocatedResponse> {
    let answer = tool.get_metadata_allocated(allocated("endless")).await;
    let mut messages = answer.unwrap().into_inner();
    let first = soon("the first message", messages.message()).await;
    assert!(first.unwrap().is_some());
    messages
}

/// Passes one connection on, until it is cut.
async fn cable(to: SocketAddr) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let passing = tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = TcpStream::connect(to).await.unwrap();
        // Either side may close it.
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    });
    (address, passing)
}

#[tokio::test]
async fn a_stream_that_is_cut_off_does_not_look_complete() {
    let site = Site::open(now()).await;
    let mut tool = site.tool().await;
    let (address, cable) = cable(site.node).await;
    site.announce(address, site.fingerprint).await;
    let mut messages = endless(&mut tool).await;
    cable.abort();
    let cut = soon("the end", messages.message()).await.unwrap_err();
    assert_eq!(cut.code(), Code::Unavailable);
    assert!(cut.message().contains("resume"), "{cut}");
    soon("the end at the driver", site.driver.ended.cancelled()).await;
}

#[tokio::test]
async fn a_caller_that_hangs_up_ends_the_stream_of_the_node() {
    let site = Site::open(now()).await;
    let mut tool = site.tool().await;
    drop(endless(&mut tool).await);
    soon("the end at the driver", site.driver.ended.cancelled()).await;
    let metrics = &site.leader.metrics;
    until("the end of the call", || {
        count(metrics, DRIVER, Method::Allocated, "Canceled") == 1
    })
    .await;
}

#[tokio::test]
async fn a_leader_that_stops_says_so() {
    let site = Site::open(now()).await;
    let mut tool = site.tool().await;
    let mut messages = endless(&mut tool).await;
    site.leader.context.stop.cancel();
    let stopped = soon("the end", messages.message()).await.unwrap_err();
    assert_eq!(stopped.code(), Code::Unavailable);
}

#[tokio::test]
async fn certificates_are_renewed_beneath_connections_and_streams() {
    let site = Site::open(now() - RENEWED_AFTER).await;
    let (authority, before) = (site.published(), site.shown().await);
    let mut tool = site.tool().await;
    let mut messages = endless(&mut tool).await;

    site.leader.upkeep.pass(now()).await.unwrap();
    assert_ne!(site.shown().await, before);
    assert_eq!(site.published(), authority);
    site.driver.more.notify_one();
    let next = soon("the next message", messages.message()).await;
    assert!(next.unwrap().is_some(), "the stream goes on");
    // The node accepts the leader's new certificate, too.
    let again = read_allocated(&mut tool, allocated("target")).await;
    assert!(again.is_ok(), "the connection goes on: {again:?}");
    let mut newcomer = site.tool().await;
    let new = read_allocated(&mut newcomer, allocated("target")).await;
    assert!(new.is_ok(), "a new connection: {new:?}");
}

#[tokio::test]
async fn the_service_publishes_itself_and_ends_when_it_is_told() {
    let (api, context) = cluster();
    let stop = context.stop.clone();
    let options: Options = parse(&["--snapshot-metadata-port=0"]);
    let service = tokio::spawn(run(context, options, Metrics::default()));
    until("the object", || {
        api.get(&format!("/snapshotmetadataservices/{DRIVER}"))
            .is_some()
    })
    .await;
    stop.cancel();
    let ended = soon("the end", service).await.unwrap();
    assert!(ended.is_ok(), "{ended:?}");
}
