use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use hostloop_api_objects::claim_fault::NONE;
use hostloop_api_objects::constants::FAULT;
use hostloop_fake_api::FakeApi;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::Command;
use crate::test_objects::{cluster_of, parsed, writes};

/// A bound claim of the namespace `demo`, with the label `app=db`.
pub(crate) fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name, "namespace": "demo", "uid": format!("uid-{name}"),
            "labels": {"app": "db"},
            "annotations": {"volume.kubernetes.io/storage-provisioner": "hostloop.csi.dev"},
        },
        "spec": {"volumeName": format!("pv-{name}")},
        "status": {"phase": "Bound"},
    })
}

/// The fault that a claim asks for.
pub(crate) fn fault_of(api: &FakeApi, name: &str) -> Option<String> {
    let claim = api.get(&format!(
        "/api/v1/namespaces/demo/persistentvolumeclaims/{name}"
    ));
    let fault = claim.expect("a claim")["metadata"]["annotations"][FAULT].clone();
    fault.as_str().map(str::to_owned)
}

/// A driver, which says by an event what becomes of each fault: `begun` gives the reason for a claim,
/// and `ended` is the reason once the claim asks for none.
pub(crate) async fn drive(
    api: FakeApi,
    begun: fn(&str) -> &'static str,
    ended: &'static str,
) -> Infallible {
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let mut count = 0;
    loop {
        for claim in api.all("persistentvolumeclaims") {
            let name = claim["metadata"]["name"].as_str().unwrap().to_owned();
            let fault = claim["metadata"]["annotations"][FAULT].as_str();
            let fault = fault.filter(|fault| *fault != NONE);
            if known.get(&name).map(String::as_str) == fault {
                continue;
            }
            let (reason, message) = match fault {
                Some(fault) => (begun(&name), format!("The volume and the fault {fault}: m")),
                None => (ended, "The fault has ended".to_owned()),
            };
            match fault {
                Some(fault) => known.insert(name.clone(), fault.to_owned()),
                None => known.remove(&name),
            };
            count += 1;
            api.put(json!({
                "apiVersion": "v1", "kind": "Event",
                "metadata": {"name": format!("{name}.{count}"), "namespace": "demo"},
                "involvedObject": {
                    "kind": "PersistentVolumeClaim", "uid": claim["metadata"]["uid"],
                },
                "reason": reason, "message": message,
                "lastTimestamp": format!("2026-01-01T00:00:{count:02}Z"),
            }));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Runs `kubectl hostloop fault` with these words.
async fn typed(api: &FakeApi, words: &str) -> Result<ExitCode, Error> {
    let Command::Fault(args) = parsed(&format!("fault {words}")).unwrap().command else {
        panic!("{words}");
    };
    run(&args, &cluster_of(api)).await
}

/// [`typed`], with a driver.
async fn answered(
    api: &FakeApi,
    words: &str,
    begun: fn(&str) -> &'static str,
) -> Result<ExitCode, Error> {
    tokio::select! {
        ended = typed(api, words) => ended,
        never = drive(api.clone(), begun, "FaultHealed") => match never {},
    }
}

fn with_claims() -> FakeApi {
    let api = FakeApi::default();
    api.put(claim("data"));
    api.put(claim("logs"));
    api
}

#[tokio::test(start_paused = true)]
async fn a_fault_is_set_and_cleared() {
    let api = with_claims();
    let both = async {
        typed(&api, "set data gone --for 5m").await?;
        assert_eq!(fault_of(&api, "data").as_deref(), Some("gone,for=300s"));
        typed(&api, "list").await?;
        typed(&api, "clear data").await
    };
    tokio::select! {
        ended = both => { ended.unwrap(); }
        never = drive(api.clone(), |_| "FaultInjected", "FaultHealed") => match never {},
    }
    assert_eq!(fault_of(&api, "data"), None);
    let change = "PATCH demo/persistentvolumeclaims/data";
    assert_eq!(writes(&api), [change, change]);
    let events = api.all("events");
    assert_eq!(events.len(), 2, "each was awaited: {events:?}");
}

#[tokio::test(start_paused = true)]
async fn claims_with_a_label_get_it_together() {
    let api = with_claims();
    answered(&api, "set -l app=db frozen", |_| "FaultInjected")
        .await
        .unwrap();
    for name in ["data", "logs"] {
        assert_eq!(fault_of(&api, name).as_deref(), Some("frozen,for=30s"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_does_not_get_it_is_named() {
    let api = with_claims();
    let refused = answered(&api, "set data logs readonly", |name| match name {
        "data" => "FaultRefused",
        _ => "FaultInjected",
    });
    let error = refused.await.unwrap_err();
    assert!(
        matches!(&error, Error::NotInForce(names) if names == "data"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_driver_the_wait_ends() {
    let api = with_claims();
    let error = typed(&api, "set data gone --timeout 20s")
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::NotInForce(names) if names == "data"),
        "{error}"
    );
    // The claim asks for it nevertheless, and to set it again changes nothing.
    typed(&api, "set data gone").await.unwrap();
    typed(&api, "clear data").await.unwrap();
    assert_eq!(fault_of(&api, "data"), None);
}

#[tokio::test]
async fn what_changes_nothing() {
    let api = with_claims();
    api.put(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "new", "namespace": "demo"}, "spec": {}}));
    for (words, succeeds) in [
        ("set data gnoe", false),
        ("set data frozen --for 1h", false),
        ("set data missing gone", false),
        ("set data gone --dry-run=client", true),
        ("clear data --dry-run=client", true),
        ("clear data", true),
        ("list", true),
        ("list -A -l app=db -o json", true),
    ] {
        let ended = typed(&api, words).await;
        assert_eq!(ended.is_ok(), succeeds, "{words}: {ended:?}");
    }
    api.hide("events", 403);
    for words in ["set data gone", "clear data"] {
        assert!(typed(&api, words).await.is_err(), "{words}");
    }
    assert_eq!(writes(&api), Vec::<String>::new());
    // Without a wait, the right to read events is not needed.
    typed(&api, "set data gone --wait=false").await.unwrap();
    typed(&api, "list").await.unwrap();
    assert_eq!(writes(&api).len(), 1);
}

/// It has none of its class, and is not to get that by the end of its own.
#[tokio::test]
async fn a_claim_that_asks_for_none_goes_on_doing_so() {
    let api = with_claims();
    let mut without = claim("data");
    without["metadata"]["annotations"][FAULT] = json!(NONE);
    api.put(without);
    typed(&api, "clear data").await.unwrap();
    typed(&api, "clear data --wait=false").await.unwrap();
    assert_eq!(fault_of(&api, "data").as_deref(), Some(NONE));
    assert_eq!(writes(&api), Vec::<String>::new());
}

/// The claim has the fault of its class, and no annotation to remove.
#[rstest]
#[case::readable(None)]
#[case::unreadable(Some(403))]
#[tokio::test(start_paused = true)]
async fn a_claim_with_the_fault_of_its_class_asks_for_none(#[case] hidden: Option<u16>) {
    let api = with_claims();
    let mut of_class = claim("data");
    of_class["spec"]["storageClassName"] = json!("bad");
    api.put(of_class);
    api.put(
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "bad"}, "provisioner": "hostloop.csi.dev",
        "parameters": {"fault": "gone"}}),
    );
    hidden
        .into_iter()
        .for_each(|code| api.hide("storageclasses/bad", code));
    typed(&api, "clear data --wait=false --dry-run=client")
        .await
        .unwrap();
    assert_eq!(fault_of(&api, "data"), None);
    api.put(json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": "data.0", "namespace": "demo"},
        "involvedObject": {"kind": "PersistentVolumeClaim", "uid": "uid-data"},
        "reason": "FaultInjected", "message": "The volume has the fault gone,for=600s, which",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }));
    let ended = async {
        while fault_of(&api, "data").as_deref() != Some(NONE) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        api.put(json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": "data.1", "namespace": "demo"},
            "involvedObject": {"kind": "PersistentVolumeClaim", "uid": "uid-data"},
            "reason": "FaultHealed", "message": "The fault gone,for=600s has ended",
            "lastTimestamp": "2026-01-01T00:00:01Z",
        }));
    };
    let (cleared, ()) = tokio::join!(typed(&api, "clear data"), ended);
    cleared.unwrap();
    assert_eq!(fault_of(&api, "data").as_deref(), Some(NONE));
}

/// No event can follow before the claim has a volume.
#[tokio::test]
async fn a_claim_without_a_volume_is_not_awaited() {
    let api = with_claims();
    api.put(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "new", "namespace": "demo", "uid": "uid-new"}, "spec": {}}));
    typed(&api, "set new gone").await.unwrap();
    assert_eq!(fault_of(&api, "new").as_deref(), Some("gone,for=600s"));
}
