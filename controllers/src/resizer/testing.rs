//! A resizer with a claim, its volume and a secret, for tests.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{ClaimKey, Options, Resizer};
use crate::csi::driver::ControllerCapability;
use crate::testing::{self, Call, DRIVER, World, secret, with};

pub(super) struct Rig {
    pub(super) world: World,
    pub(super) resizer: Arc<Resizer>,
}

pub(super) fn options() -> Options {
    Options {
        workers: 1,
        extra_modify_metadata: true,
        ..testing::options()
    }
}

/// The key of the claim.
pub(super) fn key() -> ClaimKey {
    ("ns".to_owned(), "data".to_owned())
}

impl Rig {
    /// Creates a resizer with a bound claim and its volume, each with these patches.
    pub(super) fn new(
        capabilities: &[ControllerCapability],
        claim_patches: [Value; 2],
        volume_patch: Value,
    ) -> Self {
        let world = World::new(capabilities);
        let resizer = Arc::new(Resizer::new(world.context.clone(), options()));
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "ns", "uid": "c"},
            "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
        });
        let claim = claim_patches.into_iter().fold(claim, with);
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv", "uid": "v"},
            "spec": {
                "claimRef": {"namespace": "ns", "name": "data", "uid": "c"},
                "csi": {"driver": DRIVER, "volumeHandle": "h"},
            },
        });
        world.add(&resizer.claims, claim);
        world.add(&resizer.volumes, with(volume, volume_patch));
        world.api.put(secret("ns", "s", "key", "hush"));
        Rig { world, resizer }
    }

    pub(super) fn claim(&self) -> Value {
        let claim = self.world.api.get("persistentvolumeclaims/data");
        claim.expect("the claim")
    }

    pub(super) fn volume(&self) -> Value {
        let volume = self.world.api.get("persistentvolumes/pv");
        volume.expect("the volume")
    }

    /// Changes the claim, as its user does.
    pub(super) fn change_claim(&self, patch: Value) {
        self.world
            .add(&self.resizer.claims, with(self.claim(), patch));
    }

    /// Changes the volume.
    pub(super) fn change_volume(&self, patch: Value) {
        self.world
            .add(&self.resizer.volumes, with(self.volume(), patch));
    }

    /// The types of the claim's conditions.
    pub(super) fn conditions(&self) -> Vec<String> {
        let claim = self.claim();
        let conditions = claim["status"]["conditions"].as_array().cloned();
        let types = conditions.unwrap_or_default().into_iter();
        types
            .map(|one| one["type"].as_str().expect("a type").to_owned())
            .collect()
    }

    /// Checks that the writes since the last look mark the claim, change the volume and complete
    /// the claim.
    pub(super) fn wrote_in_order(&self) {
        assert_eq!(
            self.world.api.writes(),
            ["data/status", "pv", "data/status"]
        );
    }

    /// The calls since the last look: the size in GiB of an expansion, or the parameter `iops` of a
    /// modification.
    pub(super) fn calls(&self) -> Vec<String> {
        let check = |id: &str, secrets: &std::collections::BTreeMap<String, String>| {
            assert_eq!((id, &*secrets["key"]), ("h", "hush"));
        };
        let calls = self.world.script.calls().into_iter();
        calls
            .map(|call| match call {
                Call::Expand(request) => {
                    check(&request.volume_id, &request.secrets);
                    assert!(request.volume_capability.is_some());
                    let range = request.capacity_range.expect("a range");
                    (range.required_bytes >> 30).to_string()
                }
                Call::Modify(request) => {
                    check(&request.volume_id, &request.secrets);
                    request.mutable_parameters["iops"].clone()
                }
                call => panic!("{call:?}"),
            })
            .collect()
    }
}
