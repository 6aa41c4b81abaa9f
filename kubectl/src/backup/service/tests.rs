use hostloop_fake_api::FakeApi;
use serde_json::json;

use super::*;
use crate::backup::fake_service::{FakeService, SIZE, publish};
use crate::test_objects::{cluster_of, read};

/// Lists a snapshot, without patience.
async fn list(api: &FakeApi, base: Option<&str>) -> Result<Vec<(u64, u64)>, ServiceError> {
    let cluster = cluster_of(api);
    let asker = Asker {
        cluster: &cluster,
        account: "backup",
        patience: Duration::ZERO,
    };
    let question = Question {
        namespace: "demo",
        snapshot: "s",
        base,
    };
    let listing = asker.list(question).await?;
    let ranges = listing.ranges.iter();
    Ok(ranges.map(|one| (one.offset, one.length)).collect())
}

#[tokio::test]
async fn the_service_lists_what_is_allocated_and_what_changed() {
    let api = FakeApi::with_snapshots();
    let service = FakeService::start(&api).await;
    service.lists(&[(0, 4096), (1 << 19, 4096)]);
    for base in [None, Some("b")] {
        let listed = list(&api, base).await.unwrap();
        assert_eq!(listed, [(0, 4096), (1 << 19, 4096)]);
    }
    assert_eq!(service.calls(), ["demo/s from 0", "demo/s since b from 0"]);
    service.lists(&[]);
    assert!(list(&api, None).await.unwrap().is_empty());
}

/// A service that takes the call, and says nothing.
#[tokio::test(start_paused = true)]
async fn an_answer_that_never_comes_is_not_waited_for() {
    let cluster = cluster_of(&FakeApi::with_snapshots());
    let asker = Asker {
        cluster: &cluster,
        account: "backup",
        patience: Duration::from_secs(60),
    };
    let error = asker
        .patiently(std::future::pending::<Result<(), _>>())
        .await;
    let error = error.unwrap_err();
    assert!(may_pass(&error) && needs_full(&error));
    assert!(
        error.to_string().ends_with("did not answer within 60 s"),
        "{error}"
    );
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_resumed() {
    let api = FakeApi::with_snapshots();
    let service = FakeService::start(&api).await;
    service.lists(&[(0, 4096), (1 << 19, 4096)]);
    service.breaks_off();
    let cluster = cluster_of(&api);
    let asker = Asker {
        cluster: &cluster,
        account: "demo/backup",
        patience: crate::test_objects::PATIENCE,
    };
    let question = Question {
        namespace: "demo",
        snapshot: "s",
        base: None,
    };
    let listing = asker.list(question).await.unwrap();
    assert_eq!((listing.ranges.len(), listing.bytes()), (2, 8192));
    assert_eq!(service.calls(), ["demo/s from 0", "demo/s from 4096"]);
    // Nothing can follow the end of the volume.
    service.lists(&[(0, SIZE)]);
    service.breaks_off();
    let listing = asker.list(question).await.unwrap();
    assert_eq!(listing.bytes(), SIZE as u64);
    assert_eq!(service.calls(), ["demo/s from 0"]);
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let api = FakeApi::with_snapshots();
    let said = |error: ServiceError| error.to_string();
    publish(&api, "nowhere", "");
    api.take("/snapshotmetadataservices/hostloop.csi.dev");
    let missing = said(list(&api, None).await.unwrap_err());
    assert!(missing.contains("--snapshot-metadata"), "{missing}");

    let service = FakeService::start(&api).await;
    service.forgets("b");
    let gone = list(&api, Some("b")).await.unwrap_err();
    assert!(needs_full(&gone), "{gone}");

    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let object = api
        .get("/snapshotmetadataservices/hostloop.csi.dev")
        .unwrap();
    let address = object["spec"]["address"].as_str().unwrap();
    publish(&api, address, &other.cert.pem());
    let distrusted = said(list(&api, None).await.unwrap_err());
    assert!(
        distrusted.contains("invalid peer certificate"),
        "{distrusted}"
    );

    publish(&api, "nowhere", &other.cert.pem());
    let nowhere = said(list(&api, None).await.unwrap_err());
    assert!(nowhere.contains("\"nowhere\""), "{nowhere}");
    publish(&api, "s.hostloop.svc:1", &other.cert.pem());
    let no_pod = said(list(&api, None).await.unwrap_err());
    assert!(
        no_pod.contains("names Service hostloop/s, and none of its pods runs"),
        "{no_pod}"
    );

    api.answer(
        "/api/v1/namespaces/demo/serviceaccounts/backup/token",
        404,
        json!({"status": "Failure", "message": "not found", "code": 404}),
    );
    let no_account = said(list(&api, None).await.unwrap_err());
    assert!(
        no_account.contains("namespace demo has no ServiceAccount backup"),
        "{no_account}"
    );
}

#[test]
fn hosts_and_services() {
    for (address, expected) in [
        ("s.ns.svc:6443", Some(("s.ns.svc", 6443, Some(("s", "ns"))))),
        (
            "s.ns.svc.cluster.local:1",
            Some(("s.ns.svc.cluster.local", 1, Some(("s", "ns")))),
        ),
        (
            "backup.example.com:443",
            Some(("backup.example.com", 443, None)),
        ),
        ("localhost:1", Some(("localhost", 1, None))),
        ("10.0.0.1:1", Some(("10.0.0.1", 1, None))),
        ("[fd00::1]:1", Some(("fd00::1", 1, None))),
        ("s.ns.svc", None),
        ("s.ns.svc:x", None),
    ] {
        let found = host_and_port(address).map(|(host, port)| (host, port, service_of(host)));
        assert_eq!(found, expected, "{address}");
    }
}

#[test]
fn ports_of_pods() {
    let pod: Pod = read(json!({"spec": {"containers": [
        {"name": "a"},
        {"name": "b", "ports": [{"name": "grpc", "containerPort": 50051}]},
    ]}}));
    for (target, expected) in [
        (IntOrString::Int(7), Some(7)),
        (IntOrString::Int(-7), None),
        (IntOrString::String("grpc".to_owned()), Some(50051)),
        (IntOrString::String("http".to_owned()), None),
    ] {
        assert_eq!(target_port(&pod, &target), expected, "{target:?}");
    }
    for (status, expected) in [
        (json!({"phase": "Running"}), true),
        (json!({"phase": "Pending"}), false),
        (json!({}), false),
    ] {
        let pod: Pod = read(json!({"status": status}));
        assert_eq!(is_running(&pod), expected, "{status}");
    }
    let leaving: Pod = read(
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"phase": "Running"}}),
    );
    assert!(!is_running(&leaving));
}

#[test]
fn what_becomes_of_refusals() {
    for (code, passes, full) in [
        (Code::Unavailable, true, false),
        (Code::DeadlineExceeded, true, true),
        (Code::ResourceExhausted, true, false),
        (Code::NotFound, false, true),
        (Code::FailedPrecondition, false, true),
        (Code::PermissionDenied, false, true),
        (Code::InvalidArgument, false, true),
        (Code::Unauthenticated, false, false),
        (Code::Internal, false, false),
        (Code::OutOfRange, false, false),
    ] {
        let error = ServiceError::Call(Status::new(code, "why"));
        assert_eq!(
            (may_pass(&error), needs_full(&error)),
            (passes, full),
            "{code:?}"
        );
    }
    let broken = Status::from_error(Box::new(io::Error::other("reset")));
    assert!(may_pass(&ServiceError::Call(broken)));
    assert!(!may_pass(&ServiceError::Answer("why".to_owned())));
}
