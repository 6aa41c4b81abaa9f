//! The rows of snapshots.

use std::collections::{BTreeMap, BTreeSet};

use hostloop_api_objects::labels::MANAGED_BY;
use hostloop_api_objects::snapshots::{VolumeSnapshot, VolumeSnapshotContent};
use hostloop_report::quantity;
use hostloop_report::status::SnapshotReport;
use kube::ResourceExt;

use super::{ClusterFacts, ReportedObjects};
use crate::status::report::SnapshotRow;
use crate::verdict::snapshot_stuck;
use crate::volume_objects::{content_name, created_ns, ns};

impl ClusterFacts<'_> {
    pub(super) fn snapshots(&self, found: &ReportedObjects<'_>) -> Vec<SnapshotRow> {
        let objects = self.objects;
        let mut rows = Vec::new();
        let mut seen = BTreeSet::new();
        let contents: BTreeMap<String, &VolumeSnapshotContent> = objects
            .contents
            .iter()
            .map(|content| (content.name_any(), content))
            .collect();
        for snapshot in &objects.snapshots {
            let content = content_name(snapshot).and_then(|name| contents.get(name).copied());
            if !self.has_snapshot(snapshot, content) {
                continue;
            }
            let row = self.snapshot_row(Some(snapshot), content, found);
            seen.extend(row.content.clone());
            seen.extend(row.handle.clone());
            rows.push(row);
        }
        if self.namespace.is_some() {
            return rows;
        }
        for (name, content) in contents {
            if content.spec.driver == self.driver && seen.insert(name) {
                let row = self.snapshot_row(None, Some(content), found);
                seen.extend(row.handle.clone());
                rows.push(row);
            }
        }
        // A cut of an exploration has no VolumeSnapshot by design, and there may be a thousand.
        let rest = found
            .snapshots
            .iter()
            .filter(|(id, (_, snapshot))| !seen.contains(**id) && snapshot.cut.is_none());
        rows.extend(rest.map(|(_, (node, snapshot))| {
            let row = SnapshotRow {
                node: Some((*node).to_owned()),
                ..SnapshotRow::default()
            };
            on_disk(row, snapshot)
        }));
        rows
    }

    /// True if the driver has the snapshot, or is to take it.
    fn has_snapshot(
        &self,
        snapshot: &VolumeSnapshot,
        content: Option<&VolumeSnapshotContent>,
    ) -> bool {
        if let Some(content) = content {
            return content.spec.driver == self.driver;
        }
        let source = snapshot.spec.source.persistent_volume_claim_name.as_deref();
        let claim = self.objects.claims.iter().find(|claim| {
            claim.metadata.name.as_deref() == source && claim.namespace() == snapshot.namespace()
        });
        claim.is_some_and(|claim| self.objects.is_of_driver(claim, self.driver))
    }

    fn snapshot_row(
        &self,
        snapshot: Option<&VolumeSnapshot>,
        content: Option<&VolumeSnapshotContent>,
        found: &ReportedObjects<'_>,
    ) -> SnapshotRow {
        let status = snapshot.and_then(|snapshot| snapshot.status.as_ref());
        let content_status = content.and_then(|content| content.status.as_ref());
        let handle = content_status.and_then(|status| status.snapshot_handle.clone());
        let handle = handle.or_else(|| content?.spec.source.snapshot_handle.clone());
        let claim =
            snapshot.and_then(|snapshot| snapshot.spec.source.persistent_volume_claim_name.clone());
        let asked = snapshot.map(created_ns).or(content.map(created_ns));
        let taken = status
            .and_then(|status| status.creation_time.as_ref())
            .map(ns);
        let size = status.and_then(|status| quantity::bytes(status.restore_size.as_deref()?));
        let size = size.or(content_status.and_then(|status| status.restore_size));
        let row = SnapshotRow {
            namespace: snapshot.and_then(ResourceExt::namespace),
            name: snapshot.map(ResourceExt::name_any),
            uid: snapshot
                .and_then(ResourceExt::uid)
                .or_else(|| content?.spec.volume_snapshot_ref.uid.clone()),
            deleting: snapshot.is_some_and(|s| s.metadata.deletion_timestamp.is_some()),
            ready: status
                .and_then(|status| status.ready_to_use)
                .or(content_status.and_then(|status| status.ready_to_use)),
            stuck: snapshot_stuck(snapshot, content, &self.objects.events, self.now_ns),
            source: claim.or_else(|| content?.spec.source.volume_handle.clone()),
            node: content.and_then(|content| content.labels().get(MANAGED_BY).cloned()),
            size_bytes: size.and_then(|size| u64::try_from(size).ok()),
            content: content.map(ResourceExt::name_any),
            group: status.and_then(|status| status.volume_group_snapshot_name.clone()),
            created_ns: taken.or(asked).unwrap_or_default(),
            handle,
            ..SnapshotRow::default()
        };
        match row
            .handle
            .as_deref()
            .and_then(|handle| found.snapshots.get(handle))
        {
            Some((node, snapshot)) => on_disk(
                SnapshotRow {
                    node: Some((*node).to_owned()),
                    ..row
                },
                snapshot,
            ),
            None => row,
        }
    }
}

/// Adds what the node reports about a snapshot.
fn on_disk(row: SnapshotRow, snapshot: &SnapshotReport) -> SnapshotRow {
    SnapshotRow {
        pool: Some(snapshot.pool.clone()),
        size_bytes: Some(snapshot.size_bytes),
        used_bytes: snapshot.allocated_bytes,
        source: row.source.or_else(|| Some(snapshot.source.clone())),
        handle: Some(snapshot.id.clone()),
        group: row.group.or_else(|| snapshot.group.clone()),
        consistency: snapshot.consistency.clone(),
        created_ns: match row.created_ns {
            0 => snapshot.created_ns,
            created => created,
        },
        ..row
    }
}
