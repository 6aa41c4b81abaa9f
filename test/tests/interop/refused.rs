//! A pool without room: what is refused there is refused for good, so that its user can take it
//! back at once.

use std::fs::File;
use std::path::PathBuf;

use hostloop_proto::csi;
use hostloop_test::PATIENCE;
use hostloop_test::cluster::{check, wait_for};
use hostloop_test::front::fields::{is_bound, text};
use hostloop_test::front::objects::{self, Place};
use hostloop_test::machine;
use serde_json::Value;

use crate::site::{CLASS, Site, Who};

/// The namespace of the objects. It is deleted with them.
const SPACE: &str = "refused";

/// A file in the pool's filesystem that does not belong to the driver.
struct Ballast {
    path: PathBuf,
    bytes: u64,
}

impl Ballast {
    /// Leaves no room in the pool, not even most of what a thin volume of 320 MiB was promised. Its
    /// filesystem keeps some blocks for itself.
    async fn new(site: &Site) -> Ballast {
        let capacity = site
            .csi
            .ok(csi::GetCapacityRequest::default())
            .await
            .available_capacity;
        let capacity = u64::try_from(capacity).expect("capacity is not negative");
        let path = site.pool_mount().join("ballast");
        let ballast = Ballast {
            path,
            bytes: capacity + (256 << 20),
        };
        ballast.fill(0);
        ballast
    }

    /// Allocates all that follows this offset.
    fn fill(&self, from: u64) {
        let (offset, length) = (from.to_string(), (self.bytes - from).to_string());
        let path = machine::text(&self.path);
        machine::run(
            "fallocate",
            &["--offset", &offset, "--length", &length, path],
        );
    }

    /// Gives some of the room back until the ballast is filled from this offset again.
    fn shrink(&self) -> u64 {
        let file = File::options()
            .write(true)
            .open(&self.path)
            .expect("the ballast");
        let left = self.bytes - (1 << 30);
        file.set_len(left).expect("the ballast can be made shorter");
        left
    }

    /// Gives all of it back.
    fn remove(self) {
        std::fs::remove_file(self.path).expect("the ballast can be removed");
    }
}

/// A claim asks for far too much, and for attributes that take all of its space at once. A snapshot
/// of it has no room. Its user takes back all three.
pub(crate) async fn refused(site: &Site, snapshotter: Who) {
    let at = |kind: &str, name: &str| Place::of(kind, SPACE, name);
    site.objects.namespace(SPACE).await;
    let plain = objects::with_attributes("direct");
    site.objects
        .create(objects::claim(SPACE, "data", CLASS, "320Mi", plain))
        .await;
    let claim = at("PersistentVolumeClaim", "data");
    let bound = site.until(&claim, "bound", is_bound).await;
    let volume = at("PersistentVolume", text(&bound["spec"]["volumeName"]));
    let ballast = Ballast::new(site).await;

    site.objects.merge(&claim, objects::sized("500Gi")).await;
    let resize = |c: &Value| text(&c["status"]["allocatedResourceStatuses"]["storage"]).to_owned();
    let infeasible = |c: &Value| resize(c) == "ControllerResizeInfeasible";
    site.until(&claim, "too large for the pool", infeasible)
        .await;

    site.objects
        .merge(&claim, objects::with_attributes("thick"))
        .await;
    let modification = |c: &Value| text(&c["status"]["modifyVolumeStatus"]["status"]).to_owned();
    let infeasible = |c: &Value| modification(c) == "Infeasible";
    site.until(&claim, "too thick for the pool", infeasible)
        .await;

    // Upstream's snapshotter knows no final error of a full pool.
    let takes_snapshot = snapshotter == Who::Ours;
    let snapshot = at("VolumeSnapshot", "cut");
    if takes_snapshot {
        take_without_room(site, &snapshot).await;
    }

    site.objects
        .merge(&claim, objects::with_attributes("direct"))
        .await;
    let settled = |c: &Value| {
        c["status"]["currentVolumeAttributesClassName"] == "direct"
            && c["status"]["modifyVolumeStatus"].is_null()
    };
    site.until(&claim, "as before", settled).await;
    if takes_snapshot {
        site.delete(&snapshot).await;
        until_no_content(site).await;
    }
    let left = ballast.shrink();
    site.objects.merge(&claim, objects::sized("400Mi")).await;
    let grown = |v: &Value| v["spec"]["capacity"]["storage"] == "400Mi";
    site.until(&volume, "larger", grown).await;
    let pending = |c: &Value| resize(c) == "NodeResizePending";
    site.until(&claim, "waiting for its node", pending).await;

    // A snapshot without room delays the end of its namespace no more than other objects do.
    ballast.fill(left);
    if takes_snapshot {
        take_without_room(site, &at("VolumeSnapshot", "again")).await;
    }
    site.delete(&Place::of("Namespace", "", SPACE)).await;
    site.until_gone(&volume).await;
    until_no_content(site).await;
    ballast.remove();
}

/// Waits until no content of a snapshot is left.
async fn until_no_content(site: &Site) {
    wait_for("the end of all contents", PATIENCE, async || {
        let left = site.objects.list("VolumeSnapshotContent", "").await;
        check(left.is_empty(), || format!("{left:?}"))
    })
    .await;
}

/// Takes a snapshot of the claim, and waits until it is refused.
async fn take_without_room(site: &Site, snapshot: &Place) {
    site.objects
        .create(objects::snapshot(SPACE, &snapshot.name, CLASS, "data"))
        .await;
    let full = |s: &Value| text(&s["status"]["error"]["message"]).contains("no room");
    site.until(snapshot, "without room", full).await;
}
