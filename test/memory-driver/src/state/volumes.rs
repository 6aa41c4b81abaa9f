//! Creation, deletion and modification of volumes, and capacity.

use std::collections::{BTreeMap, BTreeSet};

use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::volume_content_source::Type as Source;
use tonic::Status;

use super::{Answer, State, Volume, can, check, unimplemented};
use crate::options::{DEFAULT_SIZE, Options, Segments};

impl State {
    pub(crate) fn create_volume(
        &mut self,
        options: &Options,
        request: csi::CreateVolumeRequest,
    ) -> Answer<csi::CreateVolumeResponse> {
        can(options, ControllerRpc::CreateDeleteVolume)?;
        check::given("name", &request.name)?;
        check::capabilities(&request.volume_capabilities)?;
        known(
            "parameter",
            &request.parameters,
            options.known_parameters.as_ref(),
        )?;
        if !request.mutable_parameters.is_empty() {
            can(options, ControllerRpc::ModifyVolume)?;
        }
        let mutable = options.known_mutable.as_ref();
        known("mutable parameter", &request.mutable_parameters, mutable)?;
        let volume = match self.volumes.values().find(|v| v.name == request.name) {
            Some(existing) => {
                same(existing, &request)?;
                existing.clone()
            }
            None => self.new_volume(options, request)?,
        };
        let mut answer = to_csi(options, &volume);
        if let Some(claimed) = options.claims_capacity {
            answer.capacity_bytes = claimed;
        }
        if options.forgets_source {
            answer.content_source = None;
        }
        Ok(csi::CreateVolumeResponse {
            volume: Some(answer),
        })
    }

    fn new_volume(
        &mut self,
        options: &Options,
        request: csi::CreateVolumeRequest,
    ) -> Answer<Volume> {
        let (least, home) = match &request.volume_content_source {
            None => (0, None),
            Some(source) => self.source(options, source)?,
        };
        let default = DEFAULT_SIZE.max(least);
        let capacity = check::size(options, request.capacity_range.as_ref(), default)?;
        if capacity < least {
            let why = format!("the source has {least} bytes, the volume only {capacity}");
            return Err(Status::out_of_range(why));
        }
        let place = place(options, request.accessibility_requirements.as_ref(), home)?;
        if capacity > self.available(options, &place) {
            let why = format!("{capacity} bytes exceed the free capacity at {place:?}");
            return Err(Status::resource_exhausted(why));
        }
        let volume = Volume {
            id: self.new_id(options, "vol"),
            name: request.name,
            capacity,
            parameters: request.parameters,
            mutable: request.mutable_parameters,
            context: [("kept".to_owned(), "in-memory".to_owned())].into(),
            capabilities: request.volume_capabilities,
            source: request.volume_content_source,
            place,
            published: BTreeMap::new(),
            staged: BTreeMap::new(),
            targets: BTreeMap::new(),
        };
        self.volumes.insert(volume.id.clone(), volume.clone());
        Ok(volume)
    }

    /// The size and the segments of a source.
    fn source(
        &self,
        options: &Options,
        source: &csi::VolumeContentSource,
    ) -> Answer<(i64, Option<Segments>)> {
        match &source.r#type {
            None => Err(Status::invalid_argument("volume_content_source is empty")),
            Some(Source::Snapshot(source)) => {
                can(options, ControllerRpc::CreateDeleteSnapshot)?;
                let id = &source.snapshot_id;
                let snapshot = self.snapshots.get(id);
                let none = || Status::not_found(format!("snapshot {id} does not exist"));
                let snapshot = snapshot.ok_or_else(none)?;
                if snapshot.polls_left > 0 {
                    return Err(Status::unavailable(format!("snapshot {id} is not ready")));
                }
                let home = self.volumes.get(&snapshot.source).map(|v| v.place.clone());
                Ok((snapshot.size, home))
            }
            Some(Source::Volume(source)) => {
                can(options, ControllerRpc::CloneVolume)?;
                let volume = self.volume(&source.volume_id)?;
                Ok((volume.capacity, Some(volume.place.clone())))
            }
        }
    }

    fn available(&self, options: &Options, place: &Segments) -> i64 {
        let here = self.volumes.values().filter(|v| v.place == *place);
        (options.capacity - here.map(|v| v.capacity).sum::<i64>()).max(0)
    }

    pub(crate) fn delete_volume(
        &mut self,
        options: &Options,
        request: csi::DeleteVolumeRequest,
    ) -> Answer<csi::DeleteVolumeResponse> {
        can(options, ControllerRpc::CreateDeleteVolume)?;
        check::path("volume_id", &request.volume_id)?;
        if let Some(volume) = self.volumes.get(&request.volume_id) {
            if let Some(node) = volume.published.keys().next() {
                let why = format!("volume {} is published to {node}", volume.id);
                return Err(Status::failed_precondition(why));
            }
            if let Some(path) = volume.staged.keys().chain(volume.targets.keys()).next() {
                let why = format!("volume {} is in use at {path}", volume.id);
                return Err(Status::failed_precondition(why));
            }
            self.volumes.remove(&request.volume_id);
            self.health.remove(&request.volume_id);
        }
        Ok(csi::DeleteVolumeResponse {})
    }

    pub(crate) fn validate_volume_capabilities(
        &mut self,
        options: &Options,
        request: csi::ValidateVolumeCapabilitiesRequest,
    ) -> Answer<csi::ValidateVolumeCapabilitiesResponse> {
        use csi::validate_volume_capabilities_response::Confirmed;
        if !options
            .capabilities
            .controller
            .contains(&ControllerRpc::CreateDeleteVolume)
        {
            return Err(unimplemented("volumes"));
        }
        check::path("volume_id", &request.volume_id)?;
        check::capabilities(&request.volume_capabilities)?;
        self.volume(&request.volume_id)?;
        Ok(csi::ValidateVolumeCapabilitiesResponse {
            confirmed: Some(Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: request.mutable_parameters,
            }),
            message: String::new(),
        })
    }

    pub(crate) fn controller_modify_volume(
        &mut self,
        options: &Options,
        request: csi::ControllerModifyVolumeRequest,
    ) -> Answer<csi::ControllerModifyVolumeResponse> {
        can(options, ControllerRpc::ModifyVolume)?;
        let mutable = options.known_mutable.as_ref();
        known("mutable parameter", &request.mutable_parameters, mutable)?;
        let volume = self.volume_mut(&request.volume_id)?;
        volume.mutable.extend(request.mutable_parameters);
        Ok(csi::ControllerModifyVolumeResponse {})
    }

    pub(crate) fn get_capacity(
        &mut self,
        options: &Options,
        request: csi::GetCapacityRequest,
    ) -> Answer<csi::GetCapacityResponse> {
        can(options, ControllerRpc::GetCapacity)?;
        let parameters = known(
            "parameter",
            &request.parameters,
            options.known_parameters.as_ref(),
        );
        let asked = request.accessible_topology.map(|t| t.segments);
        let asked = asked.filter(|_| options.capabilities.topology());
        let places = options.topology.iter().filter(|place| match &asked {
            Some(asked) => asked.iter().all(|(k, v)| place.get(k) == Some(v)),
            None => true,
        });
        let available = match parameters {
            // CreateVolume would refuse these.
            Err(_) => 0,
            Ok(()) => places.map(|place| self.available(options, place)).sum(),
        };
        let largest = (options.max_volume_size > 0).then_some(options.max_volume_size);
        Ok(csi::GetCapacityResponse {
            available_capacity: available,
            maximum_volume_size: largest,
            minimum_volume_size: None,
        })
    }
}

/// The volume in CSI terms.
pub(crate) fn to_csi(options: &Options, volume: &Volume) -> csi::Volume {
    let topology = options.capabilities.topology();
    let place = csi::Topology {
        segments: volume.place.clone(),
    };
    csi::Volume {
        capacity_bytes: volume.capacity,
        volume_id: volume.id.clone(),
        volume_context: volume.context.clone(),
        content_source: volume.source.clone(),
        accessible_topology: topology.then_some(place).into_iter().collect(),
    }
}

/// Checks that an existing volume matches a request with its name.
fn same(existing: &Volume, request: &csi::CreateVolumeRequest) -> Answer<()> {
    let other = if !check::fits(existing.capacity, request.capacity_range.as_ref()) {
        "size"
    } else if existing.parameters != request.parameters {
        "parameters"
    } else if existing.source != request.volume_content_source {
        "source"
    } else if existing.capabilities != request.volume_capabilities {
        "capabilities"
    } else {
        return Ok(());
    };
    let (name, id) = (&existing.name, &existing.id);
    Err(Status::already_exists(format!(
        "volume {id} has the name {name} and another {other}"
    )))
}

fn known(
    what: &str,
    given: &BTreeMap<String, String>,
    known: Option<&BTreeSet<String>>,
) -> Answer<()> {
    let unknown = |key: &&String| known.is_some_and(|known| !known.contains(*key));
    match given.keys().find(unknown) {
        Some(key) => Err(Status::invalid_argument(format!("{what} {key} is unknown"))),
        None => Ok(()),
    }
}

/// The segments of a new volume: the first preferred ones with storage, else the first requisite
/// ones. Without a requirement, a copy stays with its source.
fn place(
    options: &Options,
    asked: Option<&csi::TopologyRequirement>,
    home: Option<Segments>,
) -> Answer<Segments> {
    let first = || home.clone().or_else(|| options.topology.first().cloned());
    let Some(asked) = asked.filter(|_| options.capabilities.topology()) else {
        return Ok(first().unwrap_or_default());
    };
    let mut terms = asked.preferred.iter().chain(&asked.requisite).peekable();
    if terms.peek().is_none() {
        return Ok(first().unwrap_or_default());
    }
    let within = |term: &csi::Topology| {
        let fits = |place: &&Segments| term.segments.iter().all(|(k, v)| place.get(k) == Some(v));
        options.topology.iter().find(fits).cloned()
    };
    let none =
        || Status::resource_exhausted("no storage is accessible from the requested topology");
    terms.find_map(within).ok_or_else(none)
}
