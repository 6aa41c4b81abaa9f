//! A snapshot says which size a restore needs at least: no less than the claim of its volume requested
//! at first. Claims only ever grow.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::model::view::{name, text, uid};
use crate::oracle::ownership::is_named_after_claim;
use crate::trace;
use crate::users::requested;

/// What claims requested, in bytes. Both stay when claims and volumes go: snapshots may outlive them.
#[derive(Default)]
pub(super) struct RestoreSizes {
    /// The smallest request that each claim was seen with, by UID.
    claims: BTreeMap<String, u64>,
    /// That of the claim for which a volume was made, by the volume's handle.
    volumes: BTreeMap<String, u64>,
}

impl RestoreSizes {
    /// Notes new claims and volumes, and checks what the contents of snapshots say.
    pub(super) fn check(
        &mut self,
        volumes: &[Arc<Value>],
        claims: &[Arc<Value>],
        contents: &[Arc<Value>],
    ) {
        for claim in claims {
            self.note_claim(claim);
        }
        for volume in volumes.iter().filter(|volume| is_named_after_claim(volume)) {
            self.note_volume(volume);
        }
        for content in contents {
            if let Some(breach) = self.breach(content) {
                trace::violation(breach);
            }
        }
    }

    fn note_claim(&mut self, claim: &Value) {
        let requested = requested(claim);
        if let Some(least) = self.claims.get_mut(uid(claim)) {
            *least = requested.min(*least);
        } else {
            self.claims.insert(uid(claim).to_owned(), requested);
        }
    }

    fn note_volume(&mut self, volume: &Value) {
        let handle = text(volume, "/spec/csi/volumeHandle");
        if self.volumes.contains_key(handle) {
            return;
        }
        if let Some(requested) = self.claims.get(text(volume, "/spec/claimRef/uid")) {
            self.volumes.insert(handle.to_owned(), *requested);
        }
    }

    /// What is wrong with the size that a content says, if it says one.
    fn breach(&self, content: &Value) -> Option<String> {
        let handle = text(content, "/spec/source/volumeHandle");
        let requested = *self.volumes.get(handle)?;
        let said = content["status"]["restoreSize"].as_u64()?;
        (said < requested).then(|| {
            format!(
                "restored too small: {} says that {said} bytes are enough for a restore, and the claim \
                 of volume {handle} requested {requested} at first",
                name(content)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::cluster::DRIVER;
    use crate::model::view::PROVISIONED_BY;

    fn claim(size: &str) -> Value {
        json!({"metadata": {"name": "c1", "uid": "1"},
            "spec": {"resources": {"requests": {"storage": size}}}})
    }

    fn volume(name: &str) -> Value {
        json!({"metadata": {"name": name, "annotations": {PROVISIONED_BY: DRIVER}},
            "spec": {"storageClassName": "ext4", "claimRef": {"uid": "1"},
                "csi": {"volumeHandle": "v"}}})
    }

    #[rstest]
    #[case::as_requested("v", json!(10 << 20), false)]
    #[case::of_a_grown_volume("v", json!(20 << 20), false)]
    #[case::too_small("v", json!(1), true)]
    #[case::not_known_yet("v", Value::Null, false)]
    #[case::of_another_volume("w", json!(1), false)]
    fn sizes_of_restores(#[case] handle: &str, #[case] said: Value, #[case] expected: bool) {
        let content = json!({"metadata": {"name": "s"},
            "spec": {"source": {"volumeHandle": handle}}, "status": {"restoreSize": said}});
        let mut sizes = RestoreSizes::default();
        sizes.note_claim(&claim("10Mi"));
        sizes.note_volume(&volume("hostloop-1"));
        // It grows, and is gone later.
        sizes.note_claim(&claim("20Mi"));
        assert_eq!(sizes.breach(&content).is_some(), expected, "{content}");
    }

    #[test]
    fn a_volume_counts_with_the_claim_that_it_was_made_for() {
        let mut sizes = RestoreSizes::default();
        let objects = |size: &str, name: &str| {
            let claims = [Arc::new(claim(size))];
            ([Arc::new(volume(name))], claims)
        };
        let (volumes, claims) = objects("10Mi", "adopted-c1");
        sizes.check(&volumes, &claims, &[]);
        assert!(sizes.volumes.is_empty());
        let (volumes, claims) = objects("10Mi", "hostloop-1");
        sizes.check(&volumes, &claims, &[]);
        assert_eq!(sizes.volumes.get("v"), Some(&(10 << 20)));
    }
}
