//! The identity and capabilities that the CSI driver reports.

use std::collections::BTreeSet;
use std::time::Duration;

use hostloop_proto::csi;
use hostloop_proto::manifest::MODE_CHANGE_PARAMETER;
use tokio_util::sync::CancellationToken;

use crate::client::Leadership;
use crate::csi::{Csi, Failure};

/// The deadline of each of these calls.
const DEADLINE: Duration = Duration::from_secs(10);
/// The wait between two attempts.
const RETRY: Duration = Duration::from_secs(1);

pub use csi::controller_service_capability::rpc::Type as ControllerCapability;
pub use csi::group_controller_service_capability::rpc::Type as GroupCapability;
pub use csi::node_service_capability::rpc::Type as NodeCapability;
pub use csi::plugin_capability::service::Type as Service;

/// The driver's identity and capabilities, read once at start: a change means another process. A
/// leader without a driver has them built in.
#[derive(Clone, Debug)]
pub struct Driver {
    /// The client for the driver.
    pub csi: Csi,
    /// The name from `GetPluginInfo`.
    pub name: String,
    /// The version from `GetPluginInfo`.
    pub version: String,
    /// The class parameter that lets a filesystem be made from the bytes of a block device, if the
    /// driver refuses that without it.
    pub mode_change_parameter: Option<String>,
    services: BTreeSet<i32>,
    controller: BTreeSet<i32>,
    group: BTreeSet<i32>,
    node: BTreeSet<i32>,
}

/// Why the driver cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("cannot read the name and capabilities of the CSI driver: {0}")]
    Call(#[from] Failure),
    #[error("stopped while waiting for the CSI driver")]
    Stopped,
}

impl Driver {
    /// Waits until the driver is ready, then reads its identity. The socket may not exist yet.
    pub async fn introduce(csi: Csi, stop: &CancellationToken) -> Result<Self, DriverError> {
        stop.run_until_cancelled(ready(&csi))
            .await
            .ok_or(DriverError::Stopped)?;
        let info = csi
            .get_plugin_info(csi::GetPluginInfoRequest {}, DEADLINE)
            .await?;
        let services = csi
            .get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {}, DEADLINE)
            .await?
            .capabilities
            .into_iter()
            .filter_map(|capability| match capability.r#type? {
                csi::plugin_capability::Type::Service(service) => Some(service.r#type),
                csi::plugin_capability::Type::VolumeExpansion(_) => None,
            })
            .collect::<BTreeSet<_>>();
        let mut driver = Driver {
            csi,
            name: info.name,
            version: info.vendor_version,
            mode_change_parameter: info.manifest.get(MODE_CHANGE_PARAMETER).cloned(),
            services,
            controller: BTreeSet::new(),
            group: BTreeSet::new(),
            node: BTreeSet::new(),
        };
        driver.ask_services().await?;
        Ok(driver)
    }

    /// Creates a driver with exactly these capabilities, without calling it.
    pub fn with(
        csi: Csi,
        name: &str,
        services: &[Service],
        controller: &[ControllerCapability],
        group: &[GroupCapability],
    ) -> Self {
        Driver {
            csi,
            name: name.to_owned(),
            // A driver with built-in capabilities is from the same build.
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode_change_parameter: None,
            services: services.iter().map(|one| *one as i32).collect(),
            controller: controller.iter().map(|one| *one as i32).collect(),
            group: group.iter().map(|one| *one as i32).collect(),
            node: BTreeSet::new(),
        }
    }

    /// The same driver, behind [`Csi::fenced`].
    pub(crate) fn fenced(&self, leader: &Leadership) -> Self {
        Driver {
            csi: self.csi.fenced(leader),
            ..self.clone()
        }
    }

    async fn ask_services(&mut self) -> Result<(), Failure> {
        use csi::{
            controller_service_capability as controller,
            group_controller_service_capability as group, node_service_capability as node,
        };
        let csi = self.csi.clone();
        if self.serves(Service::ControllerService) {
            let request = csi::ControllerGetCapabilitiesRequest {};
            let answer = csi.controller_get_capabilities(request, DEADLINE).await?;
            let types = answer.capabilities.into_iter().filter_map(|one| one.r#type);
            self.controller = types.map(|controller::Type::Rpc(rpc)| rpc.r#type).collect();
        }
        if self.serves(Service::GroupControllerService) {
            let request = csi::GroupControllerGetCapabilitiesRequest {};
            let answer = csi.group_controller_get_capabilities(request, DEADLINE);
            let types = answer
                .await?
                .capabilities
                .into_iter()
                .filter_map(|one| one.r#type);
            self.group = types.map(|group::Type::Rpc(rpc)| rpc.r#type).collect();
        }
        // A central deployment may lack a node service.
        let request = csi::NodeGetCapabilitiesRequest {};
        if let Ok(answer) = csi.node_get_capabilities(request, DEADLINE).await {
            let types = answer.capabilities.into_iter().filter_map(|one| one.r#type);
            self.node = types.map(|node::Type::Rpc(rpc)| rpc.r#type).collect();
        }
        Ok(())
    }

    /// True if the driver reports this plugin capability.
    pub fn serves(&self, service: Service) -> bool {
        self.services.contains(&(service as i32))
    }

    /// True if the driver's controller service has this capability.
    pub fn can(&self, capability: ControllerCapability) -> bool {
        self.controller.contains(&(capability as i32))
    }

    /// True if the driver's group controller service has this capability.
    pub fn can_group(&self, capability: GroupCapability) -> bool {
        self.group.contains(&(capability as i32))
    }

    /// True if the driver's node service has this capability.
    pub fn node_can(&self, capability: NodeCapability) -> bool {
        self.node.contains(&(capability as i32))
    }

    /// True if the driver makes snapshots of groups.
    pub fn takes_groups(&self) -> bool {
        self.serves(Service::GroupControllerService)
            && self.can_group(GroupCapability::CreateDeleteGetVolumeGroupSnapshot)
    }

    /// True if the driver has VolumeSnapshotContents. Members of groups have contents of their own.
    pub fn takes_snapshots(&self) -> bool {
        self.can(ControllerCapability::CreateDeleteSnapshot) || self.takes_groups()
    }

    /// True if volumes are reachable only from some nodes.
    pub fn has_topology(&self) -> bool {
        self.serves(Service::VolumeAccessibilityConstraints)
    }
}

async fn ready(csi: &Csi) {
    let mut logged = false;
    loop {
        // The CSI specification treats an unset `ready` as true.
        match csi.probe(csi::ProbeRequest {}, DEADLINE).await {
            Ok(answer) if answer.ready != Some(false) => return,
            Ok(_) if !logged => tracing::info!("the CSI driver is not ready yet"),
            Err(error) if !logged => tracing::info!(%error, "waiting for the CSI driver"),
            _ => {}
        }
        logged = true;
        tokio::time::sleep(RETRY).await;
    }
}
