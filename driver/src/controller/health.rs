//! ControllerGetVolumeHealth and ControllerListVolumeHealth.

use std::sync::Arc;

use hostloop_proto::csi;

use super::list::Page;
use super::{Controller, Error, Result, to_proto};
use crate::diagnose::health::{self, Condition, View};
use crate::storage::{self, About, VolumeHandle, VolumeId, VolumeRecord};

/// A volume in a health request; its record may be unreadable.
enum VolumeRef {
    Known(Arc<VolumeRecord>),
    Unreadable(VolumeId, String),
}

impl VolumeRef {
    fn id(&self) -> VolumeId {
        match self {
            VolumeRef::Known(record) => record.id,
            VolumeRef::Unreadable(id, _) => *id,
        }
    }

    fn conditions(&self, controller: &Controller, view: &View) -> Vec<Condition> {
        match self {
            VolumeRef::Known(record) => view.judge(&controller.pools, record),
            VolumeRef::Unreadable(_, why) => vec![health::unreadable_record(why)],
        }
    }

    /// The ID under which callers know the volume.
    fn known_as(&self) -> String {
        match self {
            VolumeRef::Known(record) => to_proto::volume_id(record),
            VolumeRef::Unreadable(id, _) => id.to_string(),
        }
    }
}

impl Controller {
    /// ControllerGetVolumeHealth.
    pub fn controller_get_volume_health(
        &self,
        req: csi::ControllerGetVolumeHealthRequest,
    ) -> Result<csi::ControllerGetVolumeHealthResponse> {
        let conditions = match self.volume("volume_id", &req.volume_id) {
            Ok(record) => View::take(&self.pools).judge(&self.pools, &record),
            Err(Error::Pool(storage::Error::Corrupt { why, .. })) => {
                vec![health::unreadable_record(&why)]
            }
            Err(e) => {
                let handle = req.volume_id.parse().ok();
                let missing = handle.and_then(|id| health::of_missing_pool(&self.pools, &id));
                vec![missing.ok_or(e)?]
            }
        };
        let entries = health::entries(conditions);
        Ok(csi::ControllerGetVolumeHealthResponse {
            volume_health: Some(health::message(req.volume_id, entries)),
        })
    }

    /// ControllerListVolumeHealth: lists only volumes with a problem. UNAVAILABLE while a pool is
    /// missing: its volumes can't be listed, and a caller takes an unlisted volume for healthy.
    pub fn controller_list_volume_health(
        &self,
        req: csi::ControllerListVolumeHealthRequest,
    ) -> Result<csi::ControllerListVolumeHealthResponse> {
        let page = Page::read(req.max_entries, &req.starting_token, VolumeId::uuid)?;
        let patients = self.patients()?;
        // Read after the records: a volume that is staged in its record must be attached by now.
        let view = View::take(&self.pools);
        let ill = |patient: VolumeRef| {
            let conditions = patient.conditions(self, &view);
            let entries = (!conditions.is_empty()).then(|| health::entries(conditions))?;
            Some((patient.id(), health::message(patient.known_as(), entries)))
        };
        let rest = patients.into_iter().filter(|p| page.reaches(p.id().uuid()));
        let (entries, next_token) = page.fill(rest.filter_map(ill));
        Ok(csi::ControllerListVolumeHealthResponse {
            entries,
            next_token,
        })
    }

    /// All volumes, oldest first. ListVolumes omits volumes with unreadable records, but the pools
    /// remember these.
    fn patients(&self) -> Result<Vec<VolumeRef>> {
        self.pools.complete()?;
        let known = self.pools.volumes().into_iter().map(VolumeRef::Known);
        let mut noted: Vec<VolumeId> = Vec::new();
        for finding in self.pools.findings() {
            if let About::Volume(id) = finding.about
                && !noted.contains(&id)
            {
                noted.push(id);
            }
        }
        let unreadable =
            noted
                .into_iter()
                .filter_map(|id| match self.pools.volume(&VolumeHandle::Id(id)) {
                    Err(storage::Error::Corrupt { why, .. }) => {
                        Some(VolumeRef::Unreadable(id, why))
                    }
                    _ => None,
                });
        let mut patients: Vec<VolumeRef> = known.chain(unreadable).collect();
        patients.sort_by_key(|patient| patient.id().uuid());
        Ok(patients)
    }
}
