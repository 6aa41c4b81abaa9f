//! The object of a new volume says how large the volume is. A volume may have more than its claim
//! requests.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{name, text, uid};
use crate::oracle::ownership::is_named_after_claim;
use crate::trace;
use crate::users::bytes;

/// What the oracle remembers of volumes.
#[derive(Default)]
pub(super) struct NewVolumes {
    /// The UIDs of the PersistentVolumes that it has seen.
    seen: BTreeSet<String>,
}

impl NewVolumes {
    /// Looks at the PersistentVolumes that it sees for the first time.
    pub(super) fn check(
        &mut self,
        cluster: &Cluster,
        volumes: &[Arc<Value>],
        claims: &[Arc<Value>],
    ) {
        for volume in volumes {
            if self.seen.contains(uid(volume)) {
                continue;
            }
            self.seen.insert(uid(volume).to_owned());
            let made = made_bytes(cluster, text(volume, "/spec/csi/volumeHandle"));
            let user = text(volume, "/spec/claimRef/uid");
            let claim = claims.iter().find(|claim| uid(claim) == user);
            let claim = claim.map(Arc::as_ref);
            if let Some(breach) = made.and_then(|made| breach(volume, claim, made)) {
                trace::violation(breach);
            }
        }
    }
}

/// The bytes in the record of a volume, if it can be read.
fn made_bytes(cluster: &Cluster, handle: &str) -> Option<u64> {
    let contents = cluster.machine_of(handle)?.contents();
    let mut volumes = contents.volumes.iter();
    let volume = volumes.find(|volume| volume.id.to_string() == *handle)?;
    Some(volume.capacity_bytes)
}

/// What is wrong with the size in a new PersistentVolume, if its volume has so many bytes.
fn breach(volume: &Value, claim: Option<&Value>, made: u64) -> Option<String> {
    let says = bytes(&volume["spec"]["capacity"]["storage"]);
    let requested = claim.map(|claim| &claim["spec"]["resources"]["requests"]["storage"]);
    // The volume may grow already.
    let grows = requested.is_some_and(|requested| bytes(requested) > says);
    let is_wrong = is_named_after_claim(volume) && !grows && says != made;
    is_wrong.then(|| {
        format!(
            "wrong size: {} says {says} bytes, and its new volume has {made}",
            name(volume)
        )
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::cluster::DRIVER;
    use crate::model::view::PROVISIONED_BY;

    #[rstest]
    #[case::right("10Mi", "10Mi", 10 << 20, false)]
    #[case::rounded_up("1Mi", "1", 1 << 20, false)]
    #[case::as_requested("1", "1", 1 << 20, true)]
    #[case::too_large("20Mi", "10Mi", 10 << 20, true)]
    #[case::growing("10Mi", "20Mi", 20 << 20, false)]
    fn sizes(
        #[case] says: &str,
        #[case] requested: &str,
        #[case] made: u64,
        #[case] expected: bool,
    ) {
        let volume = json!({"metadata": {"name": "hostloop-u",
                "annotations": {PROVISIONED_BY: DRIVER}},
            "spec": {"capacity": {"storage": says}, "storageClassName": "ext4",
                "claimRef": {"uid": "u"}}});
        let claim = json!({"spec": {"resources": {"requests": {"storage": requested}}}});
        assert_eq!(breach(&volume, Some(&claim), made).is_some(), expected);
        let mut by_hand = volume.clone();
        by_hand["metadata"]["name"] = json!("adopted-c1");
        assert_eq!(breach(&by_hand, Some(&claim), made), None);
    }
}
