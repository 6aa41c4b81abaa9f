//! Requests that are repeated, and waits for the end of objects.

use std::cell::Cell;
use std::time::Duration;

use kube::Api;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::api::{self, ApiError, Kind};
use crate::waiting::PAUSE;

/// Repeats a request until it has an answer, or the time is over. It may be carried out twice.
pub(super) async fn persist<T>(
    timeout: Duration,
    request: impl AsyncFn() -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let started = Instant::now();
    loop {
        match request().await {
            Err(error) if error.is_transient() && started.elapsed() < timeout => {
                sleep(PAUSE).await;
            }
            answer => return answer,
        }
    }
}

/// Creates an object with a name that no other one has. One that is there already is another's, unless an
/// earlier request of this call has made it.
pub(super) async fn create<K: Kind>(
    api: &Api<K>,
    object: &Value,
    timeout: Duration,
) -> Result<(), ApiError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let is_repeated = Cell::new(false);
    persist(timeout, async || {
        let created = api::create(api, object, false).await;
        // An earlier request without an answer has been carried out.
        let may_be_ours = is_repeated.replace(true);
        if may_be_ours
            && matches!(created, Err(ApiError::Conflict { .. }))
            && api::get(api, name).await?.is_some()
        {
            return Ok(());
        }
        created
    })
    .await
}

/// Deletes an object by its name, which no other one has.
pub(super) async fn delete<K: Kind>(
    api: &Api<K>,
    name: &str,
    timeout: Duration,
) -> Result<(), ApiError> {
    persist(timeout, async || {
        api::delete(api, name, None, None, false).await
    })
    .await
}

/// Waits until an object does not exist. False if it still does after this time.
pub(super) async fn is_gone<K: Kind>(
    api: &Api<K>,
    name: &str,
    timeout: Duration,
) -> Result<bool, ApiError> {
    let started = Instant::now();
    loop {
        let found = persist(timeout, async || api::get(api, name).await).await?;
        if found.is_none() {
            return Ok(true);
        }
        if started.elapsed() >= timeout {
            return Ok(false);
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use hostloop_fake_api::{FakeApi, Fault};
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;
    use crate::test_objects::cluster_of;

    const PATIENT: Duration = Duration::from_secs(60);

    fn maps(api: &FakeApi) -> Api<ConfigMap> {
        cluster_of(api).namespaced(Some("demo"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_repeated_until_it_has_an_answer() {
        let api = FakeApi::default();
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        // The last one is carried out without an answer.
        for fault in [Fault::Refuse(503), Fault::Refuse(500), Fault::LoseAnswer] {
            api.fault(&["POST"], "configmaps", Some(1), fault);
        }
        create(&maps(&api), &object, PATIENT).await.unwrap();
        assert_eq!(api.all("configmaps").len(), 1);
        // Another's object is not taken for one's own.
        let others = create(&maps(&api), &object, PATIENT).await;
        assert!(
            matches!(others, Err(ApiError::Conflict { .. })),
            "{others:?}"
        );
        api.fault(&["DELETE"], "configmaps", Some(1), Fault::Refuse(503));
        delete(&maps(&api), "m", PATIENT).await.unwrap();
        delete(&maps(&api), "m", PATIENT).await.unwrap();
        assert!(is_gone(&maps(&api), "m", PATIENT).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_final_and_time_ends_the_rest() {
        let api = FakeApi::default();
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        api.fault(&["POST"], "configmaps", Some(1), Fault::Refuse(403));
        assert!(create(&maps(&api), &object, PATIENT).await.is_err());
        api.fault(&["POST"], "configmaps", None, Fault::Refuse(503));
        assert!(create(&maps(&api), &object, PATIENT).await.is_err());
        let mut stays = object;
        stays["metadata"] = json!({"name": "m", "namespace": "demo", "finalizers": ["a/b"]});
        api.put(stays);
        delete(&maps(&api), "m", PATIENT).await.unwrap();
        assert!(!is_gone(&maps(&api), "m", PATIENT).await.unwrap());
    }
}
