//! What a service refuses before it waits for the long work of others.

use std::sync::atomic::{AtomicBool, Ordering};

use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessType, MountVolume};
use futures::FutureExt;

use super::*;
use crate::controller::{Config, Controller};

/// A caller that waited with it would hang up and repeat it, without end.
#[test]
fn a_refused_call_does_not_wait_for_the_copies_of_others() {
    let site = Site::fake(&["a"]);
    let source = site.create(new("source"));
    let id = source.id.to_string();
    let controller = Controller::new(site.pools().clone(), Config::new("n"));
    let mount = csi::VolumeCapability {
        access_mode: Some(csi::volume_capability::AccessMode {
            mode: Mode::SingleNodeWriter as i32,
        }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    };
    let copy = csi::CreateVolumeRequest {
        name: "copy".to_owned(),
        volume_capabilities: vec![mount],
        volume_content_source: from(of_volume(source.id)),
        ..Default::default()
    };
    let small = csi::CreateVolumeRequest {
        capacity_range: Some(csi::CapacityRange {
            required_bytes: 1,
            limit_bytes: 4096,
        }),
        ..copy.clone()
    };
    let unknown = csi::CreateVolumeRequest {
        parameters: pairs("unheard=of"),
        ..copy.clone()
    };
    for (what, request, refused) in [
        ("as it is", &copy, false),
        ("smaller than its source", &small, true),
        ("with an unknown parameter", &unknown, true),
    ] {
        assert_eq!(controller.refuses(request), refused, "{what}");
    }
    let snapshot = |parameters: &str| csi::CreateSnapshotRequest {
        name: "snapshot".to_owned(),
        source_volume_id: id.clone(),
        parameters: pairs(parameters),
        ..Default::default()
    };
    assert!(!controller.refuses(&snapshot("")));
    assert!(controller.refuses(&snapshot("unheard=of")));
    let group = |ids: &[&String]| csi::CreateVolumeGroupSnapshotRequest {
        name: "group".to_owned(),
        source_volume_ids: ids.iter().map(|id| (*id).clone()).collect(),
        ..Default::default()
    };
    assert!(!controller.refuses(&group(&[&id])));
    assert!(controller.refuses(&group(&[&id, &id])));
    let expanded = |limit_bytes| csi::ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: Some(csi::CapacityRange {
            required_bytes: 1 << 30,
            limit_bytes,
        }),
        ..Default::default()
    };
    assert!(!controller.refuses(&expanded(0)));
    assert!(controller.refuses(&expanded(4096)));
    let modified = |parameters: &str| csi::ControllerModifyVolumeRequest {
        volume_id: id.clone(),
        mutable_parameters: pairs(parameters),
        ..Default::default()
    };
    assert!(!controller.refuses(&modified("provisioning=thick")));
    assert!(controller.refuses(&modified("provisioning=thick,discard=true")));
}

/// A service that refuses the first request alone, because its pool is open afterwards.
#[derive(Default)]
struct Opening {
    is_open: AtomicBool,
    has_created: AtomicBool,
}

impl<C> Refuses<C> for Opening {
    fn refuses(&self, _request: &C) -> bool {
        !self.is_open.swap(true, Ordering::SeqCst)
    }
}

impl Opening {
    fn create(&self, _: csi::CreateVolumeRequest) -> Result<csi::CreateVolumeResponse, Status> {
        self.has_created.store(true, Ordering::SeqCst);
        Ok(csi::CreateVolumeResponse::default())
    }
}

/// It would allocate on a thread of short calls, as many at once as there are of those.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_pool_opens_while_it_waits_is_repeated() {
    let site = Site::fake(&["a"]);
    let dispatcher = dispatcher(&site);
    let service = Arc::new(Opening::default());
    let thick = csi::CreateVolumeRequest {
        name: "thick".to_owned(),
        parameters: pairs("provisioning=thick"),
        ..Default::default()
    };
    for expected in [Err(tonic::Code::Unavailable), Ok(())] {
        let request = Request::new(thick.clone());
        let answer = dispatcher.answer(&service, request, Opening::create).await;
        assert_eq!(answer.map(drop).map_err(|e| e.code()), expected);
        let has_created = service.has_created.load(Ordering::SeqCst);
        assert_eq!(has_created, expected.is_ok());
    }
}

pub(super) fn dispatcher(site: &Site) -> Dispatcher {
    Dispatcher {
        locks: OperationLocks::new(),
        pool_threads: PoolThreads::default(),
        pools: site.pools().clone(),
        calls: Arc::new(Calls::new("test")),
        faults: None,
    }
}

/// A service that stages at once.
struct Staging;

impl<C> Refuses<C> for Staging {}

impl Staging {
    fn stage(
        &self,
        _: csi::NodeStageVolumeRequest,
    ) -> Result<csi::NodeStageVolumeResponse, Status> {
        Ok(csi::NodeStageVolumeResponse {})
    }
}

/// Without its pool, the volume of a call is not known to be thick.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_call_whose_pool_opens_while_it_waits_is_repeated_if_it_is_long() {
    for (provisioning, expected) in [
        (Provisioning::Thick, Err(tonic::Code::Unavailable)),
        (Provisioning::Thin, Ok(())),
    ] {
        let mut site = Site::fake(&["a"]);
        let mut volume = new("one");
        volume.settings.provisioning = provisioning;
        let volume_id = site.create(volume).id.to_string();
        site.close();
        let (at, away) = (site.specs[0].path.clone(), site.root().join("away"));
        std::fs::rename(&at, &away).unwrap();
        site.open();
        let dispatcher = dispatcher(&site);
        let request = csi::NodeStageVolumeRequest {
            volume_id,
            ..Default::default()
        };
        let lane = request.lane(&dispatcher.pools);
        let threads = dispatcher.pool_threads.of(&lane, Work::Change);
        let mut held = Vec::new();
        while let Some(Some(permit)) = threads.acquire("").now_or_never() {
            held.push(permit);
        }
        let service = Arc::new(Staging);
        let repeated = Request::new(request.clone());
        let mut call = Box::pin(dispatcher.answer(&service, Request::new(request), Staging::stage));
        assert!(call.as_mut().now_or_never().is_none(), "it waits");
        std::fs::rename(&away, &at).unwrap();
        site.tend();
        drop(held);
        let answer = call.await;
        assert_eq!(answer.map(drop).map_err(|e| e.code()), expected);
        let answer = dispatcher.answer(&service, repeated, Staging::stage).await;
        assert_eq!(answer.map(drop).map_err(|e| e.code()), Ok(()));
    }
}
