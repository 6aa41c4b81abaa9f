//! Final conditions: each claim has one volume, and each volume one claim. After the claims are
//! gone, nothing is left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};

use super::Fleet;
use super::patience::{in_time, patiently};
use super::storm::SELECTED_NODE;

impl Fleet {
    /// All claims of the fleet.
    pub async fn all_claims(&self) -> Vec<PersistentVolumeClaim> {
        let list = async || self.claims.list(&ListParams::default()).await;
        let listed = patiently("listing claims", list).await;
        listed
            .unwrap_or_else(|e| panic!("listing claims: {e}"))
            .items
    }

    /// All PersistentVolumes of the fleet's drivers.
    pub async fn all_volumes(&self) -> Vec<PersistentVolume> {
        let list = async || self.volumes.list(&ListParams::default()).await;
        let listed = patiently("listing volumes", list).await;
        let mut all = listed
            .unwrap_or_else(|e| panic!("listing volumes: {e}"))
            .items;
        all.retain(|volume| csi(volume).is_some_and(|(driver, _)| driver == self.driver_name));
        all
    }

    /// Waits until `count` claims exist and all of them are bound.
    pub async fn bound(&self, count: usize, limit: Duration) {
        let look = async || {
            let claims = self.all_claims().await;
            let pending: Vec<_> = claims.iter().filter(|c| !is_bound(c)).collect();
            match (claims.len() == count, pending.first()) {
                (true, None) => Ok(()),
                (false, _) => Err(format!("{} claims", claims.len())),
                (true, Some(first)) => {
                    let (name, notes) = (first.name_any(), first.annotations());
                    Err(format!(
                        "{} of {count} pending, as {name} with {notes:?}\n{}",
                        pending.len(),
                        self.tails()
                    ))
                }
            }
        };
        let what = format!("{}: {count} claims bound", self.name);
        in_time(&what, limit, look).await;
    }

    /// The number of remaining PersistentVolumes. While the cluster has many and their number
    /// falls, this counts those of other drivers too.
    async fn volumes_left(&self, before: &mut usize) -> usize {
        let there = count(&self.volumes).await;
        let fewer = there < std::mem::replace(before, there);
        match there {
            many if many >= 100 && fewer => many,
            _ => self.all_volumes().await.len(),
        }
    }

    fn tails(&self) -> String {
        let tails = self.members.iter().take(5);
        let tails = tails.map(|member| format!("--- {}:\n{}\n", member.node, member.tail()));
        tails.collect()
    }

    /// Waits until each claim has exactly one volume, each volume of a driver belongs to a claim,
    /// and all volumes are on the chosen nodes. Surplus volumes may still be waiting for deletion.
    pub async fn each_once(&self, limit: Duration) {
        let what = format!("{}: one volume for each claim", self.name);
        in_time(&what, limit, async || {
            let (claims, volumes) = (self.all_claims().await, self.all_volumes().await);
            self.check(&claims, &volumes)
        })
        .await;
    }

    fn check(
        &self,
        claims: &[PersistentVolumeClaim],
        volumes: &[PersistentVolume],
    ) -> Result<(), String> {
        let by_name: BTreeMap<_, _> = volumes.iter().map(|v| (v.name_any(), v)).collect();
        if volumes.len() != claims.len() {
            let (volumes, claims) = (volumes.len(), claims.len());
            return Err(format!("{volumes} volumes for {claims} claims"));
        }
        let mut wanted = BTreeSet::new();
        for claim in claims {
            let name = claim
                .spec
                .as_ref()
                .and_then(|spec| spec.volume_name.clone());
            let volume = name.and_then(|name| by_name.get(&name));
            let volume = volume.ok_or_else(|| format!("{} has no volume", claim.name_any()))?;
            let owner = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
            if owner.and_then(|owner| owner.uid.clone()) != claim.uid() {
                return Err(format!("{} is another claim's", volume.name_any()));
            }
            let node = self.node_of(volume);
            let chosen = claim.annotations().get(SELECTED_NODE);
            if chosen.is_some_and(|chosen| node.as_ref() != Some(chosen)) {
                return Err(format!(
                    "{} is at {node:?}, not {chosen:?}",
                    claim.name_any()
                ));
            }
            let (_, handle) = csi(volume).expect("they were chosen by their driver");
            if !wanted.insert((node.unwrap_or_default(), handle, volume.name_any())) {
                return Err(format!("{} shares its storage", volume.name_any()));
            }
        }
        let there = self.members.iter().flat_map(|member| {
            let volumes = member.driver.volumes().into_iter();
            volumes.map(|volume| (member.node.clone(), volume.id, volume.name))
        });
        let there: BTreeSet<_> = there.collect();
        match (
            there.difference(&wanted).next(),
            wanted.difference(&there).next(),
        ) {
            (None, None) => Ok(()),
            (Some(more), _) => Err(format!("no object has {more:?}, which a driver made")),
            (None, Some(less)) => Err(format!("no driver has {less:?}")),
        }
    }

    /// The node of a volume, from its node affinity.
    pub fn node_of(&self, volume: &PersistentVolume) -> Option<String> {
        let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?;
        let term = affinity.required.as_ref()?.node_selector_terms.first()?;
        let mut keys = term.match_expressions.as_ref()?.iter();
        let of_key = keys.find(|expression| expression.key == self.key)?;
        of_key.values.as_ref()?.first().cloned()
    }

    /// Deletes all claims and waits until no claim, volume or attachment is left, neither in the
    /// cluster nor in a driver.
    pub async fn clear(&self, limit: Duration) {
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        let asked = patiently("deleting claims", async || {
            self.claims.delete_collection(&delete, &all).await
        });
        asked
            .await
            .unwrap_or_else(|e| panic!("deleting claims: {e}"));
        let what = format!("{}: nothing", self.name);
        let mut before = usize::MAX;
        in_time(&what, limit, async || {
            let (claims, volumes) = (
                count(&self.claims).await,
                self.volumes_left(&mut before).await,
            );
            let left = self.members.iter().map(|member| member.driver.left());
            let left = left.filter(|left| *left != Default::default()).count();
            match (claims, volumes, left) {
                (0, 0, 0) => Ok(()),
                _ => Err(format!(
                    "{claims} claims, {volumes} volumes and {left} nodes that are not empty are \
                     left\n{}",
                    self.tails()
                )),
            }
        })
        .await;
    }
}

/// The number of objects, without reading them all.
async fn count<K>(api: &Api<K>) -> usize
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let list = async || api.list(&ListParams::default().limit(1)).await;
    let listed = patiently("counting", list).await;
    let listed = listed.unwrap_or_else(|e| panic!("counting: {e}"));
    let further = listed.metadata.remaining_item_count.unwrap_or(0);
    listed.items.len() + usize::try_from(further).unwrap_or(0)
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some("Bound")
}

/// The driver of a volume, and its handle.
fn csi(volume: &PersistentVolume) -> Option<(String, String)> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    Some((csi.driver.clone(), csi.volume_handle.clone()))
}
