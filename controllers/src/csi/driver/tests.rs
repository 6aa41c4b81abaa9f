use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hostloop_memory_driver::Handlers;
use tonic::Status;

use super::*;
use crate::testing::connect;

/// Fails the first call of each kind, as a driver that is busy.
fn at_first<T>(calls: &Arc<AtomicUsize>, answer: T) -> Result<T, Status> {
    if calls.fetch_add(1, Ordering::Relaxed) == 0 {
        Err(Status::unavailable("busy"))
    } else {
        Ok(answer)
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_busy_at_start_is_asked_again() {
    use csi::{controller_service_capability as controller, node_service_capability as node};
    let handlers = Handlers::default();
    handlers.on(|_: csi::ProbeRequest| Ok(csi::ProbeResponse::default()));
    let calls: [Arc<AtomicUsize>; 4] = Default::default();
    let asked = calls.clone();
    handlers.on(move |_: csi::GetPluginInfoRequest| {
        let answer = csi::GetPluginInfoResponse {
            name: "d".to_owned(),
            ..Default::default()
        };
        at_first(&asked[0], answer)
    });
    let asked = calls.clone();
    handlers.on(move |_: csi::GetPluginCapabilitiesRequest| {
        use csi::plugin_capability::{Service as Has, Type};
        let r#type = Some(Type::Service(Has {
            r#type: Service::ControllerService as i32,
        }));
        let capabilities = vec![csi::PluginCapability { r#type }];
        at_first(
            &asked[1],
            csi::GetPluginCapabilitiesResponse { capabilities },
        )
    });
    let asked = calls.clone();
    handlers.on(move |_: csi::ControllerGetCapabilitiesRequest| {
        let r#type = ControllerCapability::CreateDeleteSnapshot as i32;
        let capability = csi::ControllerServiceCapability {
            r#type: Some(controller::Type::Rpc(controller::Rpc { r#type })),
        };
        let capabilities = vec![capability];
        at_first(
            &asked[2],
            csi::ControllerGetCapabilitiesResponse { capabilities },
        )
    });
    let asked = calls.clone();
    handlers.on(move |_: csi::NodeGetCapabilitiesRequest| {
        let r#type = NodeCapability::StageUnstageVolume as i32;
        let capability = csi::NodeServiceCapability {
            r#type: Some(node::Type::Rpc(node::Rpc { r#type })),
        };
        let capabilities = vec![capability];
        at_first(&asked[3], csi::NodeGetCapabilitiesResponse { capabilities })
    });
    let driver = Driver::introduce(connect(&handlers), &CancellationToken::new()).await;
    let driver = driver.unwrap();
    assert_eq!(driver.name, "d");
    assert!(driver.can(ControllerCapability::CreateDeleteSnapshot));
    assert!(driver.node_can(NodeCapability::StageUnstageVolume));
    assert_eq!(calls.map(|calls| calls.load(Ordering::Relaxed)), [2; 4]);
}

fn without_node_service() -> Handlers {
    let handlers = Handlers::default();
    handlers.on(|_: csi::ProbeRequest| Ok(csi::ProbeResponse::default()));
    handlers.on(|_: csi::GetPluginInfoRequest| Ok(csi::GetPluginInfoResponse::default()));
    handlers.on(|_: csi::GetPluginCapabilitiesRequest| {
        Ok(csi::GetPluginCapabilitiesResponse::default())
    });
    handlers
}

#[tokio::test(start_paused = true)]
async fn a_driver_without_a_node_service_has_no_capabilities_of_it() {
    let handlers = without_node_service();
    let driver = Driver::introduce(connect(&handlers), &CancellationToken::new()).await;
    assert!(!driver.unwrap().node_can(NodeCapability::StageUnstageVolume));
}

#[tokio::test(start_paused = true)]
async fn a_node_service_that_never_answers_is_not_waited_for() {
    let handlers = without_node_service();
    let calls = Arc::new(AtomicUsize::new(0));
    let asked = calls.clone();
    handlers.on(move |_: csi::NodeGetCapabilitiesRequest| {
        asked.fetch_add(1, Ordering::Relaxed);
        Err(Status::unavailable("no node service here"))
    });
    let stop = CancellationToken::new();
    let introduced = Driver::introduce(connect(&handlers), &stop);
    let driver = tokio::time::timeout(Duration::from_secs(60), introduced).await;
    let driver = driver.expect("it goes on without the node service");
    assert!(!driver.unwrap().node_can(NodeCapability::StageUnstageVolume));
    let calls = calls.load(Ordering::Relaxed);
    assert!(calls >= 30, "{calls} calls, for most of the minute");
}

/// Its container starts again, and until then nothing listens at its socket.
#[tokio::test(start_paused = true)]
async fn a_node_service_that_starts_again_is_waited_for() {
    use csi::node_service_capability as node;
    let handlers = without_node_service();
    let calls = AtomicUsize::new(0);
    handlers.on(move |_: csi::NodeGetCapabilitiesRequest| {
        // A second passes between two calls.
        if calls.fetch_add(1, Ordering::Relaxed) < 30 {
            return Err(Status::unavailable("connection refused"));
        }
        let r#type = NodeCapability::StageUnstageVolume as i32;
        let capability = csi::NodeServiceCapability {
            r#type: Some(node::Type::Rpc(node::Rpc { r#type })),
        };
        let capabilities = vec![capability];
        Ok(csi::NodeGetCapabilitiesResponse { capabilities })
    });
    let driver = Driver::introduce(connect(&handlers), &CancellationToken::new()).await;
    let driver = driver.unwrap();
    assert!(driver.node_can(NodeCapability::StageUnstageVolume));
}
