//! Whether pools have room. Their drivers know it best: the cluster's capacity objects may be late.

use hostloop_driver::storage::Provisioning;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::filesystems;
use crate::machine::Machine;
use crate::model::view::{collection, text};
use crate::users::bytes;

/// True if the pool of a claim's volume has room to expand it by a little.
pub(super) fn has_room(cluster: &Cluster, claim: &Value, volume: &Value) -> bool {
    /// Others may have taken some of it meanwhile.
    const LITTLE: u64 = 32 << 20;
    let source = &volume["spec"]["csi"];
    let has = bytes(&claim["status"]["capacity"]["storage"]);
    let needed = if source["fsType"] == "btrfs" {
        filesystems::smallest("btrfs").saturating_sub(has)
    } else {
        0
    };
    let class = text(claim, "/spec/storageClassName");
    let attributes = text(claim, "/status/currentVolumeAttributesClassName");
    let provisioning = provisioning(cluster, class, attributes);
    let machine = cluster.machine_of(text(source, "/volumeHandle"));
    machine
        .and_then(|machine| available(machine, provisioning))
        .is_some_and(|available| available >= needed + LITTLE)
}

/// How the volumes of a class with a class of attributes are provisioned, by the parameters of
/// both. Each may be empty or missing.
pub(super) fn provisioning(cluster: &Cluster, class: &str, attributes: &str) -> Provisioning {
    let classes = [
        ("storageclasses", class),
        ("volumeattributesclasses", attributes),
    ];
    let mut named = classes.into_iter().filter(|(_, name)| !name.is_empty());
    let is_thick = named.any(|(plural, name)| {
        let at = format!("{}/{name}", collection(plural, ""));
        let class = cluster.api.shared_at(&at);
        class.is_some_and(|class| text(&class, "/parameters/provisioning") == "thick")
    });
    if is_thick {
        Provisioning::Thick
    } else {
        Provisioning::Thin
    }
}

/// The bytes that the pool of a node can promise to volumes, if its driver lives.
pub(super) fn available(machine: &Machine, provisioning: Provisioning) -> Option<u64> {
    let pool = machine.pools()?.named(None);
    let capacity = pool.and_then(|pool| pool.capacity(provisioning)).ok()?;
    Some(capacity.available)
}
