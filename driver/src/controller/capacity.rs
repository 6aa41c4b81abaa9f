//! GetCapacity: the space that is really available to volumes of a class.

use hostloop_proto::csi;

use super::capability_set::CapabilitySet;
use super::{Controller, Result, accessibility, parameters};
use crate::csi::int64;
use crate::kernel::{BLOCK_SIZE, FsType};
use crate::storage::{self, Capacity};

impl Controller {
    pub fn get_capacity(&self, req: csi::GetCapacityRequest) -> Result<csi::GetCapacityResponse> {
        let rules = &self.config.capabilities;
        let requested =
            CapabilitySet::read("volume_capabilities", &req.volume_capabilities, rules)?;
        let class = parameters::class(&req.parameters, self.config.unknown_parameters)?;
        let fs = match requested.fs() {
            Some(fs) => Some(fs),
            None if req.volume_capabilities.is_empty() => parameters::filesystem(&req.parameters)?,
            None => None,
        };
        class.check_mkfs_options(fs)?;
        let smallest = fs.map_or(u64::from(BLOCK_SIZE), FsType::minimum_bytes);
        let capacity = if self.offers(&req, fs)? {
            self.available(&class)?
        } else {
            Capacity::default()
        };
        // Space below the minimum volume size counts as none.
        let capacity = if capacity.largest < smallest {
            Capacity::default()
        } else {
            capacity
        };
        Ok(csi::GetCapacityResponse {
            available_capacity: int64(capacity.available),
            maximum_volume_size: Some(int64(capacity.largest)),
            minimum_volume_size: Some(int64(smallest)),
        })
    }

    /// True if this node can create such volumes at all.
    fn offers(&self, req: &csi::GetCapacityRequest, fs: Option<FsType>) -> Result<bool> {
        let ours = self.here()?;
        let elsewhere = match &req.accessible_topology {
            Some(topology) => !ours.is_empty() && !accessibility::contains_us(topology, &ours),
            None => false,
        };
        let no_tools = fs.is_some_and(|fs| self.pools.kernel().offers(fs).is_err());
        Ok(!elsewhere && !no_tools)
    }

    /// The available space in the pool of a class. A pool that is not configured here has none: the
    /// class may be meant for other nodes. A missing pool has none either. The scheduler must
    /// choose another node, because a claim on this one would wait for the pool.
    fn available(&self, class: &parameters::Class) -> Result<Capacity> {
        let settings = class.changes.create(None)?;
        let pool = self.pools.named(class.pool.as_deref());
        match pool.and_then(|pool| pool.capacity(settings.provisioning)) {
            Err(storage::Error::UnknownPool(_) | storage::Error::Unavailable { .. }) => {
                Ok(Capacity::default())
            }
            capacity => Ok(capacity?),
        }
    }
}
