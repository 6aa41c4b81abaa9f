//! The identity and capabilities that the CSI driver reports.

use std::collections::BTreeSet;
use std::time::Duration;

use hostloop_proto::csi;
use hostloop_proto::manifest::MODE_CHANGE_PARAMETER;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::client::Leadership;
use crate::csi::{Csi, Failure};

/// The deadline of each of these calls.
const DEADLINE: Duration = Duration::from_secs(10);
/// The wait between two attempts.
const RETRY: Duration = Duration::from_secs(1);
/// For how long a node service, which a driver may lack, is asked again. With the deadline of the
/// last attempt that is a minute, in which a container can restart.
const NODE_PATIENCE: Duration = Duration::from_secs(50);

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
        let driver = stop.run_until_cancelled(async {
            ready(&csi).await;
            Driver::read(csi).await
        });
        Ok(driver.await.ok_or(DriverError::Stopped)??)
    }

    /// Reads the identity of a driver that is ready.
    async fn read(csi: Csi) -> Result<Self, Failure> {
        let info = answered(|| csi.get_plugin_info(csi::GetPluginInfoRequest {}, DEADLINE)).await?;
        let request = csi::GetPluginCapabilitiesRequest {};
        let services = answered(|| csi.get_plugin_capabilities(request, DEADLINE))
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
            let answer = answered(|| csi.controller_get_capabilities(request, DEADLINE)).await?;
            let types = answer.capabilities.into_iter().filter_map(|one| one.r#type);
            self.controller = types.map(|controller::Type::Rpc(rpc)| rpc.r#type).collect();
        }
        if self.serves(Service::GroupControllerService) {
            let request = csi::GroupControllerGetCapabilitiesRequest {};
            let answer =
                answered(|| csi.group_controller_get_capabilities(request, DEADLINE)).await?;
            let types = answer.capabilities.into_iter().filter_map(|one| one.r#type);
            self.group = types.map(|group::Type::Rpc(rpc)| rpc.r#type).collect();
        }
        // A central deployment may lack a node service.
        let request = csi::NodeGetCapabilitiesRequest {};
        let answer = answered_within(NODE_PATIENCE, || {
            csi.node_get_capabilities(request, DEADLINE)
        })
        .await;
        match answer {
            Ok(answer) => {
                let types = answer.capabilities.into_iter().filter_map(|one| one.r#type);
                self.node = types.map(|node::Type::Rpc(rpc)| rpc.r#type).collect();
            }
            Err(error) if may_answer_later(&error) => tracing::warn!(
                %error,
                "the CSI driver's node service does not answer: going on without its capabilities"
            ),
            Err(_) => {}
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

/// Calls the driver until it answers: it may be busy, or start again.
async fn answered<T, F>(call: impl Fn() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    answered_within(Duration::MAX, call).await
}

/// Calls the driver until it answers. After this time no attempt begins, and the last error is the
/// answer.
async fn answered_within<T, F>(patience: Duration, call: impl Fn() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let began = Instant::now();
    let mut logged = false;
    loop {
        match call().await {
            Err(error) if may_answer_later(&error) && began.elapsed() + RETRY <= patience => {
                if !logged {
                    tracing::info!(%error, "waiting for the CSI driver");
                    logged = true;
                }
            }
            answer => return answer,
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// True if the driver may only be busy, or may start again.
fn may_answer_later(failure: &Failure) -> bool {
    matches!(failure.code(), Code::Unavailable | Code::DeadlineExceeded)
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

#[cfg(test)]
mod tests;
