//! The table of all CSI RPCs.

/// Passes each RPC to a macro: its path, and the type of its request.
macro_rules! each_csi_call {
    ($then:ident) => {
        $then! {
            "/csi.v1.Identity/GetPluginInfo" GetPluginInfoRequest;
            "/csi.v1.Identity/GetPluginCapabilities" GetPluginCapabilitiesRequest;
            "/csi.v1.Identity/Probe" ProbeRequest;
            "/csi.v1.Controller/CreateVolume" CreateVolumeRequest;
            "/csi.v1.Controller/DeleteVolume" DeleteVolumeRequest;
            "/csi.v1.Controller/ControllerPublishVolume" ControllerPublishVolumeRequest;
            "/csi.v1.Controller/ControllerUnpublishVolume" ControllerUnpublishVolumeRequest;
            "/csi.v1.Controller/ValidateVolumeCapabilities" ValidateVolumeCapabilitiesRequest;
            "/csi.v1.Controller/ListVolumes" ListVolumesRequest;
            "/csi.v1.Controller/ControllerListVolumeHealth" ControllerListVolumeHealthRequest;
            "/csi.v1.Controller/ControllerGetVolumeHealth" ControllerGetVolumeHealthRequest;
            "/csi.v1.Controller/GetCapacity" GetCapacityRequest;
            "/csi.v1.Controller/ControllerGetCapabilities" ControllerGetCapabilitiesRequest;
            "/csi.v1.Controller/CreateSnapshot" CreateSnapshotRequest;
            "/csi.v1.Controller/DeleteSnapshot" DeleteSnapshotRequest;
            "/csi.v1.Controller/ListSnapshots" ListSnapshotsRequest;
            "/csi.v1.Controller/GetSnapshot" GetSnapshotRequest;
            "/csi.v1.Controller/ControllerExpandVolume" ControllerExpandVolumeRequest;
            "/csi.v1.Controller/ControllerGetVolume" ControllerGetVolumeRequest;
            "/csi.v1.Controller/ControllerModifyVolume" ControllerModifyVolumeRequest;
            "/csi.v1.GroupController/GroupControllerGetCapabilities"
                GroupControllerGetCapabilitiesRequest;
            "/csi.v1.GroupController/CreateVolumeGroupSnapshot" CreateVolumeGroupSnapshotRequest;
            "/csi.v1.GroupController/DeleteVolumeGroupSnapshot" DeleteVolumeGroupSnapshotRequest;
            "/csi.v1.GroupController/GetVolumeGroupSnapshot" GetVolumeGroupSnapshotRequest;
            "/csi.v1.SnapshotMetadata/GetMetadataAllocated" GetMetadataAllocatedRequest;
            "/csi.v1.SnapshotMetadata/GetMetadataDelta" GetMetadataDeltaRequest;
            "/csi.v1.Node/NodeStageVolume" NodeStageVolumeRequest;
            "/csi.v1.Node/NodeUnstageVolume" NodeUnstageVolumeRequest;
            "/csi.v1.Node/NodePublishVolume" NodePublishVolumeRequest;
            "/csi.v1.Node/NodeUnpublishVolume" NodeUnpublishVolumeRequest;
            "/csi.v1.Node/NodeGetVolumeStats" NodeGetVolumeStatsRequest;
            "/csi.v1.Node/NodeGetVolumeHealth" NodeGetVolumeHealthRequest;
            "/csi.v1.Node/NodeGetStorageHealth" NodeGetStorageHealthRequest;
            "/csi.v1.Node/NodeExpandVolume" NodeExpandVolumeRequest;
            "/csi.v1.Node/NodeGetCapabilities" NodeGetCapabilitiesRequest;
            "/csi.v1.Node/NodeGetInfo" NodeGetInfoRequest;
        }
    };
}

pub(crate) use each_csi_call;

macro_rules! names {
    ($($path:literal $request:ident;)+) => {
        /// The paths of all RPCs.
        const PATHS: &[&str] = &[$($path),+];
    };
}

each_csi_call!(names);

/// The last word of a method's path, such as `CreateVolume`.
pub(crate) fn short_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// True if CSI has an RPC of this short name.
pub(super) fn is_known(name: &str) -> bool {
    PATHS.iter().any(|path| short_name(path) == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost::Message;

    use super::*;

    macro_rules! requests {
        ($($path:literal $request:ident;)+) => {
            const REQUESTS: &[(&str, &str)] = &[$(($path, stringify!($request))),+];
        };
    }
    each_csi_call!(requests);

    #[test]
    fn the_table_has_every_call_of_the_specification() {
        let files = prost_types::FileDescriptorSet::decode(hostloop_proto::FILE_DESCRIPTOR_SET);
        let mut expected = BTreeMap::new();
        for file in files.unwrap().file {
            if file.package() != "csi.v1" {
                continue;
            }
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/csi.v1.{}/{}", service.name(), method.name());
                    let request = method.input_type().trim_start_matches(".csi.v1.");
                    expected.insert(path, request.to_owned());
                }
            }
        }
        let listed = REQUESTS.iter();
        let listed = listed.map(|(path, request)| ((*path).to_owned(), (*request).to_owned()));
        assert_eq!(listed.collect::<BTreeMap<_, _>>(), expected);
        assert_eq!(REQUESTS.len(), PATHS.len());
    }

    #[test]
    fn names_of_calls() {
        assert!(is_known("CreateVolume"));
        assert!(!is_known("CreateVolumes"));
        assert!(!is_known("/csi.v1.Controller/CreateVolume"));
        assert_eq!(short_name("/csi.v1.Node/NodeGetInfo"), "NodeGetInfo");
    }
}
