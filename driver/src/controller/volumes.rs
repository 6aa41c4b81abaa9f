//! CreateVolume, DeleteVolume, ControllerGetVolume and ValidateVolumeCapabilities.

use std::sync::Arc;

use hostloop_fault_disk::limits::Limits;
use hostloop_proto::csi;
use hostloop_terminal::humanize::exact_bytes;

use super::parameters::Class;
use super::{Controller, Error, Result, lookup, parameters, to_proto};
use crate::csi::capability::carried_fs;
use crate::csi::capacity_range;
use crate::csi::expansion::GrowthTime;
use crate::csi::validate::invalid;
use crate::kernel::{self, FsType, LoopScope};
use crate::storage::{
    self, FaultDiskRecord, LocatedSource, NewVolume, Pool, Reach, VolumeHandle, VolumeRecord,
};

mod content_source;
mod create_request;
mod existing_volume;
mod reach;
mod validate;

use create_request::CreateRequest;
use reach::ReachFacts;

/// A new volume, decided by what is in memory.
struct Plan {
    pool: Arc<Pool>,
    new: NewVolume,
    source: Option<LocatedSource>,
}

impl Controller {
    /// CreateVolume: idempotent by name.
    pub fn create_volume(
        &self,
        req: csi::CreateVolumeRequest,
    ) -> Result<csi::CreateVolumeResponse> {
        let request = CreateRequest::read(&req, &self.config)?;
        for key in &request.class.ignored {
            tracing::warn!(
                key = key.as_str(),
                volume = request.name.as_str(),
                "ignored a parameter of a class: this driver does not have it"
            );
        }
        let record = match self.pools.volume_named(&request.name) {
            Some(existing) => {
                request
                    .fits(&existing)
                    .map_err(|why| lookup::name_taken("volume", existing.id, &request.name, why))?;
                self.pools.check_synced(existing.id.pool())?;
                existing
            }
            None => self.make(request)?,
        };
        Ok(csi::CreateVolumeResponse {
            volume: Some(self.message_of_new(&record)?),
        })
    }

    fn make(&self, request: CreateRequest) -> Result<Arc<VolumeRecord>> {
        let Plan { pool, new, source } = self.plan(request)?;
        let fs = new.fs();
        if let Some(fs) = fs {
            self.require_tools(fs)?;
        }
        if new.reach == Reach::Kernel {
            self.require_numbers()?;
        }
        let capacity_bytes = new.capacity_bytes;
        if let (Some(source), Some(FsType::Ext4)) = (&source, fs)
            && capacity_bytes > source.bytes()
        {
            let image = self.pools.open_source(source)?;
            self.check_growth(&image, capacity_bytes, GrowthTime::Any)?;
        }
        let has_options = !new.mkfs_options.is_empty();
        self.pools
            .create_volume(&pool, new)
            .map_err(|error| match error {
                // Only mkfs itself checks the meaning of a value.
                storage::Error::Kernel(kernel::Error::Tool {
                    tool,
                    code: Some(_),
                    message,
                    ..
                }) if has_options => {
                    let size = exact_bytes(capacity_bytes);
                    let why = format!("make {tool} fail for {size}: {message}");
                    invalid("parameters[\"mkfsOptions\"]", why).into()
                }
                storage::Error::Kernel(kernel::Error::NotMountable { why, .. }) if has_options => {
                    let fs = fs.map_or("filesystem", FsType::as_str);
                    let why = format!("make an {fs} that this node can't mount: {why}");
                    invalid("parameters[\"mkfsOptions\"]", why).into()
                }
                error => error.into(),
            })
    }

    /// True if CreateVolume refuses this request without a look at disks and tools.
    pub(crate) fn refuses_volume(&self, req: &csi::CreateVolumeRequest) -> bool {
        CreateRequest::read(req, &self.config)
            .and_then(|request| self.plan(request))
            .is_err()
    }

    /// Decides about a new volume by what is known without a look at disks and tools.
    fn plan(&self, request: CreateRequest) -> Result<Plan> {
        if request.class.fault.is_some() && !self.config.faults {
            return Err(parameters::refused_preset().into());
        }
        let fault_disk = self.fault_disk(&request)?;
        if !request.accessible {
            return Err(Error::ResourceExhausted(
                "volumes of this node are accessible from none of the requisite topologies"
                    .to_owned(),
            ));
        }
        let source = request
            .source
            .map(|source| self.locate_source(source))
            .transpose()?;
        let source_fs = source.as_ref().and_then(|s| carried_fs(s.format()));
        let pool = self.pools.named(request.class.pool.as_deref())?;
        let requested = request.capabilities.on_volume_with(source_fs);
        let fs = requested.fs();
        requested.check_mount_options("volume_capabilities")?;
        if request.class.reach == Reach::Kernel {
            self.reach_facts(&request.class, fs)?.check()?;
        }
        // A copy of a filesystem needs no mkfs, whatever the class of its source allowed once.
        if source_fs.is_none() {
            request.class.check_mkfs_options(fs)?;
        }
        if let Some(source) = &source {
            let allowed = request.class.allow_volume_mode_change;
            content_source::serves(source.format(), self.is_raw(source), &requested, allowed)?;
        }
        let inherited = source.as_ref().map(LocatedSource::provisioning);
        let settings = request.changes.create(inherited)?;
        let bounds = capacity_range::Bounds {
            filesystem: fs.map_or(0, FsType::minimum_bytes),
            grown: fs.map_or(0, FsType::minimum_grown_bytes),
            source: source.as_ref().map(LocatedSource::bytes),
            largest: self.pools.options().max_volume_bytes,
        };
        let capacity_bytes =
            capacity_range::create(request.range, bounds).map_err(Error::OutOfRange)?;
        let mut new = NewVolume {
            name: request.name,
            capacity_bytes,
            requested_bytes: None,
            capabilities: requested.into_all(),
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
            settings,
            mkfs_options: request.class.mkfs_options,
            source: source.as_ref().map(LocatedSource::recorded),
            inline: None,
            fault_disk,
            reach: request.class.reach,
        };
        let format = new.format(source.as_ref().map(LocatedSource::format));
        new.requested_bytes = capacity_range::requested(request.range, capacity_bytes, format);
        Ok(Plan { pool, new, source })
    }

    /// The fault disk that a request asks for.
    fn fault_disk(&self, request: &CreateRequest) -> Result<Option<FaultDiskRecord>> {
        let CreateRequest { class, changes, .. } = request;
        if !class.fault_disk {
            if changes.limits.is_empty() {
                return Ok(None);
            }
            return Err(changes.limits.refused("parameters").into());
        }
        if !self.config.faults {
            return Err(parameters::refused_fault_disk().into());
        }
        Ok(Some(FaultDiskRecord {
            cache_bytes: class.fault_disk_cache,
            limits: changes.limits.apply(Limits::default()),
        }))
    }

    /// What decides whether this node has volumes that others of its kernel may use.
    fn reach_facts(&self, class: &Class, fs: Option<FsType>) -> Result<ReachFacts> {
        let kernels = &self.config.kernels;
        Ok(ReachFacts {
            attaches: self.config.attach,
            is_on: self.anchors.is_some() && kernels.is_on(),
            is_listed: kernels.of(&self.config.node_id).is_some(),
            fs,
            has_fault_disk: class.fault_disk,
            has_fault: class.fault.is_some(),
            keys: self.here()?.len(),
        })
    }

    /// Fails if the kernel does not number the attachments of loop devices. With `--kernels`, this
    /// node has at least one device: its marker.
    fn require_numbers(&self) -> Result<()> {
        let kernel = self.pools.kernel();
        let attached = kernel.known_loops(LoopScope::All)?;
        let mut is_numbered = attached.is_empty();
        for minor in attached.iter().map(|device| device.minor) {
            is_numbered = is_numbered || kernel.loop_diskseq(minor)?.is_some();
        }
        reach::require_numbers(is_numbered)
    }

    /// Fails if the tools of a filesystem are not installed.
    fn require_tools(&self, fs: FsType) -> Result<()> {
        self.pools.kernel().offers(fs).map_err(|why| {
            let why = format!("{fs} is not offered on this node: {why}");
            invalid("volume_capabilities", why).into()
        })
    }

    /// DeleteVolume. Deleting an unknown ID succeeds, unless the volume may be on another node.
    pub fn delete_volume(
        &self,
        req: csi::DeleteVolumeRequest,
    ) -> Result<csi::DeleteVolumeResponse> {
        let done = Ok(csi::DeleteVolumeResponse {});
        let Some(handle) = lookup::id::<VolumeHandle>("volume_id", &req.volume_id)? else {
            return done;
        };
        let record = match (self.pools.volume(&handle), &handle) {
            // The caller names the volume by its ID, which needs no record.
            (Err(storage::Error::Corrupt { .. }), VolumeHandle::Id(id)) => {
                lookup::unless_gone(self.pools.delete_unrecorded_volume(*id))?;
                return done;
            }
            (found, _) => lookup::unless_gone(found)?,
        };
        let Some(record) = record else {
            return done;
        };
        let is_attached = self.config.attach || record.is_shared();
        if let (true, Some(node)) = (is_attached, record.publications.keys().next()) {
            return Err(Error::FailedPrecondition(format!(
                "volume {handle} is published to node {node}: unpublish it first"
            )));
        }
        if record.is_shared() && record.stage.is_some() {
            // The last unpublication did not finish, and perhaps nothing repeats it.
            self.anchors(record.id)?.look(&record)?.release(&record)?;
        }
        lookup::unless_gone(self.pools.delete_volume(&record.id))?;
        done
    }

    pub fn controller_get_volume(
        &self,
        req: csi::ControllerGetVolumeRequest,
    ) -> Result<csi::ControllerGetVolumeResponse> {
        use csi::controller_get_volume_response::VolumeStatus;
        let record = self.volume("volume_id", &req.volume_id)?;
        Ok(csi::ControllerGetVolumeResponse {
            volume: Some(self.message_of(&record)?),
            status: Some(VolumeStatus {
                published_node_ids: to_proto::nodes(&record),
            }),
        })
    }
}
