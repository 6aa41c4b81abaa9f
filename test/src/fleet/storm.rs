//! Creates many claims at once and acts as their scheduler.

use std::ops::Range;
use std::time::Instant;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::patience::{is, patiently};
use super::{Binding, Fleet};
use crate::front::objects;

/// The number of claims created at once.
const AT_ONCE: usize = 50;
/// The annotation with which the scheduler selects a claim's node.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The size of each claim.
pub const SIZE: &str = "64Mi";

/// A claim to create.
#[derive(Clone, Debug)]
pub struct Wish {
    pub name: String,
    pub class: String,
    /// The node that the scheduler chooses for the claim, if it waits for one.
    pub node: Option<String>,
}

/// The results of creating claims.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// When the last claim existed, with its node if it has one.
    pub last: Instant,
    /// How often the scheduler reads a claim again because of a concurrent write.
    pub scheduler_conflicts: usize,
}

/// Creates claims. The scheduler writes its choice as soon as it sees a claim, based on that
/// version.
pub async fn make(claims: &Api<PersistentVolumeClaim>, wishes: &[Wish]) -> Made {
    let each = stream::iter(wishes).map(|wish| async move {
        let made = one(claims, wish).await;
        match &wish.node {
            None => 0,
            Some(node) => select(claims, made, node).await,
        }
    });
    let conflicts = each.buffer_unordered(AT_ONCE);
    let scheduler_conflicts = conflicts.fold(0, async |sum, more| sum + more).await;
    Made {
        last: Instant::now(),
        scheduler_conflicts,
    }
}

async fn one(claims: &Api<PersistentVolumeClaim>, wish: &Wish) -> PersistentVolumeClaim {
    let claim = objects::claim("", &wish.name, &wish.class, SIZE, json!({}));
    let claim = serde_json::from_value(claim).expect("it is a claim");
    let params = PostParams::default();
    let made = patiently("making a claim", async || {
        match claims.create(&params, &claim).await {
            // The claim exists: only the answer to its creation was lost.
            Err(error) if is(&error, 409) => claims.get(&wish.name).await,
            answer => answer,
        }
    });
    made.await
        .unwrap_or_else(|e| panic!("making {}: {e}", wish.name))
}

/// Selects a claim's node as the scheduler does; returns the number of repeated reads.
async fn select(
    claims: &Api<PersistentVolumeClaim>,
    mut claim: PersistentVolumeClaim,
    node: &str,
) -> usize {
    let name = claim.name_any();
    let params = PatchParams::default();
    let mut conflicts = 0;
    loop {
        let choice = json!({"metadata": {
            "resourceVersion": claim.resource_version(), "annotations": {SELECTED_NODE: node},
        }});
        let written = patiently("choosing a node", async || {
            claims.patch(&name, &params, &Patch::Merge(&choice)).await
        });
        match written.await {
            Ok(_) => return conflicts,
            Err(error) if is(&error, 409) => {
                let seen = patiently("seeing a claim", async || claims.get(&name).await);
                claim = seen.await.unwrap_or_else(|e| panic!("claim {name}: {e}"));
                // The annotation is written: only the answer was lost.
                if claim.annotations().get(SELECTED_NODE).map(String::as_str) == Some(node) {
                    return conflicts;
                }
                conflicts += 1;
            }
            Err(error) => panic!("choosing a node for {name}: {error}"),
        }
    }
}

impl Fleet {
    /// Claims with these numbers. If they wait for the scheduler, it picks the nodes in turn.
    pub fn wishes(&self, binding: Binding, numbers: Range<usize>) -> Vec<Wish> {
        let node = |number: usize| self.members[number % self.members.len()].node.clone();
        let wish = |number| Wish {
            name: format!("{}-{number}", binding.suffix()),
            class: self.class(binding),
            node: (binding == Binding::Wait).then(|| node(number)),
        };
        numbers.map(wish).collect()
    }

    /// Creates the claims with these numbers.
    pub async fn storm(&self, binding: Binding, numbers: Range<usize>) -> Made {
        make(&self.claims, &self.wishes(binding, numbers)).await
    }
}
