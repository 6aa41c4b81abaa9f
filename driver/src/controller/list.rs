//! ListVolumes and ListSnapshots, and paging.
//!
//! Lists are in the order of creation, which is the order of the IDs. A token is the last ID of
//! the page before, so it stays good when volumes come and go between two pages.

use std::str::FromStr;

use hostloop_proto::csi;
use uuid::Uuid;

use super::{Controller, Error, Result, answer, lookup};
use crate::pool::id::NotAnId;
use crate::pool::{self, SnapshotId, VolumeHandle, VolumeId};
use crate::request::invalid;

/// The part of a list that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// Begin after this.
    after: Option<Uuid>,
    /// At most so many.
    max: usize,
}

impl Page {
    /// Reads `max_entries` and `starting_token`, which is an ID of this kind.
    pub(super) fn read<T: FromStr<Err = NotAnId>>(
        max_entries: i32,
        starting_token: &str,
        uuid: impl Fn(&T) -> Uuid,
    ) -> Result<Page> {
        let max =
            usize::try_from(max_entries).map_err(|_| invalid("max_entries", "is negative"))?;
        let after = match starting_token {
            "" => None,
            token => {
                let id = token.parse();
                Some(uuid(
                    &id.map_err(|_| Error::BadToken(lookup::shown(token)))?,
                ))
            }
        };
        Ok(Page {
            after,
            // No maximum is no restriction.
            max: if max == 0 { usize::MAX } else { max },
        })
    }

    /// Whether something is on this page or on a later one.
    pub(super) fn reaches(&self, uuid: Uuid) -> bool {
        self.after.is_none_or(|after| uuid > after)
    }

    /// The entries of this page, of a list in order, and whether there are more.
    pub(super) fn cut<T>(&self, entries: impl IntoIterator<Item = T>) -> (Vec<T>, bool) {
        let mut entries = entries.into_iter();
        let page: Vec<T> = entries.by_ref().take(self.max).collect();
        let more = entries.next().is_some();
        (page, more)
    }
}

/// The token that leads on from the last entry of a page.
pub(super) fn next_token<T, I: ToString>(
    (page, more): &(Vec<T>, bool),
    id: impl Fn(&T) -> I,
) -> String {
    let last = page.last().filter(|_| *more);
    last.map(|entry| id(entry).to_string()).unwrap_or_default()
}

impl Controller {
    /// ListVolumes.
    pub fn list_volumes(&self, req: csi::ListVolumesRequest) -> Result<csi::ListVolumesResponse> {
        use csi::list_volumes_response::{Entry, VolumeStatus};
        let page = Page::read(req.max_entries, &req.starting_token, VolumeId::uuid)?;
        let volumes = self.pools.volumes()?.into_iter();
        let cut = page.cut(volumes.filter(|v| page.reaches(v.id.uuid())));
        let next_token = next_token(&cut, |v| v.id);
        let here = self.here()?;
        let entry = |v: std::sync::Arc<pool::VolumeRecord>| Entry {
            volume: Some(answer::volume(&v, &here)),
            status: self.config.attach.then(|| VolumeStatus {
                published_node_ids: answer::nodes(&v),
            }),
        };
        Ok(csi::ListVolumesResponse {
            entries: cut.0.into_iter().map(entry).collect(),
            next_token,
        })
    }

    /// ListSnapshots, of a volume, of one ID, or of both. What is not found is not listed.
    pub fn list_snapshots(
        &self,
        req: csi::ListSnapshotsRequest,
    ) -> Result<csi::ListSnapshotsResponse> {
        use csi::list_snapshots_response::Entry;
        let page = Page::read(req.max_entries, &req.starting_token, SnapshotId::uuid)?;
        let found = self.snapshots_matching(&req.snapshot_id, &req.source_volume_id)?;
        let cut = page.cut(found.into_iter().filter(|s| page.reaches(s.id.uuid())));
        let next_token = next_token(&cut, |s| s.id);
        let here = self.here()?;
        let entry = |s: std::sync::Arc<pool::SnapshotRecord>| Entry {
            snapshot: Some(answer::snapshot(&s, &here)),
        };
        Ok(csi::ListSnapshotsResponse {
            entries: cut.0.into_iter().map(entry).collect(),
            next_token,
        })
    }

    fn snapshots_matching(
        &self,
        id: &str,
        source: &str,
    ) -> Result<Vec<std::sync::Arc<pool::SnapshotRecord>>> {
        let mut found = match id {
            "" => self.pools.snapshots()?,
            id => match id.parse() {
                Err(NotAnId) => Vec::new(),
                Ok(id) => unless_elsewhere(self.pools.snapshot(&id))?
                    .into_iter()
                    .collect(),
            },
        };
        if !source.is_empty() {
            match source.parse() {
                Err(NotAnId) => found.clear(),
                Ok(VolumeHandle::Id(id)) => found.retain(|s| s.source == id),
                Ok(inline) => {
                    let volume = unless_elsewhere(self.pools.volume(&inline))?;
                    found.retain(|s| volume.as_ref().is_some_and(|v| v.id == s.source));
                }
            }
        }
        Ok(found)
    }
}

/// What is found here; what is gone, or on another node, is not.
fn unless_elsewhere<T>(found: pool::Result<T>) -> Result<Option<T>> {
    match found {
        Err(pool::Error::ForeignPool(_)) => Ok(None),
        found => lookup::unless_gone(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::PoolId;

    #[test]
    fn pages_are_read() {
        let id = VolumeId::generate(PoolId::generate());
        let read = |max, token: &str| Page::read(max, token, VolumeId::uuid);
        let page = |after, max| Page { after, max };
        assert_eq!(read(0, "").unwrap(), page(None, usize::MAX));
        assert_eq!(read(5, "").unwrap(), page(None, 5));
        assert_eq!(read(5, &id.to_string()).unwrap(), page(Some(id.uuid()), 5));
        for token in ["0", "-1", "invalid-token", "\0", &format!("{id} ")] {
            assert!(
                matches!(read(1, token), Err(Error::BadToken(_))),
                "{token:?}"
            );
        }
        for max in [-1, i32::MIN] {
            assert!(matches!(read(max, ""), Err(Error::Invalid(_))), "{max}");
        }
    }

    #[test]
    fn pages_cover_a_list_once() {
        let pool = PoolId::generate();
        let ids: Vec<VolumeId> = (0..7).map(|_| VolumeId::generate(pool)).collect();
        for max in 1..9 {
            let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
            loop {
                let page = Page::read(max, &token, VolumeId::uuid).unwrap();
                let rest = ids.iter().copied().filter(|id| page.reaches(id.uuid()));
                let cut = page.cut(rest);
                assert!(cut.0.len() <= max as usize);
                token = next_token(&cut, |id| *id);
                seen.extend(cut.0);
                pages += 1;
                if token.is_empty() {
                    break;
                }
            }
            assert_eq!(seen, ids, "{max} a page");
            assert_eq!(pages, 7_usize.div_ceil(max as usize), "{max} a page");
        }
    }

    #[test]
    fn a_token_outlives_its_entry() {
        let pool = PoolId::generate();
        let ids: Vec<VolumeId> = (0..4).map(|_| VolumeId::generate(pool)).collect();
        let token = ids[1].to_string();
        let page = Page::read(0, &token, VolumeId::uuid).unwrap();
        let left = [ids[0], ids[2], ids[3]];
        let (rest, more) = page.cut(left.into_iter().filter(|id| page.reaches(id.uuid())));
        assert_eq!((rest.as_slice(), more), (&ids[2..], false));
    }
}
