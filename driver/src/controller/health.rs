//! ControllerGetVolumeHealth and ControllerListVolumeHealth.

use std::collections::BTreeSet;
use std::sync::Arc;

use hostloop_proto::csi;

use super::list::Page;
use super::{Controller, Result, to_proto};
use crate::health::{self, Condition, View};
use crate::storage::{About, VolumeHandle, VolumeId, VolumeRecord};

/// A volume's record, or the condition of a volume with an unreadable one.
type ReadRecord = std::result::Result<Arc<VolumeRecord>, Condition>;

impl Controller {
    pub fn controller_get_volume_health(
        &self,
        req: csi::ControllerGetVolumeHealthRequest,
    ) -> Result<csi::ControllerGetVolumeHealthResponse> {
        let conditions = match self.volume("volume_id", &req.volume_id) {
            Ok(record) => View::take(&self.pools).conditions(&self.pools, &record),
            Err(e) => vec![health::without_record(&self.pools, &req.volume_id, &e).ok_or(e)?],
        };
        Ok(csi::ControllerGetVolumeHealthResponse {
            volume_health: Some(health::message(req.volume_id, conditions)),
        })
    }

    /// ControllerListVolumeHealth: lists only volumes with a problem. UNAVAILABLE while a pool is
    /// missing: its volumes can't be listed, and a caller takes an unlisted volume for healthy.
    pub fn controller_list_volume_health(
        &self,
        req: csi::ControllerListVolumeHealthRequest,
    ) -> Result<csi::ControllerListVolumeHealthResponse> {
        let page = Page::read(req.max_entries, &req.starting_token, VolumeId::uuid)?;
        let volumes = self.volumes_oldest_first()?;
        // Read after the records: a volume that is staged in its record must be attached by now.
        let view = View::take(&self.pools);
        let rest = volumes.into_iter();
        let rest = rest.filter(|(id, _)| page.reaches(id.uuid()));
        let (entries, next_token) =
            page.fill(rest.filter_map(|(id, record): (VolumeId, ReadRecord)| {
                let (known_as, conditions) = match record {
                    Ok(record) => (
                        to_proto::volume_id(&record),
                        view.conditions(&self.pools, &record),
                    ),
                    Err(condition) => (id.to_string(), vec![condition]),
                };
                (!conditions.is_empty()).then(|| (id, health::message(known_as, conditions)))
            }));
        Ok(csi::ControllerListVolumeHealthResponse {
            entries,
            next_token,
        })
    }

    /// All volumes, oldest first. ListVolumes omits volumes with unreadable records, but the pools
    /// remember these.
    fn volumes_oldest_first(&self) -> Result<Vec<(VolumeId, ReadRecord)>> {
        self.pools.complete()?;
        let known = self.pools.volumes().into_iter().map(|v| (v.id, Ok(v)));
        let noted = self.pools.noted_problems().into_iter();
        let noted: BTreeSet<VolumeId> = noted
            .filter_map(|noted| match noted.about {
                About::Volume(id) => Some(id),
                _ => None,
            })
            .collect();
        let unreadable =
            noted
                .into_iter()
                .filter_map(|id| match self.pools.volume(&VolumeHandle::Id(id)) {
                    Err(error) => Some((id, Err(health::unreadable_record(&error)?))),
                    Ok(_) => None,
                });
        let mut volumes: Vec<_> = known.chain(unreadable).collect();
        volumes.sort_by_key(|(id, _)| id.uuid());
        Ok(volumes)
    }
}
