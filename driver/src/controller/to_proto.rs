//! Converts records to protocol messages. Pure.

use std::collections::{BTreeMap, BTreeSet};

use hostloop_controllers::api::constants::{REACH, REACH_KERNEL};
use hostloop_proto::csi;
use hostloop_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use prost_types::Timestamp;

use super::accessibility::{accessible, of_kernel};
use crate::csi::topology::Segments;
use crate::csi::{capacity_range, int64};
use crate::storage::{GroupRecord, Reach, SnapshotRecord, Source, VolumeRecord};

/// The ID under which callers know a volume: kubelet's handle for an inline volume.
pub(super) fn volume_id(record: &VolumeRecord) -> String {
    record
        .inline
        .as_deref()
        .map_or_else(|| record.id.to_string(), str::to_owned)
}

/// Converts a volume. Its context is empty: the record has all data that the node needs. That of a
/// shared volume says so to the controllers, and it is accessible from the `nodes` of this kernel.
pub(super) fn volume(
    record: &VolumeRecord,
    ours: &Segments,
    nodes: &BTreeSet<String>,
) -> csi::Volume {
    let (volume_context, accessible_topology) = match record.reach {
        Reach::Node => (BTreeMap::new(), accessible(ours)),
        Reach::Kernel => (
            BTreeMap::from([(REACH.to_owned(), REACH_KERNEL.to_owned())]),
            of_kernel(ours, nodes),
        ),
    };
    csi::Volume {
        capacity_bytes: int64(record.capacity_bytes),
        volume_id: volume_id(record),
        volume_context,
        content_source: record.source.as_deref().map(source),
        accessible_topology,
    }
}

fn source(source: &Source) -> csi::VolumeContentSource {
    let r#type = match source {
        Source::Snapshot(id) => Type::Snapshot(SnapshotSource {
            snapshot_id: id.to_string(),
        }),
        Source::Volume(id) => Type::Volume(VolumeSource {
            volume_id: id.to_string(),
        }),
    };
    csi::VolumeContentSource {
        r#type: Some(r#type),
    }
}

/// The nodes a volume is published to.
pub(super) fn nodes(record: &VolumeRecord) -> Vec<String> {
    record.publications.keys().cloned().collect()
}

/// Converts a snapshot. It is always ready, because the driver answers once a snapshot is complete.
pub(super) fn snapshot(record: &SnapshotRecord, ours: &Segments) -> csi::Snapshot {
    csi::Snapshot {
        size_bytes: int64(capacity_range::restore_bytes(record)),
        snapshot_id: record.id.to_string(),
        source_volume_id: record.source.to_string(),
        creation_time: Some(timestamp(record.created_ns)),
        ready_to_use: true,
        group_snapshot_id: record.group.map(|id| id.to_string()).unwrap_or_default(),
        accessible_topology: accessible(ours),
    }
}

/// Converts a group with its snapshots.
pub(super) fn group(
    record: &GroupRecord,
    snapshots: Vec<csi::Snapshot>,
) -> csi::VolumeGroupSnapshot {
    csi::VolumeGroupSnapshot {
        group_snapshot_id: record.id.to_string(),
        snapshots,
        creation_time: Some(timestamp(record.created_ns)),
        ready_to_use: true,
    }
}

fn timestamp(ns: u64) -> Timestamp {
    const SECOND: u64 = 1_000_000_000;
    Timestamp {
        seconds: int64(ns / SECOND),
        nanos: (ns % SECOND) as i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_nanoseconds() {
        let time = timestamp(1_700_000_000_123_456_789);
        assert_eq!((time.seconds, time.nanos), (1_700_000_000, 123_456_789));
    }
}
