//! ListVolumes and ListSnapshots, and paging.
//!
//! Lists are in the order of creation, which is the order of the IDs. A token is the last ID of the
//! previous page, so it stays valid when objects are created or deleted between two pages.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use hostloop_proto::csi;
use prost::Message;
use uuid::Uuid;

use super::{Controller, Error, Result, lookup, to_proto};
use crate::csi::validate::invalid;
use crate::record::id::NotAnId;
use crate::storage::{self, SnapshotId, SnapshotRecord, VolumeHandle, VolumeId};

/// Maximum size of a page's entries in bytes. By default, gRPC clients refuse messages over 4 MiB,
/// and a client that can't receive a page can't get the next page either.
const PAGE_BYTES: usize = 3 << 20;

/// The requested part of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// The page starts after this ID.
    after: Option<Uuid>,
    /// Maximum number of entries.
    max: usize,
}

impl Page {
    /// Reads `max_entries` and `starting_token`, which is an ID of type `T`.
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
            // In CSI, 0 means no maximum.
            max: if max == 0 { usize::MAX } else { max },
        })
    }

    /// True if an object is on this page or on a later one.
    pub(super) fn reaches(&self, uuid: Uuid) -> bool {
        self.after.is_none_or(|after| uuid > after)
    }

    /// The entries of this page, from an ordered list, and the token of the next page (empty at the
    /// end). Even without a maximum, a page has no more entries than fit into a message.
    pub(super) fn fill<I: ToString, M: Message>(
        &self,
        entries: impl IntoIterator<Item = (I, M)>,
    ) -> (Vec<M>, String) {
        /// Room for the field tag and the length before each entry, in bytes.
        const AROUND: usize = 8;
        let (mut page, mut bytes, mut last) = (Vec::new(), 0, None);
        for (id, entry) in entries {
            bytes += entry.encoded_len() + AROUND;
            let full = page.len() == self.max || bytes > PAGE_BYTES;
            if let (true, Some(last)) = (full, &last) {
                return (page, I::to_string(last));
            }
            page.push(entry);
            last = Some(id);
        }
        (page, String::new())
    }
}

impl Controller {
    /// ListVolumes. It leaves out the volumes of a missing pool, because their records can't be
    /// read, and lists all others. An orchestrator that misses a volume must ask for it by its ID,
    /// which answers UNAVAILABLE.
    pub fn list_volumes(&self, req: csi::ListVolumesRequest) -> Result<csi::ListVolumesResponse> {
        use csi::list_volumes_response::{Entry, VolumeStatus};
        let page = Page::read(req.max_entries, &req.starting_token, VolumeId::uuid)?;
        let volumes = self.pools.volumes();
        let here = self.here()?;
        let nodes = if volumes.iter().any(|v| v.is_shared()) {
            self.kernel_nodes()
        } else {
            BTreeSet::new()
        };
        let rest = volumes.into_iter().filter(|v| page.reaches(v.id.uuid()));
        let (entries, next_token) = page.fill(rest.map(|v| {
            let entry = Entry {
                volume: Some(to_proto::volume(&v, &here, &nodes)),
                status: self.config.attach.then(|| VolumeStatus {
                    published_node_ids: to_proto::nodes(&v),
                }),
            };
            (v.id, entry)
        }));
        Ok(csi::ListVolumesResponse {
            entries,
            next_token,
        })
    }

    /// ListSnapshots, by volume, by ID, or by both. An unknown ID gives an empty list. UNAVAILABLE
    /// for a volume or an ID of a missing pool; the unfiltered list leaves out that pool's
    /// snapshots.
    pub fn list_snapshots(
        &self,
        req: csi::ListSnapshotsRequest,
    ) -> Result<csi::ListSnapshotsResponse> {
        use csi::list_snapshots_response::Entry;
        let page = Page::read(req.max_entries, &req.starting_token, SnapshotId::uuid)?;
        let found = self.snapshots_matching(&req.snapshot_id, &req.source_volume_id)?;
        let here = self.here()?;
        let rest = found.into_iter().filter(|s| page.reaches(s.id.uuid()));
        let (entries, next_token) = page.fill(rest.map(|s| {
            let entry = Entry {
                snapshot: Some(to_proto::snapshot(&s, &here)),
            };
            (s.id, entry)
        }));
        Ok(csi::ListSnapshotsResponse {
            entries,
            next_token,
        })
    }

    fn snapshots_matching(&self, id: &str, source: &str) -> Result<Vec<Arc<SnapshotRecord>>> {
        let mut found = match id {
            "" => self.pools.snapshots(),
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
                Ok(VolumeHandle::Id(id)) => {
                    // The snapshots of a volume are in its pool and can't be listed while that pool
                    // is missing.
                    unless_elsewhere(self.pools.with_id(id.pool()))?;
                    found.retain(|s| s.source == id);
                }
                Ok(inline) => {
                    let volume = unless_elsewhere(self.pools.volume(&inline))?;
                    found.retain(|s| volume.as_ref().is_some_and(|v| v.id == s.source));
                }
            }
        }
        Ok(found)
    }
}

/// Maps a deleted object, or one on another node, to `None`.
fn unless_elsewhere<T>(found: storage::Result<T>) -> Result<Option<T>> {
    match found {
        Err(storage::Error::ForeignPool(_)) => Ok(None),
        found => lookup::unless_gone(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::tests::ids;
    use crate::storage::PoolId;

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

    /// A list entry of about this many bytes.
    fn entry(id: VolumeId, bytes: usize) -> (VolumeId, csi::Volume) {
        let volume = csi::Volume {
            volume_id: id.to_string(),
            volume_context: [("x".to_owned(), "x".repeat(bytes))].into(),
            ..csi::Volume::default()
        };
        (id, volume)
    }

    /// The IDs on each page of a list.
    fn pages(ids: &[VolumeId], max: i32, bytes: usize) -> Vec<Vec<String>> {
        let (mut pages, mut token) = (Vec::new(), String::new());
        loop {
            let page = Page::read(max, &token, VolumeId::uuid).unwrap();
            let rest = ids.iter().filter(|id| page.reaches(id.uuid()));
            let (entries, next) = page.fill(rest.map(|id| entry(*id, bytes)));
            let response = csi::ListVolumesResponse {
                entries: (entries.iter().cloned())
                    .map(|volume| csi::list_volumes_response::Entry {
                        volume: Some(volume),
                        status: None,
                    })
                    .collect(),
                next_token: next.clone(),
            };
            assert!(entries.len() == 1 || response.encoded_len() < 4 << 20);
            pages.push(entries.into_iter().map(|v| v.volume_id).collect());
            if next.is_empty() {
                return pages;
            }
            token = next;
        }
    }

    #[test]
    fn pages_cover_a_list_once() {
        let ids = ids(7);
        let all: Vec<String> = ids.iter().map(ToString::to_string).collect();
        for max in 1..9 {
            let pages = pages(&ids, max, 10);
            assert!(pages.iter().all(|page| page.len() <= max as usize));
            assert_eq!(pages.concat(), all, "{max} a page");
            assert_eq!(pages.len(), 7_usize.div_ceil(max as usize), "{max} a page");
        }
    }

    #[test]
    fn a_page_fits_into_a_message_whatever_is_asked_for() {
        let ids = ids(100);
        let all: Vec<String> = ids.iter().map(ToString::to_string).collect();
        for (max, bytes, number) in [
            (0, 10, 1),
            (0, 100 << 10, 4),
            (100, 100 << 10, 4),
            (10, 100 << 10, 10),
            // An entry larger than a page is still listed.
            (0, 5 << 20, 100),
        ] {
            let pages = pages(&ids, max, bytes);
            assert_eq!(pages.concat(), all, "{max} of {bytes}");
            assert_eq!(pages.len(), number, "{max} of {bytes}");
        }
    }
}
