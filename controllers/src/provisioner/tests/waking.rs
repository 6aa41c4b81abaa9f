//! What a claim or a volume waits for wakes it, whatever its backoff.

use std::time::Duration;

use hostloop_proto::status_details::no_room;
use tonic::Code;

use super::*;
use crate::csi::{Freed, FreedSignal};

/// Long enough for all work that is due, and far less than any backoff here.
const MOMENT: Duration = Duration::from_millis(500);
/// Long enough for a backoff of minutes, and not at a resync.
const HOUR: Duration = Duration::from_secs(3660);

/// A running provisioner. Its claims have failed for an hour.
struct Running {
    world: World,
    driver: TestDriver,
}

impl Running {
    async fn of(rig: Rig) -> Running {
        let Rig {
            world,
            driver,
            at_work,
        } = rig;
        let caches = &world.context.caches;
        caches.claims().note_synced();
        caches.volumes().note_synced();
        caches.classes().note_synced();
        caches.attachments().note_synced();
        caches.snapshots().note_synced();
        tokio::spawn(world.context.freed.clone().pace(world.context.stop.clone()));
        tokio::spawn(Arc::new(at_work).run());
        tokio::time::sleep(HOUR).await;
        world.api.log();
        let running = Running { world, driver };
        running.expect(None).await;
        running
    }

    fn freed(&self) -> &FreedSignal {
        &self.world.context.freed
    }

    /// Checks that this call was made since the last look, or none.
    async fn expect(&self, call: Option<&str>) {
        tokio::time::sleep(MOMENT).await;
        let log = self.world.api.log();
        let made = |call: &str| log.iter().any(|line| line == call);
        match call {
            Some(call) => assert!(made(call), "{call}: {log:?}"),
            None => assert!(!made(CREATE) && !made(DELETE), "{log:?}"),
        }
    }
}

fn full() -> Status {
    no_room(Code::ResourceExhausted, "no room".to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_room_is_tried_again_when_there_is_room() {
    let rig = with_claim();
    rig.fail(std::iter::repeat_n(full(), 100));
    let running = Running::of(rig).await;
    running
        .freed()
        .announce(&Freed::Volume("handle".to_owned()));
    running.expect(None).await;
    running.freed().announce(&Freed::Room);
    running.expect(Some(CREATE)).await;
    // It failed again, and waits for the next announcement.
    running.driver.state().failures.clear();
    running.freed().announce(&Freed::Room);
    running.expect(Some(CREATE)).await;
    assert!(running.world.api.get(PV).is_some());
    running.freed().announce(&Freed::Room);
    running.expect(None).await;
}

/// Otherwise many claims without room would repeat their calls far more often than they are woken.
#[tokio::test(start_paused = true)]
async fn a_vain_attempt_does_not_shorten_the_backoff() {
    let rig = with_claim();
    rig.fail(std::iter::repeat_n(full(), 100));
    let running = Running::of(rig).await;
    running.freed().announce(&Freed::Room);
    running.expect(Some(CREATE)).await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    running.expect(None).await;
}

/// Claims that failed for another reason do not take part.
#[tokio::test(start_paused = true)]
async fn room_is_no_reason_to_repeat_other_failures() {
    for failure in [
        Status::internal("broken"),
        Status::resource_exhausted("full half-way"),
    ] {
        let rig = with_claim();
        rig.fail(std::iter::repeat_n(failure, 100));
        let running = Running::of(rig).await;
        running.freed().announce(&Freed::Room);
        running.expect(None).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_deleted_at_the_end_of_its_last_use() {
    let rig = central();
    deleting::release(&rig, "handle", Value::Null);
    let in_use = || Status::failed_precondition("in use");
    rig.driver
        .state()
        .undeletable
        .extend(std::iter::repeat_n(in_use(), 100));
    let running = Running::of(rig).await;
    running
        .freed()
        .announce(&Freed::Volume("another".to_owned()));
    running.expect(None).await;
    running.driver.state().undeletable.clear();
    running
        .freed()
        .announce(&Freed::Volume("handle".to_owned()));
    running.expect(Some(DELETE)).await;
}

/// The driver and the controllers may be separate processes: then no announcement comes.
#[tokio::test(start_paused = true)]
async fn without_an_announcement_the_backoff_is_enough() {
    let rig = with_claim();
    rig.fail(std::iter::repeat_n(full(), 100));
    let running = Running::of(rig).await;
    running.driver.state().failures.clear();
    tokio::time::sleep(Duration::from_secs(300)).await;
    running.expect(Some(CREATE)).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_class_wakes_its_claims() {
    let mut value = claim_value(None, &Value::Null);
    value["spec"]["storageClassName"] = json!("late");
    let rig = central();
    rig.put_claim(&value);
    let running = Running::of(rig).await;
    let class = json!({"kind": "StorageClass", "metadata": {"name": "late"}, "provisioner": "d"});
    running
        .world
        .add(&running.world.context.caches.classes(), class);
    running.expect(Some(CREATE)).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_attributes_class_wakes_its_claims() {
    let mut value = claim_value(None, &Value::Null);
    value["spec"]["volumeAttributesClassName"] = json!("late");
    let rig = central();
    rig.put_claim(&value);
    let running = Running::of(rig).await;
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
        "metadata": {"name": "late"}, "driverName": "d"});
    running
        .world
        .add(&running.world.context.caches.attributes_classes(), class);
    running.expect(Some(CREATE)).await;
}

#[tokio::test(start_paused = true)]
async fn a_source_claim_wakes_its_clones_when_it_is_bound() {
    let source = json!({"kind": "PersistentVolumeClaim", "name": "origin"});
    let rig = central();
    rig.put_claim(&claim_value(None, &source));
    let origin = |phase: &str| {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "origin", "namespace": "shop", "uid": "o"},
            "spec": {"storageClassName": "fast", "volumeName": "pv-o",
                     "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": phase},
        })
    };
    rig.put_claim(&origin("Pending"));
    let volume = testing::with(
        testing::volume("pv-o", "d", "source"),
        json!({"spec": {"claimRef": {"namespace": "shop", "name": "origin", "uid": "o"}},
               "status": {"phase": "Bound"}}),
    );
    rig.world.add(&rig.world.context.caches.volumes(), volume);
    let running = Running::of(rig).await;
    running
        .world
        .add(&running.world.context.caches.claims(), origin("Bound"));
    running.expect(Some(CREATE)).await;
}

/// The content is ready first. Its snapshot's status follows.
#[tokio::test(start_paused = true)]
async fn a_snapshot_wakes_its_restores_when_it_is_ready() {
    let rig = central();
    rig.put_claim(&claim_value(None, &from_snapshot()));
    let mut unready = snapshot(&[]);
    unready["status"]["readyToUse"] = json!(false);
    rig.world.api.put(unready);
    let content = |ready: bool| {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "content", "uid": "c"},
            "spec": {"driver": "d", "deletionPolicy": "Delete", "source": {},
                     "sourceVolumeMode": "Filesystem",
                     "volumeSnapshotRef": {"name": "snap", "namespace": "shop", "uid": "s"}},
            "status": {"snapshotHandle": "handle-of-snap", "readyToUse": ready},
        })
    };
    let contents = rig.world.context.caches.contents();
    rig.world.add(&contents, content(false));
    let running = Running::of(rig).await;
    running.world.add(&contents, content(true));
    running.world.api.put(snapshot(&[]));
    running.expect(Some(CREATE)).await;
}
