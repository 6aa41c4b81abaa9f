//! The client for the API server. Every call has a deadline, is counted, and returns an error that
//! shows what the caller can do.
//!
//! The client never replaces a whole object from a typed value: that would drop fields newer than
//! these types. It only creates, patches and deletes objects.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hostloop_api_objects::snapshot_metadata::SnapshotMetadataService;
use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet, StatefulSet};
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Secret,
};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment, VolumeAttributesClass,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, DeleteParams, PartialObjectMeta, Patch, PatchParams, PostParams, Preconditions, Request,
};
use kube::core::Status;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::codegen::http;

use crate::api::claim_health::HealthClaim;
use crate::api::pod::Pod;
use crate::client::Leadership;
use crate::metrics::Metrics;

mod bytes_received;
mod client;
mod discovery;
mod get;
mod limit;
mod list;
mod trim;

pub(crate) use bytes_received::is_watch;
pub use client::ClientError;
pub(crate) use client::{connect, over};
pub use limit::Limit;
use trim::TrimTo;
pub(crate) use trim::{Keep, KeptFields, in_memory, is_left_out};
#[cfg(test)]
pub(crate) use trim::{trimmed, trimmed_object};

/// The API server's whole message for a JSON patch that does not apply, because a `test` fails or a
/// path is missing. The message for an invalid object names the object and the field.
const UNFIT_PATCH: &str = "the server rejected our request due to an error in our request";

/// Parts of the API server's messages for a patch with the UID of a deleted object, if a new object
/// has its name.
const OTHER_UID: [&str; 2] = [
    "metadata.uid: Invalid value",
    "Precondition failed: UID in precondition",
];

/// The default deadline of a call.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A kind of object that the controllers use.
pub trait Resource:
    kube::Resource<DynamicType = ()>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// Returns the API of the kind. Cluster-scoped kinds ignore the namespace.
    fn api(client: Client, namespace: &str) -> Api<Self>;
    /// Returns the API for objects in all namespaces.
    fn everywhere(client: Client) -> Api<Self>;

    /// True if the object is being deleted.
    fn is_deleting(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    /// True if the object has this finalizer.
    fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers().iter().any(|one| one == finalizer)
    }
}

/// Implements [`Resource`] for kinds.
macro_rules! kinds {
    (cluster: $($cluster:ty),+; namespaced: $($namespaced:ty),+ $(,)?) => {
        $(impl $crate::client::Resource for $cluster {
            fn api(client: kube::Client, _: &str) -> kube::Api<Self> { kube::Api::all(client) }
            fn everywhere(client: kube::Client) -> kube::Api<Self> { kube::Api::all(client) }
        })+
        $(impl $crate::client::Resource for $namespaced {
            fn api(client: kube::Client, namespace: &str) -> kube::Api<Self> {
                kube::Api::namespaced(client, namespace)
            }
            fn everywhere(client: kube::Client) -> kube::Api<Self> { kube::Api::all(client) }
        })+
    };
}
pub(crate) use kinds;

kinds! {
    cluster: CustomResourceDefinition, PersistentVolume, Node, CSIDriver, CSINode, StorageClass,
        VolumeAttachment, VolumeAttributesClass, TokenReview, SubjectAccessReview,
        SnapshotMetadataService;
    namespaced: ConfigMap, PersistentVolumeClaim, HealthClaim, Pod, ReplicaSet, StatefulSet,
        DaemonSet, Secret, CSIStorageCapacity,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The object or its kind does not exist.
    #[error("{call}: not found")]
    NotFound {
        /// Which call: verb, kind and name.
        call: String,
    },
    /// The object differs from what the call expected: a `resourceVersion`, a `test` or a
    /// precondition did not match.
    #[error("{call}: {message}")]
    Conflict { call: String, message: String },
    #[error("{call}: exists already")]
    AlreadyExists { call: String },
    /// The API server rejects the request: a retry would fail again.
    #[error("{call}: {message}")]
    Rejected {
        call: String,
        code: u16,
        message: String,
    },
    /// No answer within the deadline. The server may have applied the request.
    #[error("{call}: no answer within {deadline:?}")]
    Timeout { call: String, deadline: Duration },
    /// This process no longer leads, so it sent nothing.
    #[error("{call}: this process no longer leads")]
    NotLeading { call: String },
    /// No answer, or a server error. The server may have applied the request.
    #[error("{call}: {source}")]
    Failed {
        call: String,
        #[source]
        source: Box<kube::Error>,
    },
}

/// The answer of a request; `None` if the object does not exist any more.
pub fn unless_gone<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(ApiError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if the API server gave no answer, or one that says that it can't serve requests now. It
/// answers with 500 if a webhook fails, and with 429 if there are too many requests.
pub(super) fn is_outage(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 502..=504),
        kube::Error::SerdeError(_) | kube::Error::BuildRequest(_) => false,
        _ => true,
    }
}

impl ApiError {
    fn is_outage(&self) -> bool {
        match self {
            ApiError::Timeout { .. } => true,
            ApiError::Failed { source, .. } => is_outage(source),
            _ => false,
        }
    }

    /// True if the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, ApiError::NotFound { .. })
    }

    /// True if the object has changed since it was read.
    pub fn is_conflict(&self) -> bool {
        matches!(self, ApiError::Conflict { .. })
    }

    /// True if the object is there, and is too large to be kept in memory.
    pub(crate) fn is_too_large(&self) -> bool {
        matches!(self, ApiError::Rejected { code: 413, .. })
    }

    /// A short name of the error for metrics.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            ApiError::NotFound { .. } => "not found",
            ApiError::Conflict { .. } => "conflict",
            ApiError::AlreadyExists { .. } => "exists",
            ApiError::Rejected { .. } => "refused",
            ApiError::Timeout { .. } => "late",
            ApiError::NotLeading { .. } => "not leading",
            ApiError::Failed { .. } => "failed",
        }
    }

    fn failed(call: String, error: kube::Error) -> Self {
        ApiError::Failed {
            call,
            source: Box::new(error),
        }
    }

    fn new(call: String, error: kube::Error) -> Self {
        let kube::Error::Api(status) = &error else {
            return ApiError::failed(call, error);
        };
        let message = status.message.clone();
        match status.code {
            404 => ApiError::NotFound { call },
            409 if status.is_already_exists() => ApiError::AlreadyExists { call },
            409 => ApiError::Conflict { call, message },
            422 if message == UNFIT_PATCH => ApiError::Conflict {
                call,
                message: "the object has changed since it was read".to_owned(),
            },
            422 if OTHER_UID.iter().any(|part| message.contains(part)) => {
                ApiError::Conflict { call, message }
            }
            429 => ApiError::failed(call, error),
            code @ 400..500 => ApiError::Rejected {
                call,
                code,
                message,
            },
            _ => ApiError::failed(call, error),
        }
    }
}

/// A client for the API server. Clones share its connections.
#[derive(Clone)]
pub struct Kube {
    client: Client,
    limit: Option<Arc<Limit>>,
    /// Who must lead for writes to be sent.
    fence: Option<Leadership>,
    metrics: Arc<Metrics>,
    manager: Arc<str>,
    answered: Arc<Mutex<Option<Instant>>>,
    /// Whether the last call found the API server away.
    is_away: Arc<AtomicBool>,
}

/// Identifies a call in errors and metrics.
struct ApiCall {
    verb: &'static str,
    kind: String,
    name: String,
}

impl fmt::Display for ApiCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.verb, self.kind, self.name)
    }
}

impl ApiCall {
    fn new<K: Resource>(verb: &'static str, namespace: &str, name: &str) -> Self {
        let name = match namespace {
            "" => name.to_owned(),
            namespace => format!("{namespace}/{name}"),
        };
        ApiCall {
            verb,
            kind: K::kind(&()).into_owned(),
            name,
        }
    }
}

impl Kube {
    /// Creates a client. `manager` is the field manager of its writes.
    pub fn new(client: Client, limit: Option<Limit>, metrics: Arc<Metrics>, manager: &str) -> Self {
        Kube {
            client,
            limit: limit.map(Arc::new),
            fence: None,
            metrics,
            manager: manager.into(),
            answered: Arc::default(),
            is_away: Arc::default(),
        }
    }

    /// True if the last call got no answer from a working API server.
    pub(crate) fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// True if the API server has answered a call within the last `time`.
    pub fn answered_within(&self, time: Duration) -> bool {
        let answered = *self.answered.lock();
        answered.is_some_and(|at| at.elapsed() <= time)
    }

    /// Returns a client for the same server that writes as another field manager.
    pub fn managed_by(&self, manager: &str) -> Self {
        Kube {
            manager: manager.into(),
            ..self.clone()
        }
    }

    /// Returns a client for the same server with a separate rate limit.
    pub fn limited(&self, limit: Option<Limit>) -> Self {
        Kube {
            limit: limit.map(Arc::new),
            ..self.clone()
        }
    }

    /// Returns a client for the same server that writes only while `leader` leads. A check before
    /// the call does not suffice, because a call waits for the rate limit. A write that waits for a
    /// connection may still leave late: its resourceVersion, UID or name decides then.
    pub fn fenced(&self, leader: &Leadership) -> Self {
        Kube {
            fence: Some(leader.clone()),
            ..self.clone()
        }
    }

    /// Returns the underlying client for watches, which have no deadline.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Applies a JSON merge patch to an object of which only the metadata is known.
    pub(crate) async fn merge_metadata<K: Resource>(
        &self,
        object: &PartialObjectMeta<K>,
        patch: Value,
        fields: &'static KeptFields,
    ) -> Result<PartialObjectMeta<K>, ApiError> {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let call = ApiCall::new::<K>("patch", &namespace, &name);
        let request = Request::new(K::api(self.client.clone(), &namespace).resource_url());
        let params = self.patch_params();
        let request = request.patch(&name, &params, &Patch::Merge(patch));
        self.timely(call, self.send_trimmed(request, fields)).await
    }

    /// Applies a JSON merge patch to an object's status. These fields of the answer are read.
    pub(crate) async fn merge_status_fields<K: Resource>(
        &self,
        object: &K,
        patch: Value,
        fields: &'static KeptFields,
    ) -> Result<K, ApiError> {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let call = ApiCall::new::<K>("patch", &namespace, &name);
        let request = Request::new(K::api(self.client.clone(), &namespace).resource_url());
        let params = self.patch_params();
        let request = request.patch_subresource("status", &name, &params, &Patch::Merge(patch));
        let sent = async { known(self.send_trimmed(request, fields).await?) };
        self.timely(call, sent).await
    }

    /// Sends a request. Its answer is trimmed to these fields.
    async fn send_trimmed<T: DeserializeOwned>(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
        fields: &'static KeptFields,
    ) -> kube::Result<T> {
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        request.extensions_mut().insert(TrimTo(fields));
        self.client.request(request).await
    }

    fn patch_params(&self) -> PatchParams {
        PatchParams {
            field_manager: Some(self.manager.to_string()),
            ..PatchParams::default()
        }
    }

    /// Creates an object with the name in its metadata.
    pub async fn create<K: Resource>(&self, object: &K) -> Result<K, ApiError> {
        let namespace = object.namespace().unwrap_or_default();
        let api = K::api(self.client.clone(), &namespace);
        let name = object
            .meta()
            .name
            .clone()
            .or_else(|| object.meta().generate_name.clone());
        let call = ApiCall::new::<K>("create", &namespace, &name.unwrap_or_default());
        let params = PostParams {
            field_manager: Some(self.manager.to_string()),
            ..PostParams::default()
        };
        self.timely(call, async { known(api.create(&params, object).await?) })
            .await
    }

    /// Applies a JSON merge patch to an object. Include `metadata.resourceVersion` if the patch
    /// depends on what was read.
    pub async fn merge<K: Resource>(&self, object: &K, patch: Value) -> Result<K, ApiError> {
        self.patch(object, None, &Patch::Merge(patch)).await
    }

    /// Applies a JSON merge patch to an object's status.
    pub async fn merge_status<K: Resource>(&self, object: &K, patch: Value) -> Result<K, ApiError> {
        self.patch(object, Some("status"), &Patch::Merge(patch))
            .await
    }

    /// Merges `status` into an object's status, unless the object has changed since it was read.
    /// The API server ignores the UID in a status write, but checks the resourceVersion.
    pub async fn merge_status_unchanged<K: Resource>(
        &self,
        object: &K,
        status: Value,
    ) -> Result<K, ApiError> {
        let metadata = json!({"resourceVersion": object.resource_version()});
        self.merge_status(object, json!({"metadata": metadata, "status": status}))
            .await
    }

    /// Applies a strategic merge patch, which merges lists by key, to an object's status. Kinds
    /// from a CustomResourceDefinition do not support it.
    pub async fn strategic_status<K: Resource>(
        &self,
        object: &K,
        patch: Value,
    ) -> Result<K, ApiError> {
        self.patch(object, Some("status"), &Patch::Strategic(patch))
            .await
    }

    /// Applies a JSON patch (RFC 6902), a list of operations such as `test`, to an object.
    pub async fn json<K: Resource>(&self, object: &K, operations: Value) -> Result<K, ApiError> {
        let patch: json_patch::Patch = serde_json::from_value(operations).map_err(|error| {
            let call = ApiCall::new::<K>("patch", "", &object.name_any()).to_string();
            ApiError::Failed {
                call,
                source: Box::new(kube::Error::SerdeError(error)),
            }
        })?;
        self.patch(object, None, &Patch::Json::<()>(patch)).await
    }

    async fn patch<K: Resource, P: Serialize + Debug>(
        &self,
        object: &K,
        subresource: Option<&'static str>,
        patch: &Patch<P>,
    ) -> Result<K, ApiError> {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let api = K::api(self.client.clone(), &namespace);
        let params = self.patch_params();
        let call = ApiCall::new::<K>("patch", &namespace, &name);
        match subresource {
            None => {
                self.timely(call, async {
                    known(api.patch(&name, &params, patch).await?)
                })
                .await
            }
            Some(part) => {
                let patched = api.patch_subresource(part, &name, &params, patch);
                self.timely(call, async { known(patched.await?) }).await
            }
        }
    }

    /// Deletes an object if its UID is still the one that was read. Deleting a missing object
    /// succeeds.
    pub async fn delete<K: Resource>(&self, object: &K) -> Result<(), ApiError> {
        let preconditions = Preconditions {
            uid: object.uid(),
            resource_version: None,
        };
        self.delete_if(object, preconditions).await
    }

    /// Deletes an object if it is unchanged since it was read.
    pub async fn delete_unchanged<K: Resource>(&self, object: &K) -> Result<(), ApiError> {
        let preconditions = Preconditions {
            uid: object.uid(),
            resource_version: object.resource_version(),
        };
        self.delete_if(object, preconditions).await
    }

    async fn delete_if<K: Resource>(
        &self,
        object: &K,
        preconditions: Preconditions,
    ) -> Result<(), ApiError> {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let api = K::api(self.client.clone(), &namespace);
        let params = DeleteParams::default().preconditions(preconditions);
        let call = ApiCall::new::<K>("delete", &namespace, &name);
        unless_gone(self.timely(call, api.delete(&name, &params)).await).map(drop)
    }

    async fn timely<T>(
        &self,
        call: ApiCall,
        sent: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        if let Some(limit) = &self.limit {
            limit.take().await;
        }
        let is_read = matches!(call.verb, "get" | "list");
        if !is_read && self.fence.as_ref().is_some_and(|leader| !leader.leads()) {
            return Err(ApiError::NotLeading {
                call: call.to_string(),
            });
        }
        let answer = tokio::time::timeout(DEADLINE, sent).await;
        let answer = match answer {
            Err(_) => Err(ApiError::Timeout {
                call: call.to_string(),
                deadline: DEADLINE,
            }),
            Ok(answer) => answer.map_err(|error| ApiError::new(call.to_string(), error)),
        };
        self.metrics.api_call(
            call.verb,
            &call.kind,
            answer.as_ref().err().map_or("ok", ApiError::word),
        );
        let is_away = answer.as_ref().err().is_some_and(ApiError::is_outage);
        self.is_away.store(is_away, Ordering::Relaxed);
        if !matches!(
            answer,
            Err(ApiError::Timeout { .. } | ApiError::Failed { .. })
        ) {
            let mut answered = self.answered.lock();
            *answered = Some(Instant::now());
        }
        answer
    }
}

/// Refuses an object of which only the name is known.
fn known<K: Resource>(object: K) -> kube::Result<K> {
    if !is_left_out(&object) {
        return Ok(object);
    }
    let refused = Status::failure(&too_large::<K>(), "RequestEntityTooLarge").with_code(413);
    Err(kube::Error::Api(refused.boxed()))
}

/// Says that an object is too large to be kept, and what to do.
pub(crate) fn too_large<K: Resource>() -> String {
    format!(
        "the {} is too large to be kept in memory, alone, with the others of its namespace, or \
         because those of all namespaces take too much: make its labels, finalizers, data, spec or \
         status smaller, or theirs, or delete some",
        K::kind(&())
    )
}

#[cfg(test)]
mod tests;
