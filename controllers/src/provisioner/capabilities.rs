//! What decisions depend on of the driver. They get this instead of the driver, so that none of
//! them can call it.

use crate::csi::Driver;
use crate::csi::driver::{ControllerCapability, Service};

/// The driver's name and capabilities.
#[derive(Clone, Debug)]
pub(crate) struct Capabilities {
    /// The driver's name.
    pub(crate) name: String,
    /// The class parameter that lets a filesystem be made from the bytes of a block device, if the
    /// driver refuses that without it.
    pub(crate) mode_change_parameter: Option<String>,
    /// The driver has a controller service.
    pub(crate) has_controller: bool,
    /// The driver makes volumes.
    pub(crate) creates: bool,
    /// The driver makes volumes from snapshots.
    pub(crate) restores: bool,
    /// The driver makes volumes from volumes.
    pub(crate) clones: bool,
    /// The driver knows VolumeAttributesClasses.
    pub(crate) modifies: bool,
    /// The driver has the access modes for one and for several writers on a node.
    pub(crate) multi_writer: bool,
    /// Volumes are reachable only from some nodes.
    pub(crate) has_topology: bool,
}

impl Capabilities {
    /// The capabilities of a driver.
    pub(crate) fn of(driver: &Driver) -> Self {
        Capabilities {
            name: driver.name.clone(),
            mode_change_parameter: driver.mode_change_parameter.clone(),
            has_controller: driver.serves(Service::ControllerService),
            creates: driver.can(ControllerCapability::CreateDeleteVolume),
            restores: driver.can(ControllerCapability::CreateDeleteSnapshot),
            clones: driver.can(ControllerCapability::CloneVolume),
            modifies: driver.can(ControllerCapability::ModifyVolume),
            multi_writer: driver.can(ControllerCapability::SingleNodeMultiWriter),
            has_topology: driver.has_topology(),
        }
    }
}
