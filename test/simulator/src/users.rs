//! Users do what a history says, through the API server.

use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

use crate::cluster::NAMESPACE;
use crate::history::Action;
use crate::model::view::collection;

use claims::NewClaim;

pub(crate) use adoptions::ADOPTED;
pub(crate) use claims::{ENOUGH, ENOUGH_OF};
pub(crate) use class_versions::{BAD_OPTION, OF_KUBERNETES, path as class_path};
pub(crate) use greed::{be_greedy, be_modest};
pub(crate) use reserved::{RESERVED_FOR, release_all};
pub(crate) use unusual::{FREED, REMOUNTED};

mod adoptions;
mod claims;
mod class_versions;
pub(crate) mod ending;
mod foreign;
mod greed;
mod groups;
mod namespaces;
mod pods;
mod reserved;
mod snapshots;
mod unusual;

/// An error of the API server.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) code: u16,
    pub(crate) message: String,
}

/// Sends one request.
pub(crate) async fn send(
    client: &Client,
    method: Method,
    path: &str,
    body: &Value,
) -> Result<Value, Refused> {
    let mut request = Request::builder().method(method.clone()).uri(path);
    if method == Method::PATCH {
        request = request.header("content-type", "application/merge-patch+json");
    } else if method != Method::GET {
        request = request.header("content-type", "application/json");
    }
    let bytes = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let request = request.body(bytes).expect("a request");
    client
        .request::<Value>(request)
        .await
        .map_err(|error| match error {
            kube::Error::Api(status) => Refused {
                code: status.code,
                message: status.message,
            },
            other => Refused {
                code: 0,
                message: other.to_string(),
            },
        })
}

/// The path of claims, pods, snapshots or groups in the users' namespace.
pub(crate) fn path(plural: &str, name: &str) -> String {
    path_in(NAMESPACE, plural, name)
}

/// The path of claims, pods, snapshots or groups in a namespace.
pub(crate) fn path_in(namespace: &str, plural: &str, name: &str) -> String {
    let all = collection(plural, namespace);
    if name.is_empty() {
        all
    } else {
        format!("{all}/{name}")
    }
}

pub(crate) fn volume_path(name: &str) -> String {
    format!("{}/{name}", collection("persistentvolumes", ""))
}

pub(crate) fn content_path(name: &str) -> String {
    format!("{}/{name}", collection("volumesnapshotcontents", ""))
}

pub(crate) fn group_content_path(name: &str) -> String {
    format!("{}/{name}", collection("volumegroupsnapshotcontents", ""))
}

async fn get(client: &Client, path: &str) -> Result<Value, Refused> {
    send(client, Method::GET, path, &Value::Null).await
}

async fn post(client: &Client, path: &str, body: &Value) -> Result<(), Refused> {
    send(client, Method::POST, path, body).await.map(drop)
}

async fn patch(client: &Client, path: &str, body: &Value) -> Result<(), Refused> {
    send(client, Method::PATCH, path, body).await.map(drop)
}

async fn delete(client: &Client, path: &str) -> Result<(), Refused> {
    send(client, Method::DELETE, path, &json!({}))
        .await
        .map(drop)
}

/// Does one thing. Errors of the API server are part of a history. New pods go to the node with
/// this host name, if there is one.
pub(crate) async fn act(
    client: &Client,
    action: &Action,
    host: Option<&str>,
) -> Result<(), Refused> {
    match action {
        Action::Claim {
            name,
            class,
            size,
            block,
            mode,
            source,
            attributes,
        } => {
            let claim = NewClaim {
                name,
                class,
                size,
                block: *block,
                mode,
                source: source.as_ref(),
                attributes: attributes.as_deref(),
            };
            claims::create(client, &claim).await
        }
        Action::DeleteClaim { name } => delete(client, &path("persistentvolumeclaims", name)).await,
        Action::Pod { name, claims } => pods::create(client, name, host, claims).await,
        Action::InlinePod { name, size } => pods::create_inline(client, name, host, size).await,
        Action::EphemeralPod { name, class, size } => {
            pods::create_ephemeral(client, name, host, (class.as_str(), size.as_str())).await
        }
        Action::DeletePod { name } => delete(client, &path("pods", name)).await,
        Action::Snapshot { name, claim, class } => {
            snapshots::create(client, name, claim, class).await
        }
        Action::Preprovisioned {
            name,
            handle,
            policy,
        } => adoptions::existing(client, name, handle, policy).await,
        Action::PreprovisionedGroup {
            name,
            handle,
            policy,
        } => groups::existing(client, name, handle, policy).await,
        Action::DeleteSnapshot { name } => delete(client, &path("volumesnapshots", name)).await,
        Action::DeleteContent { snapshot } => snapshots::delete_content(client, snapshot).await,
        Action::Label { name, label } => claims::label(client, name, label).await,
        Action::Group { name, label, class } => groups::take(client, name, label, class).await,
        Action::DeleteGroup { name } => delete(client, &path("volumegroupsnapshots", name)).await,
        Action::DeleteGroupContent { group } => groups::delete_content(client, group).await,
        Action::DeleteMember { group, number } => {
            groups::delete_member(client, group, *number).await
        }
        Action::RestoreMember {
            name,
            group,
            number,
            class,
            size,
        } => {
            let claim = NewClaim::plain(name, class, size);
            groups::restore_member(client, group, *number, claim).await
        }
        Action::Adopt {
            name,
            snapshot,
            policy,
        } => adoptions::snapshot(client, name, snapshot, policy).await,
        Action::AdoptVolume {
            name,
            claim,
            policy,
            elsewhere,
        } => {
            let maker = adoptions::maker(*elsewhere);
            adoptions::volume(client, name, claim, (policy.as_str(), maker)).await
        }
        Action::Grow { name, by } => claims::grow(client, name, *by).await,
        Action::TakeBack { name } => claims::take_back(client, name).await,
        Action::Attributes { name, class } => claims::select_attributes(client, name, class).await,
        Action::Reclaim { name, policy } => claims::reclaim(client, name, policy).await,
        Action::DeleteVolume { name } => claims::delete_volume(client, name).await,
        Action::Class { name } => class_versions::create_again(client, name).await,
        Action::DeleteClass { name } => class_versions::delete(client, name).await,
        Action::Namespace => namespaces::create(client).await,
        Action::DeleteNamespace => namespaces::delete(client).await,
        Action::Unusual { unusual } => unusual::act(client, unusual, host).await,
        Action::Foreign { step } => foreign::act(client, step).await,
        // The cluster does it.
        Action::World { .. } => Ok(()),
    }
}

pub(crate) fn request_of(bytes: u64) -> Value {
    json!({"spec": {"resources": {"requests": {"storage": bytes.to_string()}}}})
}

/// True if the volumes of a class with this name are made before a pod needs them.
pub(crate) fn is_immediate(class: &str) -> bool {
    class.ends_with("-now")
}

/// The bytes that a claim requests.
pub(crate) fn requested(claim: &Value) -> u64 {
    bytes(&claim["spec"]["resources"]["requests"]["storage"])
}

/// The bytes of a quantity, rounded down; 0 if there is none.
pub(crate) fn bytes(quantity: &Value) -> u64 {
    let nanos = hostloop_fake_api::quantity::nanos(quantity.as_str().unwrap_or_default());
    u64::try_from(nanos.unwrap_or_default() / 1_000_000_000).unwrap_or_default()
}
