//! The services over pools in a temporary directory and a kernel in memory.

use super::Config;
use crate::storage::{Format, PoolId, Provisioning, Settings, VolumeId, VolumeRecord};
use crate::testkit::Configs;

pub(super) mod bench;
mod health;
mod in_use;
mod missing;
mod publishing;
mod reading;
mod snapshots;
mod topology;
mod volumes;

/// A configuration with all services on.
pub(super) fn config() -> Config {
    Configs::default().controller
}

/// The settings of a thin volume without discard.
pub(super) const THIN: Settings = Settings {
    provisioning: Provisioning::Thin,
    discard: false,
    direct_io: true,
    read_ahead_kib: None,
};

/// The record of an unused volume that was made for nothing in particular.
pub(super) fn record() -> VolumeRecord {
    VolumeRecord {
        schema: 1,
        id: VolumeId::generate(PoolId::generate()),
        name: "v".to_owned(),
        capacity_bytes: 4096,
        capabilities: Vec::new(),
        parameters: Default::default(),
        mutable_parameters: Default::default(),
        settings: THIN,
        mkfs_options: Vec::new(),
        source: None,
        created_ns: 0,
        format: Format::None,
        fresh: false,
        publications: Default::default(),
        stage: None,
        freeze: None,
        inline: None,
    }
}
