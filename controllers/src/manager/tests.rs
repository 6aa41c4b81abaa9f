use futures::FutureExt;
use hostloop_memory_driver::Handlers;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::*;
use crate::claim_faults::VolumeFaults;
use crate::csi::driver::{ControllerCapability, Service};
use crate::csi::{FreedSignal, Pools};
use crate::orphaned_volumes::Inventory;
use crate::own_pod::OwnPod;
use crate::testing::{self, FakeApi};

/// A driver that names itself and its node, and can create volumes and snapshots.
fn driver() -> Handlers {
    let handlers = Handlers::default();
    handlers.on(|_: csi::ProbeRequest| Ok(csi::ProbeResponse { ready: Some(true) }));
    handlers.on(|_: csi::GetPluginInfoRequest| {
        Ok(csi::GetPluginInfoResponse {
            name: "d".to_owned(),
            ..Default::default()
        })
    });
    handlers.on(|_: csi::GetPluginCapabilitiesRequest| {
        let service = csi::plugin_capability::Service {
            r#type: Service::ControllerService.into(),
        };
        let r#type = Some(csi::plugin_capability::Type::Service(service));
        let capabilities = vec![csi::PluginCapability { r#type }];
        Ok(csi::GetPluginCapabilitiesResponse { capabilities })
    });
    handlers.on(|_: csi::ControllerGetCapabilitiesRequest| {
        let all = [
            ControllerCapability::CreateDeleteVolume,
            ControllerCapability::CreateDeleteSnapshot,
            ControllerCapability::GetCapacity,
            ControllerCapability::ExpandVolume,
        ];
        let capabilities = all.map(|one| {
            let rpc = csi::controller_service_capability::Rpc { r#type: one.into() };
            let r#type = Some(csi::controller_service_capability::Type::Rpc(rpc));
            csi::ControllerServiceCapability { r#type }
        });
        Ok(csi::ControllerGetCapabilitiesResponse {
            capabilities: capabilities.to_vec(),
        })
    });
    handlers.on(|_: csi::NodeGetCapabilitiesRequest| Ok(Default::default()));
    handlers.on(|_: csi::NodeGetInfoRequest| {
        Ok(csi::NodeGetInfoResponse {
            node_id: "n".to_owned(),
            ..Default::default()
        })
    });
    handlers
}

fn setup(api: &FakeApi, tasks: &str) -> Setup {
    let tasks = format!("--leader-tasks={tasks}");
    let level = "--capacity-ownerref-level=-1";
    let controllers = "--controllers=*,snapshot-controller,-liveness,-registrar";
    Setup {
        args: testing::parse(&[controllers, level, &tasks]),
        client: std::future::ready(Ok(testing::client(api))).boxed(),
        pod: OwnPod {
            name: Some("p".to_owned()),
            namespace: "ns".to_owned(),
            capacity_namespace: Some("ns".to_owned()),
            identity: "p".to_owned(),
        },
        default_fstype: String::new(),
        driver: Source::Asked(testing::connect(&driver())),
        node_deployment: true,
        registration_endpoint: None,
        pools: Pools::default(),
        freed: FreedSignal::default(),
        inventory: Inventory::default(),
        faults: VolumeFaults::default(),
        labels: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_dropped_leaves_no_task() {
    let alive = || Handle::current().metrics().num_alive_tasks();
    for (tasks, leads) in [("elected", true), ("elsewhere", false)] {
        let api = FakeApi::with_snapshots();
        let running = run(
            setup(&api, tasks),
            Telemetry::new(),
            CancellationToken::new(),
        );
        let ended = timeout(Duration::from_secs(60), running).await;
        assert!(ended.is_err(), "{tasks}: {ended:?}");
        assert_eq!(api.get("leases/hostloop-d").is_some(), leads, "{tasks}");
        assert!(!api.requests().is_empty(), "{tasks}");
        // A task ends when the runtime comes to it.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(alive(), 0, "{tasks}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(api.requests(), Vec::<String>::new(), "{tasks}");
    }
}
