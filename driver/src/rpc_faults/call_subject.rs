//! What rules can compare of a request.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_content_source::Type;

use crate::record::{CLAIM, Parameters, namespace_of};

/// The parameters with the names of a VolumeSnapshot and a VolumeGroupSnapshot.
const SNAPSHOTS: [&str; 2] = [
    "csi.storage.k8s.io/volumesnapshot/name",
    "csi.storage.k8s.io/volumegroupsnapshot/name",
];

/// What a call is about. Empty text is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallSubject<'r> {
    /// IDs and names of volumes, snapshots and groups, the call's own first.
    pub objects: Vec<&'r str>,
    /// The name of the claim.
    pub claim: &'r str,
    /// The namespace of the claim, pod, snapshot or group.
    pub namespace: &'r str,
    /// The ID of the node in the request.
    pub node: &'r str,
}

impl<'r> CallSubject<'r> {
    /// The object that the call is about; empty if it has none.
    pub fn about(&self) -> &'r str {
        self.objects.first().copied().unwrap_or_default()
    }

    /// Adds what parameters or a context say, unless it is known.
    pub fn add_parameters(&mut self, parameters: &'r Parameters) {
        if self.claim.is_empty() {
            self.claim = parameters.get(CLAIM).map_or("", String::as_str);
        }
        if self.namespace.is_empty() {
            self.namespace = namespace_of(parameters);
        }
        let names = SNAPSHOTS.iter().filter_map(|key| parameters.get(*key));
        self.objects.extend(names.map(String::as_str));
    }
}

/// A request that rules can be compared with.
pub trait FaultSubject {
    /// What the call is about; nothing by default.
    fn subject(&self) -> CallSubject<'_> {
        CallSubject::default()
    }
}

/// One ID or name, or several.
trait Objects {
    fn add_to<'r>(&'r self, objects: &mut Vec<&'r str>);
}

impl Objects for String {
    fn add_to<'r>(&'r self, objects: &mut Vec<&'r str>) {
        if !self.is_empty() {
            objects.push(self);
        }
    }
}

impl Objects for Vec<String> {
    fn add_to<'r>(&'r self, objects: &mut Vec<&'r str>) {
        objects.extend(self.iter().map(String::as_str));
    }
}

impl Objects for Option<csi::VolumeContentSource> {
    fn add_to<'r>(&'r self, objects: &mut Vec<&'r str>) {
        let source = self.as_ref().and_then(|source| source.r#type.as_ref());
        objects.extend(source.map(|source| match source {
            Type::Snapshot(snapshot) => snapshot.snapshot_id.as_str(),
            Type::Volume(volume) => volume.volume_id.as_str(),
        }));
    }
}

/// Implements [`FaultSubject`]: a row for each request, with its fields of IDs and names, of
/// parameters, and of the node.
macro_rules! subjects {
    ($($request:ident [$($object:ident)*] $(in [$($map:ident)+])? $(on $node:ident)?;)+) => {
        $(impl FaultSubject for csi::$request {
            fn subject(&self) -> CallSubject<'_> {
                let mut subject = CallSubject::default();
                $(self.$object.add_to(&mut subject.objects);)*
                $($(subject.add_parameters(&self.$map);)+)?
                $(subject.node = &self.$node;)?
                subject
            }
        })+
    };
}

subjects! {
    CreateVolumeRequest [name volume_content_source] in [parameters];
    DeleteVolumeRequest [volume_id];
    ControllerPublishVolumeRequest [volume_id] in [volume_context] on node_id;
    ControllerUnpublishVolumeRequest [volume_id] on node_id;
    ValidateVolumeCapabilitiesRequest [volume_id] in [volume_context parameters];
    ControllerGetVolumeHealthRequest [volume_id];
    CreateSnapshotRequest [name source_volume_id] in [parameters];
    DeleteSnapshotRequest [snapshot_id];
    ListSnapshotsRequest [snapshot_id source_volume_id];
    GetSnapshotRequest [snapshot_id];
    ControllerExpandVolumeRequest [volume_id];
    ControllerGetVolumeRequest [volume_id];
    ControllerModifyVolumeRequest [volume_id];
    CreateVolumeGroupSnapshotRequest [name source_volume_ids] in [parameters];
    DeleteVolumeGroupSnapshotRequest [group_snapshot_id snapshot_ids];
    GetVolumeGroupSnapshotRequest [group_snapshot_id snapshot_ids];
    GetMetadataAllocatedRequest [snapshot_id];
    GetMetadataDeltaRequest [target_snapshot_id base_snapshot_id];
    NodeStageVolumeRequest [volume_id] in [volume_context];
    NodeUnstageVolumeRequest [volume_id];
    NodePublishVolumeRequest [volume_id] in [volume_context];
    NodeUnpublishVolumeRequest [volume_id];
    NodeGetVolumeStatsRequest [volume_id];
    NodeGetVolumeHealthRequest [volume_id];
    NodeExpandVolumeRequest [volume_id];
}

macro_rules! without_subject {
    ($($request:ident)+) => {
        $(impl FaultSubject for csi::$request {})+
    };
}

without_subject! {
    GetPluginInfoRequest GetPluginCapabilitiesRequest ProbeRequest
    ListVolumesRequest ControllerListVolumeHealthRequest GetCapacityRequest
    ControllerGetCapabilitiesRequest GroupControllerGetCapabilitiesRequest
    NodeGetStorageHealthRequest NodeGetCapabilitiesRequest NodeGetInfoRequest
}

#[cfg(test)]
mod tests {
    use hostloop_proto::csi::volume_content_source::SnapshotSource;

    use super::*;
    use crate::testkit::pairs;

    #[test]
    fn subjects_of_requests() {
        let create = csi::CreateVolumeRequest {
            name: "pvc-1".to_owned(),
            parameters: pairs(&format!(
                "{CLAIM}=data-0 csi.storage.k8s.io/pvc/namespace=shop"
            )),
            volume_content_source: Some(csi::VolumeContentSource {
                r#type: Some(Type::Snapshot(SnapshotSource {
                    snapshot_id: "snap-1".to_owned(),
                })),
            }),
            ..Default::default()
        };
        let expected = CallSubject {
            objects: vec!["pvc-1", "snap-1"],
            claim: "data-0",
            namespace: "shop",
            node: "",
        };
        assert_eq!(create.subject(), expected);

        let snapshot = csi::CreateSnapshotRequest {
            name: "snapshot-1".to_owned(),
            source_volume_id: "v1".to_owned(),
            parameters: pairs(
                "csi.storage.k8s.io/volumesnapshot/name=nightly \
                 csi.storage.k8s.io/volumesnapshot/namespace=shop",
            ),
            ..Default::default()
        };
        let subject = snapshot.subject();
        assert_eq!(subject.objects, ["snapshot-1", "v1", "nightly"]);
        assert_eq!((subject.claim, subject.namespace), ("", "shop"));

        let publish = csi::ControllerPublishVolumeRequest {
            volume_id: "v1".to_owned(),
            node_id: "n1".to_owned(),
            ..Default::default()
        };
        let subject = publish.subject();
        assert_eq!((subject.about(), subject.node), ("v1", "n1"));
        assert_eq!(csi::ProbeRequest::default().subject().about(), "");
    }
}
