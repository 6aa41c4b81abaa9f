//! Finds the owner of the capacity objects. They should live until the driver is uninstalled, and
//! no longer.

use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet, StatefulSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource as _, ResourceExt};
use tokio::sync::OnceCell;

use crate::api::pod::Pod;
use crate::client::{ApiError, Kube, Resource};

/// Why the owner is unknown.
#[derive(Debug, thiserror::Error)]
pub(super) enum OwnerError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("{kind} {namespace}/{name} does not exist")]
    Gone {
        kind: String,
        namespace: String,
        name: String,
    },
    #[error("{kind} {name} has no owner that controls it: lower --capacity-ownerref-level")]
    NoOwner { kind: String, name: String },
    #[error("the owner of a {kind} is not supported: lower --capacity-ownerref-level")]
    Kind { kind: String },
}

/// The owner of the objects. It is looked up only once, because a pod keeps its owner.
#[derive(Debug)]
pub(super) struct Owner {
    namespace: String,
    pod: String,
    /// The levels above the pod; 0 is the pod itself.
    level: u32,
    known: OnceCell<OwnerReference>,
}

impl Owner {
    /// The pod, or the owner `level` levels above it.
    pub(super) fn above(namespace: &str, pod: &str, level: u32) -> Self {
        let (namespace, pod) = (namespace.to_owned(), pod.to_owned());
        Owner {
            namespace,
            pod,
            level,
            known: OnceCell::new(),
        }
    }

    /// The owner as a reference.
    pub(super) async fn get(&self, kube: &Kube) -> Result<&OwnerReference, OwnerError> {
        self.known.get_or_try_init(|| self.look_up(kube)).await
    }

    async fn look_up(&self, kube: &Kube) -> Result<OwnerReference, OwnerError> {
        let pod: Pod = self.read(kube, "Pod", &self.pod).await?;
        let mut owner = pod.controller_owner_ref(&()).unwrap_or_default();
        let mut above = controller(&pod);
        for level in 1..=self.level {
            let (kind, name) = (owner.kind.clone(), owner.name.clone());
            owner = above.ok_or(OwnerError::NoOwner { kind, name })?;
            above = if level < self.level {
                self.owner_of(kube, &owner).await?
            } else {
                None
            };
        }
        Ok(owner)
    }

    async fn owner_of(
        &self,
        kube: &Kube,
        of: &OwnerReference,
    ) -> Result<Option<OwnerReference>, OwnerError> {
        let kind = of.kind.as_str();
        Ok(match kind {
            "ReplicaSet" => controller(&self.read::<ReplicaSet>(kube, kind, &of.name).await?),
            "StatefulSet" => controller(&self.read::<StatefulSet>(kube, kind, &of.name).await?),
            "DaemonSet" => controller(&self.read::<DaemonSet>(kube, kind, &of.name).await?),
            _ => {
                let kind = kind.to_owned();
                return Err(OwnerError::Kind { kind });
            }
        })
    }

    async fn read<K: Resource>(
        &self,
        kube: &Kube,
        kind: &str,
        name: &str,
    ) -> Result<K, OwnerError> {
        let found = kube.get::<K>(&self.namespace, name).await?;
        found.ok_or_else(|| OwnerError::Gone {
            kind: kind.to_owned(),
            namespace: self.namespace.clone(),
            name: name.to_owned(),
        })
    }
}

/// The owner reference of an object's controller, without `blockOwnerDeletion`.
fn controller(object: &impl ResourceExt) -> Option<OwnerReference> {
    let owners = object.owner_references().iter();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    Some(OwnerReference {
        block_owner_deletion: None,
        ..controllers.next()?.clone()
    })
}
